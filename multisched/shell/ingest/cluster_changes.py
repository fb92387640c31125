"""Converts changes between two versions of a node, or of a pod on a node, to cluster events.

Pure. One event per kind of change, in kube-scheduler's order and with its labels (source: kube-scheduler 1.36,
framework/events.go). A change that cannot make another pod schedulable, such as a cordon or a larger request, gives no event.
"""

from __future__ import annotations

from collections.abc import Sequence

from multisched.framework.events import Action, ClusterEvent, Resource
from multisched.model.objects import Node, Pod, reported_values_differ

_NODE = {
    action: ClusterEvent(Resource.NODE, action, f"NodeUpdateNode{label}")
    for action, label in (
        (Action.UPDATE_NODE_ALLOCATABLE, "Allocatable"),
        (Action.UPDATE_NODE_LABEL, "Label"),
        (Action.UPDATE_NODE_TAINT, "Taint"),
        (Action.UPDATE_NODE_ANNOTATION, "Annotation"),
        (Action.UPDATE_NODE_DECLARED_FEATURE, "DeclaredFeature"),
    )
}
_RELABELLED = ClusterEvent(Resource.ASSIGNED_POD, Action.UPDATE_POD_LABEL, "AssignedPodUpdatePodLabel")
_DELETING = ClusterEvent(Resource.ASSIGNED_POD, Action.UPDATE_POD_DELETING, "AssignedPodUpdatePodDeleting")
_REPORTED = ClusterEvent(Resource.ASSIGNED_POD, Action.UPDATE_POD_OTHER, "AssignedPodUpdatePodOther")
_SCALED_DOWN = ClusterEvent(Resource.ASSIGNED_POD, Action.UPDATE_POD_SCALE_DOWN, "AssignedPodUpdatePodScaleDown")


def node_events(before: Node, after: Node) -> Sequence[ClusterEvent]:
    """Returns the events for an updated node."""
    is_uncordoned = before.is_unschedulable and not after.is_unschedulable
    changed = (
        (Action.UPDATE_NODE_ALLOCATABLE, (before.allocatable, before.elastic) != (after.allocatable, after.elastic)),
        (Action.UPDATE_NODE_LABEL, before.labels != after.labels),
        (Action.UPDATE_NODE_TAINT, before.taints != after.taints or is_uncordoned),
        (Action.UPDATE_NODE_ANNOTATION, before.annotations != after.annotations),
        (Action.UPDATE_NODE_DECLARED_FEATURE, before.declared_features != after.declared_features),
    )
    return [_NODE[action] for action, is_changed in changed if is_changed]


def assigned_pod_events(before: Pod, after: Pod, reported: frozenset[str] = frozenset()) -> Sequence[ClusterEvent]:
    """Returns the events for an updated pod on a node that may make other pods schedulable.

    `reported`: annotations by which other programs confirm what the pod holds (`AnnotatedLedger.reported`).
    """
    events = []
    if before.labels is not after.labels and before.labels != after.labels:
        events.append(_RELABELLED)
    was, now = before.requests, after.requests
    if was is not now and any(now.get(resource, 0) < amount for resource, amount in was.items()):
        events.append(_SCALED_DOWN)
    if after.is_deleting and not before.is_deleting:
        events.append(_DELETING)
    if reported and reported_values_differ(before, after, reported):
        events.append(_REPORTED)
    return events
