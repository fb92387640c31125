"""Bugs of other schedulers' queues, by name: each was reported there, and must not come back here.

k/k: kubernetes/kubernetes, SP: kubernetes-sigs/scheduler-plugins, KAI: kai-scheduler/KAI-Scheduler.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from multisched.framework.events import ASSIGNED_POD_DELETE, ATTEMPT_UNDONE, NODE_ADD, EventRegistration, Hint
from multisched.framework.status import SUCCESS, Status
from multisched.model.objects import Pod
from multisched.queueing.active_pods import LEAD_UNITS
from multisched.queueing.entry import Failure
from multisched.queueing.transitions import QueueState
from multisched.testing.builders import make_node
from tests.unit.queueing.builders import ERROR, REFUSED, make_pod, make_queue, park, pop_uid

# Starvation: pods that cannot be scheduled come back to the head for ever


def test_kk_71486_failed_pod_sorts_behind_longer_waiting_pods_of_its_priority() -> None:
    queue = make_queue()
    queue.add(make_pod("oldest"), 0)
    queue.add(make_pod("second"), 1)
    assert pop_uid(queue, 2) == "oldest"
    queue.fail("oldest", REFUSED, 2)
    queue.on_event(NODE_ADD, None, make_node(), 60)

    assert [pop_uid(queue, 60), pop_uid(queue, 60)] == ["second", "oldest"]


def test_kk_86373_infeasible_high_priority_pods_do_not_starve_other_namespaces() -> None:
    """Events keep waking a thousand critical pods that never fit; another team's pods, fresh and retried, go on."""
    queue = make_queue()
    for number in range(1_000):
        park(queue, make_pod(f"critical-{number}", namespace="a", priority=1_000))
    park(queue, make_pod("b-retry", namespace="b"))
    attempts_till: dict[str, int] = {}
    now_s = 60.0
    queue.on_event(NODE_ADD, None, make_node(), now_s)
    for number in range(20):
        queue.add(make_pod(f"b-{number}", namespace="b"), now_s)
    for attempt in range(200):
        uid = pop_uid(queue, now_s)
        assert uid is not None
        if uid.startswith("critical"):
            queue.fail(uid, REFUSED, now_s)
            queue.activate(uid, now_s)
        else:
            attempts_till[uid] = attempt + 1
            queue.done(uid)
    queue.validate()

    assert len(attempts_till) == 21
    assert max(attempts_till[f"b-{number}"] for number in range(20)) <= 2 * 21 + LEAD_UNITS


def test_sp_110_infeasible_early_pod_does_not_block_the_head() -> None:
    queue = make_queue()
    queue.add(make_pod("early"), 0)
    bound = 0
    for tick in range(1, 100):
        queue.add(make_pod(f"late-{tick}"), tick)
        while (uid := pop_uid(queue, tick)) is not None and uid != "early":
            queue.done(uid)
            bound += 1
        if uid is not None:
            queue.fail(uid, REFUSED, tick)
            queue.on_event(ASSIGNED_POD_DELETE, make_pod("x", node="n"), None, tick)

    assert bound >= 98
    entry = queue.entry("early")
    assert entry is not None
    assert entry.attempts > 10


# Quarantined binds: refused for ever, chosen for ever (what the shell makes of it: tests/unit/shell/test_quarantined_binds.py)


def test_kai_2075_pod_with_refused_binds_does_not_win_every_cycle() -> None:
    queue = make_queue()
    queue.add(make_pod("quarantined", priority=9), 0)
    refused = Failure(is_error=True, refusal='admission webhook "w" denied the request')
    attempts = 0
    for second in range(250):
        if (uid := pop_uid(queue, second)) is not None:
            attempts += 1
            queue.fail(uid, refused, second)
            queue.on_event(NODE_ADD, None, make_node(), second)

    assert attempts == 5
    assert queue.where("quarantined") is QueueState.UNSCHEDULABLE


# Identity: pods recreated under the same name, deleted during their attempt, gated during their preemption


@pytest.mark.parametrize("ends_with", ["done", "fail"])
@pytest.mark.parametrize("first_ends_first", [True, False])
def test_kk_138316_pod_recreated_during_its_attempt_leaks_no_events(ends_with: str, first_ends_first: bool) -> None:
    queue = make_queue(in_flight_events_max=1_000)
    first, second = make_pod("u1", name="web-0"), make_pod("u2", name="web-0")
    queue.add(first, 0)
    assert pop_uid(queue, 0) == "u1"
    queue.remove("u1")
    queue.add(second, 1)
    assert pop_uid(queue, 1) == "u2"
    for _ in range(100):
        queue.on_event(NODE_ADD, None, make_node(), 2)
    for uid in ("u1", "u2") if first_ends_first else ("u2", "u1"):
        queue.done(uid) if ends_with == "done" else queue.fail(uid, ERROR, 3)
    queue.validate()

    statistics = queue.statistics()
    assert (statistics.in_flight, statistics.in_flight_events, queue.where("u1")) == (0, 0, None)


def test_koordinator_3185_deleted_pod_is_never_retried() -> None:
    def after(*steps: str) -> None:
        queue = make_queue()
        queue.add(make_pod("u"), 0)
        for at_s, step in enumerate(steps):
            if step == "pop":
                assert pop_uid(queue, 5.0 * at_s) == "u"
            else:
                queue.fail("u", REFUSED if step == "refused" else ERROR, 5.0 * at_s)
        queue.remove("u")
        if steps[-1:] == ("pop",):
            queue.fail("u", ERROR, 20)
        queue.on_event(NODE_ADD, None, make_node(), 60)
        queue.flush(1_000)
        assert (pop_uid(queue, 1_000), len(queue), queue.next_wakeup_s()) == (None, 0, None)
        queue.validate()

    for steps in [(), ("pop",), ("pop", "refused"), ("pop", "error"), ("pop", "error", "pop")]:
        after(*steps)


def test_kk_120334_event_log_is_empty_without_attempts_in_flight() -> None:
    queue = make_queue(in_flight_events_max=1_000)
    for number in range(50):
        queue.add(make_pod(f"u{number}"), 0)
    popped = [pop_uid(queue, 0) for _ in range(50)]
    for _ in range(200):
        queue.on_event(NODE_ADD, None, make_node(), 1)
    for number, uid in enumerate(popped):
        assert uid is not None
        queue.remove(uid) if number % 3 == 0 else None
        queue.done(uid) if number % 2 == 0 else queue.fail(uid, REFUSED, 2)
        queue.validate()

    assert queue.statistics().in_flight_events == 0


class HeldWhilePreempting:
    """DefaultPreemption's gate, and the word that a preemption has ended is lost."""

    name = "DefaultPreemption"

    def __init__(self) -> None:
        self.is_preempting = True

    def pre_enqueue(self, pod: Pod) -> Status:
        return (
            Status.unschedulable("waiting for the preemption for this pod to be finished")
            if self.is_preempting
            else SUCCESS
        )

    def events_to_register(self) -> Sequence[EventRegistration]:
        return [EventRegistration(ASSIGNED_POD_DELETE, lambda pod, old, new: Hint.SKIP)]


def test_kk_139162_gated_preemptor_is_checked_again_by_the_leftover_flush() -> None:
    gate = HeldWhilePreempting()
    queue = make_queue(gates=[gate])
    queue.add(make_pod("preemptor"), 0)
    gate.is_preempting = False
    assert queue.flush(299).active == 0
    assert queue.flush(300).active == 1

    gate.is_preempting = True
    assert pop_uid(queue, 300) == "preemptor"
    queue.fail("preemptor", REFUSED, 300)
    queue.on_event(NODE_ADD, None, make_node(), 330)
    assert queue.where("preemptor") is QueueState.GATED
    gate.is_preempting = False
    queue.activate("preemptor", 331)
    assert queue.where("preemptor") is QueueState.ACTIVE


@pytest.mark.parametrize("is_in_flight", [False, True])
def test_single_pod_helped_by_an_undone_gang_attempt_does_not_wait_for_the_gang(*, is_in_flight: bool) -> None:
    """Both backoffs end at the same time. If the pod waited, a more urgent gang would take the room first, each time, in vain."""
    freed = make_pod("freed", node="a")
    for event in (ATTEMPT_UNDONE, ASSIGNED_POD_DELETE):
        queue = make_queue()
        queue.add(make_pod("waits"), 0.0)
        assert pop_uid(queue, 0.0) == "waits"
        if is_in_flight:
            queue.on_event(event, freed, None, 0.0)
            queue.fail("waits", REFUSED, 0.0)
        else:
            queue.fail("waits", REFUSED, 0.0)
            queue.on_event(event, freed, None, 0.0)
        assert queue.where("waits") is QueueState.BACKOFF
        assert pop_uid(queue, 0.1) == "waits"
