"""What pods hold of shared GPUs, which pods a device plugin has not served yet, and where another pod fits.

Computed from specs and annotations, as `multisched.verify.cards` reads them, and from the real cards of the nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from multisched.cluster.kubelet.plugin_rules import GPUSHARE_MEMORY, VOLCANO_NUMBER
from multisched.model.objects import Node, Pod
from multisched.verify.cards import UNKNOWN_TO_NODES, cards_of_pod
from tests.kit.world.gpu_nodes import GPUSHARE, HAMI, KOORDINATOR, VOLCANO, WHOLE, CardNode
from tests.kit.world.gpu_pods import CardDemand, Part
from tests.kit.world.labels import CARDS

GUESSING_MODES = (HAMI, VOLCANO, GPUSHARE)
"""Modes whose device plugin is not told which pod it serves, and guesses it."""
ANNOTATED_MODES = (*GUESSING_MODES, KOORDINATOR)
"""Modes in which annotations of a pod list what it holds of which card."""


def node_resources(requests: Mapping[str, int]) -> Mapping[str, int]:
    """Returns the resources that nodes list, without those that only a device plugin reads."""
    return {name: amount for name, amount in requests.items() if name not in UNKNOWN_TO_NODES}


def mode_of(pod: Pod) -> str:
    """Returns the sharing system whose resource names the pod uses; empty for other pods."""
    return pod.labels.get(CARDS, "")


def is_unserved(pod: Pod) -> bool:
    """Reports whether the device plugin has not allocated all devices of the pod yet. It may then take another pod for this one."""
    if not pod.node or pod.phase != "Pending":
        return False
    found = pod.annotations
    if mode_of(pod) == HAMI:
        return "," in found.get("hami.io/vgpu-devices-to-allocate", "")
    if mode_of(pod) == VOLCANO:
        return found.get("volcano.sh/bind-phase") == "allocating"
    return mode_of(pod) == GPUSHARE and found.get("ALIYUN_COM_GPU_MEM_ASSIGNED") == "false"


def may_be_confused(one: Pod, other: Pod) -> bool:
    """Reports whether a device plugin could serve one of the pods in place of the other one."""
    mode = mode_of(one)
    if mode != mode_of(other) or mode not in GUESSING_MODES:
        return False
    names = {VOLCANO: VOLCANO_NUMBER, GPUSHARE: GPUSHARE_MEMORY}
    return mode == HAMI or one.requests.get(names[mode]) == other.requests.get(names[mode])


def held_of(pod: Pod, mode: str) -> Mapping[str, Mapping[str, int]]:
    """Returns card -> what the pod holds of it, by its annotations."""
    found = cards_of_pod(pod.annotations, pod.requests, pod.spec.init_container_count, lambda problem: None).get(mode)
    return {} if found is None else found.cards


class Usage:
    """What pods hold of the cards of one node."""

    def __init__(self, node: CardNode, pods: Iterable[Pod]) -> None:
        self._node = node
        self._used: dict[str, Counter[str]] = {name: Counter() for name in node.cards}
        for pod in pods:
            for card, use in held_of(pod, node.mode).items():
                if card in self._used:
                    self._used[card].update(use)

    def excess(self) -> str:
        """Returns the first amount by which a card is overcommitted; empty for none."""
        for card, has in self._node.cards.items():
            for what, most in has.items():
                if self._used[card][what] > most:
                    return f"card {card} of {self._node.name} has {most} {what}, and pods hold {self._used[card][what]}"
        return ""

    def has_room(self, part: Part) -> bool:
        return sum(self._fits(card, part) for card in self._node.cards) >= part.count

    def _fits(self, card: str, part: Part) -> bool:
        has, used = self._node.cards[card], self._used[card]
        if part.is_exclusive and any(used.values()):
            return False
        wanted = {"memory": part.memory, "cores": part.cores or int(part.needs_cores), "sharers": 1}
        return all(used[what] + wanted.get(what, 0) <= most for what, most in has.items() if what != "ratio")


def fits(demand: CardDemand, pod: Pod, known: CardNode, node: Node, there: Collection[Pod]) -> bool:
    """Reports whether the pod certainly fits on the node. `there`: the pods on the node."""
    if known.mode != demand.mode or any(is_unserved(one) and may_be_confused(one, pod) for one in there):
        return False
    for name, amount in node_resources(pod.requests).items():
        if sum(one.requests.get(name, 0) for one in there) + amount > node.allocatable.get(name, 0):
            return False
    if not known.cards:
        return known.mode != WHOLE
    usage = Usage(known, there)
    return len(demand.parts) == 1 and usage.has_room(demand.parts[0])


def fault_of_victims(
    demand: CardDemand, pod: Pod, known: CardNode, node: Node, there: Collection[Pod], victims: Collection[Pod]
) -> str:
    """Returns what is wrong with evicting the victims from the node for the pod; empty for nothing, and if that is unknown.

    `node`: as the process has observed it. `there`: all pods on it, with the victims.
    """
    registered = known.annotations().items() <= node.annotations.items()
    is_known = known.mode == demand.mode and bool(known.cards) and len(demand.parts) == 1 and registered
    if not is_known or any(mode_of(one) in ANNOTATED_MODES and not held_of(one, known.mode) for one in there):
        return ""
    going = {victim.uid for victim in victims}
    left = [one for one in there if one.uid not in going]
    if not fits(demand, pod, known, node, left):
        return f"it does not fit when {sorted(victim.key for victim in victims)} are gone"
    if any(one.is_leaving for one in there):
        return ""  # what leaves anyway needs no reason
    spared = next((victim for victim in victims if fits(demand, pod, known, node, [*left, victim])), None)
    return "" if spared is None else f"{spared.key} might as well stay"
