"""Short builders of pods and nodes for tests: API documents, and the objects that the scheduler decodes from them.

Documents have the fields of `kubectl get -o json` that scheduling reads, with quantities of the API: "500m", "8Gi".
Objects have the scheduler's units: milli-CPU and bytes. Each object is decoded from a document, so it is one that can occur in a
cluster. Further builders make the node table and the context of a plugin. All of this is public: use it to test your own plugins.
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
"""A quantity of the API. A plain number is whole CPUs, bytes, or a count."""

GPU: Final = "nvidia.com/gpu"
HOSTNAME: Final = "kubernetes.io/hostname"
GIBI: Final = 2**30
NOTHING: Final[Mapping[str, Any]] = {}

_DECODER: Final = Decoder()
"""Shared, so that pods with equal specs share one spec object, as in a program."""


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
    """Builds a container. `extra`: other requests by resource name. `fields`: other fields of a container, such as `ports`."""
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
    """Builds a pod that runs on `node`, or is pending if `node` is empty. Without `containers` it has one that requests nothing.

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
    """Builds a node with this allocatable, and the hostname label that its kubelet sets. `extra`: further resources by name.

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
    """Decodes a pod's document as the scheduler does; it must be well-formed."""
    pod = _DECODER.pod(orjson.dumps(document))
    assert not pod.malformed, pod.malformed
    return pod


def decode_node(document: Document) -> Node:
    """Decodes a node's document as the scheduler does; it must be well-formed."""
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
    """Builds a pod of one container. `spec` replaces the spec made from the other arguments; `fields` are those of Pod."""
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
    """Builds a node with this allocatable, and the hostname label that its kubelet sets; `fields` are those of Node."""
    document = node_document(name, cpu=f"{cpu_milli}m", memory=memory_bytes, pods=pods, extra=extra, labels=labels)
    return replace(decode_node(document), **{"version": 1, **fields})


def pop_pod(queue: PodQueue, now_s: float) -> QueuedPod | None:
    """Pops the next pod of a queue; asserts that it is not a gang."""
    popped = queue.pop(now_s)
    assert not isinstance(popped, QueuedGang), "a gang is first"
    return popped


# -- arguments of plugins ----------------------------------------------------------------------------------------------


class NoWaitingPods:
    """Implements `WaitingPods` for a domain with no pods waiting at Permit."""

    def waiting(self) -> Sequence[Pod]:
        return ()

    def allow(self, uid: str, plugin: str) -> bool:
        return False

    def reject(self, uid: str, plugin: str, reason: str) -> bool:
        return False


def make_cache(nodes: Iterable[Node] = (), *ledgers: Ledger) -> ClusterCache:
    """Builds a cache of these nodes. Add pods with `place`, which updates the ledgers."""
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
    """Builds the context that a plugin's factory gets. The default cache is empty."""
    cache = cache if cache is not None else ClusterCache()
    return PluginContext(
        domain=domain,
        nodes=cache.nodes,
        waiting_pods=waiting or NoWaitingPods(),
        hold=cache.ledgers,
        objects=cache.objects,
    )


def make_view(cache: ClusterCache) -> CycleView:
    """Builds the view that a plugin gets in one attempt."""
    return CycleView(cache.nodes, CycleState())


def all_rows(cache: ClusterCache) -> Rows:
    """Returns the rows of all nodes, in the form that plugins get."""
    return np.array([row for row, _ in cache.nodes.live_rows()], np.intp)


def row_of(cache: ClusterCache, name: str) -> int:
    """Returns the row of a node that exists."""
    row = cache.nodes.row_of(name)
    assert row is not None
    return row
