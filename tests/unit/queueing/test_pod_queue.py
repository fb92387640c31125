"""What the queue promises, one sentence per test. Times are plain numbers: the queue reads no clock."""

from __future__ import annotations

import pytest

from multisched.framework.events import (
    ASSIGNED_POD_DELETE,
    FLUSH,
    FORCED,
    NODE_ADD,
    Action,
    ClusterEvent,
    EventObject,
    EventRegistration,
    Hint,
    Resource,
)
from multisched.framework.points import QueuedPod
from multisched.framework.status import Code, Status
from multisched.model.objects import Node, Pod, PodSpec
from multisched.model.selectors import Toleration
from multisched.queueing.backoff import BackoffPolicy
from multisched.queueing.entry import Failure, QueueOutcome
from multisched.queueing.pod_queue import PodQueue
from multisched.queueing.transitions import QueueInvariantError, QueueState
from multisched.testing.builders import make_node
from tests.unit.queueing.builders import (
    AFFINITY,
    CONFLICT,
    ERROR,
    FIT,
    LEGACY,
    NODE_LABEL,
    OUTSIDE,
    REFUSED,
    AffinityHint,
    BySortOfPriority,
    ClosedGates,
    Errors,
    Listening,
    QuotaGate,
    make_pod,
    make_queue,
    park,
    pop_uid,
    profile,
)

ASSIGNED_POD_ADD = ClusterEvent(Resource.ASSIGNED_POD, Action.ADD, "AssignedPodAdd")
"""A kind none of the plugins has registered."""


def refused_by(*plugins: str) -> Failure:
    return Failure(rejectors=frozenset(plugins))


# Order


def test_pods_are_popped_by_priority_then_time_then_arrival() -> None:
    queue = make_queue()
    for uid, priority, at_s in [("late", 0, 2), ("first", 0, 1), ("second", 0, 1), ("urgent", 9, 3)]:
        queue.add(make_pod(uid, priority=priority), at_s)

    assert [pop_uid(queue, 3) for _ in range(5)] == ["urgent", "first", "second", "late", None]


def test_failed_pod_returns_with_a_new_time_and_attempt_count() -> None:
    queue = make_queue()
    queue.add(make_pod("u"), 1)
    assert queue.pop(2) == QueuedPod(make_pod_of(queue, "u"), 1, 1)
    queue.fail("u", REFUSED, 5)
    queue.activate("u", 6)

    assert queue.pop(7) == QueuedPod(make_pod_of(queue, "u"), 5, 2)


def make_pod_of(queue: PodQueue, uid: str) -> Pod:
    entry = queue.entry(uid)
    assert entry is not None
    return entry.pod


def test_active_pod_with_a_raised_priority_moves_ahead() -> None:
    queue = make_queue()
    queue.add(make_pod("a"), 0)
    low = make_pod("b")
    queue.add(low, 0)
    queue.update(low, make_pod("b", priority=5), 1)

    assert pop_uid(queue, 1) == "b"
    queue.validate()


def test_raising_queue_sort_loses_no_pod() -> None:
    class Raising(BySortOfPriority):
        def sort_key(self, entry: QueuedPod) -> tuple[int, ...]:
            if entry.pod.uid == "bad":
                raise ValueError("no key")
            return (0,)

    errors = Errors()
    queue = PodQueue(Raising(), on_error=errors)
    queue.add(make_pod("good"), 0)
    queue.add(make_pod("bad"), 0)

    assert [pop_uid(queue, 0), pop_uid(queue, 0)] == ["bad", "good"]
    assert errors.heard == [("PrioritySort", "QueueSort", "no key")]


def test_failed_pod_sorts_behind_pods_added_in_the_meantime() -> None:
    queue = make_queue()
    queue.add(make_pod("failed"), 0)
    queue.pop(0)
    queue.add(make_pod("meanwhile"), 1)
    queue.fail("failed", CONFLICT, 2)

    assert [pop_uid(queue, 2), pop_uid(queue, 2)] == ["meanwhile", "failed"]


# Failures and backoff


def test_refused_pod_is_parked_until_an_event() -> None:
    queue = make_queue()
    park(queue, make_pod("u"))

    assert queue.where("u") is QueueState.UNSCHEDULABLE
    assert pop_uid(queue, 100) is None
    entry = queue.entry("u")
    assert entry is not None
    assert (entry.plugins, entry.message, entry.attempts, entry.since_s) == ((FIT,), REFUSED.message, 1, 0)
    assert entry.retry_at_s == queue.next_wakeup_s() == 300


def test_error_backoff_doubles_and_is_not_popped_early() -> None:
    queue, now_s = make_queue(), 0.0
    queue.add(make_pod("u"), now_s)
    waits = []
    for _ in range(6):
        assert pop_uid(queue, now_s) == "u"
        assert queue.fail("u", ERROR, now_s) == QueueOutcome(QueueState.BACKOFF)
        assert (pop_uid(queue, now_s), queue.has_ready) == (None, False)
        until_s = queue.next_wakeup_s()
        assert until_s is not None
        assert queue.flush(until_s - 0.001).active == 0
        assert queue.flush(until_s).active == 1
        waits.append(until_s - now_s)
        now_s = until_s

    assert waits == [1, 2, 4, 8, 10, 10]


def test_refusal_resets_the_error_count() -> None:
    queue = make_queue()
    queue.add(make_pod("u"), 0)
    for at_s in (0, 1):
        pop_uid(queue, at_s)
        queue.fail("u", ERROR, at_s)
    pop_uid(queue, 3)
    queue.fail("u", REFUSED, 3)
    queue.on_event(NODE_ADD, None, make_node(), 3)
    pop_uid(queue, 4)
    queue.fail("u", ERROR, 5)

    assert queue.next_wakeup_s() == 6


def test_failure_without_a_plugin_is_an_error() -> None:
    queue = make_queue()
    park(queue, make_pod("u"), Failure())

    assert queue.where("u") is QueueState.BACKOFF
    assert not queue.has_ready


def test_idle_queue_pops_refused_pods_before_their_backoff_ends() -> None:
    queue = make_queue()
    for uid in ("u", "v"):
        park(queue, make_pod(uid))
    assert queue.on_event(NODE_ADD, None, make_node(), 0.5).backoff == 2
    queue.add(make_pod("other"), 0.6)

    assert [pop_uid(queue, 0.7) for _ in range(4)] == ["other", "u", "v", None]
    assert queue.statistics().incoming["active", "PopFromBackoffQ"] == 2


def test_pod_after_backoff_competes_by_priority_at_the_next_pop() -> None:
    queue = make_queue()
    park(queue, make_pod("u", priority=9), ERROR)
    queue.add(make_pod("other"), 0.5)

    assert pop_uid(queue, 1.0) == "u"


def test_conflict_is_retried_at_once_three_times_before_backoff() -> None:
    queue = make_queue()
    queue.add(make_pod("u"), 0)
    places = []
    for at_s in range(8):
        assert pop_uid(queue, at_s * 10) == "u"
        places.append(queue.fail("u", CONFLICT, at_s * 10).state)

    assert places == [QueueState.ACTIVE] * 3 + [QueueState.BACKOFF] + [QueueState.ACTIVE] * 3 + [QueueState.BACKOFF]
    assert queue.next_wakeup_s() == 72


def test_refusal_resets_the_conflict_count() -> None:
    queue = make_queue()
    queue.add(make_pod("u"), 0)
    for failure in (CONFLICT, CONFLICT, CONFLICT, REFUSED):
        pop_uid(queue, 0)
        queue.fail("u", failure, 0)
    queue.activate("u", 0)
    pop_uid(queue, 0)

    assert queue.fail("u", CONFLICT, 0).state is QueueState.ACTIVE


# Events and hints


def test_event_requeues_only_pods_whose_rejectors_registered_it() -> None:
    queue = make_queue()
    park(queue, make_pod("fit"), refused_by(FIT))
    park(queue, make_pod("affinity"), refused_by(AFFINITY))
    queue.on_event(ASSIGNED_POD_DELETE, make_pod("gone", node="n"), None, 60)

    assert (queue.where("fit"), queue.where("affinity")) == (QueueState.ACTIVE, QueueState.UNSCHEDULABLE)


def test_skip_hint_leaves_the_pod_parked() -> None:
    queue = make_queue()
    park(queue, make_pod("u", labels={"zone": "a"}), refused_by(AFFINITY))

    assert queue.on_event(NODE_ADD, None, make_node(labels={"zone": "b"}), 60).active == 0
    assert queue.on_event(NODE_ADD, None, make_node(labels={"zone": "a"}), 60).active == 1


def test_plugin_without_registrations_is_helped_by_any_event() -> None:
    queue = make_queue()
    park(queue, make_pod("u"), refused_by(LEGACY))

    assert queue.on_event(NODE_LABEL, None, make_node(), 60).active == 1


def test_wildcard_event_requeues_all() -> None:
    queue = make_queue()
    park(queue, make_pod("a"), refused_by(FIT))
    park(queue, make_pod("b"), refused_by(AFFINITY))

    assert queue.on_event(FLUSH, None, None, 60).active == 2


def test_wildcard_event_with_a_pod_requeues_only_that_pod() -> None:
    queue = make_queue()
    park(queue, make_pod("a"))
    park(queue, make_pod("b"))
    queue.on_event(FORCED, None, make_pod("a"), 60)

    assert (queue.where("a"), queue.where("b")) == (QueueState.ACTIVE, QueueState.UNSCHEDULABLE)


@pytest.mark.parametrize("woken", ["a", "b"])
def test_wildcard_event_during_an_attempt_counts_when_it_fails(woken: str) -> None:
    queue = make_queue()
    for name in ("a", "b"):
        queue.add(make_pod(name), 0)
        assert queue.pop(0) is not None
    queue.on_event(FORCED, None, make_pod(woken), 1)
    for name in ("a", "b"):
        queue.fail(name, refused_by(FIT), 2)
    asleep = {name for name in ("a", "b") if queue.where(name) is QueueState.UNSCHEDULABLE}
    assert asleep == {"a", "b"} - {woken}


def test_wildcard_event_for_a_deleted_pod_requeues_no_pod() -> None:
    queue = make_queue()
    park(queue, make_pod("a"))
    assert queue.on_event(FORCED, None, make_pod("gone"), 60).active == 0
    assert queue.where("a") is QueueState.UNSCHEDULABLE


def test_pending_plugin_event_skips_backoff() -> None:
    queue = make_queue()
    failure = Failure(rejectors=frozenset({FIT}), pending=frozenset({OUTSIDE}))
    park(queue, make_pod("a"), failure)
    park(queue, make_pod("b"), refused_by(FIT))

    assert queue.on_event(NODE_LABEL, None, make_node(), 0.1).active == 1
    assert queue.on_event(NODE_ADD, None, make_node(), 0.2).backoff == 1
    assert queue.where("a") is QueueState.ACTIVE


def test_pending_plugin_hint_overrides_that_of_a_rejector() -> None:
    queue = make_queue()
    park(queue, make_pod("u"), Failure(rejectors=frozenset({FIT}), pending=frozenset({LEGACY})))

    assert queue.on_event(NODE_ADD, None, make_node(), 0.1).active == 1


def test_raising_hint_counts_as_queue_and_is_reported() -> None:
    def broken(pod: Pod, old: EventObject, new: EventObject) -> Hint:
        raise KeyError("zone")

    errors = Errors()
    queue = make_queue(plugins=[Listening(FIT, EventRegistration(NODE_ADD, broken))], errors=errors)
    park(queue, make_pod("u"))

    assert queue.on_event(NODE_ADD, None, make_node(), 60).active == 1
    assert errors.heard == [(FIT, "QueueingHint", "'zone'")]


def test_equal_pods_share_one_hint_call_and_an_unregistered_event_needs_none() -> None:
    hint, labels = AffinityHint(), {"zone": "a"}
    queue = make_queue(plugins=profile(hint))
    for number in range(10_000):
        park(queue, make_pod(str(number), labels=labels), refused_by(AFFINITY))
    queue.on_event(ASSIGNED_POD_DELETE, make_pod("gone"), None, 1)
    assert hint.asked == 0

    queue.on_event(NODE_ADD, None, make_node(labels={"zone": "b"}), 1)
    assert hint.asked == queue.statistics().hint_calls == 1
    queue.validate()


def test_hints_are_called_separately_for_different_labels() -> None:
    queue = make_queue()
    park(queue, make_pod("a", labels={"zone": "a"}), refused_by(AFFINITY))
    park(queue, make_pod("b", labels={"zone": "b"}), refused_by(AFFINITY))
    queue.on_event(NODE_ADD, None, make_node(labels={"zone": "b"}), 60)

    assert (queue.where("a"), queue.where("b")) == (QueueState.UNSCHEDULABLE, QueueState.ACTIVE)


def test_changed_parked_pod_gets_its_own_hint_call() -> None:
    def of_zone(pod: Pod, old: EventObject, new: EventObject) -> Hint:
        assert isinstance(new, Node)
        return Hint.QUEUE if new.labels["zone"] == pod.annotations["zone"] else Hint.SKIP

    queue = make_queue(plugins=[Listening("Zones", EventRegistration(NODE_ADD, of_zone))])
    alike = {"zone": "a"}
    park(queue, make_pod("a", annotations=alike), refused_by("Zones"))
    park(queue, make_pod("b", annotations=alike), refused_by("Zones"))
    queue.update(make_pod("b", annotations=alike), make_pod("b", annotations={"zone": "b"}), 30)
    queue.on_event(NODE_ADD, None, make_node(labels={"zone": "b"}), 60)

    assert (queue.where("a"), queue.where("b")) == (QueueState.UNSCHEDULABLE, QueueState.ACTIVE)


# In flight


@pytest.mark.parametrize(
    ("failure", "event", "expected"),
    [
        (refused_by(FIT), NODE_ADD, QueueState.BACKOFF),
        (refused_by(FIT), NODE_LABEL, QueueState.UNSCHEDULABLE),
        (refused_by(AFFINITY), NODE_ADD, QueueState.UNSCHEDULABLE),
        (refused_by(AFFINITY, FIT), NODE_ADD, QueueState.BACKOFF),
        (refused_by(LEGACY), ASSIGNED_POD_DELETE, QueueState.BACKOFF),
        (Failure(pending=frozenset({OUTSIDE})), NODE_LABEL, QueueState.ACTIVE),
        (Failure(pending=frozenset({LEGACY})), NODE_ADD, QueueState.ACTIVE),
        (Failure(pending=frozenset({LEGACY})), ASSIGNED_POD_ADD, QueueState.ACTIVE),
        (refused_by(FIT), ASSIGNED_POD_ADD, QueueState.UNSCHEDULABLE),
        (Failure(rejectors=frozenset({AFFINITY, FIT}), pending=frozenset({LEGACY})), NODE_ADD, QueueState.ACTIVE),
        (refused_by(FIT), FLUSH, QueueState.BACKOFF),
    ],
)
def test_event_during_the_attempt_is_not_lost(failure: Failure, event: ClusterEvent, expected: QueueState) -> None:
    queue = make_queue()
    queue.add(make_pod("u", labels={"zone": "elsewhere"}), 0)
    queue.pop(0)
    queue.on_event(event, None, make_node(), 0.1)

    assert queue.fail("u", failure, 0.2).state is expected
    assert queue.statistics().in_flight_events == 0


def test_event_before_the_pop_does_not_count_as_during_the_attempt() -> None:
    queue = make_queue()
    queue.add(make_pod("older"), 0)
    queue.pop(0)
    queue.on_event(NODE_ADD, None, make_node(), 0.1)
    queue.add(make_pod("u"), 0.2)
    queue.pop(0.2)

    assert queue.fail("u", REFUSED, 0.3).state is QueueState.UNSCHEDULABLE


def test_overflowed_event_log_counts_as_an_event() -> None:
    queue = make_queue(in_flight_events_max=2)
    queue.add(make_pod("u", labels={"zone": "elsewhere"}), 0)
    queue.pop(0)
    for _ in range(3):
        queue.on_event(NODE_ADD, None, make_node(), 0.1)

    assert queue.fail("u", refused_by(AFFINITY), 0.2).state is QueueState.BACKOFF
    assert queue.statistics().event_overflows == 1


def test_pod_changed_during_its_attempt_returns_changed_and_is_retried() -> None:
    queue, old = make_queue(), make_pod("u")
    queue.add(old, 0)
    queue.pop(0)
    new = make_pod("u", labels={"a": "b"})
    queue.update(old, new, 0.1)

    assert queue.fail("u", refused_by(AFFINITY), 0.2).state is QueueState.BACKOFF
    assert make_pod_of(queue, "u") is new


def test_pod_activated_during_its_attempt_needs_no_other_event() -> None:
    queue = make_queue()
    queue.add(make_pod("u"), 0)
    queue.pop(0)
    queue.activate("u", 0.1)

    assert queue.fail("u", REFUSED, 0.2).state is QueueState.BACKOFF


def test_pod_removed_during_its_attempt_is_not_requeued() -> None:
    queue = make_queue()
    queue.add(make_pod("u"), 0)
    queue.pop(0)
    assert queue.remove("u") is QueueState.IN_FLIGHT
    assert queue.where("u") is QueueState.LEAVING

    assert queue.fail("u", ERROR, 1) == QueueOutcome(QueueState.ABSENT)
    assert (len(queue), pop_uid(queue, 1000)) == (0, None)


def test_pod_readded_during_its_attempt_is_not_tried_concurrently() -> None:
    queue = make_queue()
    queue.add(make_pod("u"), 0)
    queue.pop(0)
    queue.remove("u")

    assert queue.add(make_pod("u"), 1) == QueueOutcome(QueueState.IN_FLIGHT)
    assert pop_uid(queue, 1) is None
    assert queue.fail("u", REFUSED, 2).state is QueueState.BACKOFF


def test_pod_recreated_with_the_same_name_leaves_no_events() -> None:
    queue, first, second = make_queue(), make_pod("u1", name="web-0"), make_pod("u2", name="web-0")
    queue.add(first, 0)
    queue.pop(0)
    queue.update(first, second, 1)
    queue.on_event(NODE_ADD, None, make_node(), 1)
    assert pop_uid(queue, 1) == "u2"
    queue.done("u1")
    queue.done("u2")

    assert (len(queue), queue.statistics().in_flight, queue.statistics().in_flight_events) == (0, 0, 0)
    queue.validate()


def test_done_ends_an_attempt_and_is_idempotent() -> None:
    queue = make_queue()
    queue.add(make_pod("u"), 0)
    queue.pop(0)

    assert (queue.done("u"), queue.done("u"), queue.where("u")) == (True, False, None)


@pytest.mark.parametrize("end", ["fail", "done"])
def test_ending_an_attempt_that_is_not_in_flight_raises_with_the_transitions(end: str) -> None:
    queue = make_queue()
    queue.add(make_pod("u"), 3)

    with pytest.raises(QueueInvariantError, match=r"active \[3\.000s UnschedulablePodAdd → active\]"):
        queue.done("u") if end == "done" else queue.fail("u", ERROR, 4)


def test_failing_an_unknown_pod_raises() -> None:
    with pytest.raises(QueueInvariantError, match="absent"):
        make_queue().fail("u", ERROR, 0)


# Gates


def test_gated_pod_keeps_the_gate_message_until_its_gates_are_removed() -> None:
    queue, gated = make_queue(gates=[ClosedGates()]), make_pod("u", gates=("a", "b"))
    placed = queue.add(gated, 0)

    assert placed.state is QueueState.GATED
    assert placed.status.plugin == "SchedulingGates"
    assert placed.status.message == "waiting for scheduling gates: ['a', 'b']"
    assert pop_uid(queue, 1) is None
    one_left = make_pod("u", gates=("b",))
    still = queue.update(gated, one_left, 2)
    assert still is not None
    assert still.status.message == "waiting for scheduling gates: ['b']"
    assert queue.update(one_left, make_pod("u"), 3) == QueueOutcome(QueueState.ACTIVE)


def test_gate_is_called_again_only_by_its_own_event() -> None:
    quota = QuotaGate()
    queue = make_queue(gates=[quota])
    quota.is_full = True
    queue.add(make_pod("u"), 0)
    queue.on_event(NODE_ADD, None, make_node(), 1)
    assert quota.asked == 1

    queue.on_event(ASSIGNED_POD_DELETE, make_pod("x", node="n"), None, 2)
    assert (quota.asked, queue.where("u")) == (2, QueueState.GATED)
    quota.is_full = False
    assert queue.on_event(ASSIGNED_POD_DELETE, make_pod("x", node="n"), None, 3).active == 1


def test_gate_that_closed_holds_a_requeued_pod_and_is_reported_once() -> None:
    quota = QuotaGate()
    queue, pod = make_queue(gates=[quota]), make_pod("u")
    park(queue, pod)
    quota.is_full = True
    refusal = Status(Code.UNSCHEDULABLE, "Quota", ("quota is used up",))

    assert queue.on_event(NODE_ADD, None, make_node(), 60).gated == ((pod, refusal),)
    assert queue.on_event(ASSIGNED_POD_DELETE, pod, None, 61).gated == ()
    assert queue.statistics().unschedulable_by_plugin == {"Quota": 1}


def test_gate_without_an_event_is_called_again_by_the_leftover_flush() -> None:
    quota = QuotaGate()
    queue = make_queue(gates=[quota], leftover_s=300)
    quota.is_full = True
    queue.add(make_pod("u"), 0)
    queue.flush(300)
    assert (queue.where("u"), queue.next_wakeup_s()) == (QueueState.GATED, 600)
    quota.is_full = False

    assert queue.flush(600).active == 1


def test_changed_flush_time_applies_to_parked_and_later_pods() -> None:
    queue = make_queue(leftover_s=300)
    park(queue, make_pod("early"), now_s=0)
    queue.configure(BackoffPolicy(), 8)
    park(queue, make_pod("late"), now_s=5)
    assert queue.next_wakeup_s() == 8
    assert (queue.flush(8).active, queue.where("late")) == (1, QueueState.UNSCHEDULABLE)
    queue.configure(BackoffPolicy(), 60)

    assert queue.next_wakeup_s() == 65


def test_repeated_gate_refusal_restarts_the_wait() -> None:
    quota = QuotaGate()
    queue = make_queue(gates=[quota], leftover_s=300)
    quota.is_full = True
    queue.add(make_pod("a"), 0)
    queue.add(make_pod("b"), 10)
    queue.on_event(FORCED, None, make_pod("a"), 20)

    assert queue.next_wakeup_s() == 310


def test_raising_gate_holds_its_pod_and_is_reported() -> None:
    class Broken(QuotaGate):
        def pre_enqueue(self, pod: Pod) -> Status:
            raise RuntimeError("no quota tree")

    errors = Errors()
    queue = make_queue(gates=[Broken()], errors=errors)
    placed = queue.add(make_pod("u"), 0)

    assert (placed.state, placed.status.code, placed.status.plugin) == (QueueState.GATED, Code.ERROR, "Quota")
    assert placed.status.message == 'running PreEnqueue plugin "Quota": RuntimeError: no quota tree'
    assert errors.heard == [("Quota", "PreEnqueue", "no quota tree")]


# Updates


def test_status_update_never_requeues_a_pod() -> None:
    queue, pod = make_queue(), make_pod("u")
    park(queue, pod, refused_by(LEGACY))

    assert queue.update(pod, make_pod("u", version=2, nominated_node="n"), 60) == QueueOutcome(QueueState.UNSCHEDULABLE)
    queue.validate()


def test_update_requeues_the_pod_only_if_it_may_help() -> None:
    queue, pod = make_queue(), make_pod("u")
    park(queue, pod, refused_by(AFFINITY))
    annotated = make_pod("u", annotations={"a": "b"})

    assert queue.update(pod, annotated, 60) == QueueOutcome(QueueState.UNSCHEDULABLE)
    labelled = make_pod("u", annotations=annotated.annotations, labels={"a": "b"})
    assert queue.update(annotated, labelled, 61) == QueueOutcome(QueueState.ACTIVE)


def test_update_does_not_add_an_unknown_pod() -> None:
    queue, pod = make_queue(), make_pod("u")

    assert queue.update(pod, pod, 0) is None
    assert len(queue) == 0


def test_adding_a_known_pod_updates_it() -> None:
    queue = make_queue()
    queue.add(make_pod("u"), 0)
    again = make_pod("u", version=2)
    queue.add(again, 1)

    assert (len(queue), make_pod_of(queue, "u")) == (1, again)


@pytest.mark.parametrize("failure", [None, REFUSED, ERROR])
def test_removed_parked_pod_leaves_the_queue(failure: Failure | None) -> None:
    queue = make_queue()
    queue.add(make_pod("u"), 0)
    if failure is not None:
        queue.pop(0)
        queue.fail("u", failure, 0)

    assert queue.remove("u") is not None
    assert queue.remove("u") is None
    assert (len(queue), pop_uid(queue, 1000), queue.next_wakeup_s()) == (0, None, None)
    queue.validate()


# Time


def test_pod_parked_for_five_minutes_is_retried() -> None:
    queue = make_queue()
    park(queue, make_pod("u"))

    assert queue.flush(299.9).active == 0
    assert queue.flush(300).active == 1
    assert queue.statistics().incoming["active", "UnschedulableTimeout"] == 1


def test_statistics_count_states_and_arrivals() -> None:
    queue = make_queue(gates=[ClosedGates()])
    queue.add(make_pod("g", gates=("x",)), 0)
    park(queue, make_pod("s"))
    park(queue, make_pod("b"), ERROR)
    queue.add(make_pod("f"), 0)
    queue.pop(0)
    queue.add(make_pod("a"), 0)
    statistics = queue.statistics()

    assert statistics.pending == {"active": 1, "backoff": 1, "unschedulable": 1, "gated": 1, "gang": 0}
    assert (statistics.in_flight, len(queue)) == (1, 5)
    assert statistics.incoming == {
        ("gated", "UnschedulablePodAdd"): 1,
        ("active", "UnschedulablePodAdd"): 4,
        ("unschedulable", "ScheduleAttemptFailure"): 1,
        ("backoff", "ScheduleAttemptFailure"): 1,
    }
    assert [(e.uid, e.state) for e in queue.entries()] == [
        ("g", QueueState.GATED),
        ("s", QueueState.UNSCHEDULABLE),
        ("b", QueueState.BACKOFF),
        ("f", QueueState.IN_FLIGHT),
        ("a", QueueState.ACTIVE),
    ]


# Shares of namespaces


def test_infeasible_high_priority_namespace_leaves_attempts_to_others() -> None:
    queue = make_queue()
    for number in range(300):
        park(queue, make_pod(f"hopeless-{number}", namespace="a", priority=9))
    queue.on_event(NODE_ADD, None, make_node(), 60)
    for number in range(10):
        queue.add(make_pod(f"fresh-{number}", namespace="b"), 60)
    order = [pop_uid(queue, 60) for _ in range(2 * 10 + 16)]

    assert sum(str(uid).startswith("fresh") for uid in order) == 10
    assert queue.statistics().passed_over >= 10
    queue.validate()


def test_high_priority_retry_precedes_first_attempts_of_its_namespace() -> None:
    queue = make_queue()
    for number in range(100):
        park(queue, make_pod(f"retry-{number}", priority=9))
    queue.on_event(NODE_ADD, None, make_node(), 60)
    queue.add(make_pod("fresh"), 60)

    assert [pop_uid(queue, 60) for _ in range(101)][-1] == "fresh"


def test_conflict_at_commit_does_not_count_as_a_retry() -> None:
    queue = make_queue()
    queue.add(make_pod("u", namespace="a", priority=9), 0)
    pop_uid(queue, 0)
    queue.fail("u", CONFLICT, 0)

    assert queue.statistics().namespaces_retrying == 0


def test_long_attempts_leave_more_attempts_to_others() -> None:
    queue = make_queue()
    for number in range(100):
        park(queue, make_pod(f"costly-{number}", namespace="a", priority=9))
        park(queue, make_pod(f"cheap-{number}", namespace="b"))
    queue.on_event(NODE_ADD, None, make_node(), 60)
    order = []
    for _ in range(60):
        uid = pop_uid(queue, 60) or ""
        order.append(uid)
        queue.charge_attempt(uid, 0.020 if uid.startswith("costly") else 0.0001)

    assert sum(uid.startswith("costly") for uid in order) <= 60 / 21 + 2


# What it counts


def test_events_in_flight_are_counted_by_label_including_attempts() -> None:
    queue = make_queue()
    for uid in ("a", "b"):
        queue.add(make_pod(uid), 0)
        queue.pop(0)
    queue.on_event(NODE_ADD, None, make_node(), 1)
    queue.on_event(NODE_ADD, None, make_node(), 1)
    queue.on_event(ASSIGNED_POD_ADD, None, make_pod("x", node="n"), 1)
    assert queue.events_in_flight() == {"NodeAdd": 2, "PodPopped": 2}

    queue.done("a")
    queue.done("b")
    assert queue.events_in_flight() == {}


def test_pods_bound_after_the_leftover_flush_are_counted() -> None:
    queue = make_queue()
    for uid in ("bound", "failed"):
        park(queue, make_pod(uid))
    queue.flush(300)
    for _ in range(2):
        pop_uid(queue, 300)
    queue.fail("failed", REFUSED, 301)
    queue.on_event(NODE_ADD, None, make_node(), 360)
    pop_uid(queue, 360)
    queue.done("failed")
    assert queue.statistics().bound_after_flush == 0

    queue.done("bound")
    assert queue.statistics().bound_after_flush == 1


ASKS = PodSpec(requests={"cpu": 2})


@pytest.mark.parametrize(
    ("changed", "label"),
    [
        (make_pod("u", spec=ASKS, labels={"a": "b"}), "UnschedulablePodUpdatePodLabel"),
        (make_pod("u", spec=PodSpec(requests={"cpu": 1})), "UnschedulablePodUpdatePodScaleDown"),
        (make_pod("u", spec=PodSpec(requests={"cpu": 3})), "UnschedulablePodUpdate"),
        (
            make_pod("u", spec=PodSpec(requests={"cpu": 2}, tolerations=(Toleration(key="k"),))),
            "UnschedulablePodUpdatePodToleration",
        ),
        (make_pod("u", spec=ASKS, annotations={"a": "b"}), "UnschedulablePodUpdate"),
    ],
)
def test_own_pod_change_has_the_kube_scheduler_event_name(changed: Pod, label: str) -> None:
    queue, known = make_queue(), make_pod("u", spec=ASKS)
    park(queue, known, refused_by(LEGACY))
    queue.update(known, changed, 60)

    assert queue.statistics().incoming["active", label] == 1


def test_hint_gets_the_old_and_new_pod_in_every_state() -> None:
    told: list[tuple[EventObject, EventObject]] = []

    def hint(pod: Pod, old: EventObject, new: EventObject) -> Hint:
        told.append((old, new))
        return Hint.SKIP

    label = ClusterEvent(Resource.TARGET_POD, Action.UPDATE_POD_LABEL, "TargetPodLabel")
    queue = make_queue(plugins=[Listening(FIT, EventRegistration(label, hint))])
    versions = [make_pod("u", labels={"color": color}) for color in ("red", "green", "blue")]
    queue.add(versions[0], 0)
    assert pop_uid(queue, 0) == "u"
    queue.update(versions[0], versions[1], 1)
    queue.fail("u", REFUSED, 2)
    queue.update(versions[1], versions[2], 3)
    assert told == [(versions[0], versions[1]), (versions[1], versions[2])]
