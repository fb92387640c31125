"""Events that make room for one pod: of each class of parked pods one is queued, at once."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from multisched.framework.dependency import Dependency
from multisched.framework.events import ASSIGNED_POD_DELETE, EventObject, EventRegistration, Hint, QueueingHint
from multisched.framework.points import PreEnqueuePlugin, QueuedPod
from multisched.framework.status import SUCCESS, Status
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


# -- a pod leaves its node -----------------------------------------------------------------------------------------


class OfOneRow(OneAtATime):
    """Its result for a row depends on the class and that row alone, as that of NodeResourcesFit."""

    depends_on = Dependency.ROW


def queue_of_rows(gates: Sequence[PreEnqueuePlugin] = (), *others: OneAtATime) -> PodQueue:
    plugins = [OfOneRow(Hint.QUEUE), *others]
    return PodQueue(PrioritySort(), gates, plugins, on_error=lambda plugin, point, error: None)


def leave_node(queue: PodQueue, now_s: float) -> None:
    queue.on_event(ASSIGNED_POD_DELETE, GONE, None, now_s)


def popped(queue: PodQueue, now_s: float) -> str:
    queue.regroup(now_s)
    one = queue.pop(now_s)
    assert isinstance(one, QueuedPod)
    return one.pod.uid


def is_empty(queue: PodQueue, now_s: float) -> bool:
    queue.validate()
    queue.regroup(now_s)
    return not queue.has_ready


LATER_S = 100.0
"""All backoffs have ended."""


def test_equal_pods_are_requeued_as_long_as_a_node_is_found_for_them() -> None:
    queue = queue_of_rows()
    refuse(queue, "a", "b", "c", "d")
    leave_node(queue, LATER_S)

    tried = []
    for has_node in (True, True, False):
        tried.append(popped(queue, LATER_S))
        if has_node:
            queue.found_node(tried[-1])
        else:
            queue.fail(tried[-1], Failure(frozenset({OneAtATime.name})), LATER_S)

    assert tried == ["a", "b", "c"]
    assert is_empty(queue, LATER_S)
    leave_node(queue, 2 * LATER_S)
    assert popped(queue, 2 * LATER_S) == "c", "refused for all of them, it is still the first"


def test_another_representative_follows_one_that_is_deleted_changed_or_fails() -> None:
    def delete(queue: PodQueue) -> None:
        queue.remove("a")

    def change(queue: PodQueue) -> None:
        assert popped(queue, LATER_S) == "a"
        pod = queue.pod("a")
        assert pod is not None
        queue.update(pod, replace(pod, labels={"changed": "yes"}), LATER_S)
        queue.fail("a", Failure(frozenset({OneAtATime.name})), LATER_S)

    def fail(queue: PodQueue) -> None:
        assert popped(queue, LATER_S) == "a"
        queue.fail("a", Failure(is_error=True), LATER_S)

    for happens in (delete, change, fail):
        queue = queue_of_rows()
        refuse(queue, "a", "b", "c")
        leave_node(queue, LATER_S)
        happens(queue)
        queue.regroup(LATER_S)
        assert (queue.where("b"), queue.where("c")) == (ACTIVE, PARKED), happens.__name__
        queue.validate()


class Gate:
    """Refuses the pods with these uids."""

    name = "Gate"

    def __init__(self) -> None:
        self.refused: set[str] = set()

    def pre_enqueue(self, pod: Pod) -> Status:
        return Status.unschedulable("not now") if pod.uid in self.refused else SUCCESS


def test_pod_that_a_gate_refuses_represents_nobody() -> None:
    gate = Gate()
    queue = queue_of_rows([gate])
    refuse(queue, "a", "b", "c")
    gate.refused = {"a"}

    leave_node(queue, LATER_S)

    assert states(queue, "a", "b", "c") == [QueueState.GATED, ACTIVE, PARKED]


def test_all_equal_pods_are_requeued_if_other_plugins_refuse_one_of_them() -> None:
    queue = queue_of_rows()
    refuse(queue, "a", "b", "c")
    leave_node(queue, LATER_S)
    assert popped(queue, LATER_S) == "a"

    queue.fail("a", Failure(frozenset({"Other"})), LATER_S)
    queue.regroup(LATER_S)

    assert states(queue, "a", "b", "c") == [PARKED, ACTIVE, ACTIVE]


def test_pods_nominated_to_the_node_are_requeued_besides_the_representative() -> None:
    queue = queue_of_rows()
    queue.listen(lambda uid: None, lambda node: ["c"] if node == GONE.node else [])
    refuse(queue, "a", "b", "c")

    leave_node(queue, LATER_S)

    assert states(queue, "a", "b", "c") == [ACTIVE, PARKED, ACTIVE]


def test_all_pods_are_requeued_if_a_plugin_that_refused_them_depends_on_more_than_a_row() -> None:
    class Elsewhere(OneAtATime):
        name = "Elsewhere"

    queue = queue_of_rows((), Elsewhere())
    for uid in "ab":
        queue.add(Pod("default", uid, uid, 1), 0.0)
        assert queue.pop(0.0) is not None
        queue.fail(uid, Failure(frozenset({OneAtATime.name, "Elsewhere"})), 0.0)

    leave_node(queue, LATER_S)

    assert states(queue, "a", "b") == [ACTIVE, ACTIVE]
