"""What waiting pods of a lender need: where room must not be lent again until they run."""

from __future__ import annotations

import numpy as np

from multisched.model.objects import CPU, Pod
from multisched.plugins.loans.needs import Needs
from multisched.testing.builders import make_pod

ROWS = np.arange(3)


def pod(name: str, cpu_milli: int = 1_000) -> Pod:
    return make_pod(name, cpu_milli=cpu_milli)


def kept(needs: Needs) -> list[int]:
    found: list[int] = needs.at(CPU, ROWS).tolist()
    return found


def test_member_that_takes_the_row_of_another_leaves_it_its_own() -> None:
    needs, small = Needs(), pod("small", 500)
    members = [pod("a"), small, pod("b")]
    for one, row in zip(members, (0, 1, 1), strict=True):
        needs.add(one, row, 5.0, "default/gang")
    assert kept(needs) == [1_000, 1_500, 0]
    needs.placed(members[0].uid, 1)
    assert kept(needs) == [1_000, 500, 0], "the equal member needs the row that is free"
    moved = needs.of(members[2].uid)
    assert moved is not None
    assert (moved.row, moved.since_s, moved.gang) == (0, 5.0, "default/gang")
    needs.placed(members[2].uid, 0)
    needs.placed(small.uid, 1)
    assert (kept(needs), bool(needs)) == ([0, 0, 0], False)


def test_need_of_a_single_pod_or_of_another_gang_stays_where_it_is() -> None:
    needs = Needs()
    single, first, other = pod("single"), pod("first"), pod("other")
    needs.add(single, 0, 0.0)
    needs.add(first, 1, 0.0, "default/first")
    needs.add(other, 2, 0.0, "default/other")
    needs.placed(first.uid, 2)
    assert kept(needs) == [1_000, 0, 1_000]
    needs.placed(single.uid, 2)
    assert kept(needs) == [0, 0, 1_000]
    needs.placed(other.uid, None)
    assert not needs
