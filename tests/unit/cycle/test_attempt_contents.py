"""What each kind of attempt leaves behind, field by field, and how much memory that is counted as."""

from __future__ import annotations

from itertools import count

import pytest

from multisched.cycle import attempt_record
from multisched.cycle.attempt_record import ATTEMPTS_KEPT, AttemptRecord, AttemptRecords, Outcome
from multisched.cycle.classes.score_snapshot import SNAPSHOT_BYTES_MIN
from multisched.cycle.results import Placed, Unplaced
from multisched.framework.status import Status
from multisched.testing.builders import make_node, make_pod
from tests.unit.cycle.cycle_kit import Domain

POD = make_pod("p")
FAILED = Status.error("it fell")


def records_of(*steps: str) -> tuple[AttemptRecord, ...]:
    """Attempts 1, 2, ... of one pod at 10 s, 20 s, ..., ended so."""
    clock = count(10, 10)
    records = AttemptRecords(lambda: float(next(clock)))
    for attempt, step in enumerate(steps, 1):
        match step:
            case "conflict":
                records.conflicted(POD, attempt, ("a", "b"), "no device left")
            case "error":
                records.failed(POD, attempt, FAILED)
            case "given up":
                records.given_up(POD, attempt, "a", FAILED)
    return records.read(POD.uid)


def test_unusual_attempts_are_recorded_with_their_outcome() -> None:
    assert records_of("conflict", "error", "given up") == (
        AttemptRecord(1, 10.0, Outcome.CONFLICT, message="no device left", passed_over=("a", "b")),
        AttemptRecord(2, 20.0, Outcome.ERROR, message="it fell", status=FAILED),
        AttemptRecord(3, 30.0, Outcome.GIVEN_UP, "a", message="it fell", status=FAILED),
    )


def test_number_of_kept_attempts_is_limited() -> None:
    assert [one.attempt for one in records_of(*["error"] * (ATTEMPTS_KEPT + 2))] == [3, 4, 5, 6]
    assert AttemptRecords(lambda: 0.0).read("nobody") == ()


def test_refused_pod_is_recorded_with_message_nomination_and_victims() -> None:
    domain = Domain(
        make_node("a", cpu_milli=1000), make_node("b", cpu_milli=10), in_tree=("NodeResourcesFit", "DefaultPreemption")
    )
    domain.cache.place(make_pod("low", cpu_milli=1000, node="a", phase="Running"))
    result = domain.schedule(make_pod("high", cpu_milli=1000, priority=10), attempt=3)
    assert isinstance(result, Unplaced)
    (record,) = domain.cycle.records.read("uid-high")
    assert (record.attempt, record.outcome, record.is_own_snapshot) == (3, Outcome.REFUSED, True)
    assert (record.nominated_node, record.victims, record.message) == ("a", ("default/low",), result.message)
    assert result.message.endswith(record.post_filter)
    assert record.found is not None
    assert record.found.node_count == 2
    assert record.snapshot is not None
    assert (record.snapshot.feasible.tolist(), len(record.snapshot.total), record.snapshot.scores) == (
        [False] * 2,
        0,
        (),
    )


def test_failed_preemption_is_recorded_with_its_message() -> None:
    domain = Domain(make_node("a", cpu_milli=10), in_tree=("NodeResourcesFit", "DefaultPreemption"))
    domain.schedule(make_pod("high", cpu_milli=1000, priority=10))
    (record,) = domain.cycle.records.read("uid-high")
    assert (record.nominated_node, record.victims) == ("", ())
    assert record.post_filter.startswith("preemption: ")
    assert record.message.endswith(record.post_filter)


def test_rejected_placement_is_recorded_with_its_scores() -> None:
    domain = Domain(make_node("a"), in_tree=("NodeResourcesFit",))
    placed = domain.schedule(make_pod("p", cpu_milli=100))
    assert isinstance(placed, Placed)
    (before,) = domain.cycle.records.read("uid-p")
    assert (before.outcome, before.node, before.attempt) == (Outcome.PLACED, "a", 1)
    domain.cycle.give_up(placed, FAILED)
    (after,) = domain.cycle.records.read("uid-p")
    assert (after.outcome, after.node, after.scores, after.total) == (
        Outcome.GIVEN_UP,
        "a",
        before.scores,
        before.total,
    )
    assert (after.message, after.status.message) == (FAILED.message, FAILED.message)


def test_oldest_score_snapshots_are_dropped_beyond_the_byte_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [make_node(f"n{number}", cpu_milli=10) for number in range(100)]
    one = SNAPSHOT_BYTES_MIN + 2 * 100  # a filter's codes and who is feasible
    monkeypatch.setattr(attempt_record, "REFUSED_BYTES_MAX", 3 * one)
    domain = Domain(*nodes, in_tree=("NodeResourcesFit",))
    for number in range(5):
        domain.schedule(make_pod(f"p{number}", cpu_milli=1000 + number))  # each of a class of its own
        kept = min(number + 1, 3)
        assert domain.cycle.records.statistics() == {
            "placed": 0,
            "rare_pods": number + 1,
            "sampled_bytes": 0,
            "refused_bytes": kept * one,
        }
    snapshots = [domain.cycle.records.read(f"uid-p{number}")[0].snapshot for number in range(5)]
    assert [snapshot is not None and snapshot.is_kept for snapshot in snapshots] == [False, False, True, True, True]
    dropped, kept_last = snapshots[0], snapshots[-1]
    assert dropped is not None
    assert kept_last is not None
    assert [len(array) for array in (dropped.rows, dropped.feasible, dropped.total)] == [0, 0, 0]
    assert (dropped.filters, dropped.scores) == ((), ())
    assert (len(kept_last.rows), len(kept_last.feasible), len(kept_last.filters)) == (100, 100, 1)
