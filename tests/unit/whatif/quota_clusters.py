"""Clusters with quotas, as lists of the API server: one node, and the namespaces of ACK's manual."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import orjson

from multisched.model.decode import Decoder
from multisched.testing.builders import Document, container, node_document, pod_document
from multisched.whatif.sandbox import ClusterSnapshot, SnapshotReader
from tests.unit.plugins.quota.trees import Json, acks_example

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SCHEDULER = "forecast-scheduler"


def quota_tree(root: Any, name: str = "teams", namespace: str = "kube-system") -> Json:
    metadata = {"name": name, "namespace": namespace, "uid": name}
    version = "scheduling.sigs.k8s.io/v1beta1"
    status = {"conditions": [{"type": "InForce", "status": "True", "reason": "InForce"}]}
    kind = {"apiVersion": version, "kind": "ElasticQuotaTree"}
    return {**kind, "metadata": metadata, "spec": {"root": root}, "status": status}


def node(name: str = "n", cpu: str = "56") -> Document:
    return node_document(name, cpu=cpu)


def namespace(name: str) -> Document:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def pods(namespace: str, running: int, waiting: int = 0, *, cpu: str = "5", **fields: Any) -> list[Document]:
    """Named by number, the oldest first; those that run do so on `n`."""
    return [
        pod_document(
            f"pod-{number}",
            container(cpu=cpu),
            node="n" if number < running else "",
            namespace=namespace,
            metadata={"uid": f"{namespace}-{number}", "creationTimestamp": f"2026-01-01T00:00:{number:02}Z"},
            schedulerName=SCHEDULER,
            **fields,
        )
        for number in range(running + waiting)
    ]


def walk_through(*counts: int) -> list[Document]:
    """ACK's manual with so many of five pods running in each namespace."""
    teams = [namespace(f"namespace{number}") for number in range(1, 5)]
    own = [one for number, count in enumerate(counts, 1) for one in pods(f"namespace{number}", count, 5 - count)]
    return [node(), quota_tree(acks_example()), *teams, *own]


def snapshot_of(documents: Sequence[Document]) -> ClusterSnapshot:
    reader = SnapshotReader(Decoder())
    for document in documents:
        reader.add(msgspec.Raw(orjson.dumps(document)))
    return reader.snapshot(NOW)
