"""The ephemeral volume controller: creates the claim of each generic ephemeral volume of a pod, owned by the pod.

Source: pkg/controller/volume/ephemeral/controller.go (1.36). The garbage collector deletes the claim with the pod.
"""

from __future__ import annotations

from multisched.cluster.client.object_client import (
    CLAIMS,
    PODS,
    Document,
    RefusedError,
    controller_of,
    key_of,
    owner_reference,
)
from multisched.cluster.controllers.context import ControllerContext
from multisched.cluster.controllers.controlled_pods import claim_index, is_terminating
from multisched.cluster.controllers.reconcile_queue import ReconcileQueue

PODS_AT_ONCE = 8


class EphemeralVolumeController:
    """One control loop over the pods that have ephemeral volumes."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._events = context.events.writer("ephemeral_volume")
        self.queue = ReconcileQueue("ephemeral volumes", self.reconcile, rng=context.rng, workers=PODS_AT_ONCE)
        context.pods.listen(self._pod_changed)
        context.claims.listen(self._claim_changed)

    async def run(self) -> None:
        """Runs until cancelled."""
        await self.queue.run()

    def _pod_changed(self, old: Document | None, new: Document | None) -> None:
        if new is not None and any(volume.get("ephemeral") for volume in new["spec"].get("volumes") or ()):
            self.queue.add(key_of(new))

    def _claim_changed(self, old: Document | None, new: Document | None) -> None:
        """Requeues the pods of a deleted claim: their claim must be created, again or because its name is now free."""
        if old is not None and new is None:
            metadata = old["metadata"]
            for pod in self._context.pods.under(claim_index(metadata["namespace"], metadata["name"])):
                self._pod_changed(None, pod)

    async def reconcile(self, key: str) -> float | None:
        """Creates missing claims. Raises RefusedError if the server rejects a claim."""
        pod = self._context.pods.find(key)
        if pod is None or is_terminating(pod):
            return None
        for volume in pod["spec"].get("volumes") or ():
            if volume.get("ephemeral"):
                await self._ensure_claim(pod, volume)
        return None

    async def _ensure_claim(self, pod: Document, volume: Document) -> None:
        metadata, template = pod["metadata"], volume["ephemeral"].get("volumeClaimTemplate") or {}
        name = f"{metadata['name']}-{volume['name']}"
        known = self._context.claims.find(f"{metadata['namespace']}/{name}")
        if known is not None:
            await self._check_owner(pod, volume, known)
            return
        marks = {k: v for k, v in (template.get("metadata") or {}).items() if k in ("labels", "annotations")}
        claim: Document = {
            "apiVersion": CLAIMS.api_version,
            "kind": CLAIMS.kind,
            "metadata": {**marks, "name": name, "ownerReferences": [owner_reference(PODS, pod)]},
            "spec": template.get("spec") or {},
        }
        answer = await self._context.client.create(CLAIMS, metadata["namespace"], claim)
        try:
            answer.expect(409)
        except RefusedError:
            await self._complain(pod, volume, f"create PVC {name}: {answer.message}")
            raise

    async def _check_owner(self, pod: Document, volume: Document, claim: Document) -> None:
        owner, metadata = controller_of(claim), pod["metadata"]
        if owner is None or owner["uid"] != metadata["uid"]:
            claim_text = f"PVC {metadata['namespace']}/{claim['metadata']['name']}"
            why = f"was not created for pod {metadata['namespace']}/{metadata['name']} (pod is not owner)"
            await self._complain(pod, volume, f"{claim_text} {why}")

    async def _complain(self, pod: Document, volume: Document, why: str) -> None:
        self._events.record(PODS, pod, "Warning", "FailedBinding", f"ephemeral volume {volume['name']}: {why}")
