"""Storage protection: keeps a deleted claim while pods use it, and a deleted volume while it is bound.

Source: pkg/controller/volume/pvcprotection and pvprotection (1.36). Admission adds the finalizers at creation; this controller
adds them to objects created without one.
"""

from __future__ import annotations

from collections.abc import Callable

from multisched.cluster.admission.volume_rules import CLAIM_FINALIZER, VOLUME_FINALIZER
from multisched.cluster.client.object_cache import ObjectCache
from multisched.cluster.client.object_client import Document, controller_of, key_of
from multisched.cluster.controllers.context import ControllerContext
from multisched.cluster.controllers.controlled_pods import claim_index, claims_of
from multisched.cluster.controllers.reconcile_queue import ReconcileQueue

OBJECTS_AT_ONCE = 4


class ProtectionController:
    """One control loop over the objects of a kind. `is_used` reports whether the finalizer must stay."""

    def __init__(
        self,
        context: ControllerContext,
        cache: ObjectCache,
        finalizer: str,
        is_used: Callable[[Document], bool],
    ) -> None:
        self._context = context
        self._cache = cache
        self._finalizer = finalizer
        self._is_used = is_used
        name = f"{cache.resource.plural} protection"
        self.queue = ReconcileQueue(name, self.reconcile, rng=context.rng, workers=OBJECTS_AT_ONCE)
        cache.listen(self._changed)

    async def run(self) -> None:
        """Runs until cancelled."""
        await self.queue.run()

    def _changed(self, old: Document | None, new: Document | None) -> None:
        if new is not None:
            self.queue.add(key_of(new))

    async def reconcile(self, key: str) -> float | None:
        """Adds the finalizer to objects that are not being deleted; removes it from deleted objects that are no longer used."""
        document = self._cache.find(key)
        if document is None:
            return None
        metadata = document["metadata"]
        finalizers = list(metadata.get("finalizers") or ())
        has, is_going = self._finalizer in finalizers, bool(metadata.get("deletionTimestamp"))
        if has == (not is_going) or (is_going and self._is_used(document)):
            return None
        wanted = [f for f in finalizers if f != self._finalizer] if is_going else [*finalizers, self._finalizer]
        versions = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
        answer = await self._context.client.patch(
            self._cache.resource,
            metadata.get("namespace", ""),
            metadata["name"],
            body={"metadata": {**versions, "finalizers": wanted or None}},
        )
        answer.expect(404)
        return None


def claim_protection(context: ControllerContext) -> ProtectionController:
    """Returns a controller that keeps claims while bound pods use them."""

    def is_used(claim: Document) -> bool:
        metadata = claim["metadata"]
        users = context.pods.under(claim_index(metadata["namespace"], metadata["name"]))
        return any(pod["spec"]["nodeName"] and not _is_done_with(pod, claim) for pod in users)

    def pod_changed(old: Document | None, new: Document | None) -> None:
        for pod in (old, new):
            if pod is not None:
                for name in claims_of(pod):
                    controller.queue.add(f"{pod['metadata']['namespace']}/{name}")

    controller = ProtectionController(context, context.claims, CLAIM_FINALIZER, is_used)
    context.pods.listen(pod_changed)
    return controller


def volume_protection(context: ControllerContext) -> ProtectionController:
    """Returns a controller that keeps volumes while they are bound."""

    def is_used(volume: Document) -> bool:
        return bool((volume.get("status") or {}).get("phase") == "Bound")

    return ProtectionController(context, context.volumes, VOLUME_FINALIZER, is_used)


def _is_done_with(pod: Document, claim: Document) -> bool:
    """Reports whether a pod no longer uses a claim. It uses its own claim until its kubelet has stopped it, others while it exists."""
    owner, metadata = controller_of(claim), pod["metadata"]
    is_own = owner is not None and owner["uid"] == metadata["uid"]
    return is_own and bool(metadata.get("deletionTimestamp")) and not metadata.get("deletionGracePeriodSeconds")
