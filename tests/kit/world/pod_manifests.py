"""Manifests of pods: drawn ones of several kinds, and small plain ones."""

from __future__ import annotations

import random
import zlib
from collections.abc import Mapping
from typing import Any

from tests.kit.world.labels import HOSTNAME, LICENCE

INFEASIBLE_CPU = "500"
BEST_EFFORT = 0.05
"""Share of pods without devices that request nothing."""
URGENT_EVERY = 4
"""One pod in this number is urgent."""


def small_spec(scheduler: str, cpu: str) -> dict[str, Any]:
    """Returns the spec of a plain pod."""
    resources = {"requests": {"cpu": cpu, "memory": "64Mi"}}
    return {"schedulerName": scheduler, "containers": [{"name": "main", "image": "app-0:v1", "resources": resources}]}


def anti_affinity(labels: Mapping[str, str], key: str = HOSTNAME) -> dict[str, Any]:
    term = {"topologyKey": key, "labelSelector": {"matchLabels": dict(labels)}}
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def add_urgency(pod: dict[str, Any]) -> None:
    """Gives some pods a high priority, and some a grace period of zero, by their names."""
    number = number_of(pod["metadata"]["name"])
    pod["spec"]["terminationGracePeriodSeconds"] = 0 if number // URGENT_EVERY % 2 else 30
    if number % URGENT_EVERY == 0:
        pod["spec"]["priorityClassName"] = "system-cluster-critical"


def number_of(name: str) -> int:
    """Returns a number derived from the name, so that no other draw changes."""
    return zlib.crc32(name.encode())


def mixed_pod(name: str, rng: random.Random) -> dict[str, Any]:
    """Returns a drawn pod."""
    domain = rng.choice(["forecast", "forecast", "gpu", "job", "job"])
    requests = {"cpu": rng.choice(["100m", "250m", "500m"]), "memory": rng.choice(["64Mi", "256Mi", "512Mi"])}
    annotations: dict[str, str] = {}
    resources: dict[str, Any] = {"requests": requests}
    container: dict[str, Any] = {"name": "main", "image": f"app-{rng.randrange(4)}:v1", "resources": resources}
    spec: dict[str, Any] = {"schedulerName": f"{domain}-scheduler", "containers": [container]}
    if domain == "gpu" and rng.random() < 0.4:
        resources["limits"] = {"nvidia.com/gpu": "1"}
    elif domain == "gpu" and rng.random() < 0.5:
        annotations["multisched.io/gpu-milli"] = rng.choice(["250", "500"])
    if not annotations and "limits" not in resources and rng.random() < BEST_EFFORT:
        requests.clear()
    chance = rng.random()
    if chance < 0.04:
        requests["cpu"] = INFEASIBLE_CPU
    elif chance < 0.08:
        spec["schedulingGates"] = [{"name": "test/gate"}]
    elif chance < 0.12 and domain == "forecast":
        spec["nodeSelector"] = {"zone": rng.choice(["z0", "z1"])}
    elif chance < 0.14:
        spec["tolerations"] = [{"operator": "Exists"}]
    elif chance < 0.17:
        container["ports"] = [{"containerPort": 80, "hostPort": 9000 + rng.randrange(3)}]
    elif chance < 0.19:
        spec["schedulerName"] = "default-scheduler"
    elif chance < 0.27 and domain == "job":
        resources["limits"] = {LICENCE: "1"}
    elif chance < 0.22:
        spec |= {"hostNetwork": True, "hostUsers": False}
    metadata = {"name": name, "labels": {"app": f"app-{rng.randrange(5)}"}, "annotations": annotations}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
