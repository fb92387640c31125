"""The world of a simulation as its users make it: nodes, pods, and what people do to them over the API."""

from __future__ import annotations

import asyncio
import itertools
import random
import zlib
from collections.abc import Mapping
from typing import Any

import orjson

from multisched.cluster.direct import DirectTransport
from multisched.cluster.server import ApiServer
from multisched.model.objects import Pod
from multisched.model.wire import JSON, MERGE_PATCH, STRATEGIC_MERGE_PATCH, Response
from multisched.testing.budgets import Budgets
from multisched.testing.door import Door
from multisched.testing.faults import FOREIGN
from multisched.testing.policies import HEEDED, NAMESPACE, POLICY, TRUSTED
from multisched.testing.relations import Relations
from multisched.testing.storage import Storage

NODES, PODS = 40, 170
INFEASIBLE_CPU = "500"
URGENT_EVERY = 4
"""One pod in so many is urgent."""
PAIRS = ("pair-20", "pair-22", "pair-24")
"""Nodes that are wanted by twos: node-20 and node-21, and so on."""
KUBELET_S, LINGER_MAX_S = 0.25, 3.0
"""How often kubelets look, and how long a pod may take to end."""
PODS_PATH = "/api/v1/namespaces/default/pods"


class World:
    """Acts on the API as somebody else than the program; a server that is away is asked again, as users do."""

    def __init__(self, server: ApiServer, door: Door, rng: random.Random, seed: int) -> None:
        self.api = DirectTransport(server)
        self.storage = Storage(server, self.send, seed)
        door.storage = self.storage
        self.budgets = Budgets(server, self.send, self.pods)
        self._relations = Relations(seed)
        self._door = door
        self._rng = rng
        self._names = 0
        self._pair_names = (f"pair-{number}" for number in itertools.count())

    async def build(self) -> None:
        for number in range(NODES):
            await self.add_node(number)
        await self.storage.build(NODES)
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

    async def patch_node(self, name: str, patch: Mapping[str, Any]) -> bool:
        answer = await self.send("PATCH", f"/api/v1/nodes/{name}", patch, MERGE_PATCH)
        return answer.status == 200

    # -- pods ------------------------------------------------------------------------------------------------------

    async def add_pod(self, name: str = "", *, scheduler: str = "", node: str = "", heeds_cordons: bool = True) -> None:
        """A pod of the mixture; with a `scheduler`, a small plain one, perhaps for one node alone, perhaps cordoned."""
        self._names += 1
        pod = _pod(name or f"pod-{self._names}", self._rng)
        if scheduler:
            pod["spec"] = {"schedulerName": scheduler, "containers": [{"name": "main", "image": "app-0:v1"}]}
            pod["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "500m", "memory": "64Mi"}}
            pod["metadata"]["annotations"] = {}
        if node:
            pod["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node}
        if not heeds_cordons:
            pod["spec"]["tolerations"] = [{"operator": "Exists"}]
        if not scheduler:
            self._relations.add_rules(pod)
            await self.storage.add_claims(pod)
            await self.storage.add_claim(self._door.policies.add_policy(pod))
        _add_urgency(pod)
        answer = await self.send("POST", PODS_PATH, pod)
        if answer.status not in (201, 409):
            raise AssertionError(answer.body)

    async def add_to_pair(self, pair: str, cpu: str, app: str, *, is_urgent: bool) -> str:
        """A small plain pod that goes to these two nodes alone; its name."""
        name = next(name for name in self._pair_names if (_drawn(name) % URGENT_EVERY == 0) == is_urgent)
        container = {"name": "main", "image": "app-0:v1", "resources": {"requests": {"cpu": cpu, "memory": "64Mi"}}}
        spec = {"schedulerName": "forecast-scheduler", "nodeSelector": {"pair": pair}, "containers": [container]}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": app}}, "spec": spec}
        _add_urgency(pod)
        answer = await self.send("POST", PODS_PATH, pod)
        if answer.status != 201:
            raise AssertionError(answer.body)
        return name

    async def delete_pod(self, name: str) -> None:
        await self.send("DELETE", f"{PODS_PATH}/{name}?gracePeriodSeconds=0")

    async def end_pods(self) -> None:
        """The kubelets, until cancelled: pods that are asked to go end a moment later, and hold their room till then."""
        asked: dict[str, float] = {}
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(KUBELET_S)
            going = {pod.uid: pod for pod in self.pods() if pod.is_deleting}
            asked = {uid: asked.get(uid, loop.time()) for uid in going}
            for uid, pod in going.items():
                if loop.time() - asked[uid] >= LINGER_MAX_S * (zlib.crc32(uid.encode()) % 100) / 100:
                    await self.delete_pod(pod.name)

    def pods(self) -> list[Pod]:
        """In order of their names."""
        return list(self._door.pods().values())

    async def open_gates(self, pod: Pod) -> bool:
        patch = {"spec": {"schedulingGates": None}}
        answer = await self.send("PATCH", f"{PODS_PATH}/{pod.name}", patch, MERGE_PATCH)
        return answer.status == 200

    async def heed_policy(self, pod: Pod) -> bool:
        """The pod is changed so that its policy refuses it no longer."""
        self._door.policies.pod_changed(pod.uid)
        patch = {"metadata": {"labels": {POLICY: HEEDED}}}
        answer = await self.send("PATCH", f"{PODS_PATH}/{pod.name}", patch, MERGE_PATCH)
        return answer.status == 200

    async def trust_namespace(self) -> None:
        """One policy does not hold in this namespace any more."""
        self._door.policies.namespace_changed()
        await self.send(
            "PATCH", f"/api/v1/namespaces/{NAMESPACE}", {"metadata": {"labels": {TRUSTED: "yes"}}}, MERGE_PATCH
        )

    async def resize(self, pod: Pod, cpu: str) -> bool:
        """In place, whether it is bound or waits."""
        patch = {"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": cpu}}}]}}
        answer = await self.send("PATCH", f"{PODS_PATH}/{pod.name}/resize", patch, STRATEGIC_MERGE_PATCH)
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
        await self.send("POST", PODS_PATH, pod)
        await asyncio.sleep(self._rng.uniform(0.0, 0.04))
        found = self._door.pods().get(f"default/{name}")
        if found is None:
            return  # another disruption has deleted it
        binding = {"metadata": {"name": name, "uid": found.uid}, "target": {"name": f"node-{virtual}"}}
        path = f"{PODS_PATH}/{name}/binding"
        if (await self.send("POST", path, binding)).status == 201:
            self._door.bound_from_outside(found.uid, f"node-{virtual}")


def _add_urgency(pod: dict[str, Any]) -> None:
    """One pod in a few preempts others, one in a few goes at once when it is asked to; which one, its name says."""
    drawn = _drawn(pod["metadata"]["name"])
    pod["spec"]["terminationGracePeriodSeconds"] = 0 if drawn // URGENT_EVERY % 2 else 30
    if drawn % URGENT_EVERY == 0:
        pod["spec"]["priorityClassName"] = "system-cluster-critical"


def _drawn(name: str) -> int:
    return zlib.crc32(name.encode())


def _node(number: int) -> dict[str, Any]:
    labels = {"kubernetes.io/hostname": f"node-{number}", "zone": f"z{number % 3}"}
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
    status = {"capacity": allocatable, "allocatable": allocatable}
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
    metadata = {"name": name, "labels": {"app": f"app-{rng.randrange(5)}"}, "annotations": annotations}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
