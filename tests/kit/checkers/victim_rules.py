"""The victims of a preemption, in plain words: what budgets say of them, whether all are needed, and whether others would do.

A preemption is judged by what holds in whatever order pods of equal importance are counted. A budget is broken for certain
where more of its pods are to go than it allows. It need not have been where the pod would fit with every pod left standing
that some budget might hold back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence

from msgspec.structs import replace

from multisched.model.cluster_objects import PodDisruptionBudget
from multisched.model.objects import Node, Pod
from tests.kit.checkers.reference_rules import PodOnNode, Relations, has_room, is_tolerated, matches_node_affinity


def surely_violated_budget(budgets: Collection[PodDisruptionBudget], victims: Collection[Pod]) -> str:
    """The name of a budget that allows fewer of its pods to go than these victims are; empty for none."""
    for budget in budgets:
        if sum(_protects(budget, victim) for victim in victims) > budget.disruptions_allowed:
            return budget.name
    return ""


def remaining_budget(budget: PodDisruptionBudget, victims: Collection[Pod]) -> PodDisruptionBudget:
    """The budget, without what victims of other preemptions use of it. `victims`: as they stand in the cache."""
    used = sum(_protects(budget, replace(victim, is_victim=False)) for victim in victims)
    return replace(budget, disruptions_allowed=max(budget.disruptions_allowed - used, 0))


def surely_spared(budgets: Collection[PodDisruptionBudget], lower: Collection[Pod]) -> list[Pod]:
    """Of the less important pods of one node: all that stay if no budget is to be broken, in whatever order they are counted."""
    tight = [b for b in budgets if sum(_protects(b, pod) for pod in lower) > b.disruptions_allowed]
    return [pod for pod in lower if any(_protects(budget, pod) for budget in tight)]


def is_plain(pod: Pod) -> bool:
    """What keeps it off a node is room, the labels and taints of nodes, and other pods' rules: pods more do not help it."""
    return needs_only_room_or_devices(pod) and not (pod.annotations or pod.requests.get("nvidia.com/gpu"))


def needs_only_room_or_devices(pod: Pod) -> bool:
    """As a plain one, but for devices."""
    return not (pod.spec.pod_affinity or pod.spec.spread or pod.spec.volumes or pod.spec.host_ports)


def fits_within_budgets(
    pod: Pod,
    node: Node,
    budgets: Collection[PodDisruptionBudget],
    nodes: Collection[Node],
    pods_on_nodes: Collection[PodOnNode],
    is_usable: Callable[[Node], bool],
    promised: Collection[PodOnNode] = (),
) -> bool:
    """A plain pod would fit on the node if the less urgent pods went there that no budget might hold back.

    `pods_on_nodes`: pods that are on nodes. `promised`: pods that nodes are promised to before this one; nobody takes these
    away, however little urgent they are. Each pod comes with its node.
    """
    if node.is_unschedulable or not is_usable(node) or not is_tolerated(pod, node):
        return False
    if not matches_node_affinity(pod, node):
        return False
    lower = [one for one, there in pods_on_nodes if there.name == node.name and one.spec.priority < pod.spec.priority]
    spared = {one.uid for one in surely_spared(budgets, lower)}
    going = {one.uid for one in lower} - spared
    left = [*((one, there) for one, there in pods_on_nodes if one.uid not in going), *promised]
    here = [one for one, there in left if there.name == node.name]
    return bool(going) and has_room(pod, node, here) and Relations(pod, nodes, left, is_usable).allow(node)


def fault_of_victims(
    pod: Pod,
    node: Node,
    victims: Collection[Pod],
    nodes: Collection[Node],
    pods_on_nodes: Collection[PodOnNode],
    is_usable: Callable[[Node], bool],
    budgets: Collection[PodDisruptionBudget] = (),
    promised: Collection[PodOnNode] = (),
) -> str:
    """What is wrong with taking these pods from the node for a plain pod; empty for nothing.

    `pods_on_nodes`, `promised`: as for `fits_within_budgets`.
    """
    going = {victim.uid for victim in victims}

    def fits_without(uids: Collection[str]) -> bool:
        left = [*((one, there) for one, there in pods_on_nodes if one.uid not in uids), *promised]
        here = [one for one, there in left if there.name == node.name]
        return has_room(pod, node, here) and Relations(pod, nodes, left, is_usable).allow(node)

    if not fits_without(going):
        return f"it does not fit when {sorted(victim.key for victim in victims)} are gone"
    spared = next((victim for victim in victims if fits_without(going - {victim.uid})), None)
    if spared is not None:
        return f"{spared.key} might as well stay"
    left = [one for one, there in pods_on_nodes if there.name == node.name and one.uid not in going]
    free, staying = ([one for one in some if not any(_protects(b, one) for b in budgets)] for some in (victims, left))
    return next((fault for victim in free for one in staying if (fault := _fault_of_choice(pod, victim, one))), "")


def fault_of_units(
    preemptors: Sequence[PodOnNode],
    units: Sequence[Collection[Pod]],
    nodes: Collection[Node],
    pods_on_nodes: Collection[PodOnNode],
    is_usable: Callable[[Node], bool],
) -> str:
    """What is wrong with taking these pods away for plain pods, each with its node; empty for nothing.

    `units`: victims that go together or not at all, on whatever nodes.
    """

    def fit_without(gone: Collection[Collection[Pod]]) -> bool:
        uids = {victim.uid for unit in gone for victim in unit}
        left = [(one, there) for one, there in pods_on_nodes if one.uid not in uids]
        for pod, node in preemptors:
            here = [one for one, there in left if there.name == node.name]
            if not (has_room(pod, node, here) and Relations(pod, nodes, left, is_usable).allow(node)):
                return False
            left.append((pod, node))
        return True

    if not fit_without(units):
        names = sorted(victim.key for unit in units for victim in unit)
        return f"{preemptors[0][0].key} and its like do not fit when {names} are gone"
    for unit in units:
        if fit_without([other for other in units if other is not unit]):
            return f"{sorted(victim.key for victim in unit)} might as well stay"
    return ""


def _fault_of_choice(pod: Pod, victim: Pod, staying: Pod) -> str:
    """Of two pods that might go, the more important goes only where the other is smaller, or where its own rules keep the pod off."""
    is_choice = staying.spec.priority < pod.spec.priority and victim.spec.pod_affinity is None
    is_as_large = all(staying.requests.get(resource, 0) >= amount for resource, amount in victim.requests.items())
    if is_choice and is_as_large and _importance(victim) > _importance(staying):
        return f"{victim.key} goes, and {staying.key}, which is less important, stays"
    return ""


def _importance(pod: Pod) -> tuple[int, float]:
    """The earlier it has started the more important; as upstream, one that has not comes last."""
    return pod.spec.priority, -(pod.started_s or math.inf)


def _protects(budget: PodDisruptionBudget, pod: Pod) -> bool:
    is_selected = budget.selector is not None and budget.selector.matches(pod.labels)
    return (
        is_selected
        and budget.namespace == pod.namespace
        and pod.name not in budget.disrupted_pods
        and not pod.is_victim
    )
