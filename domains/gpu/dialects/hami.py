"""HAMi: MiB and percent of cards by extended resources, answered by text annotations.

Its plugin serves the pod named by the node's lock, else the first listed Pending pod of the node whose allocation is not done. So only one
pod at a time may wait for the plugin on a node. Source: reference gpu 1.3; HAMi docs/develop/protocol.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Final

import msgspec

from domains.gpu.cards import CARD_PERCENT, CARDS_MAX, MEMORY_MAX, Amount, Card, Mode, NodeCards
from domains.gpu.demand import GpuDemand, Part, card_filter, invalid
from domains.gpu.dialect import Choice
from domains.gpu.dialects.vgpu_text import allocated_text, hold_of_text, list_in, read_allocated, read_registered
from domains.gpu.dialects.whole import GPU
from domains.gpu.hold import Hold
from domains.gpu.node_lock import NodeLockKey
from multisched.framework.objects_view import ObjectsView
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import ExtendedRequests, Node, Pod

MEMORY: Final = "nvidia.com/gpumem"
MEMORY_PERCENT: Final = "nvidia.com/gpumem-percentage"
CORES: Final = "nvidia.com/gpucores"

REGISTER: Final = "hami.io/node-nvidia-register"
CORDON: Final = "hami.io/device-cordon"
LOCK: Final = "hami.io/mutex.lock"
"""Node annotation `RFC3339,namespace,pod`: the pod that the plugin serves next. Taken before the bind; the plugin removes it."""
REGISTER_FIELDS: Final = ("id", "count", "devmem", "devcore", "type", "numa", "health", "index", "mode")

USE_TYPE, NO_TYPE = "nvidia.com/use-gputype", "nvidia.com/nouse-gputype"
USE_ID, NO_ID = "nvidia.com/use-gpuuuid", "nvidia.com/nouse-gpuuuid"
NUMA_BIND: Final = "nvidia.com/numa-bind"
VGPU_MODE: Final = "nvidia.com/vgpu-mode"
CARD_POLICY: Final = "hami.io/gpu-scheduler-policy"

NODE: Final = "hami.io/vgpu-node"
"""Annotation that the plugin reads, and label by which HAMi's monitor lists the pods of its node."""
TIME: Final = "hami.io/vgpu-time"
TO_ALLOCATE: Final = "hami.io/vgpu-devices-to-allocate"
ALLOCATED: Final = "hami.io/vgpu-devices-allocated"
BIND_PHASE: Final = "hami.io/bind-phase"
BIND_TIME: Final = "hami.io/bind-time"
CONFUSIONS: Final = frozenset({"hami"})


class HamiDialect:
    """Implements `Dialect`."""

    name = "hami"
    modes = frozenset({Mode.HAMI})
    requested = frozenset({USE_TYPE, NO_TYPE, USE_ID, NO_ID, NUMA_BIND, VGPU_MODE, CARD_POLICY})
    written = frozenset({NODE, TIME, TO_ALLOCATE, ALLOCATED, BIND_PHASE, BIND_TIME})
    labels: Mapping[str, str] = {NODE: NODE}
    reported = frozenset({TO_ALLOCATE, BIND_PHASE, BIND_TIME})
    node_annotations = frozenset({REGISTER, CORDON, LOCK})
    node_lock: NodeLockKey | None = NodeLockKey(LOCK, is_written_before_bind=True, held_while=CONFUSIONS)
    reads_objects: tuple[ObjectKind, ...] = ()
    resources = frozenset({GPU, MEMORY, MEMORY_PERCENT, CORES})

    def demand(self, pod: Pod) -> GpuDemand | None:
        containers = [one for one in pod.spec.extended if not self.resources.isdisjoint(one.amounts)]
        if not containers:
            return None
        problem = next(_problems(pod, containers), "")
        if problem:
            return invalid(self.name, problem)
        annotations = pod.annotations
        is_specific = any(name != GPU for one in containers for name in one.amounts if name in self.resources)
        return GpuDemand(
            self.name,
            tuple(_part(one) for one in containers),
            MEMORY if is_specific else GPU,
            amount_key=MEMORY if len(containers) == 1 else "",
            count_key=GPU if len(containers) == 1 else "",
            filter=card_filter(
                models_with=tuple(part.lower() for part in list_in(annotations.get(USE_TYPE, ""))),
                models_without=tuple(part.lower() for part in list_in(annotations.get(NO_TYPE, ""))),
                ids=list_in(annotations.get(USE_ID, "")),
                ids_without=list_in(annotations.get(NO_ID, "")),
            ),
            one_numa=annotations.get(NUMA_BIND) == "true",
            prefers=next((p for p in list_in(annotations.get(CARD_POLICY, "")) if p in ("spread", "binpack")), ""),
            is_specific=is_specific or not self.requested.isdisjoint(annotations),
            confusions=CONFUSIONS,
        )

    def cards(self, node: Node, objects: ObjectsView | None) -> NodeCards | None:
        """Returns the registered cards. They are unhealthy while the device plugin reports no slot."""
        text = node.annotations.get(REGISTER)
        if text is None:
            return None
        cards, problems = read_registered(text, REGISTER, REGISTER_FIELDS)
        cordoned = frozenset(list_in(node.annotations.get(CORDON, "")))
        is_reporting = node.allocatable.get(GPU, 0) > 0
        kept = tuple(_without(card, cordoned, is_reporting=is_reporting) for card in cards)
        return NodeCards(Mode.HAMI, kept, is_indexed=True, problems=problems)

    def answer(self, pod: Pod, demand: GpuDemand, node: str, cards: NodeCards, choice: Choice) -> Mapping[str, str]:
        text = allocated_text(pod, demand, cards.cards, choice, is_ended=True)
        return {NODE: node, TO_ALLOCATE: text, ALLOCATED: text, BIND_PHASE: "allocating"}

    def timed_annotations(self, now: datetime) -> Mapping[str, str]:
        seconds = str(int(now.timestamp()))
        return {TIME: seconds, BIND_TIME: seconds}

    def hold(self, pod: Pod, *, is_ours: bool) -> Hold | None:
        """Returns the cards in the annotations of any scheduler, since the plugin allocates by them."""
        text = pod.annotations.get(ALLOCATED)
        if not text or (pod.node and pod.annotations.get(NODE) not in (pod.node, None)):
            return None
        return hold_of_text(self.name, pod, text, self.modes, pod.requests.get(GPU, 0), _awaited(pod))


def _awaited(pod: Pod) -> frozenset[str]:
    """Returns `Hold.awaits` of a placed pod."""
    if pod.phase != "Pending":
        return frozenset()
    left = read_allocated(pod.annotations.get(TO_ALLOCATE, ""))
    return CONFUSIONS if left is not None and any(left) else frozenset()


def _without(card: Card, cordoned: frozenset[str], *, is_reporting: bool) -> Card:
    is_usable = card.is_healthy and is_reporting and card.id not in cordoned
    return card if is_usable == card.is_healthy else msgspec.structs.replace(card, is_healthy=is_usable)


def _part(container: ExtendedRequests) -> Part:
    """Returns a container's request. Without memory it takes all memory of its cards; without cores, too, the cards alone."""
    amounts = container.amounts
    memory, percent = amounts.get(MEMORY, 0), amounts.get(MEMORY_PERCENT, 0)
    cores = min(CARD_PERCENT, amounts.get(CORES, 0))
    if not memory and not percent:
        percent = CARD_PERCENT
        cores = cores if CORES in amounts else CARD_PERCENT
    return Part(
        min(amounts.get(GPU, 0), CARDS_MAX + 1),
        Amount(memory=memory, percent=0 if memory else percent, cores=cores),
        container=container.position,
        is_init=container.is_init,
        needs_unused=cores == CARD_PERCENT,
        needs_cores=cores == 0,
    )


def _problems(pod: Pod, containers: list[ExtendedRequests]) -> Iterator[str]:
    for one in containers:
        where = f"spec.{'initContainers' if one.is_init else 'containers'}[{one.name}].resources.limits"
        amounts = one.amounts
        if not amounts.get(GPU, 0):
            name = next(name for name in (MEMORY, MEMORY_PERCENT, CORES) if name in amounts)
            yield (
                f"{where}[{name}]: requires {GPU}; write {GPU}: 1 (HAMi's webhook adds it only for pods of its own scheduler)"
            )
        if amounts.get(MEMORY_PERCENT, 0) > CARD_PERCENT:
            yield f"{where}[{MEMORY_PERCENT}]: {amounts[MEMORY_PERCENT]} is more than {CARD_PERCENT}; write a percentage of one card"
        if amounts.get(MEMORY, 0) > MEMORY_MAX:
            yield f"{where}[{MEMORY}]: {amounts[MEMORY]} is more than {MEMORY_MAX}; write MiB of one card"
    if pod.annotations.get(VGPU_MODE) == "mig":
        yield f"annotation {VGPU_MODE}: mig is not supported; write hami-core, or remove the annotation"
