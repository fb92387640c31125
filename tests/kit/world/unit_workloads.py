"""Jobs, ReplicaSets and bare pods in units of ResourcePolicies: their controllers, their nodes, and serverless providers.

Controllers replace pods that are deleted or have failed. Providers are accounts of the embedded cluster's virtual kubelets, with an
account for each unit. Each scenario has nodes and policies of its own, which no other pod tolerates or has the labels of.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from multisched.cluster.client.object_client import WallClock
from multisched.cluster.kubelet.provider import ProviderAccount, ProviderSettings, ScriptedFailure
from multisched.model.objects import Pod
from multisched.model.wire import MERGE_PATCH
from tests.kit.world.api_user import NAMESPACE, ApiUser, pods_path
from tests.kit.world.definitions import RESOURCE_POLICY, install
from tests.kit.world.gang_workloads import FINALIZER, POOL, in_pool
from tests.kit.world.labels import DOMAIN, HOSTNAME, UNIT

SCHEDULER: Final = "job-scheduler"
OWN: Final = "own"
"""Value of the label UNIT of nodes without a provider."""
COST: Final = "controller.kubernetes.io/pod-deletion-cost"
JOB, REPLICA_SET = ("batch/v1", "Job"), ("apps/v1", "ReplicaSet")
BARE = ("", "")
KEPT_EVERY_S: Final = 0.1
STARTUP_S: Final = 0.5
RETRY_S: Final = 2.0
"""Time until a virtual kubelet tries the sandbox of a pod again, after the provider has refused it."""
_JOBS_PATH: Final = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"


@dataclass(slots=True)
class UnitWorkload:
    """Equal pods, and the controller that owns them."""

    name: str
    pool: str
    replicas: int
    owner: tuple[str, str] = JOB
    """apiVersion and kind; BARE: nothing creates its pods again."""
    milli: int = 500
    """CPU of each pod."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """In addition to those of the pool, which its policies select."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    image: str = "app-0:v1"
    restarts: bool = True
    """restartPolicy Always: a pod that the provider refuses stays pending; else it fails."""
    priority: str = ""
    has_finalizers: bool = False
    """Deleted pods remain until `release`."""
    owner_uid: str = "uid-of-an-owner"
    created: int = 0

    def manifest(self) -> dict[str, Any]:
        """Returns the manifest of the next pod."""
        self.created += 1
        labels = {UNIT: self.name, "app": self.pool, **self.labels}
        metadata: dict[str, Any] = {"name": f"{self.name}-{self.created}", "namespace": NAMESPACE, "labels": labels}
        metadata["annotations"] = dict(self.annotations)
        if self.owner != BARE:
            version, kind = self.owner
            owner = {"apiVersion": version, "kind": kind, "name": self.name, "uid": self.owner_uid}
            metadata["ownerReferences"] = [{**owner, "controller": True}]
        if self.has_finalizers:
            metadata["finalizers"] = [FINALIZER]
        resources = {"requests": {"cpu": f"{self.milli}m", "memory": "64Mi"}}
        spec = {
            "schedulerName": SCHEDULER,
            "restartPolicy": "Always" if self.restarts else "Never",
            "terminationGracePeriodSeconds": 30,
            "containers": [{"name": "main", "image": self.image, "resources": resources}],
            **in_pool(self.pool, None),
        }
        if self.priority:
            spec["priorityClassName"] = self.priority
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


class UnitWorkloads:
    """The workloads, policies and providers of one run."""

    def __init__(
        self,
        user: ApiUser,
        pods: Callable[[], Collection[Pod]],
        clock: WallClock,
        units: Sequence[Mapping[str, Any]],
    ) -> None:
        """`pods`: returns all pods of the store. `units`: args of ServerlessUnits, whose rates the providers have."""
        self.user = user
        self.accounts: dict[str, ProviderAccount] = {}
        self.limits: dict[str, tuple[int, float]] = {}
        """Unit -> burst and creates per second of its provider."""
        for unit in units:
            name, rate = str(unit["name"]), unit["rate"]
            settings = ProviderSettings(account=name, burst=rate["burst"], perSecond=float(rate["perSecond"]))
            self.accounts[name] = ProviderAccount(settings, 0.0)
            self.limits[name] = rate["burst"], float(rate["perSecond"])
        self._pods = pods
        self._clock = clock
        self._workloads: list[UnitWorkload] = []
        self._numbers = itertools.count(1)
        self._units_of_nodes: dict[str, str] = {}
        self._due_s: dict[str, float] = {}
        """uid of a pod that has not started -> when its kubelet does something next."""
        self.is_active = True
        """False: no controller creates pods any more."""

    async def build(self) -> None:
        """Installs the definition of ResourcePolicy."""
        await install(self.user, RESOURCE_POLICY)

    async def run(self) -> None:
        """Runs controllers and kubelets until cancelled."""
        while True:
            await asyncio.sleep(KEPT_EVERY_S)
            for workload in self._workloads if self.is_active else ():
                await self._reconcile(workload)
            pods = self.all_pods()
            for pod in pods:
                if pod.node and not (pod.is_deleting or pod.started_s or pod.is_terminal):
                    await self._start(pod)
            there = {pod.uid for pod in pods}
            for account in self.accounts.values():
                for uid in account.sandboxes.keys() - there:
                    account.delete(uid, asyncio.get_running_loop().time())
            self._due_s = {uid: at_s for uid, at_s in self._due_s.items() if uid in there}

    async def _reconcile(self, workload: UnitWorkload) -> None:
        there = [pod for pod in self.pods_of(workload) if not pod.is_terminal]
        missing = workload.replicas - (len(there) if workload.owner != BARE else workload.created)
        for _ in range(missing):
            await self.user.create_pod(workload.manifest())
        for pod in _deleted_first(there)[: max(0, -missing)]:
            await self.user.send("DELETE", f"{pods_path(pod.namespace)}/{pod.name}")

    async def _start(self, pod: Pod) -> None:
        """Does what the kubelet of the pod's node does for a pod that has not started."""
        account = self.accounts.get(self._units_of_nodes.get(pod.node, ""))
        now_s = asyncio.get_running_loop().time()
        due_s = self._due_s.setdefault(pod.uid, now_s)
        if account is None:
            await self._set_running(pod)
        elif now_s < due_s:
            return
        elif pod.uid in account.sandboxes:
            account.start(pod.uid, now_s)
            await self._set_running(pod)
            self._due_s[pod.uid] = math.inf
        else:
            message = account.create(pod.uid, pod.node, pod.labels, now_s, self._clock.now())
            self._due_s[pod.uid] = now_s + (RETRY_S if message else STARTUP_S)
            if message:
                restarts = any(one.restarts for one in self._workloads if one.name == pod.labels[UNIT])
                status = {"phase": "Pending" if restarts else "Failed", "reason": "ProviderFailed", "message": message}
                await self._set_status(pod, status)

    async def _set_running(self, pod: Pod) -> None:
        started = self._clock.now().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        state = {"running": {"startedAt": started}}
        container = {"name": "main", "image": "a", "imageID": "", "ready": True, "restartCount": 0, "state": state}
        status = {"phase": "Running", "startTime": started, "reason": None, "message": None}
        await self._set_status(pod, {**status, "containerStatuses": [container]})

    async def _set_status(self, pod: Pod, status: Mapping[str, Any]) -> None:
        path = f"{pods_path(pod.namespace)}/{pod.name}/status"
        await self.user.send("PATCH", path, {"status": status}, MERGE_PATCH)

    # -- objects ---------------------------------------------------------------------------------------------------------

    def pool(self) -> str:
        """Returns the name of a new pool."""
        return f"units-{next(self._numbers)}"

    async def node(self, pool: str, unit: str = OWN, *, cpu: int = 2) -> str:
        """Creates a node of a unit: of OWN, or of a serverless one. Returns its name."""
        name = f"{pool}-{unit}-{next(self._numbers)}"
        labels = {HOSTNAME: name, POOL: pool, DOMAIN: "job", UNIT: unit, "zone": name}
        taints = [{"key": POOL, "value": pool, "effect": "NoSchedule"}]
        if unit in self.accounts:
            labels["type"] = "virtual-kubelet"
            taints.append({"key": "virtual-kubelet.io/provider", "value": "fake", "effect": "NoSchedule"})
            self._units_of_nodes[name] = unit
        amounts = {"cpu": str(cpu), "memory": "256Gi", "pods": "200"}
        node = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": labels},
            "spec": {"taints": taints},
            "status": {"capacity": amounts, "allocatable": amounts},
        }
        await self.user.send("POST", "/api/v1/nodes", node)
        return name

    async def policy(self, pool: str, units: Sequence[Mapping[str, Any]], **more: Any) -> None:
        """Creates or replaces the policy of the pool, which selects its pods."""
        spec = {"selector": {"app": pool}, "units": list(units), **more}
        document = {"apiVersion": "scheduling.alibabacloud.com/v1alpha1", "kind": "ResourcePolicy", "spec": spec}
        path, one = RESOURCE_POLICY.path(NAMESPACE), RESOURCE_POLICY.path(NAMESPACE, pool)
        created = await self.user.send("POST", path, {**document, "metadata": {"name": pool}})
        if created.status == 409:
            await self.user.send("PATCH", one, {"spec": spec}, MERGE_PATCH)

    async def delete_policy(self, pool: str) -> None:
        await self.user.send("DELETE", RESOURCE_POLICY.path(NAMESPACE, pool))

    async def job(self, workload: UnitWorkload, *, active_deadline_s: int, started_s: float) -> None:
        """Creates the Job object that owns the pods of a workload, and sets its start. `started_s`: epoch seconds."""
        template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": workload.image}]}}
        spec = {"activeDeadlineSeconds": active_deadline_s, "template": template}
        document = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": workload.name}, "spec": spec}
        answer = await self.user.send("POST", _JOBS_PATH, document)
        assert answer.status == 201, answer.body
        workload.owner_uid = msgspec.json.decode(answer.body)["metadata"]["uid"]
        started = datetime.fromtimestamp(started_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        path = f"{_JOBS_PATH}/{workload.name}/status"
        await self.user.send("PATCH", path, {"status": {"startTime": started}}, MERGE_PATCH)

    def workload(self, pool: str, replicas: int, **more: Any) -> UnitWorkload:
        """Adds a workload, whose controller creates its pods."""
        workload = UnitWorkload(f"{pool}-{next(self._numbers)}", pool, replicas, **more)
        self._workloads.append(workload)
        return workload

    def fail(self, unit: str, *failures: ScriptedFailure) -> None:
        """Sets what the provider of a unit refuses; none: it works again."""
        account = self.accounts[unit]
        settings = msgspec.structs.replace(account.settings, failures=failures)
        account.configure(settings, asyncio.get_running_loop().time())

    async def delete(self, pod: Pod) -> None:
        """Deletes a pod gracefully, as its owner does."""
        await self.user.send("DELETE", f"{pods_path(pod.namespace)}/{pod.name}")

    async def release(self, pod: Pod) -> None:
        """Removes the finalizers of a pod."""
        path = f"{pods_path(pod.namespace)}/{pod.name}"
        await self.user.send("PATCH", path, {"metadata": {"finalizers": None}}, MERGE_PATCH)

    async def clear(self, pool: str, nodes: Sequence[str]) -> None:
        """Deletes workloads, policy, pods and nodes of the pool."""
        names = {one.name for one in self._workloads if one.pool == pool}
        self._workloads = [one for one in self._workloads if one.pool != pool]
        await self.delete_policy(pool)
        for pod in self.all_pods():
            if pod.labels[UNIT] in names:
                await self.release(pod)
                await self.user.delete_pod(pod)
        for node in nodes:
            await self.user.send("DELETE", f"/api/v1/nodes/{node}")
        for unit in self.accounts:
            self.fail(unit)

    # -- looking ---------------------------------------------------------------------------------------------------------

    def all_pods(self) -> list[Pod]:
        """Returns the pods of all workloads, in order of their names."""
        return [pod for pod in self._pods() if UNIT in pod.labels]

    def pods_of(self, workload: UnitWorkload) -> list[Pod]:
        """Returns its pods that are not being deleted."""
        return [pod for pod in self.all_pods() if pod.labels[UNIT] == workload.name and not pod.is_deleting]

    def runs(self, workload: UnitWorkload) -> bool:
        """Reports whether all its pods have started."""
        running = [pod for pod in self.pods_of(workload) if pod.node and pod.started_s and not pod.is_terminal]
        return len(running) >= workload.replicas

    def unit_of(self, pod: Pod) -> str:
        """Returns the serverless unit of the pod's node; OWN for another node; empty if it is not bound."""
        return self._units_of_nodes.get(pod.node, OWN) if pod.node else ""


def _deleted_first(pods: Sequence[Pod]) -> list[Pod]:
    """Sorts pods as a ReplicaSet deletes them: not placed ones, then by deletion cost, then the youngest."""
    return sorted(pods, key=lambda pod: (bool(pod.node), int(pod.annotations.get(COST, "0")), -pod.created_s, pod.name))
