"""Nodes whose GPUs are published by a sharing system: real cards, annotations, and changes of these.

Only pods for these nodes tolerate their taint, so that all holds there are known.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from tests.kit.world.labels import CARDS, GPU, HOSTNAME

HAMI, VOLCANO, GPUSHARE, KOORDINATOR, SHARED, MIG, WHOLE = (
    "hami",
    "volcano-vgpu",
    "gpushare",
    "koordinator",
    "shared",
    "mig",
    "whole",
)
REGISTERS: Final[Mapping[str, str]] = {HAMI: "hami.io/node-nvidia-register", VOLCANO: "volcano.sh/node-vgpu-register"}
MODES: Final = (HAMI, HAMI, VOLCANO, GPUSHARE, KOORDINATOR, SHARED, MIG, WHOLE)
"""Modes of the nodes of each run."""
MODEL: Final = "NVIDIA-A10"
MIB, GIB = 24_000, 24
REPLICAS: Final = 4
MIG_PROFILE: Final = "nvidia.com/mig-1g.6gb"
DEVICE_GROUP, DEVICE_VERSION = "scheduling.koordinator.sh", "v1alpha1"

Amounts = Mapping[str, int]
"""Amounts of one card: `memory`, `cores` (percent), `ratio` (percent of memory) and `sharers`, named as in
`multisched.verify.cards`.
"""


@dataclass(frozen=True, slots=True)
class CardNode:
    """One node and its real cards."""

    name: str
    mode: str
    cards: Mapping[str, Amounts]
    """Id or index of each card -> its amounts; empty if only the kubelet knows the cards, and in mode `whole`."""
    is_old: bool = False
    """HAMi's register annotation has the format of older releases."""

    def manifest(self) -> dict[str, Any]:
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": self.name,
                "labels": {HOSTNAME: self.name, CARDS: self.mode, **_labels(self.mode)},
                "annotations": self.annotations(),
            },
            "spec": {"taints": [{"key": CARDS, "effect": "NoSchedule"}]},
            "status": {"capacity": self._amounts(), "allocatable": self._amounts()},
        }

    def annotations(self, *, without: Collection[str] = (), sick: Collection[str] = ()) -> dict[str, str]:
        """Returns the annotations that its device plugin registers. `without`, `sick`: cards that are missing, or unhealthy."""
        there = [name for name in self.cards if name not in without]
        if self.mode == VOLCANO:
            return {REGISTERS[VOLCANO]: "".join(self._volcano_card(name, is_sick=name in sick) for name in there)}
        if self.mode != HAMI:
            return {}
        cards = [
            {
                "id": name,
                "count": self.cards[name]["sharers"],
                "devmem": self.cards[name]["memory"],
                "devcore": self.cards[name]["cores"],
                "type": MODEL,
                "numa": int(name[-1]) // 2,
                "health": name not in sick,
                "index": int(name[-1]),
                "mode": "hami-core",
            }
            for name in there
        ]
        if self.is_old:
            return {REGISTERS[HAMI]: "".join(",".join(map(_field, card.values())) + ":" for card in cards)}
        return {REGISTERS[HAMI]: orjson.dumps(cards).decode()}

    def _volcano_card(self, name: str, *, is_sick: bool) -> str:
        has = self.cards[name]
        return f"{name},{has['sharers']},{has['memory']},{MODEL},{_field(not is_sick)},hami-core:"

    def device(self) -> dict[str, Any]:
        """Returns Koordinator's Device object of the node."""
        devices = [
            {
                "type": "gpu",
                "minor": int(minor),
                "id": f"GPU-{minor}",
                "health": True,
                "resources": {
                    "koordinator.sh/gpu-core": "100",
                    "koordinator.sh/gpu-memory": f"{MIB}Mi",
                    "koordinator.sh/gpu-memory-ratio": "100",
                },
                "topology": {"nodeID": int(minor) // 2},
            }
            for minor in self.cards
        ]
        return {
            "apiVersion": f"{DEVICE_GROUP}/{DEVICE_VERSION}",
            "kind": "Device",
            "metadata": {"name": self.name},
            "spec": {"devices": devices},
        }

    def _amounts(self) -> dict[str, str]:
        count = len(self.cards)
        named = {
            HAMI: {GPU: sum(card["sharers"] for card in self.cards.values() if self.mode == HAMI)},
            VOLCANO: {
                "volcano.sh/vgpu-number": sum(card.get("sharers", 0) for card in self.cards.values()),
                "volcano.sh/vgpu-memory": count * MIB,
                "volcano.sh/vgpu-cores": count * 100,
            },
            GPUSHARE: {"aliyun.com/gpu-mem": count * GIB, "aliyun.com/gpu-count": count},
            KOORDINATOR: {
                f"koordinator.sh/{what}": count * 100 for what in ("gpu", "gpu-core", "gpu-memory-ratio", "gpu.shared")
            },
            SHARED: {GPU: 2 * REPLICAS},
            MIG: {MIG_PROFILE: 6},
            WHOLE: {GPU: 3},
        }
        found = {name: str(amount) for name, amount in named[self.mode].items()}
        if self.mode == KOORDINATOR:
            found["koordinator.sh/gpu-memory"] = f"{count * MIB}Mi"
        return {"cpu": "32", "memory": "128Gi", "pods": "60", **found}


def drawn_nodes(rng: random.Random) -> list[CardNode]:
    """Returns one node of each mode, and a second one of HAMi."""
    return [_drawn(rng, mode, f"cards-{number}") for number, mode in enumerate(MODES)]


def _drawn(rng: random.Random, mode: str, name: str) -> CardNode:
    count, split = rng.randint(2, 4), rng.choice((2, 3, 5))
    if mode in (SHARED, MIG, WHOLE):
        return CardNode(name, mode, {})
    amounts: Amounts = {
        HAMI: {"memory": MIB, "cores": 100, "sharers": split},
        VOLCANO: {"memory": MIB, "cores": 100, "sharers": split},
        GPUSHARE: {"memory": GIB},
        KOORDINATOR: {"memory": MIB << 20, "cores": 100, "ratio": 100},
    }[mode]
    names = [f"GPU-{name}-{at}" if mode in REGISTERS else str(at) for at in range(count)]
    return CardNode(name, mode, dict.fromkeys(names, amounts), is_old=rng.random() < 0.3)


def _field(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _labels(mode: str) -> dict[str, str]:
    if mode == SHARED:
        return {"nvidia.com/gpu.replicas": str(REPLICAS), "nvidia.com/gpu.sharing-strategy": "time-slicing"}
    if mode == WHOLE:
        return {"nvidia.com/gpu.memory": str(MIB), "alibabacloud.com/gpu-card-model": MODEL}
    return {"nvidia.com/mig.strategy": "mixed"} if mode == MIG else {}
