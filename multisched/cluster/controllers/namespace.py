"""The namespace controller: creates the default ServiceAccount of every namespace, and empties deleted namespaces.

Pods are deleted first, as in upstream since 1.34. Source: pkg/controller/namespace/deletion/namespaced_resources_deleter.go and
pkg/controller/serviceaccount/serviceaccounts_controller.go (1.36).
"""

from __future__ import annotations

from multisched.cluster.api.api_kinds import ApiKinds
from multisched.cluster.client.object_client import NAMESPACES, PODS, SERVICE_ACCOUNTS, Document, Resource, split_key
from multisched.cluster.controllers.context import ControllerContext, requeue_changed
from multisched.cluster.controllers.reconcile_queue import ReconcileQueue

NAMESPACES_AT_ONCE = 4
REMAINING_RECHECK_S = 1.0
_ACCOUNT = "default"


class NamespaceController:
    """One control loop over all namespaces."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._client = context.client
        self._kinds = ApiKinds(context.client)
        self.queue = ReconcileQueue("namespace", self.reconcile, rng=context.rng, workers=NAMESPACES_AT_ONCE)
        requeue_changed(context.namespaces, queue=self.queue)
        context.service_accounts.listen(self._account_changed)

    async def run(self) -> None:
        """Runs until cancelled."""
        await self.queue.run()

    def _account_changed(self, old: Document | None, new: Document | None) -> None:
        if old is not None and new is None and old["metadata"]["name"] == _ACCOUNT:
            self.queue.add(f"/{old['metadata']['namespace']}")

    async def reconcile(self, key: str) -> float | None:
        """Creates the account of an active namespace; deletes all objects of a terminating one, then its finalizer."""
        namespace = self._context.namespaces.find(key)
        if namespace is None:
            return None
        _, name = split_key(key)
        if not namespace["metadata"].get("deletionTimestamp"):
            await self._ensure_account(name)
            return None
        if not (namespace.get("spec") or {}).get("finalizers"):
            return None
        await self._kinds.refresh()
        if await self._empty(PODS, name):
            return REMAINING_RECHECK_S
        remaining = [
            kind for kind in self._kinds.kinds.values() if kind.is_namespaced and await self._empty(kind, name)
        ]
        if remaining:
            return REMAINING_RECHECK_S
        await self._finalize(namespace)
        return None

    async def _ensure_account(self, namespace: str) -> None:
        if self._context.service_accounts.find(f"{namespace}/{_ACCOUNT}") is None:
            account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": _ACCOUNT}}
            # 403: the namespace is terminating; 404: it was deleted
            (await self._client.create(SERVICE_ACCOUNTS, namespace, account)).expect(403, 404, 409)

    async def _empty(self, resource: Resource, namespace: str) -> bool:
        """Deletes all objects of a kind in the namespace; reports whether some still exist (grace period, finalizers)."""
        path = resource.path(namespace)
        if not await self._has_some(path):
            return False
        options = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
        (await self._client.call("DELETE", path, body=options)).expect(404)
        return await self._has_some(path)

    async def _has_some(self, path: str) -> bool:
        answer = (await self._client.call("GET", f"{path}?limit=1")).expect(404)
        return answer.is_success and bool(answer.document["items"])

    async def _finalize(self, namespace: Document) -> None:
        left = [entry for entry in namespace["spec"]["finalizers"] if entry != "kubernetes"]
        body = {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": namespace["metadata"],
            "spec": {"finalizers": left},
        }
        name = namespace["metadata"]["name"]
        answer = await self._client.replace(NAMESPACES, "", name, document=body, subresource="finalize")
        answer.expect(404)
