"""gpushare (AliyunContainerService, ACK cGPU): memory of one card by extended resource, in the plugin's unit (GiB or MiB).

The plugin serves the Pending pod of its node with `ASSIGNED` "false" and the same total memory as the kubelet asks for, the earliest
`ASSUME_TIME` first. So two such pods with the same total must not wait on one node. Sources: reference gpu 1.1;
gpushare-device-plugin, pkg/gpu/nvidia/allocate.go; ACK's documentation of multi-card sharing, which its closed plugin implements.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final

import msgspec

from domains.gpu.cards import CARD_PERCENT, CARDS_MAX, MEMORY_MAX, Amount, Card, Mode, NodeCards
from domains.gpu.demand import GpuDemand, Part, integer_within, shown
from domains.gpu.dialect import NO_LABELS, Choice
from domains.gpu.hold import CardName, Hold, even_shares
from domains.gpu.node_lock import NodeLockKey
from multisched.framework.objects_view import ObjectsView
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Node, Pod

GPU_MEMORY: Final = "aliyun.com/gpu-mem"
GPU_CORES: Final = "aliyun.com/gpu-core.percentage"
GPU_COUNT: Final = "aliyun.com/gpu-count"
"""On a node: allocatable cards. As a pod's label: the number of cards over which its memory is spread evenly (ACK)."""
RESOURCES: Final = frozenset({GPU_MEMORY, GPU_CORES})
CORES_STEP: Final = 5

INDEX: Final = "ALIYUN_COM_GPU_MEM_IDX"
TOTAL: Final = "ALIYUN_COM_GPU_MEM_POD"
CARD_SIZE: Final = "ALIYUN_COM_GPU_MEM_DEV"
ASSIGNED: Final = "ALIYUN_COM_GPU_MEM_ASSIGNED"
ASSUME_TIME: Final = "ALIYUN_COM_GPU_MEM_ASSUME_TIME"
ALLOCATION: Final = "scheduler.framework.gpushare.allocation"
"""Several cards: JSON, container position -> card index -> memory."""


class GpushareDialect:
    """Implements `Dialect`."""

    name = "gpushare"
    modes = frozenset({Mode.GPUSHARE})
    requested: frozenset[str] = frozenset()
    written = frozenset({INDEX, TOTAL, CARD_SIZE, ASSIGNED, ASSUME_TIME, ALLOCATION})
    labels = NO_LABELS
    reported = frozenset({ASSIGNED, ASSUME_TIME})
    node_annotations: frozenset[str] = frozenset()
    node_lock: NodeLockKey | None = None
    reads_objects: tuple[ObjectKind, ...] = ()
    resources = RESOURCES

    def demand(self, pod: Pod) -> GpuDemand | None:
        memory, cores = pod.requests.get(GPU_MEMORY, 0), pod.requests.get(GPU_CORES, 0)
        if not memory and not cores:
            return None
        count = _count(pod)
        problem = _problem(pod, memory, cores, count)
        each = 1 if problem or count is None else memory // count
        return GpuDemand(
            self.name,
            (Part(count or 1, Amount(memory=each, cores=cores)),),
            GPU_MEMORY,
            amount_key=GPU_MEMORY if count == 1 else "",
            confusions=_confusions(memory),
            problem=problem,
        )

    def cards(self, node: Node, objects: ObjectsView | None) -> NodeCards | None:
        """Returns equal cards, as the plugin takes the first card's size for all.

        The size is by the capacity, as the public extender has it: the kubelet takes unhealthy cards off the allocatable memory.
        """
        memory, count = node.allocatable.get(GPU_MEMORY, 0), node.allocatable.get(GPU_COUNT, 0)
        if memory <= 0:
            return None
        if not 0 < count <= min(memory, CARDS_MAX):
            problem = f"status.allocatable[{GPU_COUNT}]: {count} cards share {memory} of {GPU_MEMORY}"
            return NodeCards(
                Mode.GPUSHARE, problems=(f"{problem}; the device plugin must report 1..{CARDS_MAX} cards",)
            )
        capacity = node.reduced_capacity
        size = min(capacity.get(GPU_MEMORY, memory) // capacity.get(GPU_COUNT, count), MEMORY_MAX)
        cards = tuple(Card(index, size) for index in range(count))
        lost = size * count - memory if GPU_MEMORY in capacity else 0
        problem = (
            f"status.allocatable[{GPU_MEMORY}]: {lost} less than the {count} cards have: some are unhealthy, it is not published "
            "which; cordon the node until they are replaced"
        )
        return NodeCards(Mode.GPUSHARE, cards, is_indexed=True, problems=(problem,) if lost > 0 else ())

    def answer(self, pod: Pod, demand: GpuDemand, node: str, cards: NodeCards, choice: Choice) -> Mapping[str, str]:
        memory = demand.amount.memory
        answer = {
            TOTAL: str(memory * len(choice)),
            CARD_SIZE: str(cards.cards[0].memory if cards.cards else 0),
            ASSIGNED: "false",
        }
        if len(choice) == 1:
            return {INDEX: str(choice[0]), **answer}
        position = str(pod.spec.extended[0].position if pod.spec.extended else 0)
        return {ALLOCATION: msgspec.json.encode({position: {str(card): memory for card in choice}}).decode(), **answer}

    def timed_annotations(self, now: datetime) -> Mapping[str, str]:
        return {ASSUME_TIME: str(int(now.timestamp() * 1_000_000) * 1_000)}

    def hold(self, pod: Pod, *, is_ours: bool) -> Hold | None:
        """Returns the memory that the pod's spec requests, of the cards in the annotations; for pods of any scheduler."""
        memory = pod.requests.get(GPU_MEMORY, 0)
        if not memory:
            return None
        cards = _cards_of(pod)
        count = len(cards) or 1
        amount = Amount(memory=-(-memory // count), cores=pod.requests.get(GPU_CORES, 0))
        waits = pod.annotations.get(ASSIGNED) == "false" and pod.phase == "Pending"
        awaits = _confusions(memory) if waits else frozenset()
        return Hold(self.name, count, amount, even_shares(cards, amount), awaits=awaits, modes=self.modes)


def _confusions(memory: int) -> frozenset[str]:
    return frozenset({f"gpushare/{memory}"})


def _count(pod: Pod) -> int | None:
    """Returns the number of cards by the pod's label; None for an invalid number."""
    text = pod.labels.get(GPU_COUNT)
    return 1 if text is None else integer_within(text, CARDS_MAX)


def _problem(pod: Pod, memory: int, cores: int, count: int | None) -> str:
    if not memory:
        return f"resources.limits[{GPU_CORES}]: requires {GPU_MEMORY}; write how much memory the pod takes"
    containers = [one for one in pod.spec.extended if not RESOURCES.isdisjoint(one.amounts)]
    if len(containers) > 1:
        name = GPU_MEMORY if GPU_MEMORY in containers[1].amounts else GPU_CORES
        return (
            f"resources.limits[{name}]: several containers request it, and the device plugin compares each with the pod's "
            "total; write it in one container"
        )
    if any(one.is_init for one in containers):
        where = f"spec.initContainers[{containers[0].name}].resources.limits[{GPU_MEMORY}]"
        return f"{where}: the device plugin does not count init containers; write it in a container"
    if count is None:
        text = shown(pod.labels[GPU_COUNT])
        return f"label {GPU_COUNT}: {text} is not an integer of 1..{CARDS_MAX}; write the number of cards"
    if memory % count:
        return (
            f"label {GPU_COUNT}: {memory} of {GPU_MEMORY} cannot be spread evenly over {count} cards; write a multiple"
        )
    if cores and (cores % CORES_STEP or cores > CARD_PERCENT):
        return f"resources.limits[{GPU_CORES}]: {cores} is not a multiple of {CORES_STEP} up to {CARD_PERCENT}"
    if cores and count > 1:
        return f"label {GPU_COUNT}: several cards share memory only; remove {GPU_CORES}, or request one card"
    return ""


def _cards_of(pod: Pod) -> tuple[CardName, ...]:
    """Returns the indices of the cards in the annotations; none if they cannot be read."""
    index = integer_within(pod.annotations.get(INDEX), CARDS_MAX - 1, least=0)
    if index is not None:
        return (index,)
    text = pod.annotations.get(ALLOCATION, "")
    try:
        by_container = msgspec.json.decode(text.encode(), type=dict[str, dict[str, int]]) if text else {}
    except (msgspec.DecodeError, RecursionError):
        return ()
    found = [integer_within(card, CARDS_MAX - 1, least=0) for cards in by_container.values() for card in cards]
    return tuple(sorted({card for card in found if card is not None})) if None not in found else ()
