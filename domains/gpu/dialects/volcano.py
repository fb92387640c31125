"""Volcano vGPU: number, MiB and percent of cards by extended resources, which its nodes list.

Its plugin serves the pod of the node with the same number of cards as the kubelet asks for, the earliest `vgpu-time` (in
seconds) first. So two pods with the same number must not wait on one node. The plugin counts the cards of all containers of a pod and
compares them with the number for one container, so only one container may request cards.
Source: reference gpu 1.4; volcano-vgpu-device-plugin, pkg/util/util.go.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Final

from domains.gpu.cards import CARD_PERCENT, CARDS_MAX, MEMORY_MAX, Amount, Mode, NodeCards
from domains.gpu.demand import GpuDemand, Part, card_filter, invalid
from domains.gpu.dialect import NO_LABELS, Choice
from domains.gpu.dialects.vgpu_text import allocated_text, hold_of_text, list_in, read_registered
from domains.gpu.hold import Hold
from domains.gpu.node_lock import NodeLockKey
from multisched.framework.objects_view import ObjectsView
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import ExtendedRequests, Node, Pod

NUMBER: Final = "volcano.sh/vgpu-number"
MEMORY: Final = "volcano.sh/vgpu-memory"
MEMORY_PERCENT: Final = "volcano.sh/vgpu-memory-percentage"
CORES: Final = "volcano.sh/vgpu-cores"
PERCENT_UNSET: Final = 101

REGISTER: Final = "volcano.sh/node-vgpu-register"
LOCK: Final = "hamivgpu"
"""Node annotation, written only if Volcano's option NodeLockEnable is set: the time at which another scheduler locked the node."""
REGISTER_FIELDS: Final = ("id", "count", "devmem", "type", "health", "mode")
USE_ID, NO_ID = "volcano.sh/vgpu-use-gpuuuid", "volcano.sh/vgpu-nouse-gpuuuid"

NODE: Final = "volcano.sh/vgpu-node"
TIME: Final = "volcano.sh/vgpu-time"
ALLOCATED: Final = "volcano.sh/vgpu-ids-new"
TO_ALLOCATE: Final = "volcano.sh/devices-to-allocate"
BIND_PHASE: Final = "volcano.sh/bind-phase"
BIND_TIME: Final = "volcano.sh/bind-time"


class VolcanoDialect:
    """Implements `Dialect`."""

    name = "volcano-vgpu"
    modes = frozenset({Mode.VOLCANO})
    requested = frozenset({USE_ID, NO_ID})
    written = frozenset({NODE, TIME, ALLOCATED, TO_ALLOCATE, BIND_PHASE, BIND_TIME})
    labels = NO_LABELS
    reported = frozenset({TIME, TO_ALLOCATE, BIND_PHASE})
    node_annotations = frozenset({REGISTER, LOCK})
    node_lock: NodeLockKey | None = NodeLockKey(LOCK, is_written_before_bind=False)
    reads_objects: tuple[ObjectKind, ...] = ()
    resources = frozenset({NUMBER, MEMORY, MEMORY_PERCENT, CORES})

    def demand(self, pod: Pod) -> GpuDemand | None:
        containers = [one for one in pod.spec.extended if not self.resources.isdisjoint(one.amounts)]
        if not containers:
            return None
        problem = next(_problems(containers), "")
        if problem:
            return invalid(self.name, problem)
        accepted = card_filter(
            ids=list_in(pod.annotations.get(USE_ID, "")), ids_without=list_in(pod.annotations.get(NO_ID, ""))
        )
        return GpuDemand(
            self.name,
            tuple(_part(one) for one in containers),
            MEMORY,
            amount_key=MEMORY,
            count_key=NUMBER,
            filter=accepted,
            confusions=_confusions(pod),
        )

    def cards(self, node: Node, objects: ObjectsView | None) -> NodeCards | None:
        text = node.annotations.get(REGISTER)
        if text is None:
            return None
        cards, problems = read_registered(text, REGISTER, REGISTER_FIELDS)
        return NodeCards(Mode.VOLCANO, cards, is_indexed=True, problems=problems)

    def answer(self, pod: Pod, demand: GpuDemand, node: str, cards: NodeCards, choice: Choice) -> Mapping[str, str]:
        text = allocated_text(pod, demand, cards.cards, choice, is_ended=False)
        return {NODE: node, ALLOCATED: text, TO_ALLOCATE: text, BIND_PHASE: "allocating"}

    def timed_annotations(self, now: datetime) -> Mapping[str, str]:
        seconds = str(int(now.timestamp()))
        return {TIME: seconds, BIND_TIME: seconds}

    def hold(self, pod: Pod, *, is_ours: bool) -> Hold | None:
        """Returns the cards in the annotations of any scheduler, since the plugin allocates by them."""
        text = pod.annotations.get(ALLOCATED)
        if not text or (pod.node and pod.annotations.get(NODE) not in (pod.node, None)):
            return None
        waits = pod.phase == "Pending" and pod.annotations.get(BIND_PHASE) == "allocating"
        awaits = _confusions(pod) if waits else frozenset()
        return hold_of_text(self.name, pod, text, self.modes, pod.requests.get(NUMBER, 0), awaits)


def _confusions(pod: Pod) -> frozenset[str]:
    """Returns one text for each number of cards that the kubelet may ask for."""
    return frozenset(f"volcano/{one.amounts[NUMBER]}" for one in pod.spec.extended if NUMBER in one.amounts)


def _part(container: ExtendedRequests) -> Part:
    amounts = container.amounts
    memory, percent = amounts.get(MEMORY, 0), amounts.get(MEMORY_PERCENT, PERCENT_UNSET)
    cores = min(CARD_PERCENT, amounts.get(CORES, 0))
    whole = percent if percent <= CARD_PERCENT else CARD_PERCENT
    return Part(
        min(amounts.get(NUMBER, 0), CARDS_MAX + 1),
        Amount(memory=memory, percent=0 if memory else whole, cores=cores),
        container=container.position,
        is_init=container.is_init,
        needs_unused=cores == CARD_PERCENT,
        needs_cores=cores == 0,
    )


def _problems(containers: list[ExtendedRequests]) -> Iterator[str]:
    if len(containers) > 1:
        yield (
            f"spec.containers[{containers[1].name}].resources.limits[{NUMBER}]: several containers request vGPUs, and the device "
            "plugin compares each with the pod's total; write them in one container"
        )
    for one in containers:
        where = f"spec.containers[{one.name}].resources.limits"
        if not one.amounts.get(NUMBER, 0):
            name = next(name for name in (MEMORY, MEMORY_PERCENT, CORES) if name in one.amounts)
            yield f"{where}[{name}]: requires {NUMBER}; write {NUMBER}: 1"
        if one.amounts.get(MEMORY_PERCENT, 0) > PERCENT_UNSET:
            percent = one.amounts[MEMORY_PERCENT]
            yield f"{where}[{MEMORY_PERCENT}]: {percent} is more than {CARD_PERCENT}; write a percentage of one card"
        if one.amounts.get(MEMORY, 0) > MEMORY_MAX:
            yield f"{where}[{MEMORY}]: {one.amounts[MEMORY]} is more than {MEMORY_MAX}; write MiB of one card"
