"""Nodes and pods in a cache with a ledger, and the input of a repair plan made of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from domains.forecast.curves.predictor import Predictor
from domains.forecast.curves.quantized_profiles import QuantizedProfiles
from domains.forecast.ledger.peak_ledger import PeakLedger
from domains.forecast.repair.snapshot import Snapshot, take_snapshot
from multisched.framework.repair import RepairInput
from multisched.model.objects import Node, Owner, Pod
from multisched.model.selectors import LabelSelector, Operator, Requirement
from multisched.state.cluster_cache import ClusterCache
from multisched.testing.builders import all_rows, make_cache, make_node, make_pod, row_of
from tests.unit.domains.forecast.profiles import make_profiles

HOURS = np.arange(168)
PROFILES = make_profiles(
    ("cpu", "log"),
    web={"cpu": np.full(168, 0.5), "log": np.where(HOURS % 24 == 20, 30.0, 3.0)},
    batch={"cpu": 0.1 + 0.2 * (HOURS % 24 == 3), "log": np.full(168, 1.0)},
)
WEB = Owner("ReplicaSet", "web", "rs-web")
OURS = frozenset({"ours"})
DIMENSIONS = ("cpu", "log")


def make_ledger(*, has_profiles: bool = True) -> PeakLedger:
    quantized = QuantizedProfiles(PROFILES, DIMENSIONS) if has_profiles else None
    return PeakLedger("peaks", Predictor(DIMENSIONS, quantized), {})


def node(name: str, *, cpu: int = 8_000, log: str = "100") -> Node:
    annotations = {"multisched.io/capacity-log": log} if log else {}
    return make_node(name, cpu_milli=cpu, memory_bytes=1 << 35, pods=10, annotations=annotations)


def pod(name: str, service: str = "web", at: str = "", **changes: Any) -> Pod:
    """`cpu`, `namespace`, and fields of a Pod."""
    own = {"owner": WEB, "is_ready": True, "labels": {"multisched.io/service": service, "app": service}}
    return make_pod(name, cpu_milli=changes.pop("cpu", 100), scheduler="ours", node=at, **{**own, **changes})


class RepairCluster:
    """Nodes and pods in a cache that tells a ledger of them."""

    def __init__(self, nodes: Iterable[Node], pods: Iterable[Pod] = (), ledger: PeakLedger | None = None) -> None:
        self.ledger = ledger if ledger is not None else make_ledger()
        self.cache: ClusterCache = make_cache(nodes, self.ledger)
        for one in pods:
            self.cache.place(one)

    def scene(self, rows: Sequence[str] | None = None, nominated: Iterable[tuple[Pod, str]] = ()) -> RepairInput:
        at = all_rows(self.cache) if rows is None else np.array(sorted(row_of(self.cache, r) for r in rows), np.intp)
        return RepairInput(
            domain="forecast",
            nodes=self.cache.nodes,
            rows=at,
            placed=tuple((entry.pod, entry.row) for entry in self.cache if entry.row >= 0),
            nominated=tuple((one, row_of(self.cache, name)) for one, name in nominated),
            objects=self.cache.objects,
            scheduler_names=OURS,
            fits=lambda _: np.ones(len(at), np.bool_),
        )

    def snapshot(self, rows: Sequence[str] | None = None, nominated: Iterable[tuple[Pod, str]] = ()) -> Snapshot:
        return take_snapshot(self.scene(rows, nominated), self.ledger, OURS)


def selector(**labels: str) -> LabelSelector:
    return LabelSelector(tuple(Requirement(key, Operator.IN, (value,)) for key, value in labels.items()))
