"""Pods, nodes and plugin contexts for the tests of the domains."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from domains.forecast.curves.profiles import Profiles
from multisched.framework.context import PluginContext, WaitingPods
from multisched.framework.cycle_state import CycleState
from multisched.framework.ledger import Ledger
from multisched.framework.node_view import Rows
from multisched.framework.points import CycleView
from multisched.model.objects import Node, Owner, Pod, PodSpec
from multisched.state.cluster_cache import ClusterCache
from multisched.state.ledgers import LedgerRegistry

GPU = "nvidia.com/gpu"


class NobodyWaits:
    """A domain in which Permit holds no pod."""

    def waiting(self) -> Sequence[Pod]:
        return ()

    def allow(self, uid: str, plugin: str) -> bool:
        return False

    def reject(self, uid: str, plugin: str, reason: str) -> bool:
        return False


def make_pod(
    name: str,
    *,
    requests: Mapping[str, int] | None = None,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    owner: Owner | None = None,
    node: str = "",
    namespace: str = "default",
    scheduler: str = "default-scheduler",
) -> Pod:
    return Pod(
        namespace=namespace,
        name=name,
        uid=f"uid-{name}",
        version=1,
        spec=PodSpec(scheduler_name=scheduler, requests=requests or {}),
        labels=labels or {},
        annotations=annotations or {},
        owner=owner,
        node=node,
    )


def make_node(
    name: str,
    *,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    **allocatable: int,
) -> Node:
    """`gpu` stands for nvidia.com/gpu."""
    amounts = {GPU if key == "gpu" else key: amount for key, amount in allocatable.items()}
    return Node(
        name=name, uid=f"uid-{name}", version=1, labels=labels or {}, annotations=annotations or {}, allocatable=amounts
    )


def make_profiles(
    dimensions: tuple[str, ...], *, version: int = 1, **services: Mapping[str, NDArray[np.float64]]
) -> Profiles:
    """`services`: dimension -> use in each of the week's 168 hours; two underscores stand for the slash of a namespace."""
    peak = np.full((len(services), len(dimensions), 168), np.nan, np.float32)
    for number, curves in enumerate(services.values()):
        for name, curve in curves.items():
            peak[number, dimensions.index(name)] = curve
    names = tuple(name.replace("__", "/") for name in services)
    origin, error = np.zeros(peak.shape[:2], np.uint8), np.zeros(peak.shape[:2], np.float32)
    return Profiles(version, 0.0, 0.0, names, dimensions, peak, peak, peak, origin, error)


def make_context(
    cache: ClusterCache | None = None, *, domain: str = "test", waiting: WaitingPods | None = None
) -> PluginContext:
    cache = cache if cache is not None else ClusterCache()
    return PluginContext(
        domain=domain,
        nodes=cache.nodes,
        waiting_pods=waiting or NobodyWaits(),
        hold=cache.ledgers,
        objects=cache.objects,
    )


def make_view(cache: ClusterCache) -> CycleView:
    return CycleView(cache.nodes, CycleState())


def all_rows(cache: ClusterCache) -> Rows:
    return np.array([row for row, _ in cache.nodes.live_rows()], np.intp)


def row_of(cache: ClusterCache, name: str) -> int:
    row = cache.nodes.row_of(name)
    assert row is not None
    return row


def make_cache(nodes: Iterable[Node], *ledgers: Ledger) -> ClusterCache:
    book = LedgerRegistry()
    for ledger in ledgers:
        book.register(ledger)
    cache = ClusterCache(book)
    for node in nodes:
        cache.set_node(node)
    return cache
