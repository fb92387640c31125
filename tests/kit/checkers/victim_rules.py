"""Rules for the victims of a preemption: budgets, whether each victim is needed, and whether other victims would be better.

The rules hold for every order of pods of equal importance. A budget is certainly violated if more of its pods are victims than it
allows. The violation was needless if the pod fits although every pod remains that some budget might protect.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence

from msgspec.structs import replace

from multisched.model.cluster_objects import PodDisruptionBudget
from multisched.model.objects import Node, Pod
from tests.kit.checkers.reference_rules import PodOnNode, Relations, has_room, is_tolerated, matches_node_affinity
from tests.kit.world.labels import CARDS


def surely_violated_budget(budgets: Collection[PodDisruptionBudget], victims: Collection[Pod]) -> str:
    """Returns the name of a budget that these victims certainly violate; empty for none."""
    for budget in budgets:
        if sum(_protects(budget, victim) for victim in victims) > budget.disruptions_allowed:
            return budget.name
    return ""


def remaining_budget(budget: PodDisruptionBudget, victims: Collection[Pod]) -> PodDisruptionBudget:
    """Returns the budget reduced by the victims of other preemptions. `victims`: as in the cache."""
    used = sum(_protects(budget, replace(victim, is_victim=False)) for victim in victims)
    return replace(budget, disruptions_allowed=max(budget.disruptions_allowed - used, 0))


def surely_spared(budgets: Collection[PodDisruptionBudget], lower: Collection[Pod]) -> list[Pod]:
    """Returns the less important pods of one node that certainly remain if no budget is violated, in any order."""
    tight = [b for b in budgets if sum(_protects(b, pod) for pod in lower) > b.disruptions_allowed]
    return [pod for pod in lower if any(_protects(budget, pod) for budget in tight)]


def is_plain(pod: Pod) -> bool:
    """Reports whether only requests, labels and taints of nodes, and the rules of other pods can keep the pod off a node. More pods
    never help it.
    """
    has_devices = pod.annotations or pod.requests.get("nvidia.com/gpu") or CARDS in pod.labels
    return needs_only_room_or_devices(pod) and not has_devices


def needs_only_room_or_devices(pod: Pod) -> bool:
    """Does the same for pods that may also request devices."""
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
    """Reports whether a plain pod would fit on the node after evicting the less important pods that no budget might protect.

    `pods_on_nodes`: placed pods. `promised`: pods nominated to nodes before this pod; these are never evicted, whatever their
    priority. Each pod with its node.
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
    """Returns what is wrong with evicting these victims from the node for a plain pod; empty for nothing.

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
    """Returns what is wrong with evicting these victims for plain pods, each with its node; empty for nothing.

    `units`: victims that are evicted together or not at all, on any nodes.
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
    """Returns why the other pod should have been the victim; empty if not. The more important pod may be the victim only if the
    other one is smaller, or if its own rules exclude the preemptor.
    """
    is_choice = staying.spec.priority < pod.spec.priority and victim.spec.pod_affinity is None
    is_as_large = all(staying.requests.get(resource, 0) >= amount for resource, amount in victim.requests.items())
    if is_choice and is_as_large and _importance(victim) > _importance(staying):
        return f"{victim.key} goes, and {staying.key}, which is less important, stays"
    return ""


def _importance(pod: Pod) -> tuple[int, float]:
    """Returns a sort key: an earlier start is more important. Like upstream, a pod without a start time is the least important."""
    return pod.spec.priority, -(pod.started_s or math.inf)


def _protects(budget: PodDisruptionBudget, pod: Pod) -> bool:
    is_selected = budget.selector is not None and budget.selector.matches(pod.labels)
    return (
        is_selected
        and budget.namespace == pod.namespace
        and pod.name not in budget.disrupted_pods
        and not pod.is_victim
    )
