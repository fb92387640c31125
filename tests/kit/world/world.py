"""The simulated cluster as its users change it over the API: nodes, pods and other objects."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from multisched.cluster.api.server import ApiServer
from multisched.cluster.client.object_client import WallClock
from multisched.model.objects import Pod
from multisched.model.wire import MERGE_PATCH
from tests.kit.wire.faults import MALFORMED, MARK
from tests.kit.world.api_user import NAMESPACE, ApiUser, pods_path
from tests.kit.world.budgets import Budgets
from tests.kit.world.crowds import Crowds
from tests.kit.world.disks import UNPROVISIONED, Disks
from tests.kit.world.external_actors import ExternalActors
from tests.kit.world.gang_workloads import GangWorkloads
from tests.kit.world.gangs import Gangs
from tests.kit.world.kubelets import Kubelets
from tests.kit.world.labels import CARDS, GPU, GPU_COUNT, GPU_MILLI, HOSTNAME, LOAN, ODD_VOLUMES, TIDE, UNIT
from tests.kit.world.linked_quotas import LinkedQuotas
from tests.kit.world.loan_workloads import LoanWorkloads
from tests.kit.world.nodes import NODES, Nodes, node_manifest
from tests.kit.world.pod_manifests import URGENT_EVERY, add_urgency, mixed_pod, number_of, small_spec
from tests.kit.world.policies import COMPLIANT, POLICY, TRUSTED, Policies
from tests.kit.world.quotas import Quotas
from tests.kit.world.relations import Relations
from tests.kit.world.services import Services
from tests.kit.world.shared_gpus import SharedGpuActors
from tests.kit.world.storage import VOLUMES_PATH, Storage
from tests.kit.world.store_view import StoreView
from tests.kit.world.tide_workloads import TideWorkloads
from tests.kit.world.unit_workloads import UnitWorkloads

NAMESPACES = ("default", "team-a", "team-b")
EDGE_SCHEDULER, EDGE_EVERY = "edge-scheduler", 6
"""If the domain exists, one pod in EDGE_EVERY belongs to it."""


class World:
    """All clients of the API other than the program, and their objects."""

    def __init__(
        self,
        server: ApiServer,
        objects: StoreView,
        policies: Policies,
        clock: WallClock,
        rng: random.Random,
        seed: int,
        on_bound: Callable[[str, str], None],
        *,
        has_quotas: bool = False,
        has_gangs: bool = False,
        has_gang_workloads: bool = False,
        has_linked_quotas: bool = False,
        has_card_nodes: bool = False,
        has_tide: bool = False,
        has_card_contests: bool = False,
        has_loans: bool = False,
        units: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """`on_bound`: called with uid and node of each pod that another client places. `units`: args of serverless units."""
        self.objects = objects
        self.policies = policies
        self._rng = rng
        self._next_number = itertools.count(1).__next__
        """Returns the next number for names of all pods."""
        self.user = ApiUser(server)
        self.storage = Storage(server, self.user.send, seed, self.user.api, clock)
        self.disks = Disks(self.user.send, seed)
        self.budgets = Budgets(server, self.user.send, self.pods)
        self.nodes = Nodes(self.user)
        self.services = Services(self.user)
        self.kubelets = Kubelets(self.user, objects)
        self.crowds = Crowds(self.user, objects, rng, self._next_number)
        self.external_actors = ExternalActors(self.user, objects, rng, self._next_number, on_bound)
        form = LinkedQuotas if has_linked_quotas else Quotas
        self.quotas = form(self.user, self.pods, seed, has_fractions=has_gang_workloads) if has_quotas else None
        teams = self.quotas.namespaces if self.quotas is not None else []
        self.gangs = Gangs(self.user, self.kubelets, self.pods, seed, [NAMESPACE, *teams]) if has_gangs else None
        rng_of_gangs = random.Random(f"{seed}/gang workloads")
        workloads = GangWorkloads(self.user, self.kubelets, self.storage, self.pods, rng_of_gangs)
        self.gang_workloads = workloads if has_gang_workloads else None
        self.cards = (
            SharedGpuActors(server, self.user, objects, clock, seed, is_contested=has_card_contests)
            if has_card_nodes
            else None
        )
        tides = TideWorkloads(self.user, lambda: objects.pods().values(), clock, random.Random(f"{seed}/tides"))
        self.tides = tides if has_tide else None
        lent = LoanWorkloads(self.user, lambda: objects.pods().values(), clock, random.Random(f"{seed}/loan workloads"))
        self.loans = lent if has_loans else None
        jobs = UnitWorkloads(self.user, lambda: objects.pods().values(), clock, units) if units else None
        self.units = jobs
        """Workloads in units; None if the run has none."""
        self._relations = Relations(seed)
        self.schedulers: Collection[str] = ()
        """Scheduler names of the run's domains."""
        self._pair_names = (f"pair-{number}" for number in itertools.count())

    async def build(self) -> None:
        for namespace in NAMESPACES[1:]:
            await self.user.send("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
        for number in range(NODES):
            await self.nodes.add(number)
        await self.storage.build(NODES)
        await self.disks.build(NODES)
        await self.budgets.build()
        if self.quotas is not None:
            await self.quotas.build()
        if self.gangs is not None:
            await self.gangs.build()
        if self.cards is not None:
            await self.cards.build()
        if self.tides is not None:
            await self.tides.build()
        if self.units is not None:
            await self.units.build()

    async def add_pod(self, name: str = "", *, scheduler: str = "") -> None:
        """Creates a drawn pod; with a `scheduler`, a small plain one."""
        number = self._next_number()
        pod = mixed_pod(name or f"pod-{number}", self._rng)
        if scheduler:
            pod["spec"] = small_spec(scheduler, "500m")
            pod["metadata"]["annotations"] = {}
        else:
            if EDGE_SCHEDULER in self.schedulers and number_of(pod["metadata"]["name"]) % EDGE_EVERY == 0:
                pod["spec"] |= {"schedulerName": EDGE_SCHEDULER}
            self._relations.add_rules(pod)
            await self.storage.add_claims(pod)
            await self.disks.add_volumes(pod)
            await self.storage.add_claim(self.policies.add_policy(pod))
        add_urgency(pod)
        await self.user.create_pod(pod)

    async def add_fractions(self, node: str, millis: Sequence[str], *, count: int = 1) -> None:
        """Creates pods that share the devices of one node, `count` devices each."""
        for milli in millis:
            spec = small_spec("gpu-scheduler", "100m") | {"nodeSelector": {HOSTNAME: node}}
            amounts = {GPU_MILLI: milli} | ({GPU_COUNT: str(count)} if count > 1 else {})
            metadata = {"name": f"part-{self._next_number()}", "labels": {}, "annotations": amounts}
            await self.user.create_pod({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})

    async def add_annotated(self, scheduler: str, annotations: Mapping[str, str], *, whole: str = "") -> None:
        """Creates a small pod with these annotations."""
        spec = small_spec(scheduler, "100m")
        if whole:
            spec["containers"][0]["resources"]["limits"] = {GPU: whole}
        metadata = {"name": f"annotated-{self._next_number()}", "labels": {}, "annotations": dict(annotations)}
        await self.user.create_pod({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})

    async def add_unplaceable(self, spec: Mapping[str, Any]) -> str:
        """Creates a small pod with the fields of `spec`. Returns its name."""
        name = f"asked-{self._next_number()}"
        metadata = {"name": name, "labels": {"app": "app-4"}}
        plain = small_spec("forecast-scheduler", "100m") | dict(spec)
        await self.user.create_pod({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": plain})
        return name

    async def add_garbled(self, mark: bytes = MARK) -> str:
        """Creates a pod of another scheduler whose label contains `mark`. Returns its name."""
        name = f"garbled-{self._next_number()}"
        metadata = {"name": name, "labels": {"note": mark.decode()}}
        spec = small_spec("default-scheduler", "100m")
        await self.user.create_pod({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        return name

    async def add_malformed(self) -> Mapping[str, str]:
        """Creates a pod, a node and a volume that no client can decode. Returns kind -> path."""
        labels = {"note": MALFORMED.decode()}
        pod = await self.add_garbled(MALFORMED)
        node, volume = node_manifest(NODES + 50), _volume("garbled")
        for document, path in ((node, "/api/v1/nodes"), (volume, VOLUMES_PATH)):
            document["metadata"]["labels"] = labels
            await self.user.send("POST", path, document)
        name = node["metadata"]["name"]
        return {
            "pod": f"{pods_path(NAMESPACE)}/{pod}",
            "node": f"/api/v1/nodes/{name}",
            "volume": f"{VOLUMES_PATH}/garbled",
        }

    async def add_to_pair(self, pair: str, cpu: str, app: str, *, is_urgent: bool) -> str:
        """Creates a small plain pod for a pair of nodes. Returns its name."""
        name = next(name for name in self._pair_names if (number_of(name) % URGENT_EVERY == 0) == is_urgent)
        spec = small_spec("forecast-scheduler", cpu) | {"nodeSelector": {"pair": pair}}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": app}}, "spec": spec}
        add_urgency(pod)
        await self.user.create_pod(pod)
        return name

    async def add_small_pod(
        self,
        node: str,
        spec: Mapping[str, Any],
        *,
        is_urgent: bool,
        scheduler: str,
        milli: str = "",
        cpu: str = "50m",
        priority: str = "system-cluster-critical",
        name: str = "",
        namespace: str = NAMESPACE,
        labels: Mapping[str, str] | None = None,
    ) -> str:
        """Creates a small pod for one node, or for any, with the fields of `spec`. Returns its name. Urgent pods preempt others, by
        their `priority`.
        """
        number = self._next_number()
        name = name or f"contest-{number}"
        where = {"nodeSelector": {HOSTNAME: node}} if node else {}
        plain = {**small_spec(scheduler, cpu), **where, **spec}
        if is_urgent:
            plain |= {"priorityClassName": priority}
        metadata = {
            "name": name,
            "namespace": namespace,
            "labels": {**(labels or {}), **({ODD_VOLUMES: "yes"} if "volumes" in spec else {})},
            "annotations": {GPU_MILLI: milli} if milli else {},
        }
        await self.user.create_pod({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": plain})
        return name

    async def label_namespace(self, name: str, labels: Mapping[str, str | None]) -> None:
        await self.user.send("PATCH", f"/api/v1/namespaces/{name}", {"metadata": {"labels": labels}}, MERGE_PATCH)

    async def edit_kept(self, name: str, *, is_deleted: bool) -> bool:
        """Edits or deletes the ConfigMap in which a program keeps a document."""
        path = f"/api/v1/namespaces/kube-system/configmaps/{name}"
        if is_deleted:
            return (await self.user.send("DELETE", path)).status == 200
        return (
            await self.user.send("PATCH", path, {"metadata": {"labels": {"edited": "yes"}}}, MERGE_PATCH)
        ).status == 200

    async def delete_lease(self, name: str) -> None:
        await self.user.send("DELETE", f"/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/{name}")

    async def take_lease(self, name: str) -> None:
        """Writes another holder to the lease."""
        path = f"/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/{name}"
        await self.user.send("PATCH", path, {"spec": {"holderIdentity": "somebody-else"}}, MERGE_PATCH)

    async def delete_uid(self, uid: str) -> None:
        """Deletes the pod with this uid, if it exists."""
        for pod in [pod for pod in self.pods() if pod.uid == uid]:
            await self.user.delete_pod(pod)

    async def repair_storage(self) -> None:
        """Removes pods, and recreates a class, that a restored backup has brought back or removed: the pods would wait for a volume
        forever.
        """
        await self.disks.make_later()
        for pod in self.pods():
            if not pod.node and any((one.claim or "").startswith(UNPROVISIONED) for one in pod.spec.volumes):
                await self.user.delete_pod(pod)

    async def patch_pod(self, pod: Pod, patch: Mapping[str, Any]) -> bool:
        """Patches a pod, as its owner does."""
        self.policies.pod_changed(pod.uid)
        answer = await self.user.send("PATCH", f"{pods_path(pod.namespace)}/{pod.name}", patch, MERGE_PATCH)
        return answer.status == 200

    def pods(self) -> list[Pod]:
        """Returns the pods in order of their names, without those of `cards`, `loans`, `tides` and `units`: only their kubelets and
        controllers end these.
        """
        return [pod for pod in self.objects.pods().values() if not {CARDS, LOAN, TIDE, UNIT} & pod.labels.keys()]

    async def open_gates(self, pod: Pod) -> bool:
        return await self.patch_pod(pod, {"spec": {"schedulingGates": None}})

    async def comply_with_policy(self, pod: Pod) -> bool:
        """Changes the pod so that its policy no longer refuses it."""
        return await self.patch_pod(pod, {"metadata": {"labels": {POLICY: COMPLIANT}}})

    async def trust_namespace(self) -> None:
        """Ends one policy in the default namespace."""
        self.policies.namespace_changed()
        await self.label_namespace(NAMESPACE, {TRUSTED: "yes"})


def _volume(name: str) -> dict[str, Any]:
    spec = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/x"}}
    return {"metadata": {"name": name}, "spec": {**spec, "storageClassName": "nobody's"}}
