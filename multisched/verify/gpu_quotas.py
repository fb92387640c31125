"""Thousandths of GPUs that a pod counts for in quotas besides its resource requests, in each sharing system.

A pod without a node counts what its author requests, unless the request is invalid or in the names of two systems. A pod on a node
counts what was written at bind. HAMi, Volcano, gpushare and MIG count by their resource names only.
Sources: domains/gpu/README.md; koordinator pkg/scheduler/plugins/deviceshare/utils.go; KAI-Scheduler docs/gpu-sharing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from decimal import Decimal, InvalidOperation
from typing import Final

from multisched.verify.cards import (
    CARDS_MAX,
    GPUSHARE_CORES,
    GPUSHARE_MEMORY,
    HAMI,
    HELD_BY_TEXT,
    KOORDINATOR_CARDS,
    NUMBER_MAX,
    PERCENT,
    TEXT_MAX,
    VOLCANO,
    without_emptied,
)
from multisched.verify.demands import Requests
from multisched.verify.devices import (
    ALLOCATED,
    ALLOCATED_MIB,
    COUNT,
    DEVICE_MILLI,
    DEVICES,
    DEVICES_MAX,
    FGD_COUNT,
    FGD_INDEX,
    FGD_MILLI,
    GPU,
    MEMORY_MIB_MAX,
    MILLI,
    WHOLE_NAMES,
    listed,
    milli_of,
    number_of,
    requested_total_milli,
)

Texts = Mapping[str, str]
KAI_FRACTION, KAI_MEMORY, KAI_COUNT = "gpu-fraction", "gpu-memory", "gpu-fraction-num-devices"
FRACTION_TEXT_MAX: Final = 16

PERCENT_OF_GPU: Final = "koordinator.sh/gpu"
CORES, MEMORY, RATIO = "koordinator.sh/gpu-core", "koordinator.sh/gpu-memory", "koordinator.sh/gpu-memory-ratio"
SHARED: Final = "koordinator.sh/gpu.shared"
KOORDINATOR_NAMES: Final = (PERCENT_OF_GPU, CORES, MEMORY, RATIO, SHARED)
HINT: Final = "scheduling.koordinator.sh/device-allocate-hint"
UNSUPPORTED: Final = ("scheduling.koordinator.sh/device-joint-allocate", "scheduling.koordinator.sh/gpu-partition-spec")
SCOPES: Final = ("", "Device", "Node", "NUMANode")

HAMI_NAMES: Final = ("nvidia.com/gpumem", "nvidia.com/gpumem-percentage", "nvidia.com/gpucores")
HAMI_WISHES: Final = frozenset(
    {f"nvidia.com/{wish}" for wish in ("use-gputype", "nouse-gputype", "use-gpuuuid", "nouse-gpuuuid", "numa-bind")}
    | {"nvidia.com/vgpu-mode", "hami.io/gpu-scheduler-policy"}
)
ASKED_OF_PLUGIN: Final = {HAMI: GPU, VOLCANO: "volcano.sh/vgpu-number"}
"""Without it, the kubelet asks no device plugin for the pod: its annotation with cards holds nothing."""
VOLCANO_NAMES: Final = tuple(f"volcano.sh/vgpu-{what}" for what in ("number", "memory", "memory-percentage", "cores"))
GPUSHARE_NAMES: Final = (GPUSHARE_MEMORY, GPUSHARE_CORES)
SHARED_GPU, MIG = "nvidia.com/gpu.shared", "nvidia.com/mig-"


def gpu_thousandths(requests: Requests, annotations: Mapping[str, object], *, node: str, is_ours: bool) -> int:
    """Returns the thousandths; 0 for none. `node`: of the pod; empty while it is pending.

    `is_ours`: whether the program serves its schedulerName. Of other pods on nodes, only Koordinator's annotation counts.
    """
    texts = without_emptied({key: text for key, text in annotations.items() if isinstance(text, str)})
    return _held(requests, texts, node, is_ours=is_ours) if node else _requested(requests, texts)


# -- pods on a node ----------------------------------------------------------------------------------------------------


def _held(requests: Requests, texts: Texts, node: str, *, is_ours: bool) -> int:
    if KOORDINATOR_CARDS in texts and any(requests.get(name) for name in (*KOORDINATOR_NAMES, GPU)):
        return _of_koordinator(requests)
    has_cards = any(
        key in texts and texts.get(at, node) == node and requests.get(ASKED_OF_PLUGIN[mode])
        for mode, (key, at) in HELD_BY_TEXT.items()
    )
    if has_cards or requests.get(GPUSHARE_MEMORY) or _whole_name(requests) or not is_ours:
        return 0
    if DEVICES in texts:
        is_in_mib = ALLOCATED not in texts and number_of(texts.get(ALLOCATED_MIB), MEMORY_MIB_MAX)
        each = DEVICE_MILLI if is_in_mib else _first(texts, ALLOCATED, MILLI)
        return each * (len(listed(texts[DEVICES])) or 1)
    return _first(texts, ALLOCATED, FGD_MILLI) * (len(listed(texts[FGD_INDEX], "-")) or 1) if FGD_INDEX in texts else 0


def _first(texts: Texts, *keys: str) -> int:
    """Returns the first readable amount of thousandths; a whole device if there is none."""
    return next(filter(None, (milli_of(texts.get(key)) for key in keys)), DEVICE_MILLI)


def _whole_name(requests: Requests) -> str:
    return next((name for name in WHOLE_NAMES if requests.get(name)), "")


# -- pending pods ------------------------------------------------------------------------------------------------------


def _requested(requests: Requests, texts: Texts) -> int:
    systems = list(_systems(requests, texts))
    if len(systems) != 1:
        return 0
    if systems == ["koordinator"]:
        is_allowed = not _whole_name(requests) and _is_even(requests) and _has_known_hints(texts)
        return _of_koordinator(requests) if is_allowed else 0
    if _whole_name(requests):
        return 0
    match systems[0]:
        case "multisched":
            return requested_total_milli(texts)
        case "openb":
            milli = milli_of(texts[FGD_MILLI]) if FGD_MILLI in texts else DEVICE_MILLI
            return milli * number_of(texts.get(FGD_COUNT, "1"), DEVICES_MAX)
        case "kai":
            return _of_kai(texts) * number_of(texts.get(KAI_COUNT, "1"), DEVICES_MAX)
    return 0


def _systems(requests: Requests, texts: Texts) -> Iterator[str]:
    """Yields the systems in whose own names the pod requests GPUs."""
    named = {
        "koordinator": KOORDINATOR_NAMES,
        "hami": HAMI_NAMES,
        "volcano": VOLCANO_NAMES,
        "gpushare": GPUSHARE_NAMES,
        "counted": tuple(name for name in requests if name == SHARED_GPU or name.startswith(MIG)),
    }
    found = {system for system, names in named.items() if any(requests.get(name) for name in names)}
    if requests.get(GPU) and not HAMI_WISHES.isdisjoint(texts):
        found.add("hami")
    noted = {
        "multisched": (MILLI, COUNT),
        "openb": (FGD_MILLI, FGD_COUNT),
        "kai": (KAI_FRACTION, KAI_MEMORY, KAI_COUNT),
    }
    found.update(system for system, keys in noted.items() if any(key in texts for key in keys))
    yield from found


def _of_kai(texts: Texts) -> int:
    """Returns thousandths of each card; an amount of memory counts as the whole card, whose size is unknown."""
    if KAI_FRACTION in texts and KAI_MEMORY in texts:
        return 0
    if KAI_MEMORY in texts:
        return DEVICE_MILLI if number_of(texts[KAI_MEMORY], MEMORY_MIB_MAX) else 0
    text = texts.get(KAI_FRACTION, "")
    try:
        milli = Decimal(text) * DEVICE_MILLI if text.isascii() and len(text) <= FRACTION_TEXT_MAX else Decimal(0)
    except InvalidOperation:
        return 0
    return int(milli) if milli.is_finite() and milli == int(milli) and 0 < milli < DEVICE_MILLI else 0


# -- Koordinator -------------------------------------------------------------------------------------------------------


def _of_koordinator(requests: Requests) -> int:
    """Returns the largest percentage that the pod requests; an amount of memory alone counts as whole cards."""
    percent = max(requests.get(name, 0) for name in (PERCENT_OF_GPU, CORES, RATIO))
    if percent:
        return percent * DEVICE_MILLI // PERCENT
    return DEVICE_MILLI * max(1, requests.get(SHARED, 0)) if requests.get(MEMORY) else 0


def _is_even(requests: Requests) -> bool:
    """Reports whether Koordinator allows this set of resources, and they can be spread evenly over cards."""
    names = {name for name in KOORDINATOR_NAMES if requests.get(name)}
    is_allowed = names == {PERCENT_OF_GPU} if PERCENT_OF_GPU in names else (MEMORY in names) != (RATIO in names)
    cards = requests.get(SHARED, 0)
    percents = [requests[name] for name in names & {PERCENT_OF_GPU, CORES, RATIO}]
    most = max(percents, default=0)
    if cards <= 1 and most > PERCENT:
        is_allowed &= most % PERCENT == 0
        cards = most // PERCENT
    cards = max(cards, 1)
    memory = requests.get(MEMORY, 0)
    is_even = all(amount % cards == 0 for amount in (*percents, memory))
    return is_allowed and cards <= CARDS_MAX and is_even and most <= PERCENT * cards and memory // cards <= NUMBER_MAX


def _has_known_hints(texts: Texts) -> bool:
    """Reports whether multisched supports the pod's hints."""
    if any(key in texts for key in UNSUPPORTED):
        return False
    text = texts.get(HINT, "")
    try:
        hint = json.loads(text[:TEXT_MAX]) if text else {}
        gpu = (hint.get("gpu") or {}) if isinstance(hint, dict) else None
    except (ValueError, RecursionError):
        return False
    if not isinstance(gpu, dict) or gpu.get("selector") is not None:
        return False
    return gpu.get("exclusivePolicy", "") == "" and gpu.get("requiredTopologyScope", "") in SCOPES
