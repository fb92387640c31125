"""The GPU cards of a node whose sharing system publishes them, and what a pod holds of each by its annotations.

Sharing systems: HAMi, Volcano vGPU, gpushare, Koordinator. Sources: HAMi docs/develop/protocol.md; volcano-vgpu-device-plugin
pkg/util/util.go; gpushare-device-plugin pkg/gpu/nvidia; koordinator apis/extension/device_share.go.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from multisched.verify.demands import Requests
from multisched.verify.fields import Json, Unreadable, integer, mapping, objects, shown, text
from multisched.verify.quantities import amounts, quantity, whole_units

HAMI, VOLCANO, GPUSHARE, KOORDINATOR = "hami", "volcano-vgpu", "gpushare", "koordinator"
UNKNOWN_TO_NODES: Final = frozenset(
    {
        "nvidia.com/gpumem",
        "nvidia.com/gpumem-percentage",
        "nvidia.com/gpucores",
        "volcano.sh/vgpu-memory-percentage",
    }
)
"""Extended resources that device plugins read of pods, and that no node has allocatable."""

HAMI_NODE: Final = "hami.io/node-nvidia-register"
VOLCANO_NODE: Final = "volcano.sh/node-vgpu-register"
GPUSHARE_MEMORY, GPUSHARE_COUNT = "aliyun.com/gpu-mem", "aliyun.com/gpu-count"
GPUSHARE_CORES: Final = "aliyun.com/gpu-core.percentage"
_CORES, _MEMORY, _RATIO = "koordinator.sh/gpu-core", "koordinator.sh/gpu-memory", "koordinator.sh/gpu-memory-ratio"
_GROUP: Final = "scheduling.koordinator.sh"

HELD_BY_TEXT: Final = {
    HAMI: ("hami.io/vgpu-devices-allocated", "hami.io/vgpu-node"),
    VOLCANO: ("volcano.sh/vgpu-ids-new", "volcano.sh/vgpu-node"),
}
"""Mode -> the annotation with the cards of each container, and the one with their node."""
GPUSHARE_INDEX: Final = "ALIYUN_COM_GPU_MEM_IDX"
GPUSHARE_CARDS: Final = "scheduler.framework.gpushare.allocation"
KOORDINATOR_CARDS: Final = "scheduling.koordinator.sh/device-allocated"
POD_KEYS: Final[Mapping[str, tuple[str, str]]] = {
    **{key: (mode, node_key) for mode, (key, node_key) in HELD_BY_TEXT.items()},
    GPUSHARE_INDEX: (GPUSHARE, ""),
    GPUSHARE_CARDS: (GPUSHARE, ""),
    KOORDINATOR_CARDS: (KOORDINATOR, ""),
}
"""Annotation of pods with held cards -> its mode, and the annotation with their node. The first of a mode decides."""

WRITTEN_AT_BIND: Final = frozenset(
    {*POD_KEYS, *(at for _, at in POD_KEYS.values() if at), "alibabacloud.com/gpu-index"}
    | {f"multisched.io/gpu-{what}" for what in ("devices", "allocated-milli", "allocated-mib")}
)

TEXT_MAX: Final = 256 * 1024
"""The API server's limit for all annotations of an object."""
CARDS_MAX: Final = 256
NUMBER_MAX: Final = 1 << 44
PERCENT: Final = 100

Measures = Mapping[str, int]
"""Amounts by what is counted: `memory`, `cores` (percent), `ratio` (percent of memory), `sharers`."""


class NodeCards(NamedTuple):
    """Cards that a node publishes. An empty mode: it has whole GPUs, or units that the kubelet counts, or none."""

    mode: str = ""
    cards: Mapping[str, Measures] = {}
    """Id or index -> what the card has."""
    known_max: int = 0
    """Cards that the node's capacity still has, if they are named by index."""


class Held(NamedTuple):
    """The amounts that a pod holds according to the annotations of one sharing system."""

    node: str
    """The node that the annotations name; empty if they name none."""
    cards: Mapping[str, Measures]


Report = Callable[[str], None]
"""Takes the problem of an unreadable part."""


def without_emptied(annotations: Mapping[str, str]) -> Mapping[str, str]:
    """Leaves out annotations that a binding has emptied, because the pod's author wrote them in the scheduler's place."""
    if all(annotations.values()):
        return annotations
    return {key: text for key, text in annotations.items() if text or key not in WRITTEN_AT_BIND}


# -- nodes -------------------------------------------------------------------------------------------------------------


def cards_of_node(annotations: Mapping[str, str], room: Requests, capacity: Requests, report: Report) -> NodeCards:
    """Returns the cards that the node's annotations or its allocatable resources describe."""
    if HAMI_NODE in annotations:
        return NodeCards(HAMI, dict(_registered(annotations[HAMI_NODE], HAMI_NODE, _HAMI_FIELDS, report)))
    if VOLCANO_NODE in annotations:
        return NodeCards(VOLCANO, dict(_registered(annotations[VOLCANO_NODE], VOLCANO_NODE, _VOLCANO_FIELDS, report)))
    memory, count = room.get(GPUSHARE_MEMORY, 0), room.get(GPUSHARE_COUNT, 0)
    if memory <= 0:
        return NodeCards()
    if not 0 < count <= min(memory, CARDS_MAX):
        report(f"status.allocatable.{GPUSHARE_COUNT}: {count} cards share {memory} of {GPUSHARE_MEMORY}")
        return NodeCards(GPUSHARE)
    total, known = capacity.get(GPUSHARE_MEMORY, 0), capacity.get(GPUSHARE_COUNT, 0)
    card = {"memory": max(total, memory) // max(known, count), "cores": PERCENT}  # unhealthy cards are not allocatable
    return NodeCards(GPUSHARE, {str(index): card for index in range(count)}, capacity.get(GPUSHARE_COUNT, 0))


_HAMI_FIELDS: Final = ("id", "count", "devmem", "devcore", "type", "numa", "health", "index", "mode")
_VOLCANO_FIELDS: Final = ("id", "count", "devmem", "type", "health", "mode")


def _registered(text: str, key: str, names: tuple[str, ...], report: Report) -> Iterator[tuple[str, Measures]]:
    """Yields id and amounts of each card that can be read. Cards in mode `mig` have none: their instances are not judged."""
    try:
        rows = _register_rows(text, names)
    except Unreadable as error:
        report(f"metadata.annotations.{key}: {error}")
        return
    seen: set[str] = set()
    for at, row in enumerate(rows):
        try:
            name, card = _registered_card(row, seen, has_cores="devcore" in names)
        except Unreadable as error:
            report(f"metadata.annotations.{key}: card {at}: {error}")
            continue
        seen.add(name)
        yield name, card


def _registered_card(row: Json, seen: set[str], *, has_cores: bool) -> tuple[str, Measures]:
    name = row.get("id")
    if not isinstance(name, str) or not name or name in seen:
        raise Unreadable(f"id: {shown(name)} is missing or appears twice")
    memory, sharers = _count(row, "devmem", least=1), _count(row, "count", least=1)
    cores = _count(row, "devcore") if has_cores else PERCENT
    return name, {} if row.get("mode") == "mig" else {"memory": memory, "cores": cores, "sharers": sharers}


def _register_rows(text: str, names: tuple[str, ...]) -> list[Json]:
    if len(text) > TEXT_MAX:
        raise Unreadable(f"{len(text)} characters are more than {TEXT_MAX}")
    if text.lstrip().startswith("["):
        rows = _json(text)
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise Unreadable(f"{shown(text)} is not a list of cards")
        return rows[:CARDS_MAX]
    cards = [part.split(",") for part in text.split(":") if part.strip()]
    if any(len(card) < min(6, len(names)) for card in cards):
        raise Unreadable(f"{shown(text)} is not a list of cards {','.join(names)}:")
    return [dict(zip(names, (field.strip() for field in card), strict=False)) for card in cards[:CARDS_MAX]]


def _count(row: Json, name: str, least: int = 0) -> int:
    found = _number(row.get(name, 0), name)
    if found < least:
        raise Unreadable(f"{name}: {found} is less than {least}")
    return found


def cards_of_device(document: Json, report: Report) -> NodeCards:
    """Returns the GPUs of a Koordinator Device, by minor. Raises Unreadable."""
    cards: dict[str, Measures] = {}
    for at, device in enumerate(objects(mapping(document, "spec"), "devices")):
        where = f"spec.devices[{at}]"
        try:
            if text(device, "type") != "gpu":
                continue
            minor, resources = integer(device, "minor", -1), amounts(device, "resources")
        except Unreadable as error:
            report(f"{where}.{error}")
            continue
        if not 0 <= minor < CARDS_MAX or str(minor) in cards:
            report(f"{where}.minor: {minor} is not within 0..{CARDS_MAX - 1}, or appears twice")
            continue
        memory = whole_units(_MEMORY, resources.get(_MEMORY, quantity(0)))
        cores = whole_units(_CORES, resources.get(_CORES, quantity(PERCENT)))
        cards[str(minor)] = {"cores": cores, "ratio": PERCENT} | ({"memory": memory} if memory else {})
    return NodeCards(KOORDINATOR, cards)


def is_koordinator_device(document: Json) -> bool:
    """Reports whether a Device is Koordinator's; items of a list may have no apiVersion."""
    version = document.get("apiVersion")
    return version is None or (isinstance(version, str) and version.startswith(f"{_GROUP}/"))


# -- pods --------------------------------------------------------------------------------------------------------------


def cards_of_pod(
    annotations: Mapping[str, str], requests: Requests, init_count: int, report: Report
) -> Mapping[str, Held]:
    """Returns mode -> what the pod holds by the annotations of that mode. `init_count`: init containers, which run first."""
    readers: dict[str, Callable[[], Mapping[str, Measures]]] = {
        GPUSHARE_INDEX: lambda: _of_gpushare(annotations, requests),
        GPUSHARE_CARDS: lambda: _of_gpushare(annotations, requests),
        KOORDINATOR_CARDS: lambda: _of_koordinator(annotations[KOORDINATOR_CARDS]),
        **{key: partial(_by_text, annotations.get(key, ""), init_count) for key, _ in HELD_BY_TEXT.values()},
    }
    found: dict[str, Held] = {}
    for key in (key for key in POD_KEYS if key in annotations):
        mode, node_key = POD_KEYS[key]
        if mode in found:
            continue
        try:
            found[mode] = Held(annotations.get(node_key, ""), readers[key]())
        except Unreadable as error:
            report(f"metadata.annotations.{key}: {error}")
    return found


def _by_text(text: str, init_count: int) -> Mapping[str, Measures]:
    """Reads `id,vendor,MiB,percent:` for each card and `;` after each container; init containers come first."""
    if len(text) > TEXT_MAX:
        raise Unreadable(f"{len(text)} characters are more than {TEXT_MAX}")
    init: dict[str, dict[str, int]] = {}
    main: dict[str, dict[str, int]] = {}
    for at, container in enumerate(text.split(";")):
        for part in filter(None, container.split(":")):
            fields = part.split(",")
            if len(fields) != 4 or not fields[0]:
                raise Unreadable(f"{shown(part)} is not a card; written are id,vendor,MiB,percent of cores")
            use = {"memory": _number(fields[2], "MiB"), "cores": _number(fields[3], "percent"), "sharers": 1}
            known = init if at < init_count else main
            before = known.get(fields[0], {})
            pick = max if at < init_count else sum
            known[fields[0]] = {name: pick((before.get(name, 0), amount)) for name, amount in use.items()}
    return {card: _most(init.get(card, {}), main.get(card, {})) for card in {**init, **main}}


def _most(one: Measures, other: Measures) -> Measures:
    return {name: max(one.get(name, 0), other.get(name, 0)) for name in {**one, **other}}


def _of_gpushare(annotations: Mapping[str, str], requests: Requests) -> Mapping[str, Measures]:
    memory, cores = requests.get(GPUSHARE_MEMORY, 0), requests.get(GPUSHARE_CORES, 0)
    if GPUSHARE_INDEX in annotations:
        return {_index(annotations[GPUSHARE_INDEX]): {"memory": memory, "cores": cores}}
    by_container = _json(annotations[GPUSHARE_CARDS])
    if not isinstance(by_container, dict) or not all(isinstance(cards, dict) for cards in by_container.values()):
        raise Unreadable(f"{shown(annotations[GPUSHARE_CARDS])} is not container -> card -> memory")
    found: dict[str, int] = {}
    for cards in by_container.values():
        for card, amount in cards.items():
            found[_index(card)] = found.get(_index(card), 0) + _number(amount, "memory")
    if sum(found.values()) != memory:
        raise Unreadable(f"its cards have {sum(found.values())}, but the pod requests {memory} of {GPUSHARE_MEMORY}")
    return {card: {"memory": amount} for card, amount in found.items()}


def _of_koordinator(text: str) -> Mapping[str, Measures]:
    document = _json(text)
    if not isinstance(document, dict):
        raise Unreadable(f"{shown(text)} is not an object")
    found: dict[str, Measures] = {}
    for device in objects(document, "gpu"):
        minor, resources = integer(device, "minor", -1), amounts(device, "resources")
        if not 0 <= minor < CARDS_MAX or str(minor) in found:
            raise Unreadable(f"minor: {minor} is not within 0..{CARDS_MAX - 1}, or appears twice")
        units = {name: whole_units(name, amount) for name, amount in resources.items()}
        known = {"cores": units.get(_CORES, 0), "ratio": units.get(_RATIO, 0), "memory": units.get(_MEMORY, 0)}
        found[str(minor)] = known
    return found


def _index(text: str) -> str:
    if not (text.isascii() and text.isdigit() and len(text) <= 3 and int(text) < CARDS_MAX):
        raise Unreadable(f"{shown(text)} is not the index of a card, 0..{CARDS_MAX - 1}")
    return str(int(text))


def _number(value: object, name: str) -> int:
    """Returns an integer of 0 or more, given as a number or as text. Raises Unreadable."""
    is_text = isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 14
    if not is_text and (not isinstance(value, int) or isinstance(value, bool)):
        raise Unreadable(f"{name}: {shown(value)} is not an integer of 0 or more")
    number = int(value)  # type: ignore[call-overload]
    if not 0 <= number <= NUMBER_MAX:
        raise Unreadable(f"{name}: {number} is not within 0..{NUMBER_MAX}")
    return int(number)


def _json(text: str) -> Any:
    if len(text) > TEXT_MAX:
        raise Unreadable(f"{len(text)} characters are more than {TEXT_MAX}")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"{shown(text)} is not JSON") from error
