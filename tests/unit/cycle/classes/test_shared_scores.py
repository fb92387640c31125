"""Scores that classes share, and rows by pod_class."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multisched.cycle.classes import shared_scores
from multisched.cycle.classes.shared_scores import TOPS_MAX, SharedScores
from multisched.cycle.classes.topology_groups import RowGroups
from multisched.cycle.results import Placed
from multisched.framework.dependency import Dependency
from multisched.framework.normalize import MAX_SCORE, ByLargest
from multisched.testing.builders import make_node, make_pod
from tests.unit.cycle.cycle_kit import Domain, FilterBy

rows = st.lists(st.tuples(st.integers(0, 300), st.booleans()), min_size=1, max_size=3 * TOPS_MAX)


@given(rows, st.booleans())
def test_shared_scores_are_normalised_as_in_separate_classes(drawn: list[tuple[int, bool]], reverse: bool) -> None:
    raw, feasible = np.array([score for score, _ in drawn], np.int64), np.array([one for _, one in drawn])
    shared, rule = SharedScores(raw), ByLargest(reverse=reverse)
    for mask in (feasible, ~feasible, np.ones(len(raw), np.bool_)):
        largest = shared.largest(mask)

        assert largest == max(raw[mask].tolist(), default=0) or raw.max() == 0
        assert shared.normalized(rule, largest).tolist() == rule.apply(raw, largest).astype(np.uint8).tolist()


@given(st.lists(st.integers(-5, 105), min_size=1, max_size=50))
def test_raw_scores_are_shared_only_if_all_are_in_range(raw: list[int]) -> None:
    plain = SharedScores(np.array(raw, np.int64)).plain()

    assert (plain is not None) == all(0 <= score <= MAX_SCORE for score in raw)
    if plain is not None:
        assert plain.tolist() == raw


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=1, max_size=40))
def test_row_groups_return_their_rows_and_first_rows(drawn: list[tuple[int, bool]]) -> None:
    numbers = {value: number for number, value in enumerate(dict.fromkeys(value for value, _ in drawn))}
    of = np.array([numbers[value] for value, _ in drawn], np.intp)
    mask = np.array([one for _, one in drawn])
    firsts = np.array([of.tolist().index(number) for number in range(len(numbers))], np.intp)
    groups = RowGroups(of, firsts)

    present = set(of[mask].tolist())
    assert groups.firsts_among(mask).tolist() == sorted(int(np.flatnonzero(mask & (of == n))[0]) for n in present)
    wanted = np.array([number % 2 == 0 for number in range(groups.count)])
    if wanted.any():
        assert groups.rows_in(wanted).tolist() == [at for at, number in enumerate(of.tolist()) if wanted[number]]


@pytest.mark.parametrize(
    ("depends_on", "is_shared"), [(Dependency.NODE, True), (Dependency.NODES, True), (Dependency.ROW, False)]
)
def test_filter_result_is_shared_by_classes_with_equal_input(depends_on: Dependency, is_shared: bool) -> None:
    """Until a node changes."""
    by_team = FilterBy(
        "ByTeam", lambda pod, name: "", depends_on=depends_on, sign=lambda pod: pod.annotations.get("team")
    )
    domain = Domain(make_node("a"), make_node("b"), plugins=[by_team])

    def is_asked(name: str, *, cpu: int, team: str = "x") -> bool:
        by_team.asked.clear()
        assert isinstance(domain.schedule(make_pod(name, cpu_milli=cpu, annotations={"team": team})), Placed)
        return bool(by_team.asked)

    assert is_asked("first", cpu=100)
    assert is_asked("second", cpu=200) is not is_shared
    assert is_asked("of another team", cpu=200, team="y")
    domain.cache.set_node(make_node("b", labels={"new": "label"}, version=2))
    assert is_asked("third", cpu=300)
    assert is_asked("fourth", cpu=400) is not is_shared


def test_normalised_scores_are_cached_for_few_largest_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_scores, "FINALS_MAX", 2)
    shared, rule = SharedScores(np.array([1, 2, 4], np.int64)), ByLargest()
    first = shared.normalized(rule, 4)
    assert first.tolist() == [25, 50, 100]
    assert shared.normalized(rule, 8).tolist() == [12, 25, 50]
    assert shared.normalized(rule, 4) is first
    shared.normalized(rule, 16)
    assert shared.normalized(rule, 4) is not first
    assert shared.normalized(rule, 4).tolist() == first.tolist()
