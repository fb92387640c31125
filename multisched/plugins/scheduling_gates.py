"""SchedulingGates: gates a pod with spec.schedulingGates until the last gate is removed."""

from __future__ import annotations

from collections.abc import Sequence

from multisched.framework.events import Action, ClusterEvent, EventObject, EventRegistration, Hint, Resource
from multisched.framework.status import SUCCESS, Status
from multisched.model.objects import Pod


class SchedulingGates:
    """Source: kube-scheduler 1.36, plugins/schedulinggates/scheduling_gates.go."""

    name = "SchedulingGates"

    def pre_enqueue(self, pod: Pod) -> Status:
        """Refuses a pod with gates, and names them."""
        if not pod.gates:
            return SUCCESS
        return Status.unresolvable(f"waiting for scheduling gates: [{' '.join(pod.gates)}]").by(self.name)

    def events_to_register(self) -> Sequence[EventRegistration]:
        gates_removed = ClusterEvent(Resource.TARGET_POD, Action.UPDATE_POD_GATES, "TargetPodSchedulingGatesEliminated")
        return (EventRegistration(gates_removed, _after_gates_removed),)


def _after_gates_removed(pod: Pod, old: EventObject, new: EventObject) -> Hint:
    return Hint.QUEUE if new is None or new.uid == pod.uid else Hint.SKIP
