"""The world of a simulation as its users make it: nodes, pods, and what people do to them over the API."""

from __future__ import annotations

import asyncio
import itertools
import random
import zlib
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any

import orjson

from multisched.cluster.api.direct import DirectTransport
from multisched.cluster.api.server import ApiServer
from multisched.model.objects import CPU, Node, Pod
from multisched.model.selectors import NO_EXECUTE
from multisched.model.wire import JSON, MERGE_PATCH, STRATEGIC_MERGE_PATCH, Response
from multisched.testing.checkers.api.bind_checker import BindChecker
from multisched.testing.wire.faults import FOREIGN, MALFORMED, MARK
from multisched.testing.world import traits
from multisched.testing.world.budgets import Budgets
from multisched.testing.world.disks import NOBODYS, Disks
from multisched.testing.world.labels import GPU, GPU_MILLI, HOSTNAME, LICENCE, ODD
from multisched.testing.world.policies import HEEDED, NAMESPACE, POLICY, TRUSTED
from multisched.testing.world.relations import Relations
from multisched.testing.world.storage import VOLUMES_PATH, Storage

NODES = 40
GPU_NODES = tuple(number for number in range(NODES) if number % 10 in (7, 8))
FAVOURITE = f"node-{NODES // 4}"
"""The node that every pod prefers where the profiles ask outside."""
CROWDED = tuple(range(NODES - 10, NODES - 4))
"""Numbers of nodes that crowds want: plain ones of the forecast domain."""
NAMESPACES = ("default", "team-a", "team-b")
INFEASIBLE_CPU = "500"
BEST_EFFORT = 0.05
"""Of all pods that want no device: they ask for nothing."""
EDGE_SCHEDULER, EDGE_EVERY = "edge-scheduler", 6
"""Where there is such a domain, one pod in so many is its."""
SHUNNED = {1: 1, 2: 2}
"""Number of a node modulo 4 -> how many taints keep those off who may as well go elsewhere."""
URGENT_EVERY = 4
"""One pod in so many is urgent."""
PAIRS = ("pair-20", "pair-22", "pair-24")
"""Nodes that are wanted by twos: node-20 and node-21, and so on."""
_PAIRED = frozenset(f"node-{number}" for number in range(20, 26))
CROWD_S, STUBBORN_EVERY = 8.0, 5
"""How long the pods of a crowd wait; one in so many stays for ever."""
RUN_S, ENDING_EVERY = 5.0, 4
"""Of those that run, one in so many ends a while after it was made: what it held is what others wait for."""
RESIZED_MAX_S = 6.0
"""How long a kubelet may take to resize a pod."""
KUBELET_S, LINGER_MAX_S = 0.25, 3.0
"""How often kubelets look, and how long a pod may take to end."""
NO_LABELS: Mapping[str, str] = {}
GIANT_PORT = 9_900
GIANT_TOLERATIONS = 300
"""More than the program reads of a pod; the API has no such bound."""


class World:
    """Acts on the API as somebody else than the program; a server that is away is asked again, as users do."""

    def __init__(self, server: ApiServer, bind_checker: BindChecker, rng: random.Random, seed: int) -> None:
        self.api = DirectTransport(server)
        self.storage = Storage(server, self.send, seed)
        self.disks = Disks(self.send, seed)
        bind_checker.storage = self.storage
        self.budgets = Budgets(server, self.send, self.pods)
        self._relations = Relations(seed)
        self._bind_checker = bind_checker
        self._rng = rng
        self.schedulers: Collection[str] = ()
        """Those that the run's domains serve."""
        self._names = self._started = 0
        self._crowded: set[str] = set()
        self._under_way: set[asyncio.Task[None]] = set()
        """What kubelets are about to do."""
        self._pair_names = (f"pair-{number}" for number in itertools.count())

    async def build(self) -> None:
        for namespace in NAMESPACES[1:]:
            await self.send("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
        for number in range(NODES):
            await self.add_node(number)
        await self.storage.build(NODES)
        await self.disks.build(NODES)
        await self.budgets.build()

    async def send(
        self, method: str, path: str, document: Mapping[str, Any] | None = None, content_type: str = JSON
    ) -> Response:
        body = orjson.dumps(document) if document is not None else None
        while True:
            answer = await self.api.request(method, path, body=body, content_type=content_type)
            if answer.status != 503:
                return answer
            await asyncio.sleep(0.5)

    # -- nodes -----------------------------------------------------------------------------------------------------

    async def add_node(self, number: int, *, is_cordoned: bool = False) -> None:
        node = _node(number)
        if is_cordoned:
            node["spec"]["unschedulable"] = True
        answer = await self.send("POST", "/api/v1/nodes", node)
        if answer.status not in (201, 409):
            raise AssertionError(answer.body)

    async def delete_node(self, number: int) -> None:
        await self.send("DELETE", f"/api/v1/nodes/node-{number}")

    async def set_gpus(self, name: str, count: int) -> bool:
        """What the node's device plugin offers."""
        amounts = {GPU: str(count)}
        return await self.patch_node(name, {"status": {"allocatable": amounts, "capacity": amounts}})

    async def patch_node(self, name: str, patch: Mapping[str, Any]) -> bool:
        path = f"/api/v1/nodes/{name}/status" if "status" in patch else f"/api/v1/nodes/{name}"
        answer = await self.send("PATCH", path, patch, MERGE_PATCH)
        return answer.status == 200

    # -- services --------------------------------------------------------------------------------------------------

    async def expose(self, apps: Sequence[int]) -> None:
        """A service, a replica set, a stateful set and a replication controller over pods of these apps."""
        for app in apps:
            await self.expose_app(f"app-{app}")

    async def expose_app(self, app: str) -> None:
        selector = {"app": app}
        labels = {"matchLabels": selector}
        for path, spec in (
            ("/api/v1/namespaces/default/services", {"selector": selector, "ports": [{"port": 80}]}),
            ("/api/v1/namespaces/default/replicationcontrollers", {"replicas": 0, "selector": selector}),
            ("/apis/apps/v1/namespaces/default/replicasets", {"replicas": 0, "selector": labels}),
            (
                "/apis/apps/v1/namespaces/default/statefulsets",
                {"replicas": 0, "selector": labels, "serviceName": "s"},
            ),
        ):
            template = {"metadata": {"labels": selector}, "spec": {"containers": [{"name": "main", "image": "a"}]}}
            body = {
                "metadata": {"name": app},
                "spec": spec if "ports" in spec else {**spec, "template": template},
            }
            await self.send("POST", path, body)

    async def hide(self, app: int) -> None:
        for path in ("/api/v1/namespaces/default/services", "/apis/apps/v1/namespaces/default/replicasets"):
            await self.send("DELETE", f"{path}/app-{app}")

    async def hide_app(self, app: str) -> None:
        """All that `expose_app` has made."""
        for kind in ("services", "replicationcontrollers"):
            await self.send("DELETE", f"/api/v1/namespaces/default/{kind}/{app}")
        for kind in ("replicasets", "statefulsets"):
            await self.send("DELETE", f"/apis/apps/v1/namespaces/default/{kind}/{app}")

    # -- pods ------------------------------------------------------------------------------------------------------

    async def create(self, pod: dict[str, Any]) -> bool:
        answer = await self.send("POST", pods_path(pod["metadata"].get("namespace", NAMESPACE)), pod)
        if answer.status not in (201, 409):
            raise AssertionError(answer.body)
        return answer.status == 201

    async def add_pod(self, name: str = "", *, scheduler: str = "") -> None:
        """A pod of the mixture; with a `scheduler`, a small plain one."""
        self._names += 1
        pod = _pod(name or f"pod-{self._names}", self._rng)
        if scheduler:
            pod["spec"] = _small(scheduler, "500m")
            pod["metadata"]["annotations"] = {}
        else:
            if EDGE_SCHEDULER in self.schedulers and _drawn(pod["metadata"]["name"]) % EDGE_EVERY == 0:
                pod["spec"] |= {"schedulerName": EDGE_SCHEDULER}
            self._relations.add_rules(pod)
            await self.storage.add_claims(pod)
            await self.disks.add_volumes(pod)
            await self.storage.add_claim(self._bind_checker.policies.add_policy(pod))
        _add_urgency(pod)
        await self.create(pod)

    async def crowd(
        self,
        node: str,
        count: int,
        *,
        scheduler: str = "forecast-scheduler",
        cpu: str = "500m",
        prefix: str = "",
        limits: Mapping[str, str] | None = None,
        heeds_taints: bool = True,
        is_mixed: bool = False,
    ) -> list[str]:
        """Small plain pods that go to this one node; their names. Mixed: some crowds are after more than CPU (`traits`)."""
        names = []
        trait = traits.drawn(self._rng) if is_mixed else None
        for _ in range(count):
            self._names += 1
            names.append(f"{prefix}pod-{self._names}")
            self._crowded.add(names[-1])
            spec = _small(scheduler, cpu) | {"nodeSelector": {"kubernetes.io/hostname": node}}
            if limits:
                spec["containers"][0]["resources"]["limits"] = dict(limits)
            if not heeds_taints:
                spec["tolerations"] = [{"operator": "Exists"}]
            labels = {"app": f"app-{self._rng.randrange(5)}"}
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": names[-1], "labels": labels}, "spec": spec}
            if trait is not None:
                trait(pod, self._rng)
            _add_urgency(pod)
            await self.create(pod)
        return names

    async def clear_crowds(self, now_s: float) -> None:
        """Of crowds that have waited for CROWD_S in vain most give up: each of them is tried again at every event. Some that run
        end."""
        for pod in self.pods():
            age_s = now_s - pod.created_s if pod.name in self._crowded else 0.0
            is_tired = age_s > CROWD_S and not pod.node and _drawn(pod.name) % STUBBORN_EVERY
            is_done = age_s > RUN_S and pod.node and not _drawn(pod.name) % ENDING_EVERY
            if is_tired or is_done:
                await self.delete_pod(pod)

    async def fill_some(self, bursts: int) -> None:
        """Crowds on nodes that crowds want."""
        for _ in range(bursts):
            await self.crowd(f"node-{self._rng.choice(CROWDED)}", 3, is_mixed=True)

    async def add_fractions(self, node: str, millis: Sequence[str]) -> None:
        """Pods that share the devices of one node."""
        for milli in millis:
            self._names += 1
            spec = _small("gpu-scheduler", "100m") | {"nodeSelector": {"kubernetes.io/hostname": node}}
            metadata = {"name": f"part-{self._names}", "labels": {}, "annotations": {GPU_MILLI: milli}}
            await self.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})

    async def add_annotated(self, scheduler: str, annotations: Mapping[str, str], *, whole: str = "") -> None:
        """A small pod that says in its annotations what it takes."""
        self._names += 1
        spec = _small(scheduler, "100m")
        if whole:
            spec["containers"][0]["resources"]["limits"] = {GPU: whole}
        metadata = {"name": f"annotated-{self._names}", "labels": {}, "annotations": dict(annotations)}
        await self.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})

    async def add_unplaceable(self, spec: Mapping[str, Any]) -> str:
        """A small pod that asks for what `spec` says; its name."""
        self._names += 1
        metadata = {"name": f"asked-{self._names}", "labels": {"app": "app-4"}}
        plain = _small("forecast-scheduler", "100m") | dict(spec)
        await self.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": plain})
        return f"asked-{self._names}"

    async def add_garbled(self, mark: bytes = MARK) -> str:
        """A pod of another scheduler; its name."""
        self._names += 1
        metadata = {"name": f"garbled-{self._names}", "labels": {"note": mark.decode()}}
        spec = _small("default-scheduler", "100m")
        await self.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        return f"garbled-{self._names}"

    async def add_malformed(self) -> Mapping[str, str]:
        """A pod, a node and a volume that no client can read; kind -> path."""
        labels = {"note": MALFORMED.decode()}
        pod = await self.add_garbled(MALFORMED)
        node, volume = _node(NODES + 50), _volume("garbled")
        for document, path in ((node, "/api/v1/nodes"), (volume, VOLUMES_PATH)):
            document["metadata"]["labels"] = labels
            await self.send("POST", path, document)
        name = node["metadata"]["name"]
        return {
            "pod": f"{pods_path(NAMESPACE)}/{pod}",
            "node": f"/api/v1/nodes/{name}",
            "volume": f"{VOLUMES_PATH}/garbled",
        }

    async def place_foreign(
        self,
        node: str,
        *,
        annotations: Mapping[str, str] = NO_LABELS,
        cpu: str = "10m",
        labels: Mapping[str, str] = NO_LABELS,
        spec: Mapping[str, Any] | None = None,
        namespace: str = NAMESPACE,
    ) -> str:
        """A pod of another scheduler on a node from the start, as static pods are, with what `spec` adds; its uid."""
        self._names += 1
        metadata = {
            "name": f"{FOREIGN}{self._names}",
            "namespace": namespace,
            "labels": dict(labels),
            "annotations": dict(annotations),
        }
        whole = _small("default-scheduler", cpu) | {"nodeName": node, **(spec or {})}
        return await self._place({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": whole})

    async def _place(self, pod: dict[str, Any]) -> str:
        """The uid of a pod that is created on its node; empty where it could not be."""
        answer = await self.send("POST", pods_path(pod["metadata"].get("namespace", NAMESPACE)), pod)
        if answer.status != 201:
            return ""
        uid = str(orjson.loads(answer.body)["metadata"]["uid"])
        self._bind_checker.bound_from_outside(uid, pod["spec"]["nodeName"])
        return uid

    async def place_averse(self, node: str, labels: Mapping[str, str], key: str = HOSTNAME) -> str:
        """A pod of another scheduler on a node from the start, which bears nobody with these labels there; its uid.

        With the `key` of a wider place, nowhere in that.
        """
        self._names += 1
        spec = _small("default-scheduler", "10m") | {"nodeName": node, "affinity": _bears_not(labels, key)}
        metadata = {"name": f"{FOREIGN}averse-{self._names}", "labels": {}}
        return await self._place({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})

    async def place_giant(self, node: str) -> str:
        """A placed pod with more tolerations than are read of one, which holds a port and bears no `app-0` beside it."""
        self._names += 1
        spec = _small("default-scheduler", "10m") | {"nodeName": node}
        spec["containers"][0]["ports"] = [{"containerPort": 80, "hostPort": GIANT_PORT}]
        spec["affinity"] = _bears_not({"app": "app-0"})
        metadata = {"name": f"{FOREIGN}giant-{self._names}", "labels": {"size": "giant"}}
        plain = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        tolerations = [{"key": f"t{at}", "operator": "Exists"} for at in range(GIANT_TOLERATIONS)]
        return await self._place(plain | {"spec": spec | {"tolerations": tolerations}})

    async def crowd_beside_giant(self, node: str) -> None:
        """What may not be beside the giant: its port, its enemies, and who does not bear it."""
        where = {"nodeSelector": {"kubernetes.io/hostname": node}}
        port = _small("forecast-scheduler", "10m") | where
        port["containers"][0]["ports"] = [{"containerPort": 80, "hostPort": GIANT_PORT}]
        enemy = _small("forecast-scheduler", "10m") | where
        averse = _small("forecast-scheduler", "10m") | where
        averse["affinity"] = _bears_not({"size": "giant"})
        for spec, labels in ((port, {}), (enemy, {"app": "app-0"}), (averse, {})):
            self._names += 1
            metadata = {"name": f"beside-{self._names}", "labels": labels}
            await self.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})

    async def add_to_pair(self, pair: str, cpu: str, app: str, *, is_urgent: bool) -> str:
        """A small plain pod that goes to these two nodes alone; its name."""
        name = next(name for name in self._pair_names if (_drawn(name) % URGENT_EVERY == 0) == is_urgent)
        spec = _small("forecast-scheduler", cpu) | {"nodeSelector": {"pair": pair}}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": app}}, "spec": spec}
        _add_urgency(pod)
        await self.create(pod)
        return name

    async def place_lowly(
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
        """A small pod for one node, or for any, with what `spec` adds; its name. Urgent ones displace the others, by their `priority`."""
        self._names += 1
        name = name or f"contest-{self._names}"
        where = {"nodeSelector": {"kubernetes.io/hostname": node}} if node else {}
        plain = {**_small(scheduler, cpu), **where, **spec}
        if is_urgent:
            plain |= {"priorityClassName": priority}
        metadata = {
            "name": name,
            "namespace": namespace,
            "labels": {**(labels or {}), **({ODD: "yes"} if "volumes" in spec else {})},
            "annotations": {GPU_MILLI: milli} if milli else {},
        }
        await self.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": plain})
        return name

    async def label_namespace(self, name: str, labels: Mapping[str, str | None]) -> None:
        await self.send("PATCH", f"/api/v1/namespaces/{name}", {"metadata": {"labels": labels}}, MERGE_PATCH)

    async def edit_kept(self, name: str, *, is_deleted: bool) -> bool:
        """Somebody writes the ConfigMap in which a program keeps what it does, or deletes it."""
        path = f"/api/v1/namespaces/kube-system/configmaps/{name}"
        if is_deleted:
            return (await self.send("DELETE", path)).status == 200
        return (await self.send("PATCH", path, {"metadata": {"labels": {"edited": "yes"}}}, MERGE_PATCH)).status == 200

    async def delete_lease(self, name: str) -> None:
        await self.send("DELETE", f"/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/{name}")

    async def take_lease(self, name: str) -> None:
        """Somebody who is none of ours holds it for a moment."""
        path = f"/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/{name}"
        await self.send("PATCH", path, {"spec": {"holderIdentity": "somebody-else"}}, MERGE_PATCH)

    async def delete_pod(self, pod: Pod) -> None:
        await self.delete_named(pod.name, pod.namespace)

    async def delete_named(self, name: str, namespace: str = NAMESPACE) -> None:
        await self.send("DELETE", f"{pods_path(namespace)}/{name}?gracePeriodSeconds=0")

    async def delete_uid(self, uid: str) -> None:
        """Nothing happens where it has gone already."""
        for pod in [pod for pod in self.pods() if pod.uid == uid]:
            await self.delete_pod(pod)

    async def mend_storage(self) -> None:
        """After a restored backup: pods that wait for a volume that nobody makes had gone, and a class had come."""
        await self.disks.make_later()
        for pod in self.pods():
            if not pod.node and any((one.claim or "").startswith(NOBODYS) for one in pod.spec.volumes):
                await self.delete_pod(pod)

    async def patch_pod(self, pod: Pod, patch: Mapping[str, Any]) -> bool:
        """As its owner does."""
        self._bind_checker.policies.pod_changed(pod.uid)
        answer = await self.send("PATCH", f"{pods_path(pod.namespace)}/{pod.name}", patch, MERGE_PATCH)
        return answer.status == 200

    async def end_pod(self, pod: Pod, phase: str) -> None:
        """Its containers have ended, and are not begun again."""
        await self.send(
            "PATCH", f"{pods_path(pod.namespace)}/{pod.name}/status", {"status": {"phase": phase}}, MERGE_PATCH
        )

    async def end_pods(self) -> None:
        """The kubelets and the taint manager, until cancelled: pods that are asked to go end a moment later, and hold their
        room till then; who does not tolerate a NoExecute taint goes at once."""
        asked: dict[str, float] = {}
        loop = asyncio.get_running_loop()
        nodes: Mapping[str, Node] = {}
        pods: Mapping[str, Pod] = {}
        while True:
            await asyncio.sleep(KUBELET_S)
            has_moved = self._bind_checker.nodes() is not nodes or self._bind_checker.pods() is not pods
            if not has_moved and not asked:
                continue  # what is shown is another object whenever something was written
            nodes, pods = self._bind_checker.nodes(), self._bind_checker.pods()
            await self._begin_pods(pods)
            hostile = {node.name: node for node in nodes.values() if _drives_out(node)}
            going = {pod.uid: pod for pod in pods.values() if pod.is_deleting}
            asked = {uid: asked.get(uid, loop.time()) for uid in going}
            for pod in list(pods.values()) if hostile else ():
                if pod.node in hostile and not _tolerates(pod, hostile[pod.node]):
                    await self.delete_pod(pod)
            for uid, pod in going.items():
                if loop.time() - asked[uid] >= LINGER_MAX_S * (zlib.crc32(uid.encode()) % 100) / 100:
                    await self.delete_pod(pod)

    async def _begin_pods(self, pods: Mapping[str, Pod]) -> None:
        """Most on nodes of pairs have a start time, whole seconds after the one before: of equal pods preemption spares the oldest."""
        for pod in list(pods.values()):
            if pod.node in _PAIRED and not pod.started_s and not pod.is_deleting and _drawn(pod.uid) % 3:
                await self.start_pod(pod)

    async def start_pod(self, pod: Pod) -> None:
        """Its kubelet says that it has started, a second after the pod before it."""
        self._started += 1
        started = f"2026-01-01T{self._started // 3600:02}:{self._started // 60 % 60:02}:{self._started % 60:02}Z"
        path = f"{pods_path(pod.namespace)}/{pod.name}/status"
        await self.send("PATCH", path, {"status": {"startTime": started}}, MERGE_PATCH)

    def pods(self) -> list[Pod]:
        """In order of their names."""
        return list(self._bind_checker.pods().values())

    async def open_gates(self, pod: Pod) -> bool:
        return await self.patch_pod(pod, {"spec": {"schedulingGates": None}})

    async def heed_policy(self, pod: Pod) -> bool:
        """The pod is changed so that its policy refuses it no longer."""
        return await self.patch_pod(pod, {"metadata": {"labels": {POLICY: HEEDED}}})

    async def trust_namespace(self) -> None:
        """One policy does not hold in this namespace any more."""
        self._bind_checker.policies.namespace_changed()
        await self.label_namespace(NAMESPACE, {TRUSTED: "yes"})

    async def resize(self, pod: Pod, cpu: str, *, takes_time: bool = False) -> bool:
        """In place, whether it is bound or waits. Some kubelets take their time: until then the pod has what it had."""
        is_slow = bool(pod.node) and (takes_time or _drawn(pod.uid) % 2 == 0)
        if is_slow:
            await self._report_cpu(pod, f"{pod.requests.get(CPU, 0)}m")
        is_done = await self._resize(pod, cpu)
        if is_slow:
            wait_s = RESIZED_MAX_S * (_drawn(f"{pod.uid}/resized") % 100) / 100
            asyncio.get_running_loop().call_later(wait_s, self._begin, partial(self._report_cpu, pod, cpu))
        return is_done

    async def _report_cpu(self, pod: Pod, cpu: str) -> None:
        """What the kubelet has given the pod's container."""
        amounts = {"cpu": cpu}
        container = {"name": "main", "image": "a", "imageID": "", "ready": True, "restartCount": 0}
        told = {**container, "allocatedResources": amounts, "resources": {"requests": amounts}}
        path = f"{pods_path(pod.namespace)}/{pod.name}/status"
        await self.send("PATCH", path, {"status": {"containerStatuses": [told]}}, MERGE_PATCH)

    def _begin(self, work: Callable[[], Coroutine[None, None, None]]) -> None:
        task = asyncio.get_running_loop().create_task(work())
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    def close(self) -> None:
        for task in self._under_way:
            task.cancel()

    async def _resize(self, pod: Pod, cpu: str) -> bool:
        patch = {"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": cpu}}}]}}
        answer = await self.send("PATCH", f"{pods_path(pod.namespace)}/{pod.name}/resize", patch, STRATEGIC_MERGE_PATCH)
        return answer.status == 200

    async def bind_from_outside(self) -> None:
        """Somebody else creates a pod of ours and binds it before we can, to a large node that we may be filling too."""
        self._names += 1
        name, virtual = f"{FOREIGN}{self._names}", 9 + 10 * self._rng.randrange(NODES // 10)
        pod = _pod(name, self._rng)
        pod["metadata"]["annotations"] = {}
        pod["spec"] = {"schedulerName": "job-scheduler", "containers": pod["spec"]["containers"]}
        pod["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "100m"}}
        pod["spec"]["containers"][0].pop("ports", None)
        await self.send("POST", pods_path(NAMESPACE), pod)
        await asyncio.sleep(self._rng.uniform(0.0, 0.04))
        found = self._bind_checker.pods().get(f"default/{name}")
        if found is None:
            return  # another disruption has deleted it
        await self.bind_by_hand(found, f"node-{virtual}")

    async def bind_by_hand(self, pod: Pod, node: str) -> None:
        """Somebody else binds a pod of ours."""
        binding = {"metadata": {"name": pod.name, "uid": pod.uid}, "target": {"name": node}}
        path = f"{pods_path(pod.namespace)}/{pod.name}/binding"
        if (await self.send("POST", path, binding)).status == 201:
            self._bind_checker.bound_from_outside(pod.uid, node)


def pods_path(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods"


def _small(scheduler: str, cpu: str) -> dict[str, Any]:
    """The spec of a plain pod."""
    resources = {"requests": {"cpu": cpu, "memory": "64Mi"}}
    return {"schedulerName": scheduler, "containers": [{"name": "main", "image": "app-0:v1", "resources": resources}]}


def _bears_not(labels: Mapping[str, str], key: str = HOSTNAME) -> dict[str, Any]:
    term = {"topologyKey": key, "labelSelector": {"matchLabels": dict(labels)}}
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def _volume(name: str) -> dict[str, Any]:
    spec = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/x"}}
    return {"metadata": {"name": name}, "spec": {**spec, "storageClassName": "nobody's"}}


def _drives_out(node: Node) -> bool:
    return any(taint.effect == NO_EXECUTE for taint in node.taints)


def _tolerates(pod: Pod, node: Node) -> bool:
    taints = [taint for taint in node.taints if taint.effect == NO_EXECUTE]
    return all(any(toleration.tolerates(taint) for toleration in pod.spec.tolerations) for taint in taints)


def _add_urgency(pod: dict[str, Any]) -> None:
    """One pod in a few preempts others, one in a few goes at once when it is asked to; which one, its name says."""
    drawn = _drawn(pod["metadata"]["name"])
    pod["spec"]["terminationGracePeriodSeconds"] = 0 if drawn // URGENT_EVERY % 2 else 30
    if drawn % URGENT_EVERY == 0:
        pod["spec"]["priorityClassName"] = "system-cluster-critical"


def _drawn(name: str) -> int:
    return zlib.crc32(name.encode())


def _node(number: int) -> dict[str, Any]:
    labels = {"kubernetes.io/hostname": f"node-{number}", "zone": f"z{number % 3}", "rank": str(number)}
    labels["topology.kubernetes.io/zone"] = labels["zone"]
    if f"pair-{number - number % 2}" in PAIRS:
        labels["pair"] = f"pair-{number - number % 2}"
    spec: dict[str, Any] = {}
    allocatable = {"cpu": "4", "memory": "8Gi", "pods": "20"}
    if number % 10 in (7, 8):
        allocatable = {"cpu": "16", "memory": "64Gi", "pods": "40", "nvidia.com/gpu": "4"}
    elif number % 10 == 9:
        labels["type"] = "virtual-kubelet"
        spec["taints"] = [{"key": "virtual-kubelet.io/provider", "value": "multisched", "effect": "NoSchedule"}]
        allocatable = {"cpu": "32", "memory": "64Gi", "pods": "60"}
    elif number % 3 == 0:
        labels["lend"] = "yes"
    if number % 4 in SHUNNED:
        keys = ["sim/rather", "sim/rather-not"][: SHUNNED[number % 4]]
        spec.setdefault("taints", []).extend({"key": key, "effect": "PreferNoSchedule"} for key in keys)
    if number % 10 == 9:
        allocatable |= {LICENCE: "6"}
    images = [
        {"names": [f"app-{at}:v1"], "sizeBytes": (at + 1) * 60_000_000} for at in range(4) if (number + at) % 3 == 0
    ]
    features = ["UserNamespacesHostNetworkSupport"] if number % 2 else []
    status = {"capacity": allocatable, "allocatable": allocatable, "images": images, "declaredFeatures": features}
    metadata = {"name": f"node-{number}", "labels": labels}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec, "status": status}


def _pod(name: str, rng: random.Random) -> dict[str, Any]:
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
