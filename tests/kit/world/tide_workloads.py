"""Training gangs and inference services that share GPU nodes by the tide, with their controllers and the kubelets of their pods.

Controllers replace members that are deleted, also while these still terminate. Services grow and shrink. Each scenario has nodes of
its own, which no other pod tolerates; all have cards of MODEL or OTHER_MODEL, which no other node has.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from multisched.cluster.client.object_client import WallClock
from multisched.model.objects import Pod
from multisched.model.wire import MERGE_PATCH
from tests.kit.world.api_user import NAMESPACE, ApiUser, pods_path
from tests.kit.world.gang_plans import ACK
from tests.kit.world.gang_workloads import FINALIZER, POOL, in_pool
from tests.kit.world.labels import DOMAIN, GPU, HOSTNAME, TIDE

SERVING, TRAINING, UNEVICTABLE = "serving", "training", "unevictable"
"""Values of the label TIDE: inference, training that may be evicted, and training that `evictable` does not select."""
MODEL, OTHER_MODEL = "Tidal-80", "Tidal-40"
PRODUCT: Final = "nvidia.com/gpu.product"
NOTICE: Final = "multisched.io/tide-notice"
CHECKPOINT: Final = "multisched.io/checkpoint"
KEPT_EVERY_S: Final = 0.25
PUBLISHED_S: Final = 3.0
ENDS_S: Final = (0.0, 0.5, 1.5)
"""Time for which a deleted member keeps its finalizer; 0: members have none, and end within the kubelet's grace period."""
BUDGETS_PATH: Final = f"/apis/policy/v1/namespaces/{NAMESPACE}/poddisruptionbudgets"


@dataclass(slots=True)
class TideWorkload:
    """A gang, or a service, and the controller that owns it."""

    name: str
    pool: str
    role: str
    """Value of the label TIDE."""
    replicas: int
    cards: int
    """Of each pod."""
    model: str = MODEL
    is_gang: bool = False
    has_owner: bool = True
    """False: the pods have no controller, so nothing creates them again."""
    publishes: bool = False
    """It publishes checkpoints."""
    ends_s: float = 0.0
    created: int = 0

    def manifest(self) -> dict[str, Any]:
        """Returns the manifest of the next pod."""
        self.created += 1
        labels = {TIDE: self.role, "workload": self.name}
        if self.is_gang:
            labels |= {f"{ACK}name": self.name, f"{ACK}min-available": str(self.replicas)}
        metadata: dict[str, Any] = {"name": f"{self.name}-{self.created}", "namespace": NAMESPACE, "labels": labels}
        if self.has_owner:
            owner = {"apiVersion": "batch/v1", "kind": "Job", "name": self.name, "uid": f"uid-of-{self.name}"}
            metadata["ownerReferences"] = [{**owner, "controller": True}]
        if self.ends_s:
            metadata["finalizers"] = [FINALIZER]
        resources = {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {GPU: str(self.cards)}}
        spec = {
            "schedulerName": "gpu-scheduler",
            "terminationGracePeriodSeconds": 30,
            "containers": [{"name": "main", "image": "app-0:v1", "resources": resources}],
            **in_pool(self.pool, {PRODUCT: self.model}),
        }
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


class TideWorkloads:
    """The gangs and services of one run."""

    def __init__(
        self, user: ApiUser, pods: Callable[[], Collection[Pod]], clock: WallClock, rng: random.Random
    ) -> None:
        """`pods`: returns all pods of the store."""
        self.user = user
        self.rng = rng
        self._pods = pods
        self._clock = clock
        self._workloads: list[TideWorkload] = []
        self._numbers = itertools.count(1)
        self._ending_since_s: dict[str, float] = {}
        self._published_s = 0.0
        self.is_active = True
        """False: no controller creates pods any more."""

    async def build(self) -> None:
        """Creates a service on a node of its own, which always runs: so the models of the tide are known from the start."""
        await self.node("tide-anchor", 1)
        self._workloads.append(TideWorkload("tide-anchor", "tide-anchor", SERVING, 1, 1))

    async def run_controller(self) -> None:
        """Creates and deletes pods, sets their start times and removes finalizers, until cancelled."""
        while True:
            await asyncio.sleep(KEPT_EVERY_S)
            for workload in self._workloads if self.is_active else ():
                await self._reconcile(workload)
            for pod in self.all_pods():
                await self._keep(pod)

    async def _reconcile(self, workload: TideWorkload) -> None:
        there = self.pods_of(workload)
        missing = workload.replicas - (len(there) if workload.has_owner else workload.created)
        for _ in range(missing):
            await self.user.create_pod(workload.manifest())
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

    def pool(self) -> str:
        """Returns the name of a new pool."""
        return f"tide-{next(self._numbers)}"

    async def node(self, pool: str, cards: int, *, model: str = MODEL) -> str:
        """Creates a node. Returns its name."""
        name = f"{pool}-node-{next(self._numbers)}"
        amounts = {"cpu": "32", "memory": "64Gi", "pods": "40", GPU: str(cards)}
        labels = {HOSTNAME: name, POOL: pool, DOMAIN: "gpu", PRODUCT: model, "zone": name}
        node = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": labels},
            "spec": {"taints": [{"key": POOL, "value": pool, "effect": "NoSchedule"}]},
            "status": {"capacity": amounts, "allocatable": amounts},
        }
        await self.user.send("POST", "/api/v1/nodes", node)
        return name

    def gang(
        self, pool: str, size: int, cards: int, *, role: str = TRAINING, has_owner: bool = True, is_gang: bool = True
    ) -> TideWorkload:
        """Adds training of `size` pods; not a gang: single pods."""
        workload = TideWorkload(f"{pool}-gang-{next(self._numbers)}", pool, role, size, cards, is_gang=is_gang)
        workload.has_owner = has_owner
        workload.publishes = self.rng.random() < 0.5
        workload.ends_s = self.rng.choice(ENDS_S)
        self._workloads.append(workload)
        return workload

    def service(self, pool: str, replicas: int, *, model: str = MODEL) -> TideWorkload:
        """Adds a service whose pods have one card each."""
        workload = TideWorkload(f"{pool}-service-{next(self._numbers)}", pool, SERVING, replicas, 1, model)
        self._workloads.append(workload)
        return workload

    async def protect(self, workload: TideWorkload) -> None:
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
        return [pod for pod in self._pods() if TIDE in pod.labels]

    def pods_of(self, workload: TideWorkload) -> list[Pod]:
        """Returns its pods that are not being deleted."""
        return [pod for pod in self.all_pods() if pod.labels["workload"] == workload.name and not pod.is_deleting]

    def runs(self, workload: TideWorkload) -> bool:
        """Reports whether all its pods are bound, and have started."""
        pods = self.pods_of(workload)
        return len(pods) >= workload.replicas and all(pod.node and pod.started_s for pod in pods)
