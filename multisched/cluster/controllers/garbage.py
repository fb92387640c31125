"""The garbage collector: deletes objects whose owners were deleted, and performs foreground deletion and orphaning.

Owns the graph of dependents and one watch per kind. An owner that is not in the graph counts as absent only after a GET; without one, if
its kind is namespaced and the dependent is cluster-scoped. Each delete has the resourceVersion on which it was decided as a precondition.
Source: pkg/controller/garbagecollector/garbagecollector.go (1.36), attemptToDeleteItem and processDeletingDependentsItem.
"""

from __future__ import annotations

import asyncio
import logging

import msgspec

from multisched.cluster.api.api_kinds import ApiKinds
from multisched.cluster.client.object_client import Document, RefusedError, Resource
from multisched.cluster.client.object_watch import ObjectWatch
from multisched.cluster.controllers.context import ControllerContext
from multisched.cluster.controllers.dependents import FOREGROUND, ORPHAN, Dependents, KindView, Owned, Owner, read_owned
from multisched.cluster.controllers.reconcile_queue import ReconcileQueue
from multisched.model.wire import TransportError

logger = logging.getLogger(__name__)

GARBAGE_AT_ONCE = 20
ABSENT_OWNERS_MAX = 5_000
UNKNOWN_KIND_RECHECK_S = 60.0
DISCOVERY_SETTLE_S, DISCOVERY_RETRY_S = 0.5, 5.0
_DEFINITIONS = ("apiextensions.k8s.io", "CustomResourceDefinition")


class GarbageController:
    """One control loop over all objects that have owners or wait for dependents."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._client = context.client
        self._kinds = ApiKinds(context.client)
        self._graph = Dependents(self._on_changed)
        self._absent: dict[str, None] = {}
        self._watches: dict[Resource, tuple[asyncio.Task[None], KindView]] = {}
        self._rediscover = asyncio.Event()
        self.queue = ReconcileQueue("garbage", self.reconcile, rng=context.rng, workers=GARBAGE_AT_ONCE)

    async def run(self) -> None:
        """Runs until cancelled. Deletes nothing before every kind has been listed."""
        async with asyncio.TaskGroup() as group:
            await self._discover(group)
            group.create_task(self.queue.run(), name="garbage")
            while True:
                await self._rediscover.wait()
                await asyncio.sleep(DISCOVERY_SETTLE_S)  # a kind is served shortly after its definition is stored
                self._rediscover.clear()
                await self._discover(group)

    async def _discover(self, group: asyncio.TaskGroup) -> None:
        """Watches every served kind; stops watching kinds that are no longer served, and removes their objects from the graph."""
        while True:
            try:
                await self._kinds.refresh()
                break
            except (RefusedError, TransportError) as error:
                logger.info("discovery failed", extra={"error": str(error)})
                await asyncio.sleep(DISCOVERY_RETRY_S)
        present = set(self._kinds.kinds_with_owners())
        for resource in [resource for resource in self._watches if resource not in present]:
            task, view = self._watches.pop(resource)
            task.cancel()
            view.clear()
        started = []
        for resource in self._kinds.kinds_with_owners():
            if resource not in self._watches:
                view = self._view(resource)
                watch = ObjectWatch(self._client, resource.path(), view, rng=self._context.rng)
                task = group.create_task(watch.run(), name=f"garbage watch {resource.plural}")
                self._watches[resource] = task, view
                started.append(watch)
        for watch in started:
            await watch.synced.wait()

    def _view(self, resource: Resource) -> KindView:
        if (resource.group, resource.kind) == _DEFINITIONS:
            return _DefinitionsView(self._graph, resource, self._rediscover)
        return KindView(self._graph, resource)

    def _on_changed(self, uid: str) -> None:
        self.queue.add(uid)

    # --- one object ----------------------------------------------------------------------------------------------

    async def reconcile(self, uid: str) -> float | None:
        """Checks one object: deletes it if all its owners are absent, removes references to absent owners, or finishes its own deletion.

        Returns the seconds until the next check, if any.
        """
        item = self._graph.find(uid)
        if item is None:
            return None
        if item.is_deleting:
            if ORPHAN in item.finalizers:
                await self._orphan_dependents(item)
            elif FOREGROUND in item.finalizers:
                await self._wait_for_dependents(item)
            return None
        return await self._judge(item) if item.owners else None

    async def _orphan_dependents(self, item: Owned) -> None:
        for dependent in self._graph.dependents_of(item.uid):
            await self._disown(dependent, {item.uid})
        await self._remove_finalizer(item, ORPHAN)

    async def _wait_for_dependents(self, item: Owned) -> None:
        dependents = self._graph.dependents_of(item.uid)
        for dependent in dependents:
            if not dependent.is_deleting:
                self.queue.add(dependent.uid)
        if not any(dependent.blocks(item.uid) for dependent in dependents):
            await self._remove_finalizer(item, FOREGROUND)

    async def _judge(self, item: Owned) -> float | None:
        """Deletes the object if each of its owners is absent or waits for its deletion; else removes the references to those owners."""
        live = await self._read(item.resource, item.namespace, item.name)
        if live is None or live["metadata"]["uid"] != item.uid or live["metadata"].get("deletionTimestamp"):
            return None
        owners = [_owner(reference) for reference in live["metadata"].get("ownerReferences") or ()]
        absent: set[str] = set()
        waiting: set[str] = set()
        kept = 0
        for owner in owners:
            if not self._is_known(owner):
                return UNKNOWN_KIND_RECHECK_S
            found = await self._find(owner, item.namespace)
            if found is None:
                absent.add(owner.uid)
            elif found.waits_for_dependents:
                waiting.add(owner.uid)
            else:
                kept += 1
        if kept or not owners:
            if absent or waiting:
                await self._disown(item, absent | waiting)
            return None
        await self._delete(item, live, is_foreground=bool(waiting) and bool(self._graph.dependents_of(item.uid)))
        return None

    def _is_known(self, owner: Owner) -> bool:
        return self._graph.find(owner.uid) is not None or self._kinds.find(owner.apiVersion, owner.kind) is not None

    async def _find(self, owner: Owner, namespace: str) -> Owned | None:
        """Returns the owner; None if no owner with this uid exists in this namespace or cluster-wide."""
        found = self._graph.find(owner.uid)
        if found is not None:
            return found if found.namespace in ("", namespace) else None
        if owner.uid in self._absent:
            return None
        resource = self._kinds.find(owner.apiVersion, owner.kind)
        assert resource is not None, "the caller checked that the kind is known"
        if not resource.is_namespaced or namespace:
            answer = await self._client.get(resource, namespace if resource.is_namespaced else "", owner.name)
            if answer.expect(404).is_success:
                item = read_owned(resource, answer.body)
                if item.uid == owner.uid:
                    return item
        self._absent[owner.uid] = None
        if len(self._absent) > ABSENT_OWNERS_MAX:
            self._absent.pop(next(iter(self._absent)))
        return None

    async def _delete(self, item: Owned, live: Document, *, is_foreground: bool) -> None:
        finalizers = live["metadata"].get("finalizers") or ()
        propagation = "Foreground" if is_foreground or FOREGROUND in finalizers else "Background"
        if ORPHAN in finalizers:
            propagation = "Orphan"
        answer = await self._client.delete(
            item.resource,
            item.namespace,
            item.name,
            uid=item.uid,
            version=live["metadata"]["resourceVersion"],
            propagation=propagation,
        )
        answer.expect(404)

    # --- edits ---------------------------------------------------------------------------------------------------

    async def _disown(self, item: Owned, owners: set[str]) -> None:
        live = await self._read(item.resource, item.namespace, item.name)
        if live is None or live["metadata"]["uid"] != item.uid:
            return
        references = live["metadata"].get("ownerReferences") or []
        left = [reference for reference in references if reference["uid"] not in owners]
        if left != references:
            await self._edit(item, live, {"ownerReferences": left or None})

    async def _remove_finalizer(self, item: Owned, finalizer: str) -> None:
        live = await self._read(item.resource, item.namespace, item.name)
        if live is None or live["metadata"]["uid"] != item.uid:
            return
        left = [entry for entry in live["metadata"].get("finalizers") or () if entry != finalizer]
        await self._edit(item, live, {"finalizers": left or None})

    async def _edit(self, item: Owned, live: Document, change: Document) -> None:
        """Sends a merge patch, with the version read as a precondition. Custom kinds do not support strategic merge patches."""
        versions = {"uid": item.uid, "resourceVersion": live["metadata"]["resourceVersion"]}
        body = {"metadata": {**versions, **change}}
        answer = await self._client.patch(item.resource, item.namespace, item.name, body=body)
        answer.expect(404)

    async def _read(self, resource: Resource, namespace: str, name: str) -> Document | None:
        answer = (await self._client.get(resource, namespace, name)).expect(404)
        return answer.document if answer.is_success else None


class _DefinitionsView(KindView):
    """Handles the watch of CustomResourceDefinitions; requests a new discovery after each change."""

    def __init__(self, graph: Dependents, resource: Resource, rediscover: asyncio.Event) -> None:
        super().__init__(graph, resource)
        self._rediscover = rediscover

    def replace(self, items: list[msgspec.Raw]) -> None:
        had_some = bool(self)
        super().replace(items)
        if items or had_some:  # a definition may have been added between discovery and this list
            self._rediscover.set()

    def put(self, item: msgspec.Raw) -> None:
        super().put(item)
        self._rediscover.set()

    def remove(self, item: msgspec.Raw) -> None:
        super().remove(item)
        self._rediscover.set()


def _owner(reference: Document) -> Owner:
    return msgspec.convert(reference, Owner)
