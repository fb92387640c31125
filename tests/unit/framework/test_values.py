"""Statuses, reasons, results, cycle state and normalisation: values that plugins are made of."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multisched.framework.cycle_state import CycleState, StateKey
from multisched.framework.events import Action, ClusterEvent, Resource
from multisched.framework.normalize import MAX_SCORE, ByLargest
from multisched.framework.points import PermitResult, PostFilterResult, PreFilterResult
from multisched.framework.reasons import REASON_CODES_MAX, ReasonTable
from multisched.framework.status import SKIP, SUCCESS, Code, Status
from multisched.model.object_kinds import ObjectKind


def test_codes_are_named_as_upstream() -> None:
    assert [code.value for code in Code] == [
        "Success",
        "Error",
        "Unschedulable",
        "UnschedulableAndUnresolvable",
        "Wait",
        "Skip",
        "Pending",
    ]


def test_rejection_codes_are_the_expected_ones() -> None:
    assert {code for code in Code if code.is_rejection} == {
        Code.UNSCHEDULABLE,
        Code.UNSCHEDULABLE_AND_UNRESOLVABLE,
        Code.PENDING,
    }


def test_status_has_plugin_and_reasons() -> None:
    status = Status.unschedulable("too small", "too far").by("Picky")
    assert (status.code, status.plugin, status.message) == (Code.UNSCHEDULABLE, "Picky", "too small, too far")
    assert status.by("Picky") is status
    assert not status.is_success
    assert SUCCESS.is_success
    assert Status.skip() is SKIP


def test_lone_surrogate_in_a_reason_becomes_a_question_mark() -> None:
    """As a path has it that the system names in other bytes: nothing that speaks UTF-8 takes it on."""
    told = ("plain", "naïve 🚀", "path /srv/\udcff is gone")
    found = "plain", "naïve 🚀", "path /srv/? is gone"
    reasons = ReasonTable("Picky")
    assert Status.error(*told).reasons == found
    assert Status.error(*told).by("Picky").reasons == found
    assert reasons.status(reasons.code(Code.UNSCHEDULABLE, *told)).reasons == found


MALFORMED: list[Any] = [
    lambda: Status("Success"),  # type: ignore[arg-type]
    lambda: Status(Code.ERROR, reasons="one text is no tuple"),  # type: ignore[arg-type]
    lambda: Status(Code.UNSCHEDULABLE, condition_reason=3),  # type: ignore[arg-type]
    lambda: Status(Code.UNSCHEDULABLE, condition_reason="two words"),
    lambda: Status.unschedulable(3),  # type: ignore[arg-type]
    lambda: PreFilterResult(True),  # type: ignore[arg-type]
    lambda: PreFilterResult(SUCCESS, ["a-list"]),  # type: ignore[arg-type]
    lambda: PostFilterResult(SUCCESS, 1),  # type: ignore[arg-type]
    lambda: PermitResult(Code.WAIT, 3.0),  # type: ignore[arg-type]
    lambda: PermitResult(Status(Code.WAIT), "3s"),  # type: ignore[arg-type]
    lambda: PermitResult(Status(Code.WAIT), -1.0),
    lambda: PermitResult(Status(Code.WAIT), float("nan")),
    lambda: ReasonTable("P").code(Code.UNSCHEDULABLE, 3),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("make", MALFORMED)
def test_invalid_status_is_refused_at_construction(make: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        make()


# -- reasons -----------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.sampled_from([Code.UNSCHEDULABLE, Code.PENDING]), st.text(max_size=3)), max_size=50))
def test_reason_and_code_map_to_each_other(reasons: list[tuple[Code, str]]) -> None:
    table = ReasonTable("P")
    numbers = {reason: table.code(*reason) for reason in reasons}
    for reason, number in numbers.items():
        assert table.code(*reason) == number
        assert table.status(number) == Status(reason[0], "P", (reason[1],))
    assert len(set(numbers.values())) == len(numbers)
    assert 0 not in numbers.values()
    assert table.status(0).is_success


def test_full_reason_table_merges_further_reasons() -> None:
    table = ReasonTable("P")
    numbers = [table.code(Code.UNSCHEDULABLE, str(number)) for number in range(REASON_CODES_MAX + 50)]
    assert len(set(numbers)) == REASON_CODES_MAX + 1
    assert max(numbers) == 255
    assert table.status(255).code is Code.UNSCHEDULABLE


def test_reason_table_is_thread_safe() -> None:
    table, start = ReasonTable("P"), threading.Barrier(4)
    found: list[list[int]] = []

    def intern() -> None:
        start.wait()
        found.append([table.code(Code.UNSCHEDULABLE, str(number)) for number in range(200)])

    threads = [threading.Thread(target=intern) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(numbers == found[0] for numbers in found)
    assert [table.status(number).message for number in found[0]] == [str(number) for number in range(200)]


# -- cycle state -------------------------------------------------------------------------------------------------------

COUNT: StateKey[int] = StateKey("count")
SAME_NAME: StateKey[int] = StateKey("count")


def test_cycle_state_uses_key_identity() -> None:
    state = CycleState()
    state.write(COUNT, 1)
    assert state.read(COUNT) == 1
    assert state.find(SAME_NAME) is None
    with pytest.raises(KeyError):
        state.read(SAME_NAME)


def test_cycle_state_copies_are_independent() -> None:
    state = CycleState()
    state.write(COUNT, 1)
    twin = state.copy()
    twin.write(COUNT, 2)
    twin.write(SAME_NAME, 3)
    state.write(COUNT, 4)

    assert (state.read(COUNT), state.find(SAME_NAME)) == (4, None)
    assert (twin.read(COUNT), twin.read(SAME_NAME)) == (2, 3)


# -- normalisation -----------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=30), st.booleans())
def test_normalised_scores_equal_upstream(raw: list[int], reverse: bool) -> None:
    largest = max(raw)
    found = ByLargest(reverse=reverse).apply(np.array(raw, np.int64), largest)
    for score, one in zip(found.tolist(), raw, strict=True):
        if largest == 0:
            assert score == (MAX_SCORE if reverse else 0)
        else:
            scaled = MAX_SCORE * one // largest
            assert score == (MAX_SCORE - scaled if reverse else scaled)
    assert found.dtype == np.int64


# -- events ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("registered", "happened", "matches"),
    [
        (ClusterEvent(Resource.NODE, Action.ADD), ClusterEvent(Resource.NODE, Action.ADD), True),
        (ClusterEvent(Resource.NODE, Action.ADD), ClusterEvent(Resource.NODE, Action.DELETE), False),
        (
            ClusterEvent(Resource.NODE, Action.ADD | Action.UPDATE_NODE_TAINT),
            ClusterEvent(Resource.NODE, Action.UPDATE_NODE_LABEL | Action.UPDATE_NODE_TAINT),
            True,
        ),
        (ClusterEvent(Resource.ASSIGNED_POD, Action.ALL), ClusterEvent(Resource.NODE, Action.ADD), False),
        (ClusterEvent(Resource.WILDCARD, Action.ADD), ClusterEvent(Resource.NODE, Action.ADD), True),
        (ClusterEvent(Resource.WILDCARD, Action.ADD), ClusterEvent(ObjectKind.STORAGE_CLASS, Action.ADD), True),
        (ClusterEvent(Resource.WILDCARD, Action.ALL), ClusterEvent(ObjectKind.SERVICE, Action.ADD), False),
        (ClusterEvent(ObjectKind.SERVICE, Action.ALL), ClusterEvent(ObjectKind.SERVICE, Action.ADD), True),
        (ClusterEvent(ObjectKind.SERVICE, Action.ALL), ClusterEvent(ObjectKind.RESOURCE_QUOTA, Action.ADD), False),
    ],
)
def test_registration_matches_its_resource_and_actions(
    registered: ClusterEvent, happened: ClusterEvent, matches: bool
) -> None:
    assert registered.matches(happened) is matches
