"""Checks the order in which borrowed amounts are reclaimed.

The leaf furthest over its min is first, then the lowest priority, then the newest pod. Each victim is compared with each pod that
could have been evicted in its place: if devices are requested, a pod of the same node.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from fractions import Fraction

from multisched.model.objects import Pod, Requests
from multisched.verify.quota_tree import Level, QuotaTree, Usage
from multisched.verify.quotas import quota_requests
from tests.kit.checkers.device_rules import wants_devices

ObjectionTo = Callable[[Sequence[Pod]], str]
"""Returns why these victims are not allowed in place of the chosen ones; empty if they are."""


def fault_of_order(
    tree: QuotaTree,
    pod: Pod,
    asked: Requests,
    usage: Usage,
    victims: Sequence[Pod],
    pods_on_nodes: Iterable[Pod],
    objection_to: ObjectionTo,
) -> str:
    """Returns a pod that should have been evicted before one of the victims; empty for none. `usage`: before the evictions."""
    own, going = tree.leaf_of(pod.namespace), {victim.uid for victim in victims}
    others = [
        one for one in pods_on_nodes if one.uid not in going and not one.is_leaving and tree.leaf_of(one.namespace)
    ]
    for victim in (one for one in victims if not one.is_leaving):
        for other in (one for one in others if _counts_as(one) == _counts_as(victim)):
            if other.node != victim.node and wants_devices(pod):
                continue
            why = _is_first(other, victim, lambda pod: _distance(tree, own, asked, usage, pod, len(victims)), tree)
            if why and not objection_to([one for one in victims if one.uid != victim.uid] + [other]):
                return f"{victim.key} goes, and not {other.key}, {why}"
    return ""


def _counts_as(pod: Pod) -> Requests:
    return quota_requests(pod.requests, pod.annotations, node=pod.node)


def _is_first(other: Pod, victim: Pod, distance: Callable[[Pod], Fraction | None], tree: QuotaTree) -> str:
    """Returns why the other pod must be evicted before the victim; empty if it need not, or if that is unknown."""
    if tree.leaf_of(other.namespace) is not tree.leaf_of(victim.namespace):
        theirs, its = distance(other), distance(victim)
        return "whose leaf is further over its min" if theirs is not None and its is not None and theirs > its else ""
    if other.spec.priority != victim.spec.priority:
        return "which is less urgent" if other.spec.priority < victim.spec.priority else ""
    is_newer = bool(other.started_s and victim.started_s) and (other.started_s or 0.0) > (victim.started_s or 0.0)
    return "which is newer" if is_newer else ""


def _distance(
    tree: QuotaTree, own: Level | None, asked: Requests, usage: Usage, pod: Pod, count: int
) -> Fraction | None:
    """Returns by how much the pod's leaf exceeds its min, as a share of the root; -1 for the claim's own leaf, which is last.

    None if there are several victims: each changes the amounts by which the next one is compared.
    """
    leaf = tree.leaf_of(pod.namespace)
    if leaf is None or count > 1:
        return None
    if leaf is own:
        return Fraction(-1)
    return max(
        (
            Fraction(usage.over_min(leaf, resource), max(tree.root.max[resource], 1))
            for resource in reclaimed_resources(tree, own, asked)
            if resource in tree.root.max
        ),
        default=Fraction(0),
    )


def reclaimed_resources(tree: QuotaTree, own: Level | None, asked: Requests) -> Collection[str]:
    """Returns the resources that may be reclaimed: those that the claim's leaf names, or else all. Only resources that are
    requested and guaranteed to a level.
    """
    sure = {resource for level in tree.root.below() for resource, amount in level.min.items() if amount}
    wanted = [resource for resource, amount in asked.items() if amount and resource in sure]
    named = [resource for resource in wanted if own is not None and (resource in own.min or resource in own.max)]
    return named or wanted
