"""A small cluster with storage for tests of VolumeBinding: four nodes in two zones, its ledger, and the plugin."""

from __future__ import annotations

from typing import Any

import numpy as np

from multisched.framework.context import PluginContext
from multisched.framework.cycle_state import CycleState
from multisched.framework.points import CycleView
from multisched.framework.ports import VolumeWriter
from multisched.framework.status import Code, Status
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Pod
from multisched.plugins.volumes.volume_binding import volume_binding_of
from multisched.plugins.volumes.volume_binding_args import VolumeBindingArgs
from multisched.plugins.volumes.volume_ledger import VolumeLedger
from multisched.state.ledgers import LedgerRegistry
from multisched.state.node_table import NodeTable
from multisched.state.object_store import ObjectStore
from multisched.testing.builders import NoWaitingPods, decode_node, decode_pod, node_document, pod_document
from tests.unit.plugins.scenes import put
from tests.unit.plugins.volumes.storage_documents import uses

Document = dict[str, Any]
PV, PVC, CLASS = ObjectKind.PERSISTENT_VOLUME, ObjectKind.PERSISTENT_VOLUME_CLAIM, ObjectKind.STORAGE_CLASS
CSI_NODE, CSI_DRIVER, CAPACITY = ObjectKind.CSI_NODE, ObjectKind.CSI_DRIVER, ObjectKind.CSI_STORAGE_CAPACITY
ZONES = {"n0": "a", "n1": "a", "n2": "b", "n3": "b"}


class Storage:
    """The cluster. `wait` is a class with a provisioner, `local` one without, `now` binds at once."""

    def __init__(self, args: VolumeBindingArgs | None = None, writer: VolumeWriter | None = None) -> None:
        self.nodes, self.objects, self.ledgers = NodeTable(), ObjectStore(), LedgerRegistry()
        for name, zone in ZONES.items():
            self.nodes.set_node(decode_node(node_document(name, labels={"host": name, "zone": zone})))
        self.version = 1
        self.put(CLASS, storage_class("wait"), storage_class("local", "kubernetes.io/no-provisioner"))
        self.put(CLASS, storage_class("now", mode="Immediate"))
        context = PluginContext("test", self.nodes, NoWaitingPods(), self.ledgers, self.objects, writer)
        self.plugin = volume_binding_of(args or VolumeBindingArgs(), context)
        ledger = next(iter(self.ledgers))
        assert isinstance(ledger, VolumeLedger)
        self.ledger = ledger

    def put(self, kind: ObjectKind, *documents: Document) -> None:
        """As the watch would: each with a version of its own."""
        for document in documents:
            self.version += 1
            document["metadata"]["resourceVersion"] = str(self.version)
            put(self.objects, kind, document)

    def row(self, node: str) -> int:
        row = self.nodes.row_of(node)
        assert row is not None
        return row

    def pre_filter(self, pod: Pod) -> Status:
        return self.plugin.pre_filter(self.view(), pod).status

    def view(self) -> CycleView:
        return CycleView(self.nodes, CycleState())

    def refused(self, pod: Pod) -> dict[str, tuple[str, ...]]:
        """Node -> why not; nodes that pass are left out."""
        found = self.statuses(pod)
        assert all(status.code is Code.UNSCHEDULABLE_AND_UNRESOLVABLE for status in found.values())
        return {name: status.reasons for name, status in found.items()}

    def statuses(self, pod: Pod) -> dict[str, Status]:
        """Node -> what Filter says of it, errors too; nodes that pass are left out."""
        view = self.view()
        status = self.plugin.pre_filter(view, pod).status
        assert status.is_success, status
        rows = np.array([self.row(name) for name in ZONES], np.intp)
        codes = self.plugin.filter(view, pod, rows)
        return {name: self.plugin.reasons.status(int(code)) for name, code in zip(ZONES, codes, strict=True) if code}

    def assume(self, pod: Pod, node: str) -> None:
        """As commit does."""
        row = self.row(node)
        assert self.ledger.is_used_by(pod)
        assert self.ledger.fits(pod, row) == ""
        self.ledger.take(pod, row)


def pod(name: str, *claims: str) -> Pod:
    return decode_pod(pod_document(name, volumes=uses(*claims)))


def claim(name: str, storage_class: str | None = "wait", *, size: str = "1Gi", **fields: Any) -> Document:
    """`volume` and `bound`, `node` (selected), `modes`, `selector`, `phase`, `deleting`, `owner`, `uid`."""
    annotations = {}
    if fields.get("bound"):
        annotations["pv.kubernetes.io/bind-completed"] = "yes"
    if "node" in fields:
        annotations["volume.kubernetes.io/selected-node"] = fields["node"]
    metadata: Document = {"name": name, "namespace": "default", "annotations": annotations}
    metadata["uid"] = fields.get("uid", f"claim-{name}")
    if fields.get("deleting"):
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    if fields.get("owner"):
        metadata["ownerReferences"] = [{"kind": "Pod", "name": "p", "uid": fields["owner"], "controller": True}]
    spec: Document = {
        "accessModes": fields.get("modes", ["ReadWriteOnce"]),
        "resources": {"requests": {"storage": size}},
        "volumeName": fields.get("volume", fields.get("bound", "")),
    }
    if storage_class is not None:
        spec["storageClassName"] = storage_class
    if "selector" in fields:
        spec["selector"] = fields["selector"]
    return {"metadata": metadata, "spec": spec, "status": {"phase": fields.get("phase", "Pending")}}


def volume(name: str, storage_class: str = "local", *, size: str = "1Gi", **fields: Any) -> Document:
    """`host` or `zone` for its node affinity, `claim` with `claim_uid` for its claimRef, `phase`, `labels`, `modes`."""
    spec: Document = {
        "capacity": {"storage": size},
        "accessModes": fields.get("modes", ["ReadWriteOnce"]),
        "storageClassName": storage_class,
    }
    for key in ("host", "zone"):
        if key in fields:
            expression = {"key": key, "operator": "In", "values": [fields[key]]}
            spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}
    if "claim" in fields:
        reference = {"namespace": "default", "name": fields["claim"], "uid": fields.get("claim_uid", "")}
        spec["claimRef"] = reference
    spec |= fields.get("source", {})
    metadata = {"name": name, "uid": f"volume-{name}", "labels": fields.get("labels", {})}
    return {"metadata": metadata, "spec": spec, "status": {"phase": fields.get("phase", "Available")}}


def storage_class(
    name: str, provisioner: str = "csi.example.com", mode: str | None = "WaitForFirstConsumer", **fields: Any
) -> Document:
    """`zones`: its allowedTopologies."""
    found: Document = {"metadata": {"name": name, "uid": f"class-{name}"}, "provisioner": provisioner}
    if mode is not None:
        found["volumeBindingMode"] = mode
    if "zones" in fields:
        found["allowedTopologies"] = [{"matchLabelExpressions": [{"key": "zone", "values": fields["zones"]}]}]
    return found


def driver(*, tracks_capacity: bool) -> Document:
    return {"metadata": {"name": "csi.example.com", "uid": "d"}, "spec": {"storageCapacity": tracks_capacity}}


def capacity(name: str, zone: str, room: str | None, largest: str | None = None) -> Document:
    found: Document = {
        "metadata": {"name": name, "namespace": "kube-system", "uid": f"capacity-{name}"},
        "storageClassName": "wait",
        "nodeTopology": {"matchLabels": {"zone": zone}},
    }
    if room is not None:
        found["capacity"] = room
    if largest is not None:
        found["maximumVolumeSize"] = largest
    return found
