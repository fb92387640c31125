"""Ready-made nodes with GPUs, one template for each system for sharing GPUs. Pure functions.

Each node has the cards of an A100 machine: eight with 80 GiB, four per NUMA node. It already has what its device plugin would publish;
the sources for that are named in domains/gpu/dialects.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Final

from multisched.cluster.client.object_client import Document
from multisched.cluster.seed import fake_node

CARDS: Final = 8
MEMORY_MIB: Final = 81_920
MODEL: Final = "NVIDIA-A100-SXM4-80GB"
SPLITS: Final = 10
"""Maximum number of pods on one card, for HAMi and Volcano."""
REPLICAS: Final = 4
"""Number of time slices of one card."""
GPU: Final = "nvidia.com/gpu"

Published = tuple[dict[str, str], dict[str, str], dict[str, str]]
"""Allocatable resources, labels and annotations."""


def _labels() -> dict[str, str]:
    """Returns the labels that NVIDIA's GPU feature discovery writes."""
    known = {"gpu.product": MODEL, "gpu.memory": str(MEMORY_MIB), "gpu.count": str(CARDS)}
    return {f"nvidia.com/{key}": text for key, text in known.items()}


def _ids(node: str) -> list[str]:
    return [f"GPU-{node}-{card}" for card in range(CARDS)]


def _whole(node: str) -> Published:
    return {GPU: str(CARDS)}, _labels(), {}


def _honoured(node: str) -> Published:
    return {GPU: str(CARDS)}, {**_labels(), "multisched.io/gpu-indices": "honoured"}, {}


def _shared(node: str) -> Published:
    shared = {"nvidia.com/gpu.replicas": str(REPLICAS), "nvidia.com/gpu.sharing-strategy": "time-slicing"}
    return {GPU: str(CARDS * REPLICAS)}, {**_labels(), **shared}, {}


def _mig(node: str) -> Published:
    profiles = {"nvidia.com/mig-1g.10gb": str(2 * CARDS), "nvidia.com/mig-3g.40gb": str(CARDS)}
    return profiles, {**_labels(), "nvidia.com/mig.strategy": "mixed"}, {}


def _hami(node: str) -> Published:
    cards = [
        {
            "id": name,
            "index": card,
            "count": SPLITS,
            "devmem": MEMORY_MIB,
            "devcore": 100,
            "type": MODEL,
            "numa": card // 4,
            "mode": "hami-core",
            "health": True,
        }
        for card, name in enumerate(_ids(node))
    ]
    return {GPU: str(CARDS * SPLITS)}, _labels(), {"hami.io/node-nvidia-register": json.dumps(cards)}


def _volcano(node: str) -> Published:
    cards = "".join(f"{name},{SPLITS},{MEMORY_MIB},{MODEL},true,hami-core:" for name in _ids(node))
    amounts = {"number": CARDS * SPLITS, "memory": CARDS * MEMORY_MIB, "cores": CARDS * 100}
    room = {f"volcano.sh/vgpu-{what}": str(amount) for what, amount in amounts.items()}
    return room, _labels(), {"volcano.sh/node-vgpu-register": cards}


def _gpushare(node: str) -> Published:
    room = {"gpu-mem": CARDS * MEMORY_MIB // 1024, "gpu-count": CARDS, "gpu-core.percentage": CARDS * 100}
    return {f"aliyun.com/{what}": str(amount) for what, amount in room.items()}, {"gpushare": "true"}, {}


def _openb(node: str) -> Published:
    return {"alibabacloud.com/gpu-count": str(CARDS)}, {"alibabacloud.com/gpu-card-model": "A100"}, {}


def _koordinator(node: str) -> Published:
    room = {"gpu": CARDS * 100, "gpu-core": CARDS * 100, "gpu-memory-ratio": CARDS * 100, "gpu.shared": CARDS * 100}
    found = {f"koordinator.sh/{what}": str(amount) for what, amount in room.items()}
    memory = {"koordinator.sh/gpu-memory": f"{CARDS * MEMORY_MIB}Mi"}
    return (
        {**found, **memory},
        {"node.koordinator.sh/gpu-model": "A100", "node.koordinator.sh/gpu-vendor": "nvidia"},
        {},
    )


_PUBLISHED: Final[Mapping[str, Callable[[str], Published]]] = {
    "whole": _whole,
    "honoured": _honoured,
    "shared": _shared,
    "mig": _mig,
    "hami": _hami,
    "volcano-vgpu": _volcano,
    "gpushare": _gpushare,
    "openb": _openb,
    "koordinator": _koordinator,
}
GPU_TEMPLATES: Final = tuple(_PUBLISHED)
"""Names of the templates. Most are node modes as `multisched gpu nodes` shows them. `honoured`: whole GPUs whose device plugin allocates
the cards that the scheduler chose. `openb`: whole GPUs, with the resource and label names of the openb trace."""


def gpu_nodes(template: str, count: int) -> list[Document]:
    """Returns `count` Nodes with eight GPUs each; for `koordinator`, followed by the CRD of Device and a Device per node."""
    found: list[Document] = []
    for number in range(count):
        name = f"{template}-{number:03d}"
        room, labels, annotations = _PUBLISHED[template](name)
        capacity = {"cpu": "96", "memory": "768Gi", "pods": "110", **room}
        node = fake_node(name, f"demo-{'abc'[number % 3]}", "gpu", capacity, labels=labels)
        node["metadata"]["annotations"] = annotations
        found.append(node)
    if template == "koordinator" and count:
        found += [_DEVICE_DEFINITION, *(_device(node["metadata"]["name"]) for node in list(found))]
    return found


def _device(node: str) -> Document:
    resources = {
        "koordinator.sh/gpu-core": "100",
        "koordinator.sh/gpu-memory": f"{MEMORY_MIB}Mi",
        "koordinator.sh/gpu-memory-ratio": "100",
    }
    devices = [
        {
            "type": "gpu",
            "minor": card,
            "id": name,
            "health": True,
            "resources": resources,
            "topology": {"nodeID": card // 4},
        }
        for card, name in enumerate(_ids(node))
    ]
    return {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "Device",
        "metadata": {"name": node},
        "spec": {"devices": devices},
    }


_DEVICE_DEFINITION: Final[Document] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "devices.scheduling.koordinator.sh"},
    "spec": {
        "group": "scheduling.koordinator.sh",
        "scope": "Cluster",
        "names": {"kind": "Device", "listKind": "DeviceList", "plural": "devices", "singular": "device"},
        "versions": [
            {
                "name": "v1alpha1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}
