"""Bare pods of all three domains, in the order in which a busy minute brings them, and nodes that they nearly fill.

Pure values. Nearly full, so that a scheduler which forgets a bind, or counts a device twice, has to overcommit somebody.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from multisched.cluster.seed import demo_nodes

NODES: Final = 96
GPU_MILLI: Final = "multisched.io/gpu-milli"

KINDS: Final = {
    # schedulerName: one pod in so many, cpu, annotations
    "gpu-scheduler": (8, "1", {GPU_MILLI: "250"}),
    "forecast-scheduler": (4, "1500m", {}),
    "job-scheduler": (1, "500m", {}),
}


def nodes() -> list[dict[str, Any]]:
    """Of the 96, 12 have 8 GPUs each: room for 384 of the pods above. The Work nodes have room for some 900."""
    return demo_nodes(NODES)


def pods(prefix: str, count: int) -> Iterator[dict[str, Any]]:
    """`count` pods called `prefix-00000` and so on."""
    for number in range(count):
        scheduler = next(name for name, (every, _cpu, _annotations) in KINDS.items() if number % every == 0)
        _every, cpu, annotations = KINDS[scheduler]
        container = {
            "name": "main",
            "image": "registry.k8s.io/pause:3.10.2",
            "resources": {"requests": {"cpu": cpu, "memory": "256Mi"}},
        }
        yield {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"{prefix}-{number:05}", "annotations": annotations},
            "spec": {"schedulerName": scheduler, "containers": [container]},
        }
