"""What elastic quotas say of pods: sums of a tree, what would pass a max, and who could go for an entitled pod.

The tree and its sums are the judge's (`verify`), which shares no code with the program.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from multisched.model.objects import PODS, Node, Pod, Requests
from multisched.testing.rules.quota_order import fault_of_order
from multisched.testing.rules.room import has_room, taken_by
from multisched.verify.quota_tree import QuotaTree, Usage
from multisched.verify.reclaims import QuotaClaim, Victim, may_be_reclaimed, reclaim_faults

WouldTake = Callable[[Pod, Node, Collection[Pod]], bool]
"""Whether a node takes a pod beside these, whatever room there is."""


def counted(pod: Pod) -> Requests:
    """What the pod counts for, the pod itself among it."""
    return {**pod.requests, PODS: 1}


def usage_of(tree: QuotaTree, standing: Iterable[Pod]) -> Usage:
    return tree.usage((pod.namespace, counted(pod)) for pod in standing)


def quota_excess(tree: QuotaTree | None, pod: Pod, standing: Iterable[Pod]) -> str:
    """The first level that the pod would take over its max beside these; empty for none."""
    if tree is None or tree.leaf_of(pod.namespace) is None:
        return ""
    found = usage_of(tree, standing).excesses_with(pod.namespace, counted(pod))
    return str(found[0]) if found else ""


def fault_of_reclaim(
    tree: QuotaTree,
    pod: Pod,
    node: Node | None,
    victims: Sequence[Pod],
    standing: Collection[Pod],
    nominated: Collection[Pod] = (),
) -> str:
    """What speaks against taking these pods away for one pod on a node; empty for nothing.

    Of room: a victim that the node's room needs is no pod too many. Pods that are going count no more, and `nominated`
    others, each with the node that it waits for, count already.
    """
    going = {victim.uid for victim in victims}
    staying = [one for one in standing if not one.is_deleting or one.uid in going]
    usage = usage_of(tree, [*staying, *nominated])

    def fault_of(chosen: Sequence[Pod]) -> str:
        return _fault(usage, pod, node, chosen, [*standing, *nominated])

    found = fault_of(victims)
    return found or fault_of_order(tree, pod, counted(pod), usage, victims, standing, fault_of)


def one_would_do(tree: QuotaTree, pod: Pod, node: Node, standing: Collection[Pod]) -> str:
    """A pod of another leaf that may go for the pod, and makes all the room that it lacks; empty for none."""
    own, staying = tree.leaf_of(pod.namespace), [one for one in standing if not one.is_deleting]
    usage = usage_of(tree, staying)
    if own is None or not usage.is_entitled(pod.namespace, counted(pod)):
        return ""
    others = [one for one in staying if tree.leaf_of(one.namespace) not in (None, own)]
    return next((one.key for one in others if not _fault(usage, pod, node, [one], staying)), "")


def _fault(usage: Usage, pod: Pod, node: Node | None, victims: Sequence[Pod], standing: Iterable[Pod]) -> str:
    here = [one for one in standing if node is not None and one.node == node.name]

    def has_room_without(some: Collection[Victim]) -> bool:
        gone = {victim.key for victim in some}
        return node is None or has_room(pod, node, taken_by(one for one in here if one.uid not in gone))

    claim = QuotaClaim(pod.key, pod.namespace, counted(pod))
    going = [Victim(one.uid, one.namespace, counted(one)) for one in victims]
    return next(iter(reclaim_faults(usage, claim, going, has_room_without)), "")


def node_by_reclaim(
    tree: QuotaTree,
    pod: Pod,
    nodes: Iterable[Node],
    standing: Collection[Pod],
    would_take: WouldTake,
) -> str:
    """A node that takes the pod once all that may be reclaimed for it have gone; empty if there is none."""
    usage, claim = usage_of(tree, standing), QuotaClaim(pod.key, pod.namespace, counted(pod))
    lent = [Victim(one.uid, one.namespace, counted(one)) for one in standing if tree.leaf_of(one.namespace) is not None]
    going = {victim.key for victim in may_be_reclaimed(usage, claim, lent)}
    left = [one for one in standing if one.uid not in going]
    if not going or usage_of(tree, left).excesses_with(pod.namespace, claim.requests):
        return ""
    for node in nodes:
        here = [one for one in left if one.node == node.name]
        if has_room(pod, node, taken_by(here)) and would_take(pod, node, here):
            return node.name
    return ""
