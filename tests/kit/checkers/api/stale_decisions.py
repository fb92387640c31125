"""Finds changes by other clients that the sender of a binding has observed since its decision, and that forbid the binding.

Pods of other clients are created and deleted while a binding waits to be sent. Their effect is checked rule by rule. For rules
about other nodes, only changes of such pods since the decision count.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from multisched.model.objects import Node, Pod
from tests.kit.checkers.delivered_state import DeliveredState
from tests.kit.checkers.device_rules import fraction_wanted
from tests.kit.checkers.reference_rules import PodOnNode, Relations, keep_apart, ports_conflict
from tests.kit.world.labels import GPU, GPU_INDICES, HONOURED


class Decision(NamedTuple):
    """The state on which a binding was decided."""

    pods: Mapping[str, Pod]
    """uid -> pod, as observed at that moment."""
    node: Node
    """The pod's node, as observed at that moment."""


def fault_of_pods_there(delivered: DeliveredState, pod: Pod, name: str) -> str:
    """Returns a pod on the node that excludes this pod; empty for none."""
    known, node = delivered.pods.get(pod.uid, pod), delivered.nodes.get(name)
    for one in delivered.pods_on(name):
        if one.uid == pod.uid:
            continue
        if keep_apart(known, one):
            return f"where {one.key} stands, which an anti-affinity forbids"
        if ports_conflict(known, one):
            return f"where {one.key} has a port that it wants"
        if _share_a_disk(known, one):
            return f"where {one.key} has the disk that it wants"
        if node is not None and _takes_whole_devices(one) and fraction_wanted(known.annotations) and _hands_out(node):
            return f"where {one.key} has whole devices, of which the node hands out which it likes"
    return ""


def _share_a_disk(pod: Pod, other: Pod) -> bool:
    """Reports whether both pods use a disk that only one pod of a node may use, and one of them writes to it."""
    pairs = ((ours.disk, theirs.disk) for ours in pod.spec.volumes for theirs in other.spec.volumes)
    return any(
        ours is not None
        and theirs is not None
        and (ours.kind, ours.id, ours.monitors) == (theirs.kind, theirs.id, theirs.monitors)
        and not (ours.is_read_only or theirs.is_read_only)
        for ours, theirs in pairs
    )


def _takes_whole_devices(pod: Pod) -> bool:
    return pod.requests.get(GPU, 0) > 0


def _hands_out(node: Node) -> bool:
    """Reports whether the node's device plugin chooses devices itself."""
    return node.labels.get(GPU_INDICES) != HONOURED


def fault_of_external_pods(
    delivered: DeliveredState, pod: Pod, domain: str, name: str, decision: Decision, external_uids: Collection[str]
) -> str:
    """Returns a rule about other pods that the node met when it was chosen, and no longer meets because of pods of other clients;
    empty for none.

    Our own pods placed since then do not count: they were decided on at the same time.
    """
    node, known = delivered.nodes.get(name), delivered.pods.get(pod.uid, pod)
    before = _as_external_pods_were(delivered, decision.pods, external_uids)
    if node is None or (before is None and node.labels == decision.node.labels):
        return ""
    is_usable, now = delivered.is_usable(domain), [at for at in delivered.pods_on_nodes() if at[0].uid != pod.uid]
    if Relations(known, delivered.nodes.values(), now, is_usable).allow(node):
        return ""
    then = [
        (one, decision.node if there.name == name else there)
        for one, there in (now if before is None else before)
        if one.uid != pod.uid
    ]
    nodes = {**delivered.nodes, name: decision.node}.values()
    if not Relations(known, nodes, then, is_usable).allow(decision.node):
        return ""  # the rule was violated before, or because of our pods
    return "though a rule about other pods forbids it since somebody else's came or went"


def _as_external_pods_were(
    delivered: DeliveredState, pods: Mapping[str, Pod], external_uids: Collection[str]
) -> list[PodOnNode] | None:
    """Returns the current pods on nodes, with the pods of other clients as they were at the decision; None if these are
    unchanged.
    """
    then = {uid: pods[uid] for uid in external_uids if uid in pods and pods[uid].node in delivered.nodes}
    now = {
        uid: delivered.pods[uid]
        for uid in external_uids
        if uid in delivered.pods and delivered.pods[uid].node in delivered.nodes
    }
    if then.keys() == now.keys():
        return None
    ours = [(one, there) for one, there in delivered.pods_on_nodes() if one.uid not in now]
    return ours + [(one, delivered.nodes[one.node]) for one in then.values()]
