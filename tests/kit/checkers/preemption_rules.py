"""Checks whether a preemption helps: the node must take the pod after the victims are deleted, by all rules known here.

The result holds for all other pods nominated to the node, which come in addition. Not checked: which devices would be free, how
many volumes a node attaches, and inline disks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from multisched.framework.objects_view import ObjectsView
from multisched.model.cluster_objects import PersistentVolumeClaim
from multisched.model.objects import Node, Pod
from tests.kit.checkers.reference_rules import PodOnNode, Relations, has_room, ports_conflict, reaches

SOLE = "ReadWriteOncePod"


def _counts_deleted_twice(pod: Pod, victims: Collection[Pod]) -> bool:
    """Reports whether a victim is counted twice: like upstream, spreading ignores pods that are being deleted, and counts one less
    when such a pod is removed.
    """
    hard = [rule.selector for rule in pod.spec.spread if rule.is_hard and rule.selector is not None]
    going = [victim for victim in victims if victim.is_deleting and victim.namespace == pod.namespace]
    return any(selector.matches(victim.labels) for victim in going for selector in hard)


def fault_of_preemption(
    pod: Pod,
    node: Node,
    victims: Collection[Pod],
    nodes: Collection[Node],
    pods_on_nodes: Collection[PodOnNode],
    is_usable: Callable[[Node], bool],
    objects: ObjectsView,
) -> str:
    """Returns what keeps the pod off the node after the victims are deleted; empty for nothing. `pods_on_nodes`: all placed
    pods.
    """
    going = {victim.uid for victim in victims}
    left = [(one, there) for one, there in pods_on_nodes if one.uid not in going]
    here = [one for one, there in left if there.name == node.name]
    if not has_room(pod, node, here):
        return "it has no room"
    if any(ports_conflict(pod, one) for one in here):
        return "somebody has its port"
    if not Relations(pod, nodes, left, is_usable).allow(node) and not _counts_deleted_twice(pod, victims):
        return "a rule about other pods forbids it"
    return _fault_of_claims(pod, node, left, objects)


def _fault_of_claims(pod: Pod, node: Node, left: Collection[PodOnNode], objects: ObjectsView) -> str:
    for claim in _claims(pod, objects):
        users = [one for one, _ in left if one.uid != pod.uid and claim in _claims(one, objects)]
        if SOLE in claim.access_modes and users:
            return f"its claim {claim.name} is for one pod alone"
        volume = objects.volume(claim.volume) if claim.volume else None
        if volume is not None and not reaches(volume, node):
            return f"its volume {volume.name} is out of reach"
    return ""


def _claims(pod: Pod, objects: ObjectsView) -> Iterator[PersistentVolumeClaim]:
    claims = (objects.claim(pod.namespace, volume.claim) for volume in pod.spec.volumes if volume.claim)
    return (claim for claim in claims if claim is not None)
