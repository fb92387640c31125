"""What the sender of a binding has observed of others meanwhile, and which of it forbids to send.

Pods of somebody else come and go while a binding waits to be sent. What they take is compared rule by rule, in plain
words. Where a rule reaches over other nodes, only changes by such pods since the decision are held against the sender.
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
    """What a binding was decided on."""

    pods: Mapping[str, Pod]
    """uid -> pod, as observed at that moment."""
    node: Node
    """The pod's own, as observed at that moment."""


def fault_of_pods_there(delivered: DeliveredState, pod: Pod, name: str) -> str:
    """Somebody on the node beside whom the pod may not stand; empty for nobody."""
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
    """Both have a disk that one node gives to one of them, and one of them writes to it."""
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
    """Its device plugin picks devices by itself."""
    return node.labels.get(GPU_INDICES) != HONOURED


def fault_of_external_pods(
    delivered: DeliveredState, pod: Pod, domain: str, name: str, decision: Decision, external_uids: Collection[str]
) -> str:
    """A rule about other pods that the node kept when it was chosen, and keeps no more for what strangers did; empty for none.

    What pods of ours did since takes no part: those were decided on beside this one.
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
        return ""  # it was so before, or pods of ours made it so
    return "though a rule about other pods forbids it since somebody else's came or went"


def _as_external_pods_were(
    delivered: DeliveredState, pods: Mapping[str, Pod], external_uids: Collection[str]
) -> list[PodOnNode] | None:
    """Who stands now, but strangers' pods as they stood then; None: they stand as they did."""
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
