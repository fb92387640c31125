"""GangScheduling: gates members of a gang until enough of them exist, and registers the events that requeue a gang.

Has no state: `GangRoster` tracks members, the queue keeps a gang as one entity, and the cycle decides it in one step.
Source: kube-scheduler 1.36, plugins/gangscheduling, which also makes members wait at Permit; this plugin does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from multisched.framework.context import PluginContext
from multisched.framework.events import Action, ClusterEvent, EventObject, EventRegistration, Hint, Resource
from multisched.framework.gangs import GANG_PLUGIN, GangView
from multisched.framework.object_status import ObjectStatus
from multisched.framework.status import SUCCESS, Status
from multisched.framework.traits import Traits
from multisched.framework.views import Document, ViewPorts, ViewQuery
from multisched.model.gang import membership_of
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Pod
from multisched.plugins.gang.gang_status import status_of

_NODE_GAINS: Final = (
    Action.ADD
    | Action.UPDATE_NODE_ALLOCATABLE
    | Action.UPDATE_NODE_LABEL
    | Action.UPDATE_NODE_TAINT
    | Action.UPDATE_NODE_CONDITION
)
_POD_LEAVES: Final = Action.DELETE | Action.UPDATE_POD_SCALE_DOWN | Action.UPDATE_POD_LABEL


class GangScheduling:
    """The GangScheduling plugin. See `multisched.model.gang` for the supported gang APIs."""

    name = GANG_PLUGIN
    view = "gangs"
    status_kinds = (ObjectKind.POD_GROUP, ObjectKind.SIGS_POD_GROUP, ObjectKind.WORKLOAD_POD_GROUP)
    traits = Traits(reads_objects=status_kinds)

    def __init__(self, context: PluginContext) -> None:
        self._gangs: GangView = context.gangs
        self._objects = context.objects
        self._ours = context.scheduler_names
        self._domain = context.domain

    async def show(self, query: ViewQuery, ports: ViewPorts) -> Callable[[], Document]:
        """See `framework.views.ViewedPlugin`."""
        from multisched.plugins.gang.figures import document_of

        found = await document_of(self._gangs, self._ours, query, self._domain)
        return lambda: found

    def status_of(self, kind: ObjectKind, namespace: str, name: str) -> ObjectStatus | None:
        """Returns the status of a PodGroup; None if no member uses one of this program's scheduler names.

        Then another scheduler writes the status.
        """
        group, counts = self._objects.get(kind, namespace, name), self._gangs.counts(f"{namespace}/{name}")
        if group is None or counts is None or (self._ours is not None and not counts.schedulers & self._ours):
            return None
        return status_of(kind, namespace, group.uid, counts)

    def pre_enqueue(self, pod: Pod) -> Status:
        """Refuses a member until its gang, and the gangs that start with it, can be complete."""
        membership = membership_of(pod)
        if membership is None:
            return SUCCESS
        why = membership.problem or self._gangs.why_not_yet(f"{pod.namespace}/{membership.name}")
        return Status.unschedulable(why) if why else SUCCESS

    def events_to_register(self) -> Sequence[EventRegistration]:
        """Returns the events that may help the gang through any of its members.

        A member that fits may use the new capacity instead, and leave its node to a member that does not fit. The plugins that
        refused a member register all other events. The queue handles members that wait for other members.
        """
        return (
            EventRegistration(ClusterEvent(Resource.NODE, _NODE_GAINS, "NodeGains"), self._room_hint),
            EventRegistration(ClusterEvent(Resource.ASSIGNED_POD, _POD_LEAVES, "AssignedPodFrees"), self._room_hint),
        )

    def _room_hint(self, pod: Pod, old: EventObject, new: EventObject) -> Hint:
        """Skips members that still wait for other members: free resources do not help them."""
        is_ready = membership_of(pod) is not None and self.pre_enqueue(pod).is_success
        return Hint.QUEUE if is_ready else Hint.SKIP
