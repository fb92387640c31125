"""Ten thousand refused pods of one namespace, all different, make no event dear: they are tried again in turns instead."""

from __future__ import annotations

from collections.abc import Sequence

from multisched.framework.events import ASSIGNED_POD_DELETE, EventObject, EventRegistration, Hint
from multisched.model.objects import Pod
from multisched.plugins.priority_sort import PrioritySort
from multisched.queueing.backoff import BackoffPolicy
from multisched.queueing.entry import Failure
from multisched.queueing.parked_pods import HINT_COST_MAX, OVERDUE_PER_FLUSH
from multisched.queueing.pod_queue import OVERDUE_PAUSE_S, PodQueue
from multisched.queueing.transitions import QueueState


class Choosy:
    """A plugin that refuses pods and says of each event that it helps the pods labelled so."""

    name = "Choosy"

    def __init__(self) -> None:
        self.asked = 0

    def events_to_register(self) -> Sequence[EventRegistration]:
        return (EventRegistration(ASSIGNED_POD_DELETE, self._hint),)

    def _hint(self, pod: Pod, old: EventObject, new: EventObject) -> Hint:
        self.asked += 1
        return Hint.QUEUE if "helped" in pod.labels else Hint.SKIP


class Parked:
    """A queue in which Choosy has refused pods, each with labels of its own."""

    def __init__(self) -> None:
        self.choosy = Choosy()
        self.queue = PodQueue(PrioritySort(), (), [self.choosy], on_error=lambda plugin, point, error: None)

    def refuse(self, namespace: str, count: int, **labels: str) -> list[str]:
        uids = [f"{namespace}-{number}" for number in range(count)]
        for number, uid in enumerate(uids):
            self.queue.add(Pod(namespace, uid, uid, 1, labels={**labels, "n": str(number)}), 0.0)
            assert self.queue.pop(0.0) is not None
            self.queue.fail(uid, Failure(frozenset({self.choosy.name})), 0.0)
        return uids

    def happen(self, now_s: float) -> None:
        gone = Pod("gone", "gone", "gone", 1, node="node")
        self.queue.on_event(ASSIGNED_POD_DELETE, gone, None, now_s)

    def waking(self, uids: Sequence[str]) -> int:
        return sum(self.queue.where(uid) is not QueueState.UNSCHEDULABLE for uid in uids)


def test_hints_are_not_called_in_a_namespace_with_too_many_parked_pods() -> None:
    parked = Parked()
    many, few = parked.refuse("many", HINT_COST_MAX + 1), parked.refuse("few", 3, helped="yes")
    parked.happen(100.0)
    assert parked.choosy.asked == 3
    assert parked.waking(few) == 3
    assert parked.waking(many) == 0


def test_all_parked_pods_of_a_large_namespace_are_retried_in_steps() -> None:
    parked = Parked()
    many = parked.refuse("many", HINT_COST_MAX + 1)
    parked.happen(100.0)
    now_s, flushes = 100.0, 0
    while parked.waking(many) < len(many):
        before = parked.waking(many)
        wakeup_s = parked.queue.next_wakeup_s()
        assert wakeup_s is not None
        assert wakeup_s <= now_s + OVERDUE_PAUSE_S
        now_s, flushes = now_s + OVERDUE_PAUSE_S, flushes + 1
        parked.queue.flush(now_s)
        assert 0 < parked.waking(many) - before <= OVERDUE_PER_FLUSH
    assert flushes == -(-len(many) // OVERDUE_PER_FLUSH)


def test_pod_requeued_without_a_hint_backs_off_first() -> None:
    parked = Parked()
    many = parked.refuse("many", HINT_COST_MAX + 1)
    parked.happen(0.1)
    moved = parked.queue.flush(0.2)
    assert (moved.active, moved.backoff) == (0, OVERDUE_PER_FLUSH)
    waiting = [uid for uid in many if parked.queue.where(uid) is QueueState.BACKOFF]
    assert len(waiting) == OVERDUE_PER_FLUSH
    parked.queue.flush(BackoffPolicy().duration_s(1))
    assert {parked.queue.where(uid) for uid in waiting} == {QueueState.ACTIVE}


def test_pods_parked_after_the_event_are_not_requeued_for_it() -> None:
    parked = Parked()
    many = parked.refuse("many", HINT_COST_MAX + 1)
    parked.happen(100.0)
    late = [f"late-{number}" for number in range(OVERDUE_PER_FLUSH)]
    for uid in late:
        parked.queue.add(Pod("many", uid, uid, 1, labels={"n": uid}), 100.0)
        assert parked.queue.pop(100.0) is not None
        parked.queue.fail(uid, Failure(frozenset({parked.choosy.name})), 100.0)
    now_s = 100.0
    for _ in range(-(-len(many) // OVERDUE_PER_FLUSH)):
        now_s += OVERDUE_PAUSE_S
        parked.queue.flush(now_s)
    assert parked.waking(many) == len(many)
    assert parked.waking(late) == 0
