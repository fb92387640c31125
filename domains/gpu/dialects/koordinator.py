"""Koordinator: percent and bytes of cards by extended resources, answered by JSON that koordlet reads of the pod itself.

No device plugin guesses here: the runtime hook gets the pod's own annotation. Source: reference gpu 1.6;
koordinator pkg/scheduler/plugins/deviceshare/utils.go.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from domains.gpu.cards import CARD_MILLI, CARD_PERCENT, CARDS_MAX, MEMORY_MAX, Amount, Card, Mode, NodeCards
from domains.gpu.demand import GpuDemand, Part, indices_text, invalid
from domains.gpu.dialect import Choice
from domains.gpu.dialects.whole import GPU
from domains.gpu.hold import Hold, Share
from domains.gpu.node_lock import NodeLockKey
from multisched.framework.objects_view import ObjectsView
from multisched.model.cluster_objects import NodeDevices
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Node, Pod
from multisched.model.quantity import QuantityError, parse_nano, value_of_nano

PERCENT: Final = "koordinator.sh/gpu"
CORES: Final = "koordinator.sh/gpu-core"
MEMORY: Final = "koordinator.sh/gpu-memory"
RATIO: Final = "koordinator.sh/gpu-memory-ratio"
SHARED: Final = "koordinator.sh/gpu.shared"
MODEL_LABEL: Final = "node.koordinator.sh/gpu-model"
BYTE_PERCENT: Final = 100
"""Bytes and percent of a card are both integers in 1/100 byte."""

HINT: Final = "scheduling.koordinator.sh/device-allocate-hint"
JOINT: Final = "scheduling.koordinator.sh/device-joint-allocate"
PARTITION: Final = "scheduling.koordinator.sh/gpu-partition-spec"
ALLOCATED: Final = "scheduling.koordinator.sh/device-allocated"
MINORS: Final = "scheduling.koordinator.sh/gpu-minors"
BIND_TIME: Final = "scheduling.koordinator.sh/bind-timestamp"
TEXT_MAX: Final = 256 * 1024
NUMA_SCOPE: Final = "NUMANode"
FREE_SCOPES: Final = ("", "Device", "Node", NUMA_SCOPE)


class _GpuHint(msgspec.Struct, rename="camel"):
    selector: Any = None
    required_topology_scope: str = ""
    exclusive_policy: str = ""


class _Hint(msgspec.Struct):
    gpu: _GpuHint | None = None


class _Allocated(msgspec.Struct):
    minor: int
    resources: dict[str, str | int] = {}


class KoordinatorDialect:
    """Implements `Dialect`."""

    name = "koordinator"
    modes = frozenset({Mode.KOORDINATOR})
    requested = frozenset({HINT, JOINT, PARTITION})
    written = frozenset({ALLOCATED, MINORS, BIND_TIME})
    reported: frozenset[str] = frozenset()
    node_annotations: frozenset[str] = frozenset()
    node_lock: NodeLockKey | None = None
    reads_objects: tuple[ObjectKind, ...] = (ObjectKind.NODE_DEVICES,)
    resources = frozenset({PERCENT, CORES, MEMORY, RATIO, SHARED})

    def demand(self, pod: Pod) -> GpuDemand | None:
        asked = {name: pod.requests[name] for name in (*self.resources, GPU) if pod.requests.get(name, 0) > 0}
        is_specific = not self.resources.isdisjoint(asked)
        if not asked or (not is_specific and GPU not in asked):
            return None
        if is_specific and GPU in asked:
            return invalid(self.name, f"resources.limits[{GPU}]: the pod also requests {_names(asked)}; write only one")
        if not is_specific:
            part = Part(min(asked[GPU], CARDS_MAX + 1), Amount(percent=CARD_PERCENT, cores=CARD_PERCENT))
            return GpuDemand(self.name, (part,), GPU, count_key=GPU, is_specific=False)
        part, problem = _part(asked)
        hint, hint_problem = _hint(pod)
        problem = problem or hint_problem
        return GpuDemand(
            self.name,
            (part,),
            next(name for name in (PERCENT, MEMORY, RATIO, CORES, SHARED) if name in asked),
            amount_key=next((name for name in (PERCENT, MEMORY, RATIO) if name in asked), "")
            if part.count == 1
            else "",
            one_numa=hint.required_topology_scope == NUMA_SCOPE,
            quota_milli=0 if problem else _quota_milli(pod),
            problem=problem,
        )

    def cards(self, node: Node, objects: ObjectsView | None) -> NodeCards | None:
        """Returns the GPUs of the Device object named as the node."""
        found = None if objects is None else objects.get(ObjectKind.NODE_DEVICES, "", node.name)
        if not isinstance(found, NodeDevices):
            return None
        if found.malformed:
            return NodeCards(Mode.KOORDINATOR, problems=(f"Device {node.name}: {found.malformed}",))
        if not found.gpus and not found.problems:
            return None
        model = node.labels.get(MODEL_LABEL, "")
        cards = tuple(
            Card(
                gpu.minor,
                min(gpu.memory_bytes, MEMORY_MAX),
                BYTE_PERCENT,
                cores=gpu.cores,
                id=gpu.id,
                model=model,
                numa=gpu.numa,
                is_healthy=gpu.is_healthy,
            )
            for gpu in found.gpus
        )
        problems = tuple(f"Device {node.name}: {problem}" for problem in found.problems)
        return NodeCards(Mode.KOORDINATOR, cards, is_indexed=True, problems=problems)

    def answer(self, pod: Pod, demand: GpuDemand, node: str, cards: NodeCards, choice: Choice) -> Mapping[str, str]:
        by_index = {card.index: card for card in cards.cards}
        gpus = [_allocation(by_index[index], demand.amount) for index in choice]
        return {ALLOCATED: msgspec.json.encode({"gpu": gpus}).decode(), MINORS: indices_text(choice)}

    def timed_annotations(self, now: datetime) -> Mapping[str, str]:
        return {BIND_TIME: str(int(now.timestamp() * 1_000_000) * 1_000)}

    def hold(self, pod: Pod, *, is_ours: bool) -> Hold | None:
        """Returns what the annotation allocates, for pods of any scheduler that request GPUs: koordlet mounts these cards."""
        text = pod.annotations.get(ALLOCATED)
        requests = not self.resources.isdisjoint(pod.requests) or GPU in pod.requests
        if text is None or not requests:
            return None
        shares = _shares(text)
        amount = Amount(percent=CARD_PERCENT, cores=CARD_PERCENT)
        return Hold(self.name, len(shares) or 1, amount, shares, quota_milli=_quota_milli(pod), modes=self.modes)


def _names(asked: Mapping[str, int]) -> str:
    return ", ".join(sorted(name for name in asked if name != GPU))


def _part(asked: Mapping[str, int]) -> tuple[Part, str]:
    """Returns the amount of each card, and the problem of a set of resources that Koordinator does not allow."""
    count = asked.get(SHARED, 0)
    whole = Part(1, Amount(percent=CARD_PERCENT, cores=CARD_PERCENT))
    if PERCENT in asked:
        if len(asked) > 1:
            return (
                whole,
                f"resources.limits[{PERCENT}]: remove {_names({n: 1 for n in asked if n != PERCENT})}; it sets both",
            )
        return _even(asked[PERCENT], asked[PERCENT], 0, 1, PERCENT)
    if MEMORY in asked and RATIO in asked:
        return whole, f"resources.limits[{MEMORY}]: the pod also requests {RATIO}; write only one of them"
    if MEMORY not in asked and RATIO not in asked:
        name = CORES if CORES in asked else SHARED
        return whole, f"resources.limits[{name}]: requires {MEMORY} or {RATIO}; write how much memory the pod takes"
    if count > CARDS_MAX:
        return whole, f"resources.limits[{SHARED}]: {count} is more than {CARDS_MAX} cards"
    name = MEMORY if MEMORY in asked else RATIO
    return _even(asked.get(RATIO, 0), asked.get(CORES, 0), asked.get(MEMORY, 0), count, name)


def _even(percent: int, cores: int, memory: int, count: int, name: str) -> tuple[Part, str]:
    """Spreads amounts evenly over `count` cards; 0: over as many as a multiple of 100 percent needs."""
    most = max(percent, cores)
    if count <= 1 and most > CARD_PERCENT:
        count = most // CARD_PERCENT
        if most % CARD_PERCENT or count > CARDS_MAX:
            return Part(
                1, Amount()
            ), f"resources.limits[{name}]: {most} is over 100 and not a multiple of 100; write a multiple"
    count = max(count, 1)
    for amount in (percent, cores, memory):
        if amount % count:
            return Part(1, Amount()), f"resources.limits[{name}]: {amount} cannot be spread evenly over {count} cards"
    if most > CARD_PERCENT * count:
        return Part(1, Amount()), f"resources.limits[{name}]: {most} is more than 100 for each of {count} cards"
    if memory // count > MEMORY_MAX:
        return Part(1, Amount()), f"resources.limits[{name}]: {memory} is more than {MEMORY_MAX} bytes for one card"
    return Part(count, Amount(percent=percent // count, cores=cores // count, memory=memory // count)), ""


def _hint(pod: Pod) -> tuple[_GpuHint, str]:
    """Returns the allocate hint, and the problem of a hint that is invalid or not supported."""
    for key in (JOINT, PARTITION):
        if key in pod.annotations:
            return _GpuHint(), f"annotation {key}: not supported by this scheduler; remove it"
    text = pod.annotations.get(HINT, "")
    if not text:
        return _GpuHint(), ""
    try:
        hint = msgspec.json.decode(text[:TEXT_MAX].encode(), type=_Hint).gpu or _GpuHint()
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError) as error:
        return _GpuHint(), f"annotation {HINT}: {str(error)[:120]}"
    if hint.selector is not None or hint.exclusive_policy:
        return hint, f"annotation {HINT}: selector and exclusivePolicy are not supported by this scheduler; remove them"
    if hint.required_topology_scope not in FREE_SCOPES:
        return (
            hint,
            f"annotation {HINT}: requiredTopologyScope {hint.required_topology_scope[:32]!r} is not supported; write NUMANode",
        )
    return hint, ""


def _quota_milli(pod: Pod) -> int:
    """Returns thousandths of a GPU by the pod's spec; an amount of memory alone counts as whole cards."""
    requests = pod.requests
    percent = max(requests.get(name, 0) for name in (PERCENT, CORES, RATIO))
    if percent:
        return percent * CARD_MILLI // CARD_PERCENT
    return CARD_MILLI * max(1, requests.get(SHARED, 0)) if requests.get(MEMORY, 0) else 0


def _allocation(card: Card, amount: Amount) -> dict[str, Any]:
    memory = amount.memory or amount.percent * card.memory // CARD_PERCENT
    ratio = amount.percent or memory * CARD_PERCENT // card.memory
    resources = {CORES: str(amount.cores), MEMORY: str(memory), RATIO: str(ratio)}
    named = {"id": card.id} if card.id else {}
    return {"minor": card.index, "resources": resources, **named}


def _shares(text: str) -> tuple[Share, ...]:
    """Returns the allocated cards; none if the text cannot be read, so that the hold counts on every card."""
    if len(text) > TEXT_MAX:
        return ()
    try:
        found = msgspec.json.decode(text.encode(), type=dict[str, list[_Allocated]]).get("gpu", [])
        shares = [Share(one.minor, _held(one.resources)) for one in found]
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError, QuantityError):
        return ()
    return tuple(sorted(shares, key=lambda share: int(share.card)))


def _held(resources: Mapping[str, str | int]) -> Amount:
    """Returns one card's amount: its bytes if there are any, otherwise its percentage."""
    amounts = {name: max(0, min(MEMORY_MAX, value_of_nano(parse_nano(text)))) for name, text in resources.items()}
    cores, memory = amounts.get(CORES, 0), amounts.get(MEMORY, 0)
    return Amount(memory=memory, cores=cores) if memory else Amount(percent=amounts.get(RATIO, 0), cores=cores)
