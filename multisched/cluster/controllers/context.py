"""The dependencies of every controller: a client, a clock, a random generator, and shared caches.

Owns the caches.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import datetime
from typing import Protocol

from multisched.cluster.admission.volume_rules import claim_keys, volume_keys
from multisched.cluster.client.object_cache import ObjectCache
from multisched.cluster.client.object_client import (
    CLAIMS,
    CONTROLLER_REVISIONS,
    CRON_JOBS,
    DAEMON_SETS,
    DEPLOYMENTS,
    DISRUPTION_BUDGETS,
    JOBS,
    NAMESPACES,
    NODES,
    PODS,
    REPLICA_SETS,
    SERVICE_ACCOUNTS,
    STATEFUL_SETS,
    STORAGE_CLASSES,
    VOLUMES,
    Document,
    ObjectClient,
    Resource,
    WallClock,
    controller_of,
    key_of,
)
from multisched.cluster.controllers.controlled_pods import pod_index, slim_node, slim_pod
from multisched.cluster.controllers.events import EventRecorder
from multisched.cluster.controllers.orphan_pods import selector_index
from multisched.cluster.controllers.reconcile_queue import ReconcileQueue

POD_EVENTS_COALESCED_S = 0.05
"""Delay of reconciles after pod events. With one reconcile per pod event, the work for a burst of pods would be quadratic."""


class Controller(Protocol):
    """One control loop: a queue of keys, filled by cache listeners."""

    queue: ReconcileQueue

    async def run(self) -> None:
        """Runs until cancelled."""
        ...


class ControllerContext:
    """The dependencies that all controllers of one run share."""

    def __init__(self, client: ObjectClient, *, clock: WallClock, rng: random.Random) -> None:
        self.client = client
        self.clock = clock
        self.rng = rng
        self.events = EventRecorder(client, clock)
        self.pods = ObjectCache(client, PODS, rng=rng, projection=slim_pod, index_by=pod_index)
        self.replica_sets = ObjectCache(client, REPLICA_SETS, rng=rng, index_by=_owner_and_selector_index)
        self.deployments = ObjectCache(client, DEPLOYMENTS, rng=rng)
        self.stateful_sets = ObjectCache(client, STATEFUL_SETS, rng=rng)
        self.daemon_sets = ObjectCache(client, DAEMON_SETS, rng=rng, index_by=selector_index)
        self.nodes = ObjectCache(client, NODES, rng=rng, projection=slim_node)
        self.revisions = ObjectCache(client, CONTROLLER_REVISIONS, rng=rng, index_by=_owner_index)
        self.jobs = ObjectCache(client, JOBS, rng=rng, index_by=_owner_and_selector_index)
        self.cron_jobs = ObjectCache(client, CRON_JOBS, rng=rng)
        self.budgets = ObjectCache(client, DISRUPTION_BUDGETS, rng=rng, index_by=_namespace_index)
        self.namespaces = ObjectCache(client, NAMESPACES, rng=rng)
        self.service_accounts = ObjectCache(client, SERVICE_ACCOUNTS, rng=rng)

        self.claims = ObjectCache(client, CLAIMS, rng=rng, index_by=claim_keys)
        self.volumes = ObjectCache(client, VOLUMES, rng=rng, index_by=volume_keys)
        self.storage_classes = ObjectCache(client, STORAGE_CLASSES, rng=rng)

    def caches(self) -> tuple[ObjectCache, ...]:
        """Returns all shared caches."""
        return (
            self.pods,
            self.replica_sets,
            self.deployments,
            self.stateful_sets,
            self.daemon_sets,
            self.nodes,
            self.revisions,
            self.jobs,
            self.cron_jobs,
            self.budgets,
            self.namespaces,
            self.service_accounts,
            self.claims,
            self.volumes,
            self.storage_classes,
        )

    def now(self) -> datetime:
        return self.clock.now()


def _owner_index(document: Document) -> Iterator[str]:
    for reference in document["metadata"].get("ownerReferences") or ():
        yield reference["uid"]


def _owner_and_selector_index(document: Document) -> Iterator[str]:
    yield from _owner_index(document)
    yield from selector_index(document)


def _namespace_index(document: Document) -> Iterator[str]:
    yield document["metadata"]["namespace"]


def requeue_changed(cache: ObjectCache, *, queue: ReconcileQueue) -> None:
    """Queues every object of the cache that is added or changed."""

    def listener(old: Document | None, new: Document | None) -> None:
        if new is not None:
            queue.add(key_of(new))

    cache.listen(listener)


def owner_key(document: Document | None, kind: str) -> str:
    """Returns the key of the controlling owner of this kind; empty if there is none."""
    owner = controller_of(document) if document is not None else None
    if document is None or owner is None or owner["kind"] != kind:
        return ""
    return f"{document['metadata']['namespace']}/{owner['name']}"


def requeue_owner_of_pods(cache: ObjectCache, *, kind: str, queue: ReconcileQueue) -> None:
    """Queues the controlling owner, if it is of this kind, of every pod that changes."""

    def listener(old: Document | None, new: Document | None) -> None:
        key = owner_key(new or old, kind)
        if key:
            queue.add_after(key, POD_EVENTS_COALESCED_S)

    cache.listen(listener)


async def write_status(client: ObjectClient, resource: Resource, document: Document, status: Document) -> None:
    """Patches the status fields that changed; sends nothing if none did. A value of None removes the field."""
    current = document.get("status") or {}
    changed = {name: value for name, value in status.items() if _differs(current.get(name), value)}
    if changed:
        metadata = document["metadata"]
        answer = await client.patch(
            resource,
            metadata.get("namespace", ""),
            metadata["name"],
            body={"metadata": {"uid": metadata["uid"]}, "status": changed},
            subresource="status",
        )
        answer.expect(404)


def _differs(current: object, value: object) -> bool:
    """Reports whether values differ. A missing value equals 0 and an empty list, which servers omit."""
    return current != value and not (not current and not value)


def set_condition(status: Document, condition: Document, now: str) -> list[Document]:
    """Returns the conditions of a status with this one set; its transition time changes only with its status."""
    conditions = [dict(c) for c in status.get("conditions") or ()]
    for present in conditions:
        if present["type"] == condition["type"]:
            if all(present.get(name) == value for name, value in condition.items()):
                return conditions
            if present["status"] != condition["status"]:
                present["lastTransitionTime"] = now
            present.update(condition)
            return conditions
    return [*conditions, {**condition, "lastTransitionTime": now}]
