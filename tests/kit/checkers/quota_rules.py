"""Rules of elastic quotas: sums of a tree, levels over their max, and pods that may be evicted for an entitled pod.

The tree and its sums are those of `verify`, which shares no code with the program.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final

from msgspec.structs import replace

from multisched.model.objects import Node, Pod, Requests
from multisched.verify.quota_tree import QuotaTree, Usage
from multisched.verify.quotas import quota_requests
from multisched.verify.reclaims import QuotaClaim, Victim, may_be_reclaimed, reclaim_faults
from tests.kit.checkers.linked_quotas import misnamed
from tests.kit.checkers.quota_order import fault_of_order
from tests.kit.checkers.reference_rules import STATES_MAX, has_room

Takes = Callable[[Pod, Node, Collection[Pod]], bool]
"""Reports whether a node takes a pod in addition to these pods, apart from its requests."""
Claimant = tuple[Pod, Node | None]
"""A pod that reclaims, and its nominated node; None if the room on the node is not checked."""
NO_UNITS: Final[Mapping[str, str]] = {}
"""No victims must be evicted together."""


@lru_cache(STATES_MAX)
def quota_amounts(pod: Pod) -> Requests:
    """Returns the amounts that the pod uses of a quota, including pod count and parts of devices."""
    return quota_requests(pod.requests, pod.annotations, node=pod.node)


def quota_claim(pods: Sequence[Pod]) -> QuotaClaim:
    """Returns the common claim of these pods, which belong to one leaf."""
    return QuotaClaim(pods[0].key, pods[0].namespace, _together(pods))


def usage_of(tree: QuotaTree, pods_on_nodes: Iterable[Pod]) -> Usage:
    return tree.usage((pod.namespace, quota_amounts(pod)) for pod in pods_on_nodes)


def quota_excess(tree: QuotaTree | None, pod: Pod, pods_on_nodes: Iterable[Pod]) -> str:
    """Returns the first level that the pod would take over its max in addition to these pods, or the quota that it must not name;
    empty for none.
    """
    name = misnamed(tree, pod)
    if name:
        return f"it names the quota {name} of others"
    if tree is None or tree.leaf_of(pod.namespace) is None:
        return ""
    found = usage_of(tree, pods_on_nodes).excesses_with(pod.namespace, quota_amounts(pod))
    return str(found[0]) if found else ""


def fault_of_reclaim(
    tree: QuotaTree,
    claims: Sequence[Claimant],
    units: Sequence[Sequence[Pod]],
    pods_on_nodes: Collection[Pod],
    nominated: Sequence[Claimant] = (),
    in_gangs: Collection[str] = (),
) -> str:
    """Returns why these victims must not be evicted for one pod, or for pods that start together; empty if they may.

    A victim that the room on a node requires is never needless. `claims`: of one leaf. `units`: victims that are evicted together
    or not at all. Pods that are leaving do not count. `nominated`: other pods with their nominated nodes; these count like bound
    pods. A victim that is leaving for another pod is not counted as evicted. `in_gangs`: uids of members of gangs, which are never
    expected in place of a victim.
    """
    leaving = {victim.uid for unit in units for victim in unit if victim.is_leaving}
    units = [[victim for victim in unit if victim.uid not in leaving] for unit in units]
    pods_on_nodes = [one for one in pods_on_nodes if one.uid not in leaving]
    if leaving and not any(units):
        return ""
    found = ""
    # Pods of one leaf, priority and size share nominations: the next of them may use the capacity, or not.
    for others in (nominated, [one for one in nominated if not _is_like_each(tree, one[0], claims)]):
        found = _fault_beside(tree, claims, units, pods_on_nodes, others, in_gangs)
        if not found:
            break
    return found


def _is_like_each(tree: QuotaTree, pod: Pod, claims: Sequence[Claimant]) -> bool:
    def kind(one: Pod) -> object:
        return id(tree.leaf_of(one.namespace)), one.spec.priority, quota_amounts(one)

    return all(kind(one) == kind(pod) for one, _ in claims)


def _fault_beside(
    tree: QuotaTree,
    claims: Sequence[Claimant],
    units: Sequence[Sequence[Pod]],
    pods_on_nodes: Collection[Pod],
    nominated: Sequence[Claimant],
    in_gangs: Collection[str],
) -> str:
    victims = [victim for unit in units for victim in unit]
    staying = [one for one in pods_on_nodes if not one.is_leaving]
    usage = usage_of(tree, [*staying, *(pod for pod, _ in nominated)])
    waiting = [replace(pod, node=node.name) for pod, node in nominated if node is not None]
    unit_of = {victim.uid: unit[0].uid for unit in units if len(unit) > 1 for victim in unit}

    def fault_of(chosen: Sequence[Pod]) -> str:
        return _fault(usage, claims, chosen, [*pods_on_nodes, *waiting], unit_of)

    asked, singles = _together([one for one, _ in claims]), [one for one in pods_on_nodes if one.uid not in in_gangs]
    return fault_of(victims) or fault_of_order(tree, claims[0][0], asked, usage, victims, singles, fault_of)


def single_sufficient_victim(tree: QuotaTree, pod: Pod, node: Node, pods_on_nodes: Collection[Pod]) -> str:
    """Returns a pod of another leaf whose eviction alone is allowed and sufficient for the pod; empty for none."""
    if misnamed(tree, pod):
        return ""
    own, staying = tree.leaf_of(pod.namespace), [one for one in pods_on_nodes if not one.is_leaving]
    usage = usage_of(tree, staying)
    if own is None or not usage.is_entitled(pod.namespace, quota_amounts(pod)):
        return ""
    others = [one for one in staying if tree.leaf_of(one.namespace) not in (None, own)]
    return next((one.key for one in others if not _fault(usage, [(pod, node)], [one], staying)), "")


def _fault(
    usage: Usage,
    claims: Sequence[Claimant],
    victims: Sequence[Pod],
    pods_on_nodes: Collection[Pod],
    unit_of: Mapping[str, str] = NO_UNITS,
) -> str:

    def has_room_without(some: Collection[Victim]) -> bool:
        return _have_room(claims, pods_on_nodes, {victim.key for victim in some})

    claim = quota_claim([pod for pod, _ in claims])
    going = [Victim(one.uid, one.namespace, quota_amounts(one), unit_of.get(one.uid, "")) for one in victims]
    return next(iter(reclaim_faults(usage, claim, going, has_room_without)), "")


def _have_room(claims: Sequence[Claimant], pods_on_nodes: Collection[Pod], gone: Collection[str]) -> bool:
    """Reports whether each claim fits on its node, in addition to the claims before it, after these pods are deleted."""
    before: list[Pod] = []
    for pod, node in claims:
        if node is None:
            continue
        here = [one for one in pods_on_nodes if one.node == node.name and one.uid not in gone]
        if not has_room(pod, node, [*here, *(one for one in before if one.node == node.name)]):
            return False
        before.append(replace(pod, node=node.name))
    return True


def _together(pods: Iterable[Pod]) -> Requests:
    amounts: Counter[str] = Counter()
    for pod in pods:
        amounts.update(quota_amounts(pod))
    return dict(amounts)


def node_by_reclaim(
    tree: QuotaTree,
    pod: Pod,
    nodes: Iterable[Node],
    pods_on_nodes: Collection[Pod],
    takes: Takes,
) -> str:
    """Returns a node that takes the pod after all pods that may be reclaimed for it are evicted; empty if there is none."""
    usage, claim = usage_of(tree, pods_on_nodes), QuotaClaim(pod.key, pod.namespace, quota_amounts(pod))
    lent = [
        Victim(one.uid, one.namespace, quota_amounts(one))
        for one in pods_on_nodes
        if tree.leaf_of(one.namespace) is not None
    ]
    going = {victim.key for victim in may_be_reclaimed(usage, claim, lent)}
    left = [one for one in pods_on_nodes if one.uid not in going]
    if not going or misnamed(tree, pod) or usage_of(tree, left).excesses_with(pod.namespace, claim.requests):
        return ""
    for node in nodes:
        here = [one for one in left if one.node == node.name]
        if has_room(pod, node, here) and takes(pod, node, here):
            return node.name
    return ""
