"""What the queue tells of itself: how many pods are where, who holds them, what an event has moved, and since when."""

from __future__ import annotations

import pytest

from multisched.framework.events import ASSIGNED_POD_DELETE, NODE_ADD
from multisched.queueing.entry import Failure, Moved
from multisched.queueing.pod_queue import LEFTOVER_S
from multisched.testing.builders import make_node
from tests.unit.queueing.builders import (
    AFFINITY,
    ERROR,
    FIT,
    LEGACY,
    REFUSED,
    ClosedGates,
    QuotaGate,
    make_pod,
    make_queue,
    park,
    pop_uid,
)


def refused_by(*plugins: str) -> Failure:
    return Failure(rejectors=frozenset(plugins))


def test_each_queue_state_is_counted_separately() -> None:
    queue = make_queue(gates=[ClosedGates()])
    for number in range(2):
        park(queue, make_pod(f"backs-off-{number}"), ERROR)
    for number in range(3):
        park(queue, make_pod(f"fits-nowhere-{number}"), refused_by(FIT))
    park(queue, make_pod("alone"), refused_by(AFFINITY, LEGACY))
    for number in range(5):
        queue.add(make_pod(f"gated-{number}", gates=("g",)), 0)
    for number in range(6):
        queue.add(make_pod(f"in-flight-{number}"), 0)
        assert pop_uid(queue, 0) == f"in-flight-{number}"
    queue.add(make_pod("active"), 0)
    found = queue.statistics()
    assert found.pending == {"active": 1, "backoff": 2, "unschedulable": 4, "gated": 5, "gang": 0}
    assert found.unschedulable_by_plugin == {FIT: 3, AFFINITY: 1, LEGACY: 1, "SchedulingGates": 5}
    assert (found.in_flight, found.in_flight_events, found.quarantined, found.quarantines) == (6, 0, 0, 0)
    assert found.incoming == {
        ("active", "UnschedulablePodAdd"): 13,
        ("backoff", "ScheduleAttemptFailure"): 2,
        ("unschedulable", "ScheduleAttemptFailure"): 4,
        ("gated", "UnschedulablePodAdd"): 5,
    }
    assert len(queue) == 18


@pytest.mark.parametrize(("now_s", "expected"), [(0.5, Moved(backoff=3)), (1.0, Moved(active=3))])
def test_on_event_returns_the_moved_counts(now_s: float, expected: Moved) -> None:
    queue = make_queue()
    for number in range(3):
        park(queue, make_pod(f"p-{number}"), refused_by(FIT))
    assert queue.on_event(NODE_ADD, None, make_node(), now_s) == expected
    assert queue.on_event(NODE_ADD, None, make_node(), now_s) == Moved()


def test_changed_gate_message_is_reported_once() -> None:
    gate = QuotaGate()
    queue = make_queue(gates=[gate])
    pods = [make_pod(f"p-{number}") for number in range(2)]
    for pod in pods:
        park(queue, pod, refused_by(FIT))
    gate.is_full = True
    moved = queue.on_event(NODE_ADD, None, make_node(), 0.0)
    assert (moved.active, moved.backoff, [pod.uid for pod, _ in moved.gated]) == (0, 0, ["p-0", "p-1"])
    assert {(status.plugin, status.message) for _, status in moved.gated} == {("Quota", "quota is used up")}
    assert queue.on_event(ASSIGNED_POD_DELETE, pods[0], None, 0.0) == Moved()


def test_schedulable_since_starts_when_the_gate_opens() -> None:
    queue = make_queue(gates=[ClosedGates()])
    pod = make_pod("p", gates=("g",))
    queue.add(pod, 5.0)
    assert queue.schedulable_since_s("p") == 5.0
    queue.update(pod, make_pod("p"), 7.0)
    assert pop_uid(queue, 8.0) == "p"
    queue.fail("p", REFUSED, 9.0)
    assert queue.schedulable_since_s("p") == 7.0
    shown = queue.entry("p")
    assert shown is not None
    assert (shown.added_s, shown.first_active_s, shown.since_s, shown.retry_at_s) == (5.0, 7.0, 9.0, 9.0 + LEFTOVER_S)
    assert (shown.plugins, shown.message, shown.attempts) == ((FIT,), REFUSED.message, 1)
