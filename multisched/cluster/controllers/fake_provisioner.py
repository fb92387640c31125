"""A fake dynamic provisioner: it does the work of a CSI driver's external-provisioner, without storage.

Has no state. For each claim whose storage class names this provisioner, it creates a volume that is bound to the claim. If the scheduler
has selected a node, the volume is in that node's zone. It deletes released volumes. It runs with the controllers of the embedded cluster,
and also against a real API server. Source: kubernetes-sigs/sig-storage-lib-external-provisioner, controller.go.
"""

from __future__ import annotations

import asyncio
import random

from multisched.cluster.admission.volume_rules import (
    PROVISIONED_BY,
    PROVISIONER,
    SELECTED_NODE,
    annotations_of,
    class_of,
    is_late,
    is_unbound,
    mode_of,
)
from multisched.cluster.client.object_client import CLAIMS, NODES, VOLUMES, Document, ObjectClient, WallClock, key_of
from multisched.cluster.controllers.context import ControllerContext
from multisched.cluster.controllers.reconcile_queue import ReconcileQueue
from multisched.model.wire import Transport

FAKE_PROVISIONER = "disk.multisched.io"
"""The name of the provisioner and of its CSI driver, as in storage classes."""

ZONE = "topology.kubernetes.io/zone"
CLAIMS_AT_ONCE = 8


async def run_provisioner(transport: Transport, *, clock: WallClock, rng: random.Random) -> None:
    """Runs only the provisioner, against any API server, until cancelled."""
    context = ControllerContext(ObjectClient(transport), clock=clock, rng=rng)
    provisioner = FakeProvisioner(context)
    caches = (context.claims, context.volumes, context.storage_classes)
    async with asyncio.TaskGroup() as group:
        for cache in caches:
            group.create_task(cache.watch.run(), name=f"watch {cache.resource.plural}")
        for cache in caches:
            await cache.watch.synced.wait()
        group.create_task(context.events.run(), name="events")
        group.create_task(provisioner.run(), name=provisioner.queue.name)


class FakeProvisioner:
    """One control loop over claims that need a volume, and released volumes."""

    def __init__(self, context: ControllerContext, name: str = FAKE_PROVISIONER) -> None:
        self._context = context
        self._name = name
        self._events = context.events.writer(name)
        self.queue = ReconcileQueue("provisioner", self.reconcile, rng=context.rng, workers=CLAIMS_AT_ONCE)
        context.claims.listen(self._changed)
        context.volumes.listen(self._changed)
        context.storage_classes.listen(self._class_changed)

    async def run(self) -> None:
        """Runs until cancelled."""
        await self.queue.run()

    def _changed(self, old: Document | None, new: Document | None) -> None:
        """Queues claims and volumes; their keys cannot collide, since volumes have no namespace."""
        if new is not None:
            self.queue.add(key_of(new))

    def _class_changed(self, old: Document | None, new: Document | None) -> None:
        if new is not None:
            for claim in self._context.claims.under(f"unbound/{new['metadata']['name']}"):
                self.queue.add(key_of(claim))

    async def reconcile(self, key: str) -> float | None:
        """Creates or deletes one volume. Raises RefusedError if the server rejects a write."""
        claim, volume = self._context.claims.find(key), self._context.volumes.find(key)
        if claim is not None and self._is_awaited(claim):
            await self._provision(claim)
        if volume is not None and self._is_over(volume):
            metadata = volume["metadata"]
            (await self._context.client.delete(VOLUMES, "", metadata["name"], uid=metadata["uid"])).expect(404, 409)
        return None

    def _is_awaited(self, claim: Document) -> bool:
        if claim["spec"].get("volumeName") or claim["metadata"].get("deletionTimestamp") or not is_unbound(claim):
            return False
        annotations = annotations_of(claim)
        storage_class = self._context.storage_classes.find(f"/{class_of(claim)}")
        if storage_class is None or annotations.get(PROVISIONER) != self._name:
            return False
        return not is_late(storage_class) or SELECTED_NODE in annotations

    def _is_over(self, volume: Document) -> bool:
        return (
            (volume.get("status") or {}).get("phase") == "Released"
            and volume["spec"].get("persistentVolumeReclaimPolicy") == "Delete"
            and annotations_of(volume).get(PROVISIONED_BY) == self._name
            and not volume["metadata"].get("deletionTimestamp")
        )

    async def _provision(self, claim: Document) -> None:
        metadata = claim["metadata"]
        name = f"pvc-{metadata['uid']}"
        storage_class = self._context.storage_classes.find(f"/{class_of(claim)}")
        if self._context.volumes.find(f"/{name}") is not None or storage_class is None:
            return
        terms = await self._accessible_from(claim, storage_class)
        if terms is None:
            await self._give_up_node(claim)
            return
        claim_name = f"{metadata['namespace']}/{metadata['name']}"
        text = f'External provisioner is provisioning volume for claim "{claim_name}"'
        self._events.record(CLAIMS, claim, "Normal", "Provisioning", text)
        volume = self._volume(name, claim, storage_class, terms)
        answer = (await self._context.client.create(VOLUMES, "", volume)).expect(409)
        if answer.is_success:
            text = f"Successfully provisioned volume {name}"
            self._events.record(CLAIMS, claim, "Normal", "ProvisioningSucceeded", text)

    async def _accessible_from(self, claim: Document, storage_class: Document) -> list[Document] | None:
        """Returns the node selector terms of the new volume, empty if all nodes can access it; None if the selected node was deleted."""
        node_name = annotations_of(claim).get(SELECTED_NODE)
        if node_name:
            answer = (await self._context.client.get(NODES, "", node_name)).expect(404)
            if not answer.is_success:
                return None
            zone = (answer.document["metadata"].get("labels") or {}).get(ZONE)
            return [_term(ZONE, [zone])] if zone else []
        allowed = storage_class.get("allowedTopologies") or ()
        return [
            {"matchExpressions": [_in(e["key"], e["values"]) for e in topology.get("matchLabelExpressions") or ()]}
            for topology in allowed
        ]

    async def _give_up_node(self, claim: Document) -> None:
        """Removes the selected node from the claim, so that the scheduler selects another."""
        metadata = claim["metadata"]
        text = f'failed to get target node: nodes "{annotations_of(claim)[SELECTED_NODE]}" not found'
        self._events.record(CLAIMS, claim, "Warning", "ProvisioningFailed", text)
        versions = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
        body = {"metadata": {**versions, "annotations": {SELECTED_NODE: None}}}
        client = self._context.client
        (await client.patch(CLAIMS, metadata["namespace"], metadata["name"], body=body)).expect(404)

    def _volume(self, name: str, claim: Document, storage_class: Document, terms: list[Document]) -> Document:
        metadata, spec = claim["metadata"], claim["spec"]
        made: Document = {
            "capacity": dict(spec["resources"]["requests"]),
            "accessModes": list(spec.get("accessModes") or ()),
            "volumeMode": mode_of(claim),
            "persistentVolumeReclaimPolicy": storage_class.get("reclaimPolicy") or "Delete",
            "storageClassName": class_of(claim),
            "csi": {"driver": self._name, "volumeHandle": name},
            "claimRef": {
                "apiVersion": CLAIMS.api_version,
                "kind": CLAIMS.kind,
                "namespace": metadata["namespace"],
                "name": metadata["name"],
                "uid": metadata["uid"],
                "resourceVersion": metadata["resourceVersion"],
            },
        }
        if terms:
            made["nodeAffinity"] = {"required": {"nodeSelectorTerms": terms}}
        if storage_class.get("mountOptions"):
            made["mountOptions"] = list(storage_class["mountOptions"])
        return {
            "apiVersion": VOLUMES.api_version,
            "kind": VOLUMES.kind,
            "metadata": {"name": name, "annotations": {PROVISIONED_BY: self._name}},
            "spec": made,
        }


def _term(key: str, values: list[str]) -> Document:
    return {"matchExpressions": [_in(key, values)]}


def _in(key: str, values: list[str]) -> Document:
    return {"key": key, "operator": "In", "values": list(values)}
