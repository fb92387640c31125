"""Small clusters for plugin tests: API documents, the node table made of them, and strategies that draw both.

A scene keeps the documents, so that a test can compute by hand, from what a user wrote, what a plugin must answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
from hypothesis import strategies as st

from multisched.framework.context import PluginContext
from multisched.framework.cycle_state import CycleState
from multisched.framework.node_view import Rows
from multisched.framework.points import CycleView, FilterPlugin, PreFilterPlugin, ScorePlugin
from multisched.framework.status import Code, Status
from multisched.model.object_kinds import ObjectKind
from multisched.state.ledgers import LedgerRegistry
from multisched.state.node_table import NodeTable
from multisched.state.object_store import ObjectStore
from multisched.testing.builders import (
    Document,
    NoWaitingPods,
    container,
    decode_node,
    decode_pod,
    node_document,
    pod_document,
)

MEBI = 1024 * 1024


def context_of(table: NodeTable | None = None, objects: ObjectStore | None = None) -> PluginContext:
    known = ObjectStore() if objects is None else objects  # an empty store is falsy
    return PluginContext("test", table or NodeTable(), NoWaitingPods(), LedgerRegistry(), known)


def holding(images: Mapping[str, int]) -> Document:
    """The status of a node that has these images; name -> bytes."""
    return {"images": [{"names": [name], "sizeBytes": size} for name, size in images.items()]}


def put(objects: ObjectStore, kind: ObjectKind, *documents: Document) -> None:
    """Objects besides pods and nodes, by way of their JSON."""
    for document in documents:
        objects.set(kind, kind.definition.decode(orjson.dumps(document)))


@dataclass
class Scene:
    """Nodes, the pods on them, and one pending pod."""

    nodes: Sequence[Document]
    placed: Sequence[Document]
    pending: Document

    def __post_init__(self) -> None:
        self.table, self.objects = NodeTable(), ObjectStore()
        # A node that comes and goes leaves a free row in between, as in any cluster that has lived for a while.
        for document in (self.nodes[0], node_document("gone"), *self.nodes[1:]):
            self.table.set_node(decode_node(document))
        self.table.remove_node("gone")
        for document in self.placed:
            row = self.table.row_of(document["spec"]["nodeName"])
            assert row is not None
            self.table.add_pod(row, decode_pod(document))
        self.pod = decode_pod(self.pending)
        self.names = [document["metadata"]["name"] for document in self.nodes]

    def context(self) -> PluginContext:
        return context_of(self.table, self.objects)

    def on(self, name: str) -> list[Document]:
        return [document for document in self.placed if document["spec"]["nodeName"] == name]

    def rows(self, names: Sequence[str]) -> Rows:
        return np.array(sorted(row for row in map(self.table.row_of, names) if row is not None), np.intp)

    def view(self) -> CycleView:
        return CycleView(self.table, CycleState())

    def statuses(self, plugin: FilterPlugin) -> dict[str, tuple[Code, tuple[str, ...]] | None]:
        """Node name -> (code, reasons), None where the pod passes. Asked about all rows, and about each row alone."""
        view = self.view()
        skips = isinstance(plugin, PreFilterPlugin) and plugin.pre_filter(view, self.pod).status.code is Code.SKIP
        rows = self.rows(self.names)
        codes = np.zeros(len(rows), np.uint8) if skips else plugin.filter(view, self.pod, rows)
        assert codes.dtype == np.uint8
        assert codes.flags.writeable
        alone = [0 if skips else int(plugin.filter(view, self.pod, rows[at : at + 1])[0]) for at in range(len(rows))]
        assert codes.tolist() == alone
        found = (plugin.reasons.status(int(code)) for code in codes)
        names = [self.table.node(int(row)).name for row in rows]
        return {name: _told(status) for name, status in zip(names, found, strict=True)}

    def scores(self, plugin: ScorePlugin) -> dict[str, int]:
        """Node name -> raw score. Asked about all rows, and about each row alone."""
        view, rows = self.view(), self.rows(self.names)
        scores = plugin.score(view, self.pod, rows)
        assert scores.dtype == np.int64
        assert scores.tolist() == [int(plugin.score(view, self.pod, rows[at : at + 1])[0]) for at in range(len(rows))]
        return {self.table.node(int(row)).name: int(score) for row, score in zip(rows, scores, strict=True)}


def _told(status: Status) -> tuple[Code, tuple[str, ...]] | None:
    return None if status.is_success else (status.code, status.reasons)


def parsed(requests: Mapping[str, str]) -> dict[str, int]:
    """Amounts of the quantities that these documents are written with: `<n>m` and whole numbers."""
    return {name: int(text.removesuffix("m")) for name, text in requests.items()}


# -- strategies --------------------------------------------------------------------------------------------------------

KEYS, VALUES = ("zone", "disk", "gen"), ("a", "b", "3", "07", "12", "-1")
IMAGES = ("registry.example/app:v1", "registry.example/huge:v2", "registry.example/plain")
IPS = ("", "0.0.0.0", "10.0.0.1", "10.0.0.2")
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
EXTRA = ("nvidia.com/gpu", "example.com/fpga", "hugepages-2Mi", "ephemeral-storage")

ports = st.fixed_dictionaries(
    {
        "hostPort": st.sampled_from((0, 80, 443)),
        "hostIP": st.sampled_from(IPS),
        "protocol": st.sampled_from(("TCP", "UDP")),
    }
)
taints = st.fixed_dictionaries(
    {"key": st.sampled_from(("k", "l")), "value": st.sampled_from(("", "v")), "effect": st.sampled_from(EFFECTS)}
)
tolerations = st.fixed_dictionaries(
    {
        "key": st.sampled_from(("", "k", "l", "node.kubernetes.io/unschedulable")),
        "operator": st.sampled_from(("", "Equal", "Exists", "Lt", "Gt")),
        "value": st.sampled_from(("", "v")),
        "effect": st.sampled_from(("", *EFFECTS)),
    }
)
requirements = st.fixed_dictionaries(
    {
        "key": st.sampled_from(KEYS),
        "operator": st.sampled_from(("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Nonsense")),
        "values": st.lists(st.sampled_from((*VALUES, "not valid!")), max_size=3),
    }
)
fields = st.fixed_dictionaries(
    {
        "key": st.sampled_from(("metadata.name", "metadata.name", "metadata.namespace")),
        "operator": st.sampled_from(("In", "NotIn")),
        "values": st.lists(st.sampled_from(("n0", "n1", "n2", "nowhere", "")), min_size=1, max_size=1),
    }
)
terms = st.fixed_dictionaries(
    {"matchExpressions": st.lists(requirements, max_size=2), "matchFields": st.lists(fields, max_size=2)}
)


_amounts = st.dictionaries(st.sampled_from(EXTRA), st.integers(0, 3), max_size=2)
_containers: dict[str, st.SearchStrategy[Document]] = {
    "resources": st.builds(
        container,
        cpu=st.none() | st.sampled_from(("0m", "1m", "100m", "250m", "999m", "2000m", "9000m")),
        memory=st.none() | st.sampled_from((0, 1, 64 * MEBI, 200 * MEBI, 3000 * MEBI, 9000 * MEBI)),
        extra=_amounts,
    ),
    "ports": st.builds(container, ports=st.lists(ports, max_size=2)),
    "images": st.builds(container, image=st.sampled_from(IMAGES)),
}
_nodes: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "resources": st.fixed_dictionaries(
        {
            "cpu": st.sampled_from(("0m", "500m", "2000m", "4000m", "4001m")),
            "memory": st.sampled_from((0, 256 * MEBI, 4096 * MEBI, 8191 * MEBI + 7)),
            "pods": st.integers(0, 4),
            "extra": st.dictionaries(st.sampled_from(EXTRA), st.integers(0, 4)),
        }
    ),
    "labels": st.fixed_dictionaries({"labels": st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES))}),
    "taints": st.fixed_dictionaries({"taints": st.lists(taints, max_size=2), "unschedulable": st.booleans()}),
    "images": st.fixed_dictionaries(
        {
            "status": st.dictionaries(
                st.sampled_from((*IMAGES[:2], f"{IMAGES[2]}:latest")), st.integers(1, 3 * 10**9)
            ).map(holding)
        }
    ),
}
_pending: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "resources": st.fixed_dictionaries({"overhead": st.just({}) | st.just({"cpu": "50m", "memory": "1000"})}),
    "labels": st.fixed_dictionaries(
        {"nodeSelector": st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES), max_size=1)}
    ),
    "taints": st.fixed_dictionaries({"tolerations": st.lists(tolerations, max_size=2)}),
}
_plain = st.just(container())
_nothing: st.SearchStrategy[dict[str, Any]] = st.just({})


@st.composite
def scenes(draw: st.DrawFn, about: str) -> Scene:
    """Up to four nodes, up to five pods on them, one pending pod; drawn from few values, so that they meet.

    `about` says what is drawn: resources, labels, taints, ports or images; everything else is plain.
    """
    boxes = st.lists(_containers.get(about, _plain), min_size=1, max_size=2)
    fields = draw(st.lists(_nodes.get(about, _nothing), min_size=1, max_size=4))
    nodes = [node_document(f"n{index}", **one) for index, one in enumerate(fields)]
    pods = draw(st.lists(st.tuples(boxes, st.integers(0, len(nodes) - 1)), max_size=5)) if about in _containers else []
    placed = [pod_document(f"p{index}", *some, node=f"n{at}") for index, (some, at) in enumerate(pods)]
    spec = {"tolerations": [], "nodeSelector": {}, **draw(_pending.get(about, _nothing))}
    return Scene(nodes, placed, pod_document("pending", *draw(boxes), **spec))
