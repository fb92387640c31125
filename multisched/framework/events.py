"""Cluster events that may make a pending pod schedulable, and the queueing hints by which plugins decide whether one does."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, Flag, auto

import msgspec

from multisched.model.cluster_objects import ClusterObject
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Node, Pod


class Resource(Enum):
    """Event sources besides API objects."""

    NODE = "Node"
    ASSIGNED_POD = "AssignedPod"
    DISTANT_POD = "DistantPod"
    """An assigned pod on a node that the domain may not use: passed as ASSIGNED_POD to plugins that depend on more than
    single rows. Plugins do not register it.
    """
    DISTANT_NODE = "DistantNode"
    """A node that the domain may not use. Delivered only to plugins that register it by name: those that count pods
    outside the domain's rows.
    """
    UNSCHEDULED_POD = "UnscheduledPod"
    TARGET_POD = "TargetPod"
    """The pending pod itself."""
    WILDCARD = "*"
    """Nodes, pods, and the kinds of objects with `is_in_wildcard`; every other kind must be registered by name."""

    __hash__ = object.__hash__  # members are compared by identity; Enum's own hash is a Python call in each look-up


EventResource = Resource | ObjectKind
"""The resource of an event: nodes, pods, or any kind of object that plugins may read."""


class Action(Flag):
    """The change of the object, as upstream's ActionType."""

    ADD = auto()
    DELETE = auto()
    UPDATE_NODE_ALLOCATABLE = auto()
    UPDATE_NODE_LABEL = auto()
    UPDATE_NODE_TAINT = auto()
    UPDATE_NODE_CONDITION = auto()
    UPDATE_NODE_ANNOTATION = auto()
    UPDATE_NODE_DECLARED_FEATURE = auto()
    UPDATE_POD_LABEL = auto()
    UPDATE_POD_SCALE_DOWN = auto()
    UPDATE_POD_SCALE_UP = auto()
    UPDATE_POD_TOLERATION = auto()
    UPDATE_POD_GATES = auto()
    UPDATE_POD_OTHER = auto()
    UPDATE_POD_DELETING = auto()
    """A pod on a node got its deletion timestamp. It keeps its resources, but spreading no longer counts it."""
    UPDATE = auto()
    """An update of an object that is neither a node nor a pod."""
    ALL = (
        ADD
        | DELETE
        | UPDATE_NODE_ALLOCATABLE
        | UPDATE_NODE_LABEL
        | UPDATE_NODE_TAINT
        | UPDATE_NODE_CONDITION
        | UPDATE_NODE_ANNOTATION
        | UPDATE_NODE_DECLARED_FEATURE
        | UPDATE_POD_LABEL
        | UPDATE_POD_SCALE_DOWN
        | UPDATE_POD_SCALE_UP
        | UPDATE_POD_TOLERATION
        | UPDATE_POD_GATES
        | UPDATE_POD_OTHER
        | UPDATE_POD_DELETING
        | UPDATE
    )

    __hash__ = object.__hash__  # as `Resource`: there is one member for each combination


class ClusterEvent(msgspec.Struct, frozen=True):
    """A kind of object and actions on it: those for which a plugin registers, or those that took place."""

    resource: EventResource
    action: Action
    label: str = ""
    """For metrics and logs, as upstream prints it, for instance NodeAdd."""

    @property
    def is_in_wildcard(self) -> bool:
        """Reports whether wildcard registrations include it; other events reach only plugins that registered the kind by name."""
        if isinstance(self.resource, ObjectKind):
            return self.resource.definition.is_in_wildcard
        return self.resource is not Resource.DISTANT_NODE

    def matches(self, happened: ClusterEvent) -> bool:
        is_any = self.resource is Resource.WILDCARD and happened.is_in_wildcard
        return (is_any or self.resource is happened.resource) and bool(self.action & happened.action)


class Hint(Enum):
    """The result of a queueing hint."""

    QUEUE = "Queue"
    QUEUE_ONE = "QueueOne"
    """The event makes room for one pod. Of the pending pods of the class, the one that was parked first is queued, without backoff.

    Pods of a class have equal requirements: if this one is refused, the others would be, too. The plugin must also register the
    deletion of pending pods, because the queued one may be deleted before its attempt.
    """
    SKIP = "QueueSkip"


EventObject = Node | Pod | ClusterObject | None
"""The object of an event; None for the state before an addition or after a deletion."""

QueueingHint = Callable[[Pod, EventObject, EventObject], Hint]
"""(pending pod, old object, new object) -> whether this event may make the pod schedulable. Sync and cheap.

Called once for all pending pods of one class, so it must not read the pod's name, uid, version or creation time.
TARGET_POD events are the exception: they are about that pod alone. If a hint raises or returns an invalid result, the
pod is queued.
"""


class EventRegistration(msgspec.Struct, frozen=True):
    """An event that may resolve a plugin's refusal, with an optional hint. Without a hint the event always queues."""

    event: ClusterEvent
    hint: QueueingHint | None = None


FLUSH = ClusterEvent(Resource.WILDCARD, Action.ALL, "UnschedulableTimeout")
FORCED = ClusterEvent(Resource.WILDCARD, Action.ALL, "ForceActivate")
NODE_ADD = ClusterEvent(Resource.NODE, Action.ADD, "NodeAdd")
NODE_DELETE = ClusterEvent(Resource.NODE, Action.DELETE, "NodeDelete")
ASSIGNED_POD_ADD = ClusterEvent(Resource.ASSIGNED_POD, Action.ADD, "AssignedPodAdd")
ASSIGNED_POD_DELETE = ClusterEvent(Resource.ASSIGNED_POD, Action.DELETE, "AssignedPodDelete")
"""Also the end of a nomination: the pod then has no node, but a `nominated_node`."""
ATTEMPT_UNDONE = ClusterEvent(Resource.ASSIGNED_POD, Action.DELETE, "AttemptUndone")
"""A gang member that was assumed during a pause of its attempt was forgotten; does not requeue the gang itself."""
