"""Other schedulers and users: they place pods of other schedulers, and bind some of ours."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from multisched.model.objects import Pod
from tests.kit.wire.faults import FOREIGN
from tests.kit.world.api_user import NAMESPACE, ApiUser, pods_path
from tests.kit.world.labels import HOSTNAME
from tests.kit.world.nodes import NODES
from tests.kit.world.pod_manifests import anti_affinity, mixed_pod, small_spec
from tests.kit.world.store_view import StoreView

NO_LABELS: Mapping[str, str] = {}
GIANT_PORT = 9_900
GIANT_TOLERATIONS = 300
"""More tolerations than the program decodes; the API has no such limit."""


class ExternalActors:
    """Places and binds pods. `on_bound`: called with uid and node of each."""

    def __init__(
        self,
        user: ApiUser,
        objects: StoreView,
        rng: random.Random,
        next_number: Callable[[], int],
        on_bound: Callable[[str, str], None],
    ) -> None:
        self._user = user
        self._objects = objects
        self._rng = rng
        self._next_number = next_number
        self._on_bound = on_bound

    async def place(
        self,
        node: str,
        *,
        annotations: Mapping[str, str] = NO_LABELS,
        cpu: str = "10m",
        labels: Mapping[str, str] = NO_LABELS,
        spec: Mapping[str, Any] | None = None,
        namespace: str = NAMESPACE,
    ) -> str:
        """Creates a pod of another scheduler on a node, as static pods are, with the fields of `spec`. Returns its uid."""
        metadata = {
            "name": f"{FOREIGN}{self._next_number()}",
            "namespace": namespace,
            "labels": dict(labels),
            "annotations": dict(annotations),
        }
        whole = small_spec("default-scheduler", cpu) | {"nodeName": node, **(spec or {})}
        return await self._place({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": whole})

    async def _place(self, pod: dict[str, Any]) -> str:
        """Creates a pod with a node. Returns its uid; empty if it was not created."""
        answer = await self._user.send("POST", pods_path(pod["metadata"].get("namespace", NAMESPACE)), pod)
        if answer.status != 201:
            return ""
        uid = str(orjson.loads(answer.body)["metadata"]["uid"])
        self._on_bound(uid, pod["spec"]["nodeName"])
        return uid

    async def place_averse(self, node: str, labels: Mapping[str, str], key: str = HOSTNAME) -> str:
        """Creates a pod of another scheduler on a node, with anti-affinity to these labels. Returns its uid.

        `key`: topology key of the anti-affinity.
        """
        spec = small_spec("default-scheduler", "10m") | {"nodeName": node, "affinity": anti_affinity(labels, key)}
        metadata = {"name": f"{FOREIGN}averse-{self._next_number()}", "labels": {}}
        return await self._place({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})

    async def place_giant(self, node: str) -> str:
        """Creates a pod on a node with too many tolerations, a host port, and anti-affinity to `app-0`. Returns its uid."""
        spec = small_spec("default-scheduler", "10m") | {"nodeName": node}
        spec["containers"][0]["ports"] = [{"containerPort": 80, "hostPort": GIANT_PORT}]
        spec["affinity"] = anti_affinity({"app": "app-0"})
        metadata = {"name": f"{FOREIGN}giant-{self._next_number()}", "labels": {"size": "giant"}}
        plain = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        tolerations = [{"key": f"t{at}", "operator": "Exists"} for at in range(GIANT_TOLERATIONS)]
        return await self._place(plain | {"spec": spec | {"tolerations": tolerations}})

    async def add_beside_giant(self, node: str) -> None:
        """Creates pods that must not be on the giant's node: with its port, excluded by it, or excluding it."""
        where = {"nodeSelector": {HOSTNAME: node}}
        port = small_spec("forecast-scheduler", "10m") | where
        port["containers"][0]["ports"] = [{"containerPort": 80, "hostPort": GIANT_PORT}]
        enemy = small_spec("forecast-scheduler", "10m") | where
        averse = small_spec("forecast-scheduler", "10m") | where
        averse["affinity"] = anti_affinity({"size": "giant"})
        for spec, labels in ((port, {}), (enemy, {"app": "app-0"}), (averse, {})):
            metadata = {"name": f"beside-{self._next_number()}", "labels": labels}
            await self._user.create_pod({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})

    async def bind_one_of_ours(self) -> None:
        """Creates a pod of ours and binds it before we can, to a large node that we may be filling."""
        name, virtual = f"{FOREIGN}{self._next_number()}", 9 + 10 * self._rng.randrange(NODES // 10)
        pod = mixed_pod(name, self._rng)
        pod["metadata"]["annotations"] = {}
        pod["spec"] = {"schedulerName": "job-scheduler", "containers": pod["spec"]["containers"]}
        pod["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "100m"}}
        pod["spec"]["containers"][0].pop("ports", None)
        await self._user.send("POST", pods_path(NAMESPACE), pod)
        await asyncio.sleep(self._rng.uniform(0.0, 0.04))
        found = self._objects.pods().get(f"default/{name}")
        if found is None:
            return  # another disruption has deleted it
        await self.bind(found, f"node-{virtual}")

    async def bind(self, pod: Pod, node: str) -> None:
        """Binds a pod of ours."""
        binding = {"metadata": {"name": pod.name, "uid": pod.uid}, "target": {"name": node}}
        path = f"{pods_path(pod.namespace)}/{pod.name}/binding"
        if (await self._user.send("POST", path, binding)).status == 201:
            self._on_bound(pod.uid, node)
