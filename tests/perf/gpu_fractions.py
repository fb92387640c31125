"""The nodes and pods of the scenario `gpu-fractions`: parts of GPUs, half in the own dialect and half in that of gpushare.

Pure values. No device plugin answers: of each amount of gpushare memory, a node takes one pod.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any, Final

from tests.perf import workload

NODES: Final = 1_000
CARDS: Final = 8
CARD_GIB: Final = 24
PODS: Final = 5_000
SCHEDULER: Final = "gpu-scheduler"
MILLIS: Final = (100, 250, 300, 500, 750)
GIBS: Final = (1, 2, 3, 4, 6, 8, 12, 16)
"""Fewer than twice as many pods per node as amounts: the last pods have nodes to choose from."""


def nodes(count: int) -> Iterator[dict[str, Any]]:
    """Every second one is gpushare's."""
    shared = {"aliyun.com/gpu-mem": str(CARDS * CARD_GIB), "aliyun.com/gpu-count": str(CARDS)}
    for index, node in enumerate(workload.work_nodes(count)):
        name = f"gpu-{index:05}"
        node["metadata"] |= {"name": name, "labels": {"kubernetes.io/hostname": name}}
        amounts = {**node["status"]["allocatable"], **(shared if index % 2 else {"nvidia.com/gpu": str(CARDS)})}
        node["status"] |= {"capacity": amounts, "allocatable": amounts}
        yield node


def pods(count: int) -> Iterator[dict[str, Any]]:
    return chain.from_iterable(_pair(index) for index in range(count // 2))


def _pair(index: int) -> Iterator[dict[str, Any]]:
    own = workload.pod(f"own-{index:05}", SCHEDULER)
    own["metadata"]["annotations"] = {"multisched.io/gpu-milli": str(MILLIS[index % len(MILLIS)])}
    yield own
    shared = workload.pod(f"share-{index:05}", SCHEDULER)
    resources = shared["spec"]["containers"][0]["resources"]
    for amounts in ("requests", "limits"):
        resources[amounts] = {**resources[amounts], "aliyun.com/gpu-mem": str(GIBS[index % len(GIBS)])}
    yield shared
