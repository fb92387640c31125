"""Pods that request GPUs of a sharing system, with drawn sizes; some have forged annotations."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tests.kit.world.gpu_nodes import GPUSHARE, HAMI, KOORDINATOR, MIB, MIG, MIG_PROFILE, MODEL, SHARED, VOLCANO, WHOLE
from tests.kit.world.labels import CARDS, GPU

FORGED: Final = 0.15
"""Share of pods with annotations that only a scheduler may write."""
SHORT: Final = 0.6
"""Share of pods that end by themselves."""
RUN_S: Final = (2, 12)


@dataclass(frozen=True, slots=True)
class Part:
    """What one container uses of each of `count` cards."""

    count: int
    memory: int
    """In the unit of the node's cards."""
    cores: int = 0
    is_exclusive: bool = False
    """Needs a card that no pod uses."""
    needs_cores: bool = False
    """Needs a card with some free cores."""


@dataclass(frozen=True, slots=True)
class CardDemand:
    """One kind of pod."""

    mode: str
    limits: tuple[Mapping[str, str], ...]
    """Limits of each container."""
    parts: tuple[Part, ...] = ()
    """What the container uses, if it is the only one; only then it is known where the pod fits."""
    first: Mapping[str, str] | None = None
    """Limits of the init container; None without one."""
    has_selector: bool = False
    """The pod selects nodes of its mode: its request has another meaning on others."""
    annotations: Mapping[str, str] = field(default_factory=dict)


def _hami(count: int, memory: int, cores: int = 0) -> dict[str, str]:
    limits = {GPU: str(count), "nvidia.com/gpumem": str(memory)}
    return limits | ({"nvidia.com/gpucores": str(cores)} if cores else {})


def _of_hami(count: int, memory: int, cores: int = 0) -> CardDemand:
    return CardDemand(HAMI, (_hami(count, memory, cores),), (Part(count, memory, cores, needs_cores=not cores),))


def _of_volcano(count: int, memory: int, cores: int = 0) -> CardDemand:
    amounts = {"number": count, "memory": memory, "cores": cores}
    limits = {f"volcano.sh/vgpu-{what}": str(amount) for what, amount in amounts.items() if amount}
    return CardDemand(VOLCANO, (limits,), (Part(count, memory, cores, needs_cores=not cores),))


def _of_gpushare(memory: int) -> CardDemand:
    return CardDemand(GPUSHARE, ({"aliyun.com/gpu-mem": str(memory)},), (Part(1, memory),))


def _of_koordinator(percent: int, count: int = 1) -> CardDemand:
    part = Part(count, (MIB << 20) * percent // 100, percent)
    return CardDemand(KOORDINATOR, ({"koordinator.sh/gpu": str(percent * count)},), (part,))


DEMANDS: Final = (
    _of_hami(1, 3_000),
    _of_hami(1, 9_000, 30),
    _of_hami(1, 13_000),
    _of_hami(2, 7_000, 10),
    _of_hami(1, 2_000, 60),
    CardDemand(
        HAMI, ({GPU: "1", "nvidia.com/gpumem-percentage": "33"},), (Part(1, MIB * 33 // 100, needs_cores=True),)
    ),
    CardDemand(HAMI, (_hami(1, 5_000), _hami(1, 2_000))),
    CardDemand(HAMI, (_hami(1, 2_000),), first=_hami(1, 8_000)),
    CardDemand(HAMI, ({GPU: "1"},), (Part(1, MIB, 100, is_exclusive=True),), has_selector=True),
    _of_volcano(1, 3_000),
    _of_volcano(1, 9_000, 30),
    _of_volcano(1, 13_000, 10),
    _of_volcano(2, 7_000, 10),
    _of_volcano(1, 2_000, 60),
    _of_gpushare(5),
    _of_gpushare(7),
    _of_gpushare(13),
    _of_koordinator(30),
    _of_koordinator(55),
    _of_koordinator(100, 2),
    *(
        CardDemand(WHOLE, ({},), has_selector=True, annotations=annotations)
        for annotations in (
            {"gpu-fraction": "0.5"},
            {"gpu-memory": "5000", "gpu-fraction-num-devices": "2"},
            {"alibabacloud.com/gpu-milli": "300", "alibabacloud.com/gpu-card-model": f"T4|{MODEL}"},
        )
    ),
    CardDemand(SHARED, ({GPU: "2"},), has_selector=True),
    CardDemand(MIG, ({MIG_PROFILE: "2"},)),
)
OFTEN: Final = {HAMI: 3, VOLCANO: 3, GPUSHARE: 3}
"""Weights of pods whose device plugin guesses which one it serves."""
_FORGERIES: Final[Mapping[str, Mapping[str, str]]] = {
    HAMI: {"hami.io/vgpu-devices-allocated": "GPU-none,NVIDIA,1,1:;", "hami.io/bind-phase": "success"},
    VOLCANO: {"volcano.sh/vgpu-ids-new": "GPU-none,NVIDIA,1,1:", "volcano.sh/bind-phase": "success"},
    GPUSHARE: {"ALIYUN_COM_GPU_MEM_IDX": "0", "ALIYUN_COM_GPU_MEM_ASSIGNED": "true"},
    KOORDINATOR: {
        "scheduling.koordinator.sh/device-allocated": '{"gpu":[{"minor":0,"resources":{"koordinator.sh/gpu-core":"1"}}]}'
    },
}
"""Forged annotations that a device plugin would read of pods on its node. A binding overwrites them."""


def drawn_demand(rng: random.Random) -> CardDemand:
    return rng.choices(DEMANDS, [OFTEN.get(one.mode, 1) for one in DEMANDS])[0]


def manifest(name: str, demand: CardDemand, rng: random.Random) -> dict[str, Any]:
    annotations = {**demand.annotations, **(_FORGERIES.get(demand.mode, {}) if rng.random() < FORGED else {})}
    spec: dict[str, Any] = {
        "schedulerName": "gpu-scheduler",
        "terminationGracePeriodSeconds": 30,
        "tolerations": [{"key": CARDS, "operator": "Exists"}],
        "containers": [_container(f"c{at}" if at else "main", limits) for at, limits in enumerate(demand.limits)],
    }
    if demand.first is not None:
        spec["initContainers"] = [_container("first", demand.first)]
    if demand.has_selector:
        spec["nodeSelector"] = {CARDS: demand.mode}
    if rng.random() < SHORT:
        spec["restartPolicy"] = "Never"
        annotations["multisched.io/run-seconds"] = str(rng.randint(*RUN_S))
    metadata = {"name": name, "labels": {CARDS: demand.mode}, "annotations": annotations}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _container(name: str, limits: Mapping[str, str]) -> dict[str, Any]:
    requests = {"cpu": "50m", "memory": "32Mi"}
    return {"name": name, "image": "app-0:v1", "resources": {"limits": dict(limits), "requests": requests}}
