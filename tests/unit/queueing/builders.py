"""Pods, plugins and queues for the queue's tests: small, each with one visible purpose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from multisched.framework.events import (
    ASSIGNED_POD_DELETE,
    NODE_ADD,
    Action,
    ClusterEvent,
    EventObject,
    EventRegistration,
    Hint,
    Resource,
)
from multisched.framework.points import Plugin, PreEnqueuePlugin, QueuedPod
from multisched.framework.status import SUCCESS, Status
from multisched.model.objects import Node, Pod
from multisched.queueing.backoff import BackoffPolicy
from multisched.queueing.entry import Failure
from multisched.queueing.pod_queue import LEFTOVER_S, PodQueue
from multisched.testing import builders

NODE_LABEL = ClusterEvent(Resource.NODE, Action.UPDATE_NODE_LABEL, "NodeLabel")

FIT, AFFINITY, LEGACY, OUTSIDE = "Fit", "Affinity", "Legacy", "Outside"
"""Listens to NodeAdd and AssignedPodDelete; listens with a hint; registers nothing; answers Pending."""

REFUSED = Failure(rejectors=frozenset({FIT}), message="0/1 nodes are available: 1 Insufficient cpu.")
ERROR = Failure(is_error=True)
CONFLICT = Failure(without_backoff=True)


class BySortOfPriority:
    """Priority, then time in the queue."""

    name = "PrioritySort"

    def sort_key(self, entry: QueuedPod) -> tuple[Any, ...]:
        return (-entry.pod.spec.priority, entry.queued_s)


class Listening:
    """A plugin known for the events it registers only."""

    def __init__(self, name: str, *registrations: EventRegistration) -> None:
        self.name = name
        self._registrations = registrations

    def events_to_register(self) -> Sequence[EventRegistration]:
        return self._registrations


class ClosedGates:
    """Holds pods that have scheduling gates, until they are eliminated."""

    name = "SchedulingGates"

    def pre_enqueue(self, pod: Pod) -> Status:
        return Status.unresolvable(f"waiting for scheduling gates: {list(pod.gates)}") if pod.gates else SUCCESS

    def events_to_register(self) -> Sequence[EventRegistration]:
        return [EventRegistration(ClusterEvent(Resource.TARGET_POD, Action.UPDATE_POD_GATES))]


class QuotaGate:
    """Holds every pod while it is full; a deleted pod makes room."""

    name = "Quota"

    def __init__(self) -> None:
        self.is_full = False
        self.asked = 0

    def pre_enqueue(self, pod: Pod) -> Status:
        self.asked += 1
        return Status.unschedulable("quota is used up") if self.is_full else SUCCESS

    def events_to_register(self) -> Sequence[EventRegistration]:
        return [EventRegistration(ASSIGNED_POD_DELETE)]


class AffinityHint:
    """Queues when the new node's label `zone` is the pod's; counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, pod: Pod, old: EventObject, new: EventObject) -> Hint:
        self.asked += 1
        assert isinstance(new, Node)
        return Hint.QUEUE if new.labels.get("zone") == pod.labels.get("zone") else Hint.SKIP


class Errors:
    """Collects what plugins raised."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str, str]] = []

    def __call__(self, plugin: str, point: str, error: Exception) -> None:
        self.heard.append((plugin, point, str(error)))


def make_pod(uid: str, **fields: Any) -> Pod:
    """The queue knows pods by their uid, so that is what a test calls them."""
    return builders.make_pod(fields.pop("name", uid), uid=uid, **fields)


def profile(hint: AffinityHint | None = None) -> list[Plugin]:
    """Fit, Affinity and Outside; nobody has heard of Legacy."""
    return [
        Listening(FIT, EventRegistration(NODE_ADD), EventRegistration(ASSIGNED_POD_DELETE)),
        Listening(
            AFFINITY,
            EventRegistration(NODE_ADD, hint or AffinityHint()),
            EventRegistration(ClusterEvent(Resource.TARGET_POD, Action.UPDATE_POD_LABEL)),
        ),
        Listening(OUTSIDE, EventRegistration(NODE_LABEL)),
    ]


def make_queue(
    *,
    gates: Sequence[PreEnqueuePlugin] = (),
    plugins: Sequence[Plugin] | None = None,
    errors: Errors | None = None,
    leftover_s: float = LEFTOVER_S,
    in_flight_events_max: int = 100,
) -> PodQueue:
    return PodQueue(
        BySortOfPriority(),
        gates,
        profile() if plugins is None else plugins,
        on_error=errors or Errors(),
        backoff=BackoffPolicy(1.0, 10.0),
        leftover_s=leftover_s,
        in_flight_events_max=in_flight_events_max,
    )


def pop_uid(queue: PodQueue, now_s: float) -> str | None:
    popped = builders.pop_pod(queue, now_s)
    return None if popped is None else popped.pod.uid


def park(queue: PodQueue, pod: Pod, failure: Failure = REFUSED, now_s: float = 0.0) -> None:
    """Adds, pops and fails the pod."""
    queue.add(pod, now_s)
    assert pop_uid(queue, now_s) == pod.uid
    queue.fail(pod.uid, failure, now_s)
