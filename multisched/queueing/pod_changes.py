"""Changes between two versions of a pending pod that could make it schedulable.

Pure. Source: kube-scheduler 1.36, pkg/scheduler/framework/events.go, PodSchedulingPropertiesChange. Changes of status
(phase, nomination, start time, version) are ignored: they never move a pod.
"""

from __future__ import annotations

from multisched.framework.events import Action, ClusterEvent, Resource
from multisched.model.objects import Pod, Requests

_LABELS = {
    Action.UPDATE_POD_LABEL: "UpdatePodLabel",
    Action.UPDATE_POD_SCALE_DOWN: "UpdatePodScaleDown",
    Action.UPDATE_POD_GATES: "UpdatePodSchedulingGatesEliminated",
    Action.UPDATE_POD_TOLERATION: "UpdatePodToleration",
    Action.UPDATE_POD_SCALE_UP: "Update",
    Action.UPDATE_POD_OTHER: "Update",
}
"""In kube-scheduler's order and wording; a change of several kinds has the label of the first."""


def own_event(old: Pod, new: Pod) -> ClusterEvent | None:
    """Returns the TARGET_POD event of this update; None if only its status changed."""
    actions = Action(0)
    if old.labels != new.labels:
        actions |= Action.UPDATE_POD_LABEL
    if old.gates and not new.gates:
        actions |= Action.UPDATE_POD_GATES
    if old.spec is not new.spec:
        actions |= _spec_actions(old, new) or Action.UPDATE_POD_OTHER
    if _differs_otherwise(old, new):
        actions |= Action.UPDATE_POD_OTHER
    if not actions:
        return None
    label = next(name for action, name in _LABELS.items() if action & actions)
    return ClusterEvent(Resource.TARGET_POD, actions, f"UnschedulablePod{label}")


def _spec_actions(old: Pod, new: Pod) -> Action:
    actions = Action(0)
    if _has_less(new.spec.requests, old.spec.requests):
        actions |= Action.UPDATE_POD_SCALE_DOWN
    if _has_less(old.spec.requests, new.spec.requests):
        actions |= Action.UPDATE_POD_SCALE_UP
    if old.spec.tolerations != new.spec.tolerations:
        actions |= Action.UPDATE_POD_TOLERATION
    return actions


def _has_less(one: Requests, other: Requests) -> bool:
    """Reports whether `one` requests less of some resource than `other`."""
    return any(one.get(resource, 0) < amount for resource, amount in other.items())


def _differs_otherwise(old: Pod, new: Pod) -> bool:
    """Reports whether anything changed that has no action of its own."""
    return (
        (old.gates != new.gates and bool(new.gates))
        or old.annotations != new.annotations
        or old.owner != new.owner
        or old.malformed != new.malformed
    )
