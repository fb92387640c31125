"""What is remembered of whom a class of pods displaces, and when it is forgotten: row by row, or all of it."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from msgspec.structs import replace

from multisched.cycle.preemption import victim_cache
from multisched.cycle.preemption.label_set_matches import LabelSetMatches
from multisched.cycle.preemption.victim_cache import VictimCache
from multisched.framework.preemption import LabelSet
from multisched.framework.sensitivity import PodSensitivity
from multisched.framework.status import Status
from multisched.model.objects import Pod
from multisched.state import change_log
from multisched.state.node_table import NodeTable
from multisched.state.nominator import CHANGES_KEPT as NOMINATIONS_KEPT
from multisched.state.nominator import Nominator
from multisched.state.pods_by_priority import no_pause
from multisched.testing.builders import make_node, make_pod

FULL, SHUT = Status.unschedulable("full"), Status.unschedulable("shut")


class Known:
    """A memory that knows all rows of a table of four nodes."""

    def __init__(self) -> None:
        self.table, self.nominator = NodeTable(), Nominator()
        for number in range(4):
            self.table.set_node(make_node(f"n{number}"))
        self.standing = make_pod("standing", started_s=1.0)
        self.table.add_pod(3, self.standing)
        self.memory = VictimCache(2, 4)
        self.memory.renew(self.table, self.nominator)
        self.memory.known[:] = True
        for status in (FULL, SHUT):
            self.memory.number(status)

    def forgotten(self) -> list[int]:
        """Rows, since the last time it was asked."""
        self.memory.renew(self.table, self.nominator)
        found = np.flatnonzero(~self.memory.known).tolist()
        self.memory.known[:] = True
        return found


def test_unchanged_rows_stay_cached() -> None:
    known = Known()
    assert known.forgotten() == known.forgotten() == []
    assert known.memory.statuses == [FULL, SHUT]


def test_rows_with_changed_pods_or_nominations_are_dropped() -> None:
    known = Known()
    known.table.add_pod(1, make_pod("p"))
    assert known.forgotten() == [1]
    known.table.replace_pod(3, replace(known.standing, started_s=2.0))
    assert known.forgotten() == [3]
    known.nominator.nominate(make_pod("q"), "n2")
    assert known.forgotten() == [2]
    known.nominator.nominate(make_pod("q"), "n0")
    assert known.forgotten() == [0, 2]
    known.nominator.nominate(make_pod("q"), "nowhere")
    assert known.forgotten() == [0], "a node that is not there has no row"
    known.table.set_node(make_node("n1", cpu_milli=1, version=2))
    known.table.remove_pod(3, "uid-standing")
    known.nominator.nominate(make_pod("r"), "n2")
    assert known.forgotten() == [1, 2, 3]
    assert known.forgotten() == []
    assert known.memory.statuses == [FULL, SHUT]


def test_empty_victim_cache_drops_nothing() -> None:
    known = Known()
    fresh = VictimCache(2, 4)
    fresh.known[:] = True
    fresh.renew(known.table, known.nominator)
    assert fresh.known.all()


@pytest.mark.parametrize("what", ["pods", "start times", "nominations", "statuses"])
def test_all_rows_are_dropped_if_the_change_log_overflowed(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    known, row = Known(), 3
    match what:
        case "pods":
            for _ in range(change_log.CHANGES_KEPT + 1):
                known.table.row_log.note(row)
        case "start times":
            for _ in range(change_log.CHANGES_KEPT + 1):
                known.table.start_log.note(row)
        case "nominations":
            for _ in range(NOMINATIONS_KEPT + 1):
                known.nominator.nominate(make_pod("q"), "n3")
        case _:
            monkeypatch.setattr(victim_cache, "STATUSES_MAX", 1)
    assert known.forgotten() == [0, 1, 2, 3]
    assert known.memory.statuses == []
    assert known.memory.number(SHUT) == 0, "numbers begin anew with the statuses"
    assert known.forgotten() == []


def test_number_of_distinct_statuses_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(victim_cache, "STATUSES_MAX", 2)
    known = Known()
    assert known.forgotten() == []
    assert [known.memory.number(one) for one in (FULL, SHUT, Status.unschedulable("third"))] == [0, 1, 2]
    assert known.forgotten() == [0, 1, 2, 3]


def test_refusals_are_reported_for_rows_with_displaceable_pods() -> None:
    memory = Known().memory
    memory.has_displaceable[:] = [True, True, True, False]
    memory.refusal[:] = [1, -1, 1, 0]
    assert memory.report(np.arange(4)) == Counter({SHUT: 2})
    assert memory.report(np.array([0, 1, 3])) == Counter({SHUT: 1})
    memory.forget(None)
    assert memory.known.all()
    memory.forget(2)
    assert memory.known.tolist() == [True, True, False, True]


def test_changed_sensitivity_mark_evaluates_pods_again() -> None:
    """Each pod once as long as it depends on the same, and also those that were not there before."""
    asked: list[str] = []

    def sensitive_to(mark: str) -> PodSensitivity:
        def matters(other: Pod) -> bool:
            asked.append(other.name)
            return other.name == mark

        return PodSensitivity(mark, matters)

    matches = LabelSetMatches()
    sets = [LabelSet("default", {}, make_pod(name)) for name in "ab"]
    assert matches.of([sensitive_to("a")], sets, no_pause).tolist() == [True, False]
    assert matches.of([sensitive_to("a")], sets, no_pause).tolist() == [True, False]
    assert asked == ["a", "b"]
    assert matches.of([sensitive_to("b")], sets, no_pause).tolist() == [False, True]
    sets.append(LabelSet("default", {}, make_pod("c")))
    assert matches.of([sensitive_to("b")], sets, no_pause).tolist() == [False, True, False]
    assert asked == ["a", "b", "a", "b", "c"]
    assert matches.of([sensitive_to("b"), sensitive_to("c")], sets, no_pause).tolist() == [False, True, True]
    assert matches.of([sensitive_to("b"), sensitive_to("c")], sets[:1], no_pause).tolist() == [False]
