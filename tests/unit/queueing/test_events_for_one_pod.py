"""Events that make room for one pod: of each class of parked pods one is queued, at once."""

from __future__ import annotations

from collections.abc import Sequence

from multisched.framework.events import ASSIGNED_POD_DELETE, EventObject, EventRegistration, Hint, QueueingHint
from multisched.model.objects import Pod
from multisched.plugins.priority_sort import PrioritySort
from multisched.queueing.entry import Failure
from multisched.queueing.pod_queue import PodQueue
from multisched.queueing.transitions import QueueState

GONE = Pod("default", "gone", "gone", 1, node="node")


class OneAtATime:
    """Refuses all pods but one, and gives these hints for each event."""

    name = "OneAtATime"

    def __init__(self, *hints: Hint) -> None:
        self._hints = hints

    def events_to_register(self) -> Sequence[EventRegistration]:
        return [EventRegistration(ASSIGNED_POD_DELETE, _always(hint)) for hint in self._hints]


def _always(answer: Hint) -> QueueingHint:
    def hint(pod: Pod, old: EventObject, new: EventObject) -> Hint:
        return answer

    return hint


def queue_of(*hints: Hint) -> PodQueue:
    return PodQueue(PrioritySort(), (), [OneAtATime(*hints)], on_error=lambda plugin, point, error: None)


def refuse(queue: PodQueue, *uids: str, namespace: str = "default") -> None:
    for uid in uids:
        queue.add(Pod(namespace, uid, uid, 1), 0.0)
        assert queue.pop(0.0) is not None
        queue.fail(uid, Failure(frozenset({OneAtATime.name})), 0.0)


def states(queue: PodQueue, *uids: str) -> list[QueueState | None]:
    return [queue.where(uid) for uid in uids]


PARKED, ACTIVE = QueueState.UNSCHEDULABLE, QueueState.ACTIVE


def test_the_first_parked_pod_of_each_class_is_queued_without_backoff() -> None:
    queue = queue_of(Hint.QUEUE_ONE)
    refuse(queue, "a", "b", "c")
    refuse(queue, "other", namespace="another")

    queue.on_event(ASSIGNED_POD_DELETE, GONE, None, 0.1)

    assert states(queue, "a", "b", "c", "other") == [ACTIVE, PARKED, PARKED, ACTIVE]
    queue.on_event(ASSIGNED_POD_DELETE, GONE, None, 0.2)
    assert states(queue, "a", "b", "c", "other") == [ACTIVE, ACTIVE, PARKED, ACTIVE]
    queue.validate()


def test_pod_refused_again_is_queued_behind_the_others() -> None:
    queue = queue_of(Hint.QUEUE_ONE)
    refuse(queue, "a", "b")
    queue.on_event(ASSIGNED_POD_DELETE, GONE, None, 0.1)
    assert queue.pop(0.1) is not None
    queue.fail("a", Failure(frozenset({OneAtATime.name})), 0.1)

    queue.on_event(ASSIGNED_POD_DELETE, GONE, None, 0.2)

    assert states(queue, "a", "b") == [PARKED, ACTIVE]


def test_an_event_during_the_attempt_queues_the_pod_again_at_once() -> None:
    queue = queue_of(Hint.QUEUE_ONE)
    queue.add(Pod("default", "a", "a", 1), 0.0)
    assert queue.pop(0.0) is not None
    queue.on_event(ASSIGNED_POD_DELETE, GONE, None, 0.1)
    queue.fail("a", Failure(frozenset({OneAtATime.name})), 0.2)

    assert states(queue, "a") == [ACTIVE]


def test_a_hint_for_all_pods_overrides_one_for_a_single_pod() -> None:
    queue = queue_of(Hint.QUEUE_ONE, Hint.QUEUE)
    refuse(queue, "a", "b")

    queue.on_event(ASSIGNED_POD_DELETE, GONE, None, 0.1)

    assert PARKED not in states(queue, "a", "b")


class Undecided(OneAtATime):
    """Its hint returns no `Hint`."""

    def events_to_register(self) -> Sequence[EventRegistration]:
        def hint(pod: Pod, old: EventObject, new: EventObject) -> Hint:
            return None  # type: ignore[return-value]

        return [EventRegistration(ASSIGNED_POD_DELETE, hint)]


def test_an_invalid_hint_queues_all_pods() -> None:
    queue = PodQueue(PrioritySort(), (), [Undecided()], on_error=lambda plugin, point, error: None)
    refuse(queue, "a", "b")

    queue.on_event(ASSIGNED_POD_DELETE, GONE, None, 0.1)

    assert PARKED not in states(queue, "a", "b")
