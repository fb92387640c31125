"""A cluster in process, on virtual time: API server, fake kubelets and controllers, with builders and waiting.

`async with a_cluster() as cluster` is one life. Time is the loop's (looptime): waiting costs nothing, and two runs with the
same seed do the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

from multisched.cluster.api.direct import DirectTransport
from multisched.cluster.api.server import ApiServer
from multisched.cluster.client.object_client import (
    NODES,
    PODS,
    Document,
    ObjectClient,
    Resource,
)
from multisched.cluster.controllers.run import run_controllers
from multisched.cluster.kubelet.kubelets import Kubelets
from multisched.cluster.kubelet.stages import StageSet
from multisched.cluster.kubelet.stages_builtin import builtin_stages
from multisched.testing.builders import container, node_document, pod_document

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
PATIENCE_S = 120.0
LOOK_EVERY_S = 0.05
PAUSE = "registry.k8s.io/pause:3.10"


class LoopClock:
    """Wall time that moves with the loop."""

    def now(self) -> datetime:
        return EPOCH + timedelta(seconds=self.monotonic())

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()


class Cluster:
    """One API server and what runs beside it."""

    def __init__(self, seed: int) -> None:
        self.clock = LoopClock()
        self.server = ApiServer(self.clock, seed=seed, rbac=False)
        self.transport = DirectTransport(self.server)
        self.client = ObjectClient(self.transport)

    async def create(self, resource: Resource, document: Document) -> Document:
        namespace = document["metadata"].get("namespace", "default") if resource.is_namespaced else ""
        body = {"apiVersion": resource.api_version, "kind": resource.kind, **document}
        return (await self.client.create(resource, namespace, body)).expect().document

    async def get(self, resource: Resource, name: str, namespace: str = "default") -> Document | None:
        answer = await self.client.get(resource, namespace if resource.is_namespaced else "", name)
        return answer.expect(404).document if answer.is_success else None

    async def list_all(self, resource: Resource, namespace: str = "") -> list[Document]:
        answer = await self.client.call("GET", resource.path(namespace))
        return list(answer.expect().document["items"])

    async def patch(self, resource: Resource, name: str, body: Document, subresource: str = "") -> Document:
        namespace = "default" if resource.is_namespaced else ""
        answer = await self.client.patch(resource, namespace, name, body=body, subresource=subresource)
        return answer.expect().document

    async def delete(self, resource: Resource, name: str, **options: Any) -> None:
        namespace = "default" if resource.is_namespaced else ""
        (await self.client.delete(resource, namespace, name, **options)).expect()

    async def bind(self, pod: str, node: str) -> None:
        body = {"target": {"kind": "Node", "name": node}}
        path = PODS.path("default", pod, "binding")
        (await self.client.call("POST", path, body=body)).expect()

    async def wait_until(
        self, resource: Resource, name: str, holds: Callable[[Document], object], namespace: str = "default"
    ) -> Document:
        """The object once it is there and `holds`."""
        found: Document | None = None
        async with asyncio.timeout(PATIENCE_S):
            while True:
                found = await self.get(resource, name, namespace)
                if found is not None and holds(found):
                    return found
                await asyncio.sleep(LOOK_EVERY_S)

    async def wait_listed(self, resource: Resource, holds: Callable[[list[Document]], object]) -> list[Document]:
        """All objects of a resource once they `hold` together."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                found = await self.list_all(resource)
                if holds(found):
                    return found
                await asyncio.sleep(LOOK_EVERY_S)

    async def wait_gone(self, resource: Resource, name: str, namespace: str = "default") -> None:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                if await self.get(resource, name, namespace) is None:
                    return
                await asyncio.sleep(LOOK_EVERY_S)


class Fleet(Cluster):
    """A cluster with fake kubelets and controllers."""

    def __init__(self, seed: int, stages: StageSet) -> None:
        super().__init__(seed)
        self.kubelets = Kubelets(self.transport, clock=self.clock, rng=Random(seed), stages=stages)


@asynccontextmanager
async def a_cluster(
    *nodes: Document, stages: StageSet | None = None, controllers: bool = True, seed: int = 1
) -> AsyncIterator[Fleet]:
    """A running cluster with these nodes; its kubelets' accounts are checked at the end."""
    cluster = Fleet(seed, stages if stages is not None else builtin_stages("fast"))
    for node in nodes:
        await cluster.create(NODES, node)
    tasks = [asyncio.create_task(cluster.kubelets.run())]
    if controllers:
        tasks.append(asyncio.create_task(run_controllers(cluster.transport, clock=cluster.clock, rng=Random(seed + 1))))
    await cluster.kubelets.wait_synced()
    try:
        yield cluster
        cluster.kubelets.validate_state()
        for task in tasks:
            assert not task.done(), task
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def a_node(name: str = "n", cpu: str = "100", pods: str = "1000", **labels: str) -> Document:
    return node_document(name, cpu=cpu, memory="1Ti", pods=pods, labels=labels)


def a_pod_spec(cpu: str = "10m", node: str = "n", **spec: Any) -> Document:
    """Bound at once where `node` is not empty: these tests are not about scheduling."""
    one = container("c", cpu=cpu, image=PAUSE)
    return {"containers": [one], **({"nodeName": node} if node else {}), **spec}


def a_pod(name: str, cpu: str = "10m", node: str = "n", metadata: Document | None = None, **spec: Any) -> Document:
    return pod_document(name, metadata=metadata or {}, **a_pod_spec(cpu, node, **spec))


def a_replica_set(name: str, replicas: int, **spec: Any) -> Document:
    return _replicated(name, replicas, a_pod_spec(**spec))


def a_deployment(name: str, replicas: int, *, image: str = PAUSE, **spec: Any) -> Document:
    pod = a_pod_spec()
    pod["containers"][0]["image"] = image
    made = _replicated(name, replicas, pod)
    made["spec"] |= spec
    return made


def _replicated(name: str, replicas: int, pod: Document) -> Document:
    labels = {"app": name}
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def a_job(name: str, *, annotations: dict[str, str] | None = None, labels: Any = None, **spec: Any) -> Document:
    template = {
        "metadata": {"annotations": annotations or {}, "labels": labels or {}},
        "spec": a_pod_spec(restartPolicy="Never"),
    }
    return {"metadata": {"name": name, "namespace": "default"}, "spec": {"template": template, **spec}}


def condition_of(document: Document, kind: str) -> Document:
    """The condition of this type; empty if there is none."""
    conditions = (document.get("status") or {}).get("conditions") or ()
    return next((dict(c) for c in conditions if c["type"] == kind), {})


def phases(pods: list[Document]) -> list[str]:
    return sorted(pod["status"]["phase"] for pod in pods)
