"""Gangs of the benchmark: their pods, and the objects of `scheduling.k8s.io/v1alpha2` that say how many start together.

Pure values. Source: k8s.io/api v0.36.3, scheduling/v1alpha2/types.go and core/v1/types.go (`PodSchedulingGroup`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from tests.perf import workload
from tests.real.control_plane import GANG_API

WORKLOADS: Final = f"/apis/{GANG_API}/namespaces/{workload.NAMESPACE}/workloads"
POD_GROUPS: Final = f"/apis/{GANG_API}/namespaces/{workload.NAMESPACE}/podgroups"
TEMPLATE: Final = "workers"

SCHEDULED: Final = ("PodGroupScheduled", "PodGroupInitiallyScheduled")
"""Types of the condition."""

ROOMLESS: Final = "roomless"
"""A gang of which all members fit but one."""
ROOMLESS_SIZE: Final = 3
ROOMLESS_CPU_MILLI: Final = 1_000_000


def pods(count: int, size: int, scheduler_name: str) -> Iterator[dict[str, Any]]:
    """Plain pods in gangs of `size`, gang after gang, as one controller makes the pods of each; `count` in all at most."""
    for name in names(count, size):
        yield from members(name, size, scheduler_name)


def names(count: int, size: int) -> list[str]:
    """The gangs that `count` pods make."""
    return [f"gang-{index:05}" for index in range(count // size)]


def members(gang: str, size: int, scheduler_name: str) -> Iterator[dict[str, Any]]:
    for index in range(size):
        pod = workload.pod(f"{gang}-{index:05}", scheduler_name)
        pod["spec"]["schedulingGroup"] = {"podGroupName": gang}
        yield pod


def roomless(scheduler_name: str) -> Iterator[dict[str, Any]]:
    """The pods of a gang that never starts; a scheduler that knows no gangs places two of the three."""
    for index, pod in enumerate(members(ROOMLESS, ROOMLESS_SIZE, scheduler_name)):
        if index == 0:
            room = {"cpu": f"{ROOMLESS_CPU_MILLI}m"}
            pod["spec"]["containers"][0]["resources"] = {"requests": room, "limits": room}
        yield pod


def workload_of(gang: str, size: int) -> dict[str, Any]:
    """A Workload with one template, as Kubernetes' Job controller makes it: all pods or none."""
    template = {"name": TEMPLATE, "schedulingPolicy": {"gang": {"minCount": size}}}
    return {
        "apiVersion": GANG_API,
        "kind": "Workload",
        "metadata": {"name": gang},
        "spec": {"podGroupTemplates": [template]},
    }


def pod_group_of(gang: str, size: int) -> dict[str, Any]:
    """The PodGroup that the template of the Workload describes."""
    reference = {"workload": {"workloadName": gang, "podGroupTemplateName": TEMPLATE}}
    policy = {"gang": {"minCount": size}}
    return {
        "apiVersion": GANG_API,
        "kind": "PodGroup",
        "metadata": {"name": gang},
        "spec": {"podGroupTemplateRef": reference, "schedulingPolicy": policy},
    }


def started(bound: Iterable[str], size: int) -> tuple[int, int]:
    """How many gangs are bound whole, and how many in part, by the names of the bound pods; the roomless one is never whole."""
    held = Counter(name.rpartition("-")[0] for name in bound)
    in_part = held.pop(ROOMLESS, 0) > 0
    whole = sum(count == size for count in held.values())
    return whole, len(held) - whole + in_part


def is_scheduled(pod_group: Mapping[str, Any]) -> bool:
    """Whether the status says so (condition `PodGroupScheduled`, in 1.37 `PodGroupInitiallyScheduled`)."""
    conditions = pod_group.get("status", {}).get("conditions") or ()
    return any(one["type"] in SCHEDULED and one["status"] == "True" for one in conditions)
