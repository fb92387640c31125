"""Workloads on nodes of their own, with their controllers and the kubelets of their pods.

Controllers replace members that are deleted, also while these still terminate; workloads grow and shrink. Each scenario has a pool of
nodes that no other pod tolerates.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar, Final, Generic, TypeVar

from multisched.cluster.client.object_client import WallClock
from multisched.model.objects import Pod
from multisched.model.wire import MERGE_PATCH
from tests.kit.world.api_user import NAMESPACE, ApiUser, pods_path
from tests.kit.world.gang_plans import ACK
from tests.kit.world.gang_workloads import FINALIZER, POOL, in_pool
from tests.kit.world.labels import DOMAIN, HOSTNAME

CHECKPOINT: Final = "multisched.io/checkpoint"
KEPT_EVERY_S: Final = 0.25
PUBLISHED_S: Final = 3.0
ENDS_S: Final = (0.0, 0.5, 1.5)
"""Time for which a deleted member keeps its finalizer; 0: members have none, and end within the kubelet's grace period."""
BUDGETS_PATH: Final = f"/apis/policy/v1/namespaces/{NAMESPACE}/poddisruptionbudgets"


@dataclass(slots=True)
class PooledWorkload:
    """A gang, or single pods, and the controller that owns it."""

    name: str
    pool: str
    role: str
    """Value of the label of these workloads."""
    replicas: int
    is_gang: bool = False
    has_owner: bool = True
    """False: the pods have no controller, so nothing creates them again."""
    publishes: bool = False
    """It publishes checkpoints."""
    ends_s: float = 0.0
    created: int = 0

    def next_manifest(
        self, label: str, scheduler: str, resources: Mapping[str, Any], selector: Mapping[str, str] | None
    ) -> dict[str, Any]:
        """Returns the manifest of the next pod."""
        self.created += 1
        labels = {label: self.role, "workload": self.name}
        if self.is_gang:
            labels |= {f"{ACK}name": self.name, f"{ACK}min-available": str(self.replicas)}
        metadata: dict[str, Any] = {"name": f"{self.name}-{self.created}", "namespace": NAMESPACE, "labels": labels}
        if self.has_owner:
            owner = {"apiVersion": "batch/v1", "kind": "Job", "name": self.name, "uid": f"uid-of-{self.name}"}
            metadata["ownerReferences"] = [{**owner, "controller": True}]
        if self.ends_s:
            metadata["finalizers"] = [FINALIZER]
        spec = {
            "schedulerName": scheduler,
            "terminationGracePeriodSeconds": 30,
            "containers": [{"name": "main", "image": "app-0:v1", "resources": resources}],
            **in_pool(self.pool, selector),
        }
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


Workload = TypeVar("Workload", bound=PooledWorkload)


class PooledWorkloads(ABC, Generic[Workload]):
    """The workloads of one kind of one run."""

    label: ClassVar[str]
    """The label of their pods, whose value is the role."""

    def __init__(
        self, user: ApiUser, pods: Callable[[], Collection[Pod]], clock: WallClock, rng: random.Random
    ) -> None:
        """`pods`: returns all pods of the store."""
        self.user = user
        self.rng = rng
        self._pods = pods
        self._clock = clock
        self._workloads: list[Workload] = []
        self._numbers = itertools.count(1)
        self._ending_since_s: dict[str, float] = {}
        self._published_s = 0.0
        self.is_active = True
        """False: no controller creates pods any more."""

    @abstractmethod
    def _manifest(self, workload: Workload) -> dict[str, Any]:
        """Returns the manifest of a workload's next pod."""

    async def run_controller(self) -> None:
        """Creates and deletes pods, sets their start times and removes finalizers, until cancelled."""
        while True:
            await asyncio.sleep(KEPT_EVERY_S)
            for workload in self._workloads if self.is_active else ():
                await self._reconcile(workload)
            for pod in self.all_pods():
                await self._keep(pod)

    async def _reconcile(self, workload: Workload) -> None:
        there = self.pods_of(workload)
        missing = workload.replicas - (len(there) if workload.has_owner else workload.created)
        for _ in range(missing):
            await self.user.create_pod(self._manifest(workload))
        for pod in sorted(there, key=lambda pod: (bool(pod.node), -pod.created_s, pod.name))[: max(0, -missing)]:
            await self.user.send("DELETE", f"{pods_path(pod.namespace)}/{pod.name}")
        now_s = self._clock.now().timestamp()
        if workload.publishes and now_s - self._published_s >= PUBLISHED_S:
            self._published_s = now_s
            for pod in there[:1]:
                await self.annotate(pod, {CHECKPOINT: self._clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")})

    async def _keep(self, pod: Pod) -> None:
        now_s, path = self._clock.now().timestamp(), f"{pods_path(pod.namespace)}/{pod.name}"
        if pod.is_deleting:
            ends_s = next((one.ends_s for one in self._workloads if one.name == pod.labels["workload"]), 0.0)
            if now_s - self._ending_since_s.setdefault(pod.uid, now_s) >= ends_s:
                await self.user.send("PATCH", path, {"metadata": {"finalizers": None}}, MERGE_PATCH)
        elif pod.node and not pod.started_s:
            started = datetime.fromtimestamp(now_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            status = {"startTime": started, "phase": "Running"}
            await self.user.send("PATCH", f"{path}/status", {"status": status}, MERGE_PATCH)

    # -- objects ---------------------------------------------------------------------------------------------------------

    def new_pool(self, prefix: str) -> str:
        """Returns the name of a new pool."""
        return f"{prefix}-{next(self._numbers)}"

    async def create_node(self, pool: str, domain: str, amounts: Mapping[str, str], labels: Mapping[str, str]) -> str:
        """Creates a node of the pool. Returns its name."""
        name = f"{pool}-node-{next(self._numbers)}"
        node = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": {HOSTNAME: name, POOL: pool, DOMAIN: domain, **labels, "zone": name}},
            "spec": {"taints": [{"key": POOL, "value": pool, "effect": "NoSchedule"}]},
            "status": {"capacity": amounts, "allocatable": amounts},
        }
        await self.user.send("POST", "/api/v1/nodes", node)
        return name

    def add(self, workload: Workload) -> Workload:
        """Adds a workload, whose controller creates its pods."""
        self._workloads.append(workload)
        return workload

    async def protect(self, workload: Workload) -> None:
        """Creates a PodDisruptionBudget that allows no disruption of the workload."""
        spec = {"selector": {"matchLabels": {"workload": workload.name}}, "maxUnavailable": 0}
        await self.user.send("POST", BUDGETS_PATH, {"metadata": {"name": workload.name}, "spec": spec})
        status = {"expectedPods": workload.replicas, "currentHealthy": workload.replicas, "disruptionsAllowed": 0}
        status["desiredHealthy"] = workload.replicas
        await self.user.send("PATCH", f"{BUDGETS_PATH}/{workload.name}/status", {"status": status}, MERGE_PATCH)

    async def annotate(self, pod: Pod, annotations: dict[str, str | None]) -> None:
        """Writes annotations as the pod's author may: not by its status, as the scheduler does."""
        path = f"{pods_path(pod.namespace)}/{pod.name}"
        await self.user.send("PATCH", path, {"metadata": {"annotations": annotations}}, MERGE_PATCH)

    async def clear(self, pool: str, nodes: Sequence[str]) -> None:
        """Deletes workloads, pods and nodes of the pool."""
        self._workloads = [one for one in self._workloads if one.pool != pool]
        for pod in self.all_pods():
            if pod.labels["workload"].startswith(f"{pool}-"):
                path = f"{pods_path(pod.namespace)}/{pod.name}"
                await self.user.send("PATCH", path, {"metadata": {"finalizers": None}}, MERGE_PATCH)
                await self.user.delete_pod(pod)
        for node in nodes:
            await self.user.send("DELETE", f"/api/v1/nodes/{node}")

    # -- looking ---------------------------------------------------------------------------------------------------------

    def all_pods(self) -> list[Pod]:
        """Returns the pods of all workloads, in order of their names."""
        return [pod for pod in self._pods() if self.label in pod.labels]

    def pods_of(self, workload: Workload) -> list[Pod]:
        """Returns its pods that are not being deleted."""
        return [pod for pod in self.all_pods() if pod.labels["workload"] == workload.name and not pod.is_deleting]

    def runs(self, workload: Workload) -> bool:
        """Reports whether all its pods are bound, and have started."""
        pods = self.pods_of(workload)
        return len(pods) >= workload.replicas and all(pod.node and pod.started_s for pod in pods)
