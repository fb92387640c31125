"""Pods and nodes for tests, in few words: documents as the API has them, and the objects that the scheduler reads from them.

Documents say what `kubectl get -o json` would, as far as scheduling reads it. Their quantities are the API's: "500m", "8Gi".
Objects count as the scheduler does: milli-CPU and bytes. Each is decoded from a document, so it is one that a cluster can have.
Around them stand the table and the context that a plugin is given. All of it is for tests of plugins, yours included.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import orjson
from msgspec.structs import replace

from multisched.framework.context import PluginContext, WaitingPods
from multisched.framework.cycle_state import CycleState
from multisched.framework.ledger import Ledger
from multisched.framework.node_view import Rows
from multisched.framework.points import CycleView, QueuedGang, QueuedPod
from multisched.model.decode import Decoder
from multisched.model.objects import Node, Pod, PodSpec
from multisched.queueing.pod_queue import PodQueue
from multisched.state.cluster_cache import ClusterCache
from multisched.state.ledgers import LedgerRegistry

Document = dict[str, Any]
Quantity = str | int
"""As the API reads it: a plain number is whole CPUs, or bytes, or a count."""

GPU: Final = "nvidia.com/gpu"
HOSTNAME: Final = "kubernetes.io/hostname"
GIBI: Final = 2**30
NOTHING: Final[Mapping[str, Any]] = {}

_DECODER: Final = Decoder()
"""One for all: pods of equal specs share one spec, as they do in a program."""


# -- documents ---------------------------------------------------------------------------------------------------------


def container(
    name: str = "main",
    *,
    cpu: Quantity | None = None,
    memory: Quantity | None = None,
    extra: Mapping[str, Quantity] = NOTHING,
    image: str = "registry.example/app:v1",
    **fields: Any,
) -> Document:
    """`extra`: what it requests beside cpu and memory, by name. `fields`: further ones of a container, such as `ports`."""
    requests = {"cpu": cpu, "memory": memory, **extra}
    asked = {resource: str(amount) for resource, amount in requests.items() if amount is not None}
    return {"name": name, "image": image, "resources": {"requests": asked}, **fields}


def pod_document(
    name: str = "p",
    *containers: Document,
    node: str = "",
    namespace: str = "default",
    labels: Mapping[str, str] = NOTHING,
    annotations: Mapping[str, str] = NOTHING,
    metadata: Mapping[str, Any] = NOTHING,
    status: Mapping[str, Any] = NOTHING,
    **spec: Any,
) -> Document:
    """A pod that runs on `node`, or waits for one; without `containers` it has one that requests nothing.

    `metadata`, `status` and `spec` are further fields by the API's names, such as `nodeSelector`.
    """
    placed = {"nodeName": node} if node else {}
    own = {"name": name, "namespace": namespace, "uid": f"uid-{name}", "labels": dict(labels)}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**own, "annotations": dict(annotations), **metadata},
        "spec": {
            "schedulerName": "default-scheduler",
            "containers": list(containers) or [container()],
            **placed,
            **spec,
        },
        "status": {"phase": "Running" if node else "Pending", **status},
    }


def node_document(
    name: str = "n",
    *,
    cpu: Quantity = "4",
    memory: Quantity = "8Gi",
    pods: Quantity = 110,
    extra: Mapping[str, Quantity] = NOTHING,
    labels: Mapping[str, str] = NOTHING,
    annotations: Mapping[str, str] = NOTHING,
    metadata: Mapping[str, Any] = NOTHING,
    status: Mapping[str, Any] = NOTHING,
    **spec: Any,
) -> Document:
    """A node with so much room, and the label that its kubelet gives it. `extra`: resources beside the three, by name.

    `metadata`, `status` and `spec` are further fields by the API's names, such as `taints`.
    """
    room = {key: str(amount) for key, amount in {"cpu": cpu, "memory": memory, "pods": pods, **extra}.items()}
    own = {"name": name, "uid": f"uid-{name}", "labels": {HOSTNAME: name, **labels}}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {**own, "annotations": dict(annotations), **metadata},
        "spec": spec,
        "status": {"allocatable": room, "capacity": dict(room), **status},
    }


# -- objects -----------------------------------------------------------------------------------------------------------


def decode_pod(document: Document) -> Pod:
    """What the scheduler reads in a pod's document, which has to be a good one."""
    pod = _DECODER.pod(orjson.dumps(document))
    assert not pod.malformed, pod.malformed
    return pod


def decode_node(document: Document) -> Node:
    """What the scheduler reads in a node's document, which has to be a good one."""
    node = _DECODER.node(orjson.dumps(document))
    assert not node.malformed, node.malformed
    return node


def make_pod(
    name: str = "p",
    *,
    cpu_milli: int = 0,
    memory_bytes: int = 0,
    extra: Mapping[str, int] = NOTHING,
    priority: int = 0,
    scheduler: str = "default-scheduler",
    spec: PodSpec | None = None,
    node: str = "",
    **fields: Any,
) -> Pod:
    """A pod of one container. `spec` takes the place of what else would be asked for; `fields` are those of Pod."""
    cpu, memory = f"{cpu_milli}m" if cpu_milli else None, memory_bytes or None
    asking = container(cpu=cpu, memory=memory, extra=extra)
    pod = decode_pod(pod_document(name, asking, node=node, priority=priority, schedulerName=scheduler))
    return replace(pod, **{"version": 1, "spec": spec or pod.spec, **fields})


def make_node(
    name: str = "n",
    *,
    cpu_milli: int = 4_000,
    memory_bytes: int = 8 * GIBI,
    pods: int = 110,
    extra: Mapping[str, int] = NOTHING,
    labels: Mapping[str, str] = NOTHING,
    **fields: Any,
) -> Node:
    """A node with so much room, and the label that its kubelet gives it; `fields` are those of Node."""
    document = node_document(name, cpu=f"{cpu_milli}m", memory=memory_bytes, pods=pods, extra=extra, labels=labels)
    return replace(decode_node(document), **{"version": 1, **fields})


def pop_pod(queue: PodQueue, now_s: float) -> QueuedPod | None:
    """The next pod of a queue in which no gang waits."""
    popped = queue.pop(now_s)
    assert not isinstance(popped, QueuedGang), "a gang is first"
    return popped


# -- what a plugin is given --------------------------------------------------------------------------------------------


class NobodyWaits:
    """A domain in which Permit holds no pod."""

    def waiting(self) -> Sequence[Pod]:
        return ()

    def allow(self, uid: str, plugin: str) -> bool:
        return False

    def reject(self, uid: str, plugin: str, reason: str) -> bool:
        return False


def make_cache(nodes: Iterable[Node] = (), *ledgers: Ledger) -> ClusterCache:
    """A cluster of these nodes. Pods come to it by `place`, which tells the ledgers of them."""
    registry = LedgerRegistry()
    for ledger in ledgers:
        registry.register(ledger)
    cache = ClusterCache(registry)
    for node in nodes:
        cache.set_node(node)
    return cache


def make_context(
    cache: ClusterCache | None = None, *, domain: str = "test", waiting: WaitingPods | None = None
) -> PluginContext:
    """What a plugin is built with, over a cluster of its own unless one is given."""
    cache = cache if cache is not None else ClusterCache()
    return PluginContext(
        domain=domain,
        nodes=cache.nodes,
        waiting_pods=waiting or NobodyWaits(),
        hold=cache.ledgers,
        objects=cache.objects,
    )


def make_view(cache: ClusterCache) -> CycleView:
    """What a plugin is shown in one attempt."""
    return CycleView(cache.nodes, CycleState())


def all_rows(cache: ClusterCache) -> Rows:
    """The rows of all nodes, as plugins are asked about them."""
    return np.array([row for row, _ in cache.nodes.live_rows()], np.intp)


def row_of(cache: ClusterCache, name: str) -> int:
    """The row of a node that is there."""
    row = cache.nodes.row_of(name)
    assert row is not None
    return row
