"""Coscheduling in one file: pods of a group are bound together or not at all.
Label pods `example.com/group: NAME` and `example.com/group-size: "N"`. A member waits until N of its group are bound
or wait; then all go. When one times out, its unreserve sends the others back with it."""

from collections.abc import Mapping, Sequence
from typing import Any

from multisched.framework.context import PluginContext
from multisched.framework.events import ASSIGNED_POD_DELETE, NODE_ADD, Action, ClusterEvent, EventRegistration, Resource
from multisched.framework.points import CycleView, PermitResult
from multisched.framework.status import SUCCESS, Code, Status
from multisched.model.objects import Pod

GROUP, SIZE = "example.com/group", "example.com/group-size"
CURES = (ASSIGNED_POD_DELETE, NODE_ADD, ClusterEvent(Resource.UNSCHEDULED_POD, Action.ADD, "UnschedulablePodAdd"))


class Coscheduling:
    name = "Coscheduling"

    def __init__(self, args: Mapping[str, Any], context: PluginContext) -> None:
        self._timeout_s = float(args.get("timeoutSeconds", 30))
        self._held = context.waiting_pods
        self._is_dissolving = False

    def permit(self, cycle: CycleView, pod: Pod, node: str) -> PermitResult:
        size = pod.labels.get(SIZE, "1")
        if GROUP not in pod.labels:
            return PermitResult(SUCCESS)
        if not (size.isascii() and size.isdigit() and len(size) <= 4):
            return PermitResult(Status.unresolvable(f"label {SIZE}: {size!r} is not a number; write the group's size"))
        waiting = _members(_group(pod), self._held.waiting())
        if len({pod.uid, *waiting}) < int(size):  # others of the group may be bound: ask the nodes, which costs more
            placed = [other for row in cycle.nodes.pod_count.nonzero()[0] for other in cycle.nodes.pods_on(int(row))]
            if len({pod.uid, *waiting, *_members(_group(pod), placed)}) < int(size):
                return PermitResult(Status(Code.WAIT), self._timeout_s)
        for uid in waiting:
            self._held.allow(uid, self.name)
        return PermitResult(SUCCESS)

    def reserve(self, cycle: CycleView, pod: Pod, node: str) -> Status:
        return SUCCESS

    def unreserve(self, cycle: CycleView, pod: Pod, node: str) -> None:
        if GROUP in pod.labels and not self._is_dissolving:
            self._is_dissolving = True  # each reject unreserves that member, which comes back here
            for uid in _members(_group(pod), self._held.waiting()):
                self._held.reject(uid, self.name, f"member {pod.name} of the group gave up")
            self._is_dissolving = False

    def events_to_register(self) -> Sequence[EventRegistration]:
        return [EventRegistration(event) for event in CURES]


def _group(pod: Pod) -> tuple[str, str]:
    return pod.namespace, pod.labels.get(GROUP, "")


def _members(group: tuple[str, str], pods: Sequence[Pod]) -> list[str]:
    return [pod.uid for pod in pods if _group(pod) == group]
