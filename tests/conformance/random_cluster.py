"""Random nodes and pods, as the API server would store them: resources, taints, labels, images, ports, resizes, priorities.

Everything is drawn from the one `Random` a caller brings, so a seed is a cluster. Names and values are few on purpose: what
never meets never conflicts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, TypeVar

Json = dict[str, Any]
T = TypeVar("T")

NAMESPACES = ("default", "team-a", "team-b")
APPS = ("web", "db", "cache", "batch")
ZONE, HOST, REGION, POOL = (
    "topology.kubernetes.io/zone",
    "kubernetes.io/hostname",
    "topology.kubernetes.io/region",
    "pool",
)
GPU, FPGA, MISSING, HUGE = "nvidia.com/gpu", "example.com/fpga", "example.com/none", "hugepages-2Mi"
IMAGES = {
    "registry.example/web:v1": 262_144_000,
    "registry.example/db:v1": 943_718_400,
    "registry.example/cache:v1": 15_728_640,
    "registry.example/huge:v1": 4_194_304_000,
    "registry.example/other:v1": 996_147_200,
}
TAINTS = (
    ("dedicated", "a"),
    ("dedicated", "b"),
    ("gpu", ""),
    ("flaky", "10"),
    ("flaky", "20"),
    ("virtual-kubelet.io/provider", ""),
)
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
PRIORITIES = (-10, 0, 0, 0, 5, 100)


class Draw(Random):
    """A Random with the few draws that problems are made of."""

    def chance(self, probability: float) -> bool:
        return self.random() < probability

    def some(self, items: Sequence[T], most: int) -> list[T]:
        """0..most different ones, in their order."""
        count = self.randint(0, min(most, len(items)))
        return [items[i] for i in sorted(self.sample(range(len(items)), count))]


@dataclass(frozen=True, slots=True)
class Wishes:
    """How often pods carry what: probabilities that a family turns up."""

    requests: float = 0.8
    extended: float = 0.1
    init_containers: float = 0.15
    overhead: float = 0.05
    pod_level: float = 0.03
    resized: float = 0.05
    tolerations: float = 0.2
    selectors: float = 0.1
    ports: float = 0.05
    terminating: float = 0.05
    heavy: float = 0.0
    """Requests of whole cores, so that nodes fill up."""


def make_nodes(draw: Draw, count: int) -> list[Json]:
    return [_node(draw, index) for index in range(count)]


def _node(draw: Draw, index: int) -> Json:
    name = f"n{index}"
    labels = {
        HOST: name,
        ZONE: f"z{index % 3}",
        REGION: "r0" if index % 6 < 4 else "r1",
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": draw.choice(("amd64", "arm64")),
        "disk": draw.choice(("ssd", "hdd")),
        "gen": draw.choice(("1", "2", "7", "10", "x")),
    }
    if draw.chance(0.5):
        labels[POOL] = draw.choice(("a", "b"))
    for key in (ZONE, HOST):
        if draw.chance(0.05):
            del labels[key]
    allocatable = {
        "cpu": draw.choice(("2", "4", "8", "16", "2000m", "3930m", "7910m")),
        "memory": draw.choice(("4Gi", "16084Mi", "32Gi", "8000000000", "65236Mi")),
        "ephemeral-storage": draw.choice(("20Gi", "100Gi")),
        "pods": draw.choice(("110",) * 6 + ("3", "5")),
    }
    for resource, amounts, probability in ((GPU, "148", 0.3), (FPGA, "2", 0.15)):
        if draw.chance(probability):
            allocatable[resource] = draw.choice(amounts)
    if draw.chance(0.2):
        allocatable[HUGE] = "512Mi"
    spec: Json = {}
    taints = [_taint(draw) for _ in range(draw.choice((0, 0, 0, 0, 1, 1, 2)))]
    if draw.chance(0.06):
        spec["unschedulable"] = True
        taints.append({"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"})
    if taints:
        spec["taints"] = list({(t["key"], t["effect"]): t for t in taints}.values())
    status: Json = {
        "capacity": dict(allocatable),
        "allocatable": allocatable,
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    images = [_image(draw, image) for image in draw.some(list(IMAGES), 3)]
    if images:
        status["images"] = images
    metadata = {"name": name, "uid": f"node-uid-{index}", "labels": labels}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec, "status": status}


def _taint(draw: Draw) -> Json:
    key, value = draw.choice(TAINTS)
    return {"key": key, "effect": draw.choice(EFFECTS), **({"value": value} if value else {})}


def _image(draw: Draw, name: str) -> Json:
    short = name.rsplit("/", 1)[1].split(":")[0]
    size = IMAGES[name] if draw.chance(0.9) else IMAGES[name] // 2
    return {"names": [f"registry.example/{short}@sha256:{short * 4}", name], "sizeBytes": size}


def make_pod(draw: Draw, name: str, wishes: Wishes, *, node: str = "", namespace: str = "") -> Json:
    """A pod on `node`, or a pending one. Relations and volumes are added by those who know the others."""
    labels = {"app": draw.choice(APPS)}
    if draw.chance(0.5):
        labels["tier"] = draw.choice(("front", "back"))
    if draw.chance(0.3):
        labels["rev"] = draw.choice("12")
    created = f"2026-01-01T00:{draw.choice((5, 10, 15, 20)):02}:{draw.choice((0, 30)):02}Z"
    spec: Json = {
        "schedulerName": "default-scheduler",
        "containers": [_container(draw, f"c{i}", wishes) for i in range(draw.choice((1, 1, 1, 1, 2)))],
        "priority": draw.choice(PRIORITIES),
        "preemptionPolicy": "PreemptLowerPriority",
        "restartPolicy": "Always",
        "tolerations": [
            {"key": f"node.kubernetes.io/{why}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
            for why in ("not-ready", "unreachable")
        ],
    }
    if draw.chance(wishes.init_containers):
        spec["initContainers"] = [_init_container(draw, f"i{i}", wishes) for i in range(draw.randint(1, 3))]
    if draw.chance(wishes.overhead):
        spec["overhead"] = {"cpu": "250m", "memory": "120Mi"}
    if draw.chance(wishes.pod_level):
        spec["resources"] = {"requests": {"cpu": "4", "memory": "5Gi"}}
    if draw.chance(wishes.tolerations):
        spec["tolerations"] += [_toleration(draw) for _ in range(draw.randint(1, 2))]
    if draw.chance(wishes.selectors):
        spec["nodeSelector"] = dict(draw.sample([("disk", "ssd"), (POOL, "a"), (ZONE, "z1"), ("gen", "7")], 1))
    metadata = {
        "name": name,
        "namespace": namespace or draw.choice(NAMESPACES),
        "uid": f"uid-{name}",
        "labels": labels,
        "creationTimestamp": created,
    }
    pod: Json = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}
    if node:
        _run(draw, pod, node, wishes)
    return pod


def _run(draw: Draw, pod: Json, node: str, wishes: Wishes) -> None:
    pod["spec"]["nodeName"] = node
    pod["status"] = {"phase": "Running", "startTime": pod["metadata"]["creationTimestamp"]}
    if draw.chance(wishes.terminating):
        pod["metadata"]["deletionTimestamp"] = "2026-01-01T01:00:00Z"
        pod["metadata"]["deletionGracePeriodSeconds"] = 30
        if draw.chance(0.5):
            reason = draw.choice(("PreemptionByScheduler", "EvictionByEvictionAPI"))
            pod["status"]["conditions"] = [{"type": "DisruptionTarget", "status": "True", "reason": reason}]
    if draw.chance(wishes.resized):
        _resize(draw, pod)


def _resize(draw: Draw, pod: Json) -> None:
    """A resize in place that the kubelet has not finished: status tells other amounts than spec."""
    container = pod["spec"]["containers"][0]
    requests = {"cpu": draw.choice(("100m", "1", "2", "3500m")), "memory": draw.choice(("128Mi", "1Gi", "6Gi"))}
    pod["status"]["containerStatuses"] = [
        {
            "name": container["name"],
            "image": container["image"],
            "imageID": "",
            "ready": True,
            "restartCount": 0,
            "allocatedResources": requests,
            "resources": {"requests": requests},
        }
    ]
    if draw.chance(0.4):
        reason = draw.choice(("Deferred", "Infeasible"))
        pod["status"].setdefault("conditions", []).append(
            {"type": "PodResizePending", "status": "True", "reason": reason}
        )


def _container(draw: Draw, name: str, wishes: Wishes) -> Json:
    container: Json = {"name": name, "image": draw.choice(list(IMAGES)), "resources": _resources(draw, wishes)}
    if draw.chance(0.15):
        container["image"] = draw.choice(("registry.example/db", "registry.example/none:v9"))
    if draw.chance(wishes.ports):
        container["ports"] = [_port(draw) for _ in range(draw.randint(1, 2))]
    return container


def _init_container(draw: Draw, name: str, wishes: Wishes) -> Json:
    container = _container(draw, name, wishes)
    if draw.chance(0.5):
        container["restartPolicy"] = "Always"
    return container


def _resources(draw: Draw, wishes: Wishes) -> Json:
    requests: dict[str, str] = {}
    if draw.chance(wishes.requests):
        heavy = draw.chance(wishes.heavy)
        requests["cpu"] = draw.choice(("1", "2", "3500m") if heavy else ("50m", "100m", "250m", "500m", "1"))
        if draw.chance(0.8):
            requests["memory"] = draw.choice(("1Gi", "3Gi") if heavy else ("64Mi", "128Mi", "500M", "1500Mi"))
    if draw.chance(0.1):
        requests["ephemeral-storage"] = draw.choice(("1Gi", "15Gi"))
    limits: dict[str, str] = {}
    if draw.chance(wishes.extended):
        resource, amounts = draw.choice(((GPU, ("1", "2")), (FPGA, ("1",)), (HUGE, ("64Mi", "256Mi"))))
        limits = {resource: draw.choice(amounts)}
    elif draw.chance(wishes.extended / 10):
        limits = {MISSING: "1"}
    found: Json = {}
    if requests or limits:
        found["requests"] = {**requests, **limits}
    if limits:
        found["limits"] = limits
    return found


def _port(draw: Draw) -> Json:
    number = draw.choice((80, 443, 8080))
    port: Json = {"containerPort": number, "protocol": draw.choice(("TCP", "TCP", "UDP"))}
    if draw.chance(0.9):
        port["hostPort"] = number
    if draw.chance(0.6):
        port["hostIP"] = draw.choice(("127.0.0.1", "10.0.0.7", "0.0.0.0"))
    return port


def _toleration(draw: Draw) -> Json:
    if draw.chance(0.1):
        return {"operator": "Exists"}
    key, value = draw.choice((*TAINTS, ("node.kubernetes.io/unschedulable", "")))
    toleration: Json = {"key": key}
    kind = draw.random()
    if kind < 0.5:
        toleration["operator"] = "Exists"
    else:
        toleration |= {"operator": "Equal", "value": value}
    if draw.chance(0.7):
        toleration["effect"] = draw.choice(EFFECTS)
    return toleration
