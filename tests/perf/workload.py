"""The nodes and pods of the benchmark: kubernetes' own scheduler_perf templates, and how many pods such a node holds.

Pure values. Source: kubernetes 1.36, test/integration/scheduler_perf/templates/{node,pod}-default.yaml.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from multisched.model.quantity import parse_milli, parse_value

NAMESPACE: Final = "bench"

NODE_CPU_MILLI: Final = 4_000
NODE_MEMORY_MIB: Final = 32 * 1024
NODE_PODS: Final = 110
POD_CPU_MILLI: Final = 100
POD_MEMORY_MIB: Final = 500

VIRTUAL_TAINT: Final = {"key": "virtual-kubelet.io/provider", "value": "bench", "effect": "NoSchedule"}


ZONES: Final = 10


def work_nodes(count: int) -> Iterator[dict[str, Any]]:
    """Plain nodes: no labels but their name and zone, no taints."""
    return (
        _node(f"work-{index:05}", {"topology.kubernetes.io/zone": f"zone-{index % ZONES}"}, [])
        for index in range(count)
    )


def virtual_nodes(count: int) -> Iterator[dict[str, Any]]:
    """As a virtual kubelet registers itself: label and taint."""
    return (_node(f"virtual-{index:05}", {"type": "virtual-kubelet"}, [VIRTUAL_TAINT]) for index in range(count))


def _node(name: str, labels: dict[str, str], taints: list[dict[str, str]]) -> dict[str, Any]:
    room = {"cpu": str(NODE_CPU_MILLI // 1_000), "memory": f"{NODE_MEMORY_MIB // 1024}Gi", "pods": str(NODE_PODS)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **labels}},
        "spec": {"taints": taints},
        "status": {"capacity": room, "allocatable": room, "conditions": [{"type": "Ready", "status": "True"}]},
    }


def pods(count: int, scheduler_name: str, prefix: str = "pod") -> Iterator[dict[str, Any]]:
    """Identical pods for one scheduler; names are `prefix-00000` and so on."""
    return (pod(f"{prefix}-{index:05}", scheduler_name) for index in range(count))


def pod(name: str, scheduler_name: str) -> dict[str, Any]:
    room = {"cpu": f"{POD_CPU_MILLI}m", "memory": f"{POD_MEMORY_MIB}Mi"}
    container = {
        "name": "pause",
        "image": "registry.k8s.io/pause:3.10.2",
        "ports": [{"containerPort": 80}],
        "resources": {"requests": room, "limits": room},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"schedulerName": scheduler_name, "containers": [container]},
    }


def overcommitted(bound: Iterable[Mapping[str, Any]]) -> int:
    """How many nodes hold more than they have, by what their pods (API objects) ask for."""
    used: dict[str, Counter[str]] = {}
    for pod in bound:
        on = used.setdefault(pod["spec"]["nodeName"], Counter())
        asked = pod["spec"]["containers"][0]["resources"]["requests"]
        on["pods"] += 1
        on["cpu"] += parse_milli(asked["cpu"])
        on["memory"] += parse_value(asked["memory"])
    room = {"pods": NODE_PODS, "cpu": NODE_CPU_MILLI, "memory": NODE_MEMORY_MIB * 1024**2}
    return sum(any(on[name] > most for name, most in room.items()) for on in used.values())
