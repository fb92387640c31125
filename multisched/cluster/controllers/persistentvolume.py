"""The persistent volume controller: binds claims and volumes, and releases volumes of deleted claims.

Source: pkg/controller/volume/persistentvolume/pv_controller.go (1.36). There are two control loops, over claims and over
volumes. Every write has the version read as a precondition, so that two claims cannot get one volume. Provisioners create
and delete volumes (`fake_provisioner`, or another one named by the class); recycling is not supported.
"""

from __future__ import annotations

from multisched.cluster.admission.volume_rules import (
    BETA_PROVISIONER,
    BIND_COMPLETED,
    BOUND_BY_CONTROLLER,
    MIGRATED_TO,
    PROVISIONED_BY,
    PROVISIONER,
    SELECTED_NODE,
    annotations_of,
    best_match,
    class_of,
    default_class,
    has_class,
    is_late,
    is_unbound,
    mismatch,
    mode_of,
    reserves,
)
from multisched.cluster.client.object_client import CLAIMS, VOLUMES, Document, Resource, key_of
from multisched.cluster.controllers.context import ControllerContext
from multisched.cluster.controllers.reconcile_queue import ReconcileQueue
from multisched.model.volumes import CSI_DRIVER_OF_PLUGIN

CLAIMS_AT_ONCE = VOLUMES_AT_ONCE = 8
COMPONENT = "persistentvolume-controller"


class _Writes:
    """Writes of both loops, with the version read as a precondition."""

    def __init__(self, context: ControllerContext) -> None:
        self.context = context
        self.events = context.events.writer(COMPONENT)

    async def patch(self, resource: Resource, document: Document, body: Document, subresource: str = "") -> Document:
        """Patches an object; returns its new state. Raises RefusedError, 409 if it has changed since it was read."""
        metadata = document["metadata"]
        versions = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
        answer = await self.context.client.patch(
            resource,
            metadata.get("namespace", ""),
            metadata["name"],
            body={**body, "metadata": {**versions, **body.get("metadata", {})}},
            subresource=subresource,
        )
        return answer.expect().document

    async def volume_phase(self, volume: Document, phase: str) -> Document:
        if (volume.get("status") or {}).get("phase") == phase:
            return volume
        return await self.patch(VOLUMES, volume, {"status": {"phase": phase}}, "status")

    async def claim_status(self, claim: Document, phase: str, volume: Document | None) -> Document:
        """Writes a claim's status. Sets capacity only when the claim becomes bound, since volumes can be resized later."""
        before = claim.get("status") or {}
        modes = volume["spec"].get("accessModes") if volume is not None else None
        changed: Document = {} if before.get("phase") == phase else {"phase": phase}
        if before.get("accessModes") != modes:
            changed["accessModes"] = modes
        if volume is None:
            changed |= {"capacity": None} if before.get("capacity") else {}
        elif "phase" in changed and before.get("capacity") != volume["spec"].get("capacity"):
            changed["capacity"] = volume["spec"].get("capacity")
        if not changed:
            return claim
        return await self.patch(CLAIMS, claim, {"status": changed}, "status")

    async def bind(self, volume: Document, claim: Document) -> None:
        """Binds the volume first, so that a claim never names a volume of another claim. Every step may be repeated."""
        volume = await self._bind_volume(volume, claim)
        volume = await self.volume_phase(volume, "Bound")
        annotations, spec = {}, {}
        if claim["spec"].get("volumeName") != volume["metadata"]["name"]:
            spec["volumeName"] = volume["metadata"]["name"]
            annotations[BOUND_BY_CONTROLLER] = "yes"
        if is_unbound(claim):
            annotations[BIND_COMPLETED] = "yes"
        if annotations:
            claim = await self.patch(CLAIMS, claim, {"metadata": {"annotations": annotations}, "spec": spec})
        await self.claim_status(claim, "Bound", volume)

    async def _bind_volume(self, volume: Document, claim: Document) -> Document:
        metadata, reference = claim["metadata"], volume["spec"].get("claimRef") or {}
        body: Document = {}
        if reference.get("uid") != metadata["uid"]:
            body["spec"] = {
                "claimRef": {
                    "apiVersion": CLAIMS.api_version,
                    "kind": CLAIMS.kind,
                    "namespace": metadata["namespace"],
                    "name": metadata["name"],
                    "uid": metadata["uid"],
                    "resourceVersion": metadata["resourceVersion"],
                }
            }
        if not reserves(volume, claim):
            body["metadata"] = {"annotations": {BOUND_BY_CONTROLLER: "yes"}}
        return await self.patch(VOLUMES, volume, body) if body else volume


class ClaimController:
    """One control loop over all claims."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._writes = _Writes(context)
        self.queue = ReconcileQueue("claims", self.reconcile, rng=context.rng, workers=CLAIMS_AT_ONCE)
        context.claims.listen(self._changed)
        context.volumes.listen(self._volume_changed)
        context.storage_classes.listen(self._class_changed)

    async def run(self) -> None:
        """Runs until cancelled."""
        await self.queue.run()

    def _changed(self, old: Document | None, new: Document | None) -> None:
        if new is not None:
            self.queue.add(key_of(new))

    def _volume_changed(self, old: Document | None, new: Document | None) -> None:
        """Queues the claim in the volume's claimRef and claims that name the volume; without claimRef, all unbound claims of its class."""
        for volume in (old, new):
            if volume is None:
                continue
            reference = volume["spec"].get("claimRef")
            if reference:
                self.queue.add(f"{reference.get('namespace', '')}/{reference.get('name', '')}")
            self._add_under(f"volume/{volume['metadata']['name']}")
        if new is not None and not new["spec"].get("claimRef"):
            self._add_under(f"unbound/{class_of(new)}")

    def _class_changed(self, old: Document | None, new: Document | None) -> None:
        changed = new or old
        if changed is not None:
            self._add_under(f"unbound/{changed['metadata']['name']}")
            self._add_under("unbound/")

    def _add_under(self, index_key: str) -> None:
        for claim in self._context.claims.under(index_key):
            self.queue.add(key_of(claim))

    async def reconcile(self, key: str) -> float | None:
        """Does one step for a claim. Raises RefusedError if an object has changed since it was read."""
        claim = self._context.claims.find(key)
        if claim is None:
            return None
        if not is_unbound(claim):
            await self._keep(claim)
        elif claim["spec"].get("volumeName"):
            await self._bind_to_named(claim)
        elif not claim["metadata"].get("deletionTimestamp"):
            await self._find_volume(claim)
        return None

    # -- unbound claims --------------------------------------------------------------------------------------------

    async def _find_volume(self, claim: Document) -> None:
        context, metadata = self._context, claim["metadata"]
        storage_class = context.storage_classes.find(f"/{class_of(claim)}")
        waits = is_late(storage_class)
        own = context.volumes.under(f"claim/{metadata['namespace']}/{metadata['name']}")
        volume = best_match(claim, [*own, *context.volumes.under(f"free/{class_of(claim)}")], is_late=waits)
        if volume is not None:
            await self._writes.bind(volume, claim)
            return
        if await self._takes_default_class(claim):
            return
        if waits and SELECTED_NODE not in annotations_of(claim):
            await self._say_what_it_waits_for(claim)
        elif class_of(claim):
            await self._ask_provisioner(claim, storage_class)
            return
        else:
            text = "no persistent volumes available for this claim and no storage class is set"
            self._writes.events.record(CLAIMS, claim, "Normal", "FailedBinding", text)
        await self._writes.claim_status(claim, "Pending", None)

    async def _takes_default_class(self, claim: Document) -> bool:
        """Sets the default class of a claim without a class, in case the class was created after the claim."""
        name = None if has_class(claim) else default_class(self._context.storage_classes.objects.values())
        if name is None:
            return False
        await self._writes.patch(CLAIMS, claim, {"spec": {"storageClassName": name}})
        return True

    async def _say_what_it_waits_for(self, claim: Document) -> None:
        metadata = claim["metadata"]
        users = self._context.pods.under(f"claim/{metadata['namespace']}/{metadata['name']}")
        names = [pod["metadata"]["name"] for pod in users if not pod["spec"]["nodeName"]]
        reason, text = "WaitForFirstConsumer", "waiting for first consumer to be created before binding"
        if names:
            pods_text = f"pod {names[0]}" if len(names) == 1 else f"pods {','.join(names)}"
            reason, text = "WaitForPodScheduled", f"waiting for {pods_text} to be scheduled"
        self._writes.events.record(CLAIMS, claim, "Normal", reason, text)

    async def _ask_provisioner(self, claim: Document, storage_class: Document | None) -> None:
        """Writes the provisioner's name to the claim's annotations, which the provisioner watches."""
        events = self._writes.events
        if storage_class is None:
            text = f'storageclass.storage.k8s.io "{class_of(claim)}" not found'
            events.record(CLAIMS, claim, "Warning", "ProvisioningFailed", text)
            return
        wanted = str(storage_class["provisioner"])
        provisioner = CSI_DRIVER_OF_PLUGIN.get(wanted, wanted)
        if provisioner.startswith("kubernetes.io/"):
            text = f"no volume plugin matched name: {provisioner}"
            events.record(CLAIMS, claim, "Warning", "ProvisioningFailed", text)
            return
        if annotations_of(claim).get(PROVISIONER) != provisioner:
            names = {BETA_PROVISIONER: provisioner, PROVISIONER: provisioner}
            claim = await self._writes.patch(CLAIMS, claim, {"metadata": {"annotations": names}})
        text = (
            f"Waiting for a volume to be created either by the external provisioner '{provisioner}' or manually by the"
            " system administrator. If volume creation is delayed, please verify that the provisioner is running and"
            " correctly registered."
        )
        events.record(CLAIMS, claim, "Normal", "ExternalProvisioning", text)

    async def _bind_to_named(self, claim: Document) -> None:
        volume = self._context.volumes.find(f"/{claim['spec']['volumeName']}")
        if volume is None:
            await self._writes.claim_status(claim, "Pending", None)
            return
        name = volume["metadata"]["name"]
        if volume["spec"].get("claimRef") is None:
            why = mismatch(volume, claim)
            if not why:
                await self._writes.bind(volume, claim)
                return
            reason, text = "VolumeMismatch", f'Cannot bind to requested volume "{name}": {why}'
        elif reserves(volume, claim):
            await self._writes.bind(volume, claim)
            return
        else:
            reason, text = "FailedBinding", f'volume "{name}" already bound to a different claim.'
        self._writes.events.record(CLAIMS, claim, "Warning", reason, text)
        await self._writes.claim_status(claim, "Pending", None)

    # -- bound claims ----------------------------------------------------------------------------------------------

    async def _keep(self, claim: Document) -> None:
        name = claim["spec"].get("volumeName") or ""
        volume = self._context.volumes.find(f"/{name}") if name else None
        if volume is None:
            what = "its PersistentVolume" if name else "reference to PersistentVolume"
            await self._lose(claim, "ClaimLost", f"Bound claim has lost {what}. Data on the volume is lost!")
            return
        reference = volume["spec"].get("claimRef")
        if reference is None or reference.get("uid") == claim["metadata"]["uid"]:
            await self._writes.bind(volume, claim)
            return
        text = "Two claims are bound to the same volume, this one is bound incorrectly"
        await self._lose(claim, "ClaimMisbound", text)

    async def _lose(self, claim: Document, reason: str, text: str) -> None:
        if (claim.get("status") or {}).get("phase") != "Lost":
            claim = await self._writes.claim_status(claim, "Lost", None)
            self._writes.events.record(CLAIMS, claim, "Warning", reason, text)


class VolumeController:
    """One control loop over all volumes."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._writes = _Writes(context)
        self.queue = ReconcileQueue("volumes", self.reconcile, rng=context.rng, workers=VOLUMES_AT_ONCE)
        context.volumes.listen(self._changed)
        context.claims.listen(self._claim_changed)

    async def run(self) -> None:
        """Runs until cancelled."""
        await self.queue.run()

    def _changed(self, old: Document | None, new: Document | None) -> None:
        if new is not None:
            self.queue.add(key_of(new))

    def _claim_changed(self, old: Document | None, new: Document | None) -> None:
        for claim in (old, new):
            if claim is None:
                continue
            if claim["spec"].get("volumeName"):
                self.queue.add(f"/{claim['spec']['volumeName']}")
            metadata = claim["metadata"]
            for volume in self._context.volumes.under(f"claim/{metadata['namespace']}/{metadata['name']}"):
                self.queue.add(key_of(volume))

    async def reconcile(self, key: str) -> float | None:
        """Updates one volume's phase. Raises RefusedError if an object has changed since it was read."""
        volume = self._context.volumes.find(key)
        if volume is None:
            return None
        reference = volume["spec"].get("claimRef")
        if reference is None or not reference.get("uid"):
            await self._writes.volume_phase(volume, "Available")
            return None
        claim = await self._claim_of(reference)
        if claim is None:
            await self._release(volume)
            return None
        name = claim["spec"].get("volumeName") or ""
        if name == volume["metadata"]["name"]:
            await self._writes.volume_phase(volume, "Bound")
        elif name:
            await self._give_back(volume)
        elif mode_of(claim) != mode_of(volume):
            await self._say_modes_differ(volume, claim)
        return None

    async def _claim_of(self, reference: Document) -> Document | None:
        """Returns the volume's claim. Reads it from the server if the cache has none, so that a stale cache does not release a volume."""
        namespace, name = reference.get("namespace", ""), reference.get("name", "")
        claim = self._context.claims.find(f"{namespace}/{name}")
        if claim is not None and claim["metadata"]["uid"] == reference["uid"]:
            return claim
        answer = (await self._context.client.get(CLAIMS, namespace, name)).expect(404)
        found = answer.document if answer.is_success else None
        return found if found is not None and found["metadata"]["uid"] == reference["uid"] else None

    async def _release(self, volume: Document) -> None:
        if (volume.get("status") or {}).get("phase") not in ("Released", "Failed"):
            volume = await self._writes.volume_phase(volume, "Released")
        policy, annotations = volume["spec"].get("persistentVolumeReclaimPolicy"), annotations_of(volume)
        is_others = volume["spec"].get("csi") or MIGRATED_TO in annotations or PROVISIONED_BY in annotations
        if policy != "Delete" or is_others or (volume.get("status") or {}).get("phase") == "Failed":
            return
        name = volume["metadata"]["name"]
        text = f'error getting deleter volume plugin for volume "{name}": no deletable volume plugin matched'
        volume = await self._writes.patch(VOLUMES, volume, {"status": {"phase": "Failed", "message": text}}, "status")
        self._writes.events.record(VOLUMES, volume, "Warning", "VolumeFailedDelete", text)

    async def _give_back(self, volume: Document) -> None:
        """Unbinds a volume whose claim has another volume: one provisioned for the claim is released, others become available."""
        annotations = annotations_of(volume)
        if PROVISIONED_BY in annotations and volume["spec"].get("persistentVolumeReclaimPolicy") == "Delete":
            await self._release(volume)
            return
        body: Document = {"spec": {"claimRef": {"uid": None}}}
        if BOUND_BY_CONTROLLER in annotations:
            body = {"metadata": {"annotations": {BOUND_BY_CONTROLLER: None}}, "spec": {"claimRef": None}}
        volume = await self._writes.patch(VOLUMES, volume, body)
        await self._writes.volume_phase(volume, "Available")

    async def _say_modes_differ(self, volume: Document, claim: Document) -> None:
        events, why = self._writes.events, "due to incompatible volumeMode."
        text = f'Cannot bind PersistentVolume to requested PersistentVolumeClaim "{claim["metadata"]["name"]}" {why}'
        events.record(VOLUMES, volume, "Warning", "VolumeMismatch", text)
        text = f'Cannot bind PersistentVolume "{volume["metadata"]["name"]}" to requested PersistentVolumeClaim {why}'
        events.record(CLAIMS, claim, "Warning", "VolumeMismatch", text)
