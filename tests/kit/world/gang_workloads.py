"""Gangs owned by controllers: members that were evicted or deleted are replaced while they still terminate.

Each gang runs on a pool of nodes of its own, which no other pod tolerates, so that the room of each gang is known. `gang_actions` has
the actions on these gangs; `checkers/api/gang_history.py` checks them.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from multisched.model.objects import Pod
from multisched.model.wire import MERGE_PATCH
from tests.kit.world.api_user import NAMESPACE, ApiUser, pods_path
from tests.kit.world.definitions import POD_GROUP
from tests.kit.world.gang_plans import Form, GangPlan, group_manifest, member_manifest
from tests.kit.world.kubelets import Kubelets
from tests.kit.world.labels import DOMAIN, HOSTNAME
from tests.kit.world.pod_manifests import small_spec
from tests.kit.world.storage import CLAIMS_PATH, VOLUMES_PATH, Storage

POOL: Final = "sim/pool"
"""The label and the taint of the nodes of one pool."""
FINALIZER: Final = "sim.multisched.io/slow-end"
KEPT_EVERY_S: Final = 0.25
ENDS_S: Final = (0.0, 0.5, 3.0, 8.0)
"""Time for which a deleted member keeps its finalizer; 0: members have none, and end within the kubelet's grace period."""
URGENT: Final = "system-cluster-critical"
SCHEDULER: Final = "forecast-scheduler"
FORMS: Final = (Form.ACK, Form.ACK_AND_GROUP, Form.PLUGINS)
"""Koordinator's form is not used: by default such gangs start together only once."""
MEMBERS_MAX: Final = 40
"""Maximum number of pods that one controller creates in a run."""
MISFIT_CPU: Final = "200"
"""CPU of a member that fits on no node."""
PREFERENCES: Final = 6
"""Number of preferred terms of each member of a gang with preferences."""
SLOW_CLASS: Final = "slow"
"""The storage class whose volumes only the actions provision."""


@dataclass(slots=True)
class GangWorkload:
    """One gang and the controller that owns it."""

    plan: GangPlan
    pool: str
    replicas: int
    ends_s: float
    is_job: bool
    """The owner is a Job: members that have succeeded are not replaced."""
    run: int = 1
    """Increased when the workload is recreated under its name: its owner then has another uid."""
    is_active: bool = True
    """False: the controller creates no members."""
    created: int = 0
    claims: Sequence[str] = ()
    """Claims of the first members."""
    misfits: int = 0
    """Number of first members that request more than any node has."""
    has_preferences: bool = False
    """Each member has other preferred terms, so that no two are equal; the last one fits on no node."""

    @property
    def owner_uid(self) -> str:
        return f"uid-of-{self.plan.name}-{self.run}"

    def owns(self, pod: Pod) -> bool:
        return pod.owner is not None and pod.owner.uid == self.owner_uid

    def member(self) -> dict[str, Any]:
        """Returns the manifest of the next member."""
        self.created += 1
        pod = member_manifest(self.plan, f"{self.plan.name}-{self.run}-{self.created}")
        kind = (
            {"apiVersion": "batch/v1", "kind": "Job"}
            if self.is_job
            else {"apiVersion": "apps/v1", "kind": "ReplicaSet"}
        )
        owner = {**kind, "name": self.plan.name, "uid": self.owner_uid, "controller": True}
        pod["metadata"] |= {"ownerReferences": [owner], "finalizers": [FINALIZER] if self.ends_s else []}
        pod["spec"] |= in_pool(self.pool, pod["spec"].get("nodeSelector")) | {"terminationGracePeriodSeconds": 30}
        if self.created <= self.misfits:
            pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = MISFIT_CPU
        if self.created <= len(self.claims):
            claim = {"claimName": self.claims[self.created - 1]}
            pod["spec"]["volumes"] = [{"name": "data", "persistentVolumeClaim": claim}]
        if self.has_preferences:
            pod["spec"] |= _preferences(self.created)
            if self.created == self.replicas:
                pod["spec"]["nodeSelector"] = {HOSTNAME: "nowhere"}
        return pod


class GangWorkloads:
    """The gangs of one run, with their nodes and other pods."""

    def __init__(
        self,
        user: ApiUser,
        kubelets: Kubelets,
        storage: Storage,
        pods: Callable[[], Collection[Pod]],
        rng: random.Random,
    ) -> None:
        self.user = user
        self.kubelets = kubelets
        self.storage = storage
        self.rng = rng
        self._pods = pods
        self._workloads: list[GangWorkload] = []
        self._numbers = itertools.count(1)
        self._ending_since_s: dict[str, float] = {}
        """uid of a deleted pod with a finalizer -> time at which that was seen first."""
        self._ended: set[str] = set()
        """uids of pods whose finalizer was removed."""
        self._provisioned: dict[str, None] = {}
        """Claims of SLOW_CLASS whose volume was provisioned."""
        self.is_active = True
        """False: no controller creates members any more."""

    # -- the controllers -------------------------------------------------------------------------------------------

    async def run_controller(self) -> None:
        """Creates missing members, removes finalizers and provisions lost volumes again, until cancelled."""
        while True:
            await asyncio.sleep(KEPT_EVERY_S)
            await self._provision_again()
            for pod in () if self.is_active else list(self._pods()):
                if pod.uid in self._ended and pod.is_deleting:
                    await self.end(pod)  # a restored backup has the finalizer again
            for workload in self._workloads:
                pods = list(self._pods())
                own = [pod for pod in pods if workload.owns(pod)]
                await self._remove_finalizers([pod for pod in pods if _is_of(pod, workload)], workload.ends_s)
                counted = [pod for pod in own if not (pod.is_deleting or pod.phase == "Failed")]
                there = [pod for pod in counted if workload.is_job or not pod.is_terminal]
                is_active = self.is_active and workload.is_active and workload.created < MEMBERS_MAX
                for _ in range(workload.replicas - len(there) if is_active else 0):
                    await self.user.create_pod(workload.member())

    async def _remove_finalizers(self, members: Sequence[Pod], ends_s: float) -> None:
        now_s = asyncio.get_running_loop().time()
        for pod in members if ends_s else ():
            if pod.is_deleting and now_s - self._ending_since_s.setdefault(pod.uid, now_s) >= ends_s:
                await self.end(pod)

    async def end(self, pod: Pod) -> None:
        """Removes the pod's finalizer: the pod is removed when its kubelet has ended it."""
        self._ended.add(pod.uid)
        path = f"{pods_path(pod.namespace)}/{pod.name}"
        await self.user.send("PATCH", path, {"metadata": {"finalizers": None}}, MERGE_PATCH)

    # -- pools, pods and gangs -------------------------------------------------------------------------------------

    def pool(self) -> str:
        """Returns the name of a new pool."""
        return f"pool-{next(self._numbers)}"

    async def node(self, pool: str, cpu: int, *, domain: str = "") -> str:
        """Creates a node of the pool. Returns its name. `domain`: the resource domain of the node; empty: that of SCHEDULER."""
        name = f"{pool}-node-{next(self._numbers)}"
        amounts = {"cpu": str(cpu), "memory": "16Gi", "pods": "40"}
        labels = {HOSTNAME: name, POOL: pool, "topology.kubernetes.io/zone": name, "zone": name}
        labels |= {DOMAIN: domain} if domain else {}
        node = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": labels},
            "spec": {"taints": [{"key": POOL, "value": pool, "effect": "NoSchedule"}]},
            "status": {"capacity": amounts, "allocatable": amounts},
        }
        await self.user.send("POST", "/api/v1/nodes", node)
        return name

    async def cordon(self, node: str) -> None:
        await self.user.send("PATCH", f"/api/v1/nodes/{node}", {"spec": {"unschedulable": True}}, MERGE_PATCH)

    async def pod(
        self,
        pool: str,
        cpu: str,
        *,
        node: str = "",
        is_urgent: bool = False,
        has_finalizer: bool = False,
        scheduler: str = SCHEDULER,
    ) -> str:
        """Creates a pod without a gang. Returns its name. Only `end` removes its finalizer."""
        name = f"{pool}-pod-{next(self._numbers)}"
        spec = small_spec(scheduler, cpu) | in_pool(pool, {HOSTNAME: node} if node else None)
        if is_urgent:
            spec["priorityClassName"] = URGENT
        metadata = {"name": name, "namespace": NAMESPACE, "finalizers": [FINALIZER] if has_finalizer else []}
        await self.user.create_pod({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        return name

    async def gang(
        self,
        pool: str,
        size: int,
        minimum: int,
        cpu: str = "1",
        *,
        node: str = "",
        is_urgent: bool = False,
        is_job: bool = False,
        form: Form | None = None,
        topology: str = "",
        claims: Sequence[str] = (),
        misfits: int = 0,
        scheduler: str = SCHEDULER,
    ) -> GangWorkload:
        """Creates a gang, whose controller then creates its members. `node`: the only one for them. `misfits`: see
        `GangWorkload`.
        """
        plan = GangPlan(
            name=f"{pool}-gang-{next(self._numbers)}",
            namespace=NAMESPACE,
            scheduler=scheduler,
            form=form or self.rng.choice(FORMS),
            size=size,
            minimum=minimum,
            late=0,
            timeout_s=self.rng.choice((10, 40)),
            cpu=cpu,
            node=node,
            never_starts=None,
            failing=0,
            succeeding=0,
            is_urgent=is_urgent,
            topology=topology,
        )
        workload = GangWorkload(plan, pool, size, self.rng.choice(ENDS_S), is_job, claims=claims, misfits=misfits)
        if plan.has_group:
            await self.create_group(workload)
        self._workloads.append(workload)
        return workload

    async def create_group(self, workload: GangWorkload) -> None:
        plan = workload.plan
        await self.user.send("POST", POD_GROUP.path(plan.namespace), group_manifest(plan))

    async def delete_group(self, workload: GangWorkload) -> None:
        await self.user.send("DELETE", POD_GROUP.path(workload.plan.namespace, workload.plan.name))

    async def edit_group(
        self, workload: GangWorkload, *, minimum: int | None = None, topology: str | None = None
    ) -> None:
        """Changes minimum or topology of the PodGroup; later members have the same values."""
        plan = workload.plan
        workload.plan = plan = replace(
            plan,
            minimum=plan.minimum if minimum is None else minimum,
            topology=plan.topology if topology is None else topology,
        )
        group = group_manifest(plan)
        patch = {"metadata": {"annotations": group["metadata"]["annotations"] or None}, "spec": group["spec"]}
        await self.user.send("PATCH", POD_GROUP.path(plan.namespace, plan.name), patch, MERGE_PATCH)

    async def delete_members(self, workload: GangWorkload, count: int = MEMBERS_MAX) -> int:
        """Deletes members as `kubectl delete` does: each ends within its grace period. Members that have ended are kept. Returns
        the number of deleted members.
        """
        found = [pod for pod in self.members(workload) if not pod.is_terminal][:count]
        for pod in found:
            await self.user.send("DELETE", f"{pods_path(pod.namespace)}/{pod.name}")
        return len(found)

    async def create_again(self, workload: GangWorkload) -> None:
        """Deletes and recreates the workload under its name: its new members are created while the old ones terminate."""
        workload.run += 1
        workload.created = 0
        for pod in self._pods():
            if _is_of(pod, workload) and not (pod.is_terminal or pod.is_deleting):
                await self.user.send("DELETE", f"{pods_path(pod.namespace)}/{pod.name}")

    # -- looking ---------------------------------------------------------------------------------------------------

    def members(self, workload: GangWorkload) -> list[Pod]:
        """Returns the members of the current run that are not being deleted."""
        return [pod for pod in self._pods() if workload.owns(pod) and not pod.is_deleting]

    def running(self, workload: GangWorkload) -> list[Pod]:
        return [pod for pod in self.members(workload) if pod.node and not pod.is_terminal]

    def pods_of(self, pool: str) -> Mapping[str, Pod]:
        """Returns the pool's pods without a gang, by name."""
        return {pod.name: pod for pod in self._pods() if pod.name.startswith(f"{pool}-pod-")}

    def named(self, name: str) -> Pod | None:
        return next((pod for pod in self._pods() if pod.name == name), None)

    async def until(self, holds: Callable[[], bool], limit_s: float = 12.0) -> bool:
        """Waits until `holds()` is true, for `limit_s` at most. Returns its last result."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + limit_s
        while loop.time() < until_s and not holds():  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(0.1)
        return holds()

    async def runs(self, workload: GangWorkload, count: int | None = None) -> bool:
        """Waits until `count` members run; all of them if it is None."""
        wanted = workload.replicas if count is None else count
        return await self.until(lambda: len(self.running(workload)) >= wanted)

    async def all_bound(self, names: Sequence[str]) -> bool:
        """Waits until all of these pods are bound."""
        return await self.until(lambda: all((pod := self.named(name)) and pod.node for name in names), 8.0)

    async def pause(self, at_most_s: float) -> None:
        await asyncio.sleep(self.rng.uniform(0.0, at_most_s))

    # -- volumes ---------------------------------------------------------------------------------------------------

    async def claim(self) -> str:
        """Creates a claim that waits for its pod and for `provision`. Returns its name."""
        name = f"slow-{next(self._numbers)}"
        mode = {"provisioner": "slow.sim", "volumeBindingMode": "WaitForFirstConsumer"}
        await self.user.send(
            "POST", "/apis/storage.k8s.io/v1/storageclasses", {"metadata": {"name": SLOW_CLASS}, **mode}
        )
        spec = {
            "storageClassName": SLOW_CLASS,
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
        }
        await self.user.send("POST", CLAIMS_PATH, {"metadata": {"name": name}, "spec": spec})
        return name

    async def _provision_again(self) -> None:
        """Provisions again the volumes that a restored backup lacks."""
        for claim in self._provisioned:
            if self.storage.has_node(claim) and self.storage.lacks_volume(claim, _volume_of(claim)):
                await self.provision(claim)

    async def provision(self, claim: str) -> None:
        """Provisions the volume of the claim."""
        self._provisioned[claim] = None
        spec = {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": SLOW_CLASS,
            "hostPath": {"path": f"/{claim}"},
            "claimRef": {"namespace": NAMESPACE, "name": claim},
        }
        await self.user.send("POST", VOLUMES_PATH, {"metadata": {"name": _volume_of(claim)}, "spec": spec})


def _volume_of(claim: str) -> str:
    return f"volume-of-{claim}"


def _preferences(number: int) -> dict[str, Any]:
    terms = [
        {"topologyKey": HOSTNAME, "labelSelector": {"matchLabels": {"taste": f"{number}-{at}"}}}
        for at in range(PREFERENCES)
    ]
    preferred = [{"weight": 1, "podAffinityTerm": term} for term in terms]
    return {"affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}}


def _is_of(pod: Pod, workload: GangWorkload) -> bool:
    """Reports whether the pod is a member of any run of the workload."""
    return pod.namespace == workload.plan.namespace and pod.labels.get("gang") == workload.plan.name


def in_pool(pool: str, selector: Mapping[str, str] | None) -> dict[str, Any]:
    return {
        "nodeSelector": {POOL: pool, **(selector or {})},
        "tolerations": [{"key": POOL, "operator": "Equal", "value": pool, "effect": "NoSchedule"}],
    }
