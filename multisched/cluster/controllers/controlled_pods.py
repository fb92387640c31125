"""The pods of an owner: reduced documents, predicates, and writes that the cache does not contain yet.

Owns, per owner, the version that the pod cache must reach before the owner is reconciled again, and the set of pods whose
deletion was requested. So a cache that lags behind its controller's writes causes no second create or delete. Used by the
controllers of ReplicaSets, StatefulSets, DaemonSets and Jobs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import TypeVar

import orjson

from multisched.cluster.base.selectors import from_label_selector
from multisched.cluster.client.object_cache import ObjectCache
from multisched.cluster.client.object_client import (
    PODS,
    Document,
    ObjectClient,
    RefusedError,
    Resource,
    owner_reference,
    version_of,
)
from multisched.cluster.controllers.events import EventWriter
from multisched.cluster.controllers.orphan_pods import orphan_index
from multisched.model.api_time import parse_timestamp
from multisched.model.wire import TransportError

T = TypeVar("T")

WRITES_AT_ONCE = 32
WRITTEN_OWNERS_MAX = 10_000
LAG_RECHECK_S = 1.0
TERMINAL = ("Succeeded", "Failed")
_CONFLICT = 409
_CLAIMING = {"persistentVolumeClaim", "ephemeral"}
_METADATA = (
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "labels",
    "annotations",
    "ownerReferences",
    "finalizers",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
)


def slim_metadata(document: Document) -> Document:
    """Returns the metadata that controllers read."""
    metadata = document["metadata"]
    return {name: metadata[name] for name in _METADATA if metadata.get(name)}


def slim_pod(pod: Document) -> Document:
    """Returns a pod without its containers: controllers do not read containers, and cache thousands of pods."""
    status = pod.get("status") or {}
    kept = {"phase": status.get("phase") or "Pending", "conditions": status.get("conditions") or []}
    spec: Document = {"nodeName": pod["spec"].get("nodeName") or ""}
    volumes = [volume for volume in pod["spec"].get("volumes") or () if _CLAIMING & volume.keys()]
    if volumes:
        spec["volumes"] = volumes
    if not spec["nodeName"] and any(r.get("kind") == "DaemonSet" for r in pod["metadata"].get("ownerReferences") or ()):
        spec["affinity"] = pod["spec"].get("affinity") or {}  # contains the name of the pod's node
    return {"metadata": slim_metadata(pod), "spec": spec, "status": kept}


def slim_node(node: Document) -> Document:
    """Returns a node without its status, which changes often and affects neither daemons nor taints."""
    metadata, spec = node["metadata"], node.get("spec") or {}
    kept = {name: metadata[name] for name in ("name", "uid", "resourceVersion", "labels") if metadata.get(name)}
    is_cordoned = bool(spec.get("unschedulable"))
    return {"metadata": kept, "spec": {"taints": spec.get("taints") or [], "unschedulable": is_cordoned}}


def pod_index(pod: Document) -> Iterator[str]:
    """Yields index keys of a pod: its owners' uids, its namespace, its claims, and its labels if it has no controller."""
    for reference in pod["metadata"].get("ownerReferences") or ():
        yield reference["uid"]
    namespace = pod["metadata"]["namespace"]
    yield namespace_index(namespace)
    yield from orphan_index(pod)
    for name in claims_of(pod):
        yield claim_index(namespace, name)


def namespace_index(namespace: str) -> str:
    """Returns the index key of all pods of a namespace."""
    return f"namespace/{namespace}"


def claims_of(pod: Document) -> Iterator[str]:
    """Yields the names of the claims of a pod's volumes. The claim of an ephemeral volume is named POD-VOLUME."""
    for volume in pod["spec"].get("volumes") or ():
        if volume.get("persistentVolumeClaim"):
            yield volume["persistentVolumeClaim"].get("claimName") or ""
        elif volume.get("ephemeral"):
            yield f"{pod['metadata']['name']}-{volume['name']}"


def claim_index(namespace: str, name: str) -> str:
    """Returns the index key of all pods that use a claim."""
    return f"claim/{namespace}/{name}"


def phase_of(pod: Document) -> str:
    return str(pod["status"]["phase"])


def is_terminating(pod: Document) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp"))


def is_active(pod: Document) -> bool:
    """Reports whether the pod has not ended and is not terminating."""
    return phase_of(pod) not in TERMINAL and not is_terminating(pod)


def ready_since(pod: Document) -> datetime | None:
    """Returns when the pod became Ready; None if it is not."""
    for condition in pod["status"]["conditions"]:
        if condition["type"] == "Ready" and condition["status"] == "True":
            return parse_timestamp(condition.get("lastTransitionTime") or pod["metadata"]["creationTimestamp"])
    return None


def is_available(pod: Document, min_ready_s: int, now: datetime) -> bool:
    """Reports whether the pod has been Ready for at least `min_ready_s`."""
    since = ready_since(pod)
    return since is not None and (now - since).total_seconds() >= min_ready_s


def pod_from_template(template: Document, *, owner: Document, resource: Resource, name: str = "") -> Document:
    """Builds a pod to create, with this name or with generateName from its owner's name."""
    metadata = template.get("metadata") or {}
    made: Document = {
        "namespace": owner["metadata"]["namespace"],
        "labels": dict(metadata.get("labels") or {}),
        "annotations": dict(metadata.get("annotations") or {}),
        "ownerReferences": [owner_reference(resource, owner)],
    }
    if metadata.get("finalizers"):
        made["finalizers"] = list(metadata["finalizers"])
    made |= {"name": name} if name else {"generateName": f"{owner['metadata']['name']}-"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": made, "spec": template["spec"]}


async def each(items: Iterable[T], act: Callable[[T], Awaitable[None]], *, concurrency: int = WRITES_AT_ONCE) -> None:
    """Calls `act` for all items, at most `concurrency` concurrently; stops at the first rejection or broken connection and raises it."""
    rest = iter(items)
    failures: list[RefusedError | TransportError] = []

    async def work() -> None:
        for item in rest:
            if failures:
                return
            try:
                await act(item)
            except (RefusedError, TransportError) as error:
                failures.append(error)

    first = list(_take(rest, 1))
    if not first:
        return
    await act(first[0])  # if the first is rejected (quota, terminating namespace), the others would be, too
    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(work())
    if failures:
        raise failures[0]


def _take(items: Iterator[T], count: int) -> Iterator[T]:
    for _, item in zip(range(count), items, strict=False):
        yield item


class ControlledPods:
    """The pods of all objects of one controller, by owner uid."""

    def __init__(
        self, client: ObjectClient, cache: ObjectCache, *, owners: Resource, events: EventWriter | None = None
    ) -> None:
        """With `events`, records an event of the owner for each pod created or deleted."""
        self._client = client
        self._cache = cache
        self._owners = owners
        self._events = events
        self._written: dict[str, int] = {}
        self._going: set[str] = set()
        cache.listen(self._forget_deleted)

    def is_current(self, owner_uid: str) -> bool:
        """Reports whether the cache contains all writes for this owner."""
        version = self._written.get(owner_uid)
        if version is not None and self._cache.version >= version:
            del self._written[owner_uid]
            return True
        return version is None

    def of(self, owner_uid: str) -> list[Document]:
        """Returns the owner's pods in the cache."""
        return [pod for pod in self._cache.under(owner_uid) if self._controls(pod, owner_uid)]

    def active(self, owner_uid: str) -> list[Document]:
        """Returns the owner's active pods whose deletion was not requested."""
        return [pod for pod in self.of(owner_uid) if is_active(pod) and not self.is_going(pod)]

    def is_going(self, pod: Document) -> bool:
        """Reports whether the pod is terminating or its deletion was requested."""
        return is_terminating(pod) or pod["metadata"]["uid"] in self._going

    async def claim(self, owner: Document, orphans: Sequence[Document]) -> bool:
        """Releases the owner's pods that its selector no longer matches, and adopts the given orphans.

        Each write has the cached version as a precondition. Returns whether the owner must be reconciled again.
        """
        released = await self._release(owner)
        return await self._adopt(owner, orphans) or released

    async def _release(self, owner: Document) -> bool:
        """Releases pods that the owner's selector no longer matches, such as relabelled ones; a terminating owner keeps all pods."""
        uid = owner["metadata"]["uid"]
        matches = from_label_selector(owner["spec"].get("selector"))
        strays = [pod for pod in self.of(uid) if not matches(pod["metadata"].get("labels") or {})]
        if not strays or is_terminating(owner):
            return False

        async def release(pod: Document) -> None:
            references = pod["metadata"]["ownerReferences"]
            await self._write_owners(owner, pod, [one for one in references if one["uid"] != uid])

        await each(strays, release)
        return True

    async def _adopt(self, owner: Document, orphans: Sequence[Document]) -> bool:
        """Adopts orphans, unless a fresh read shows that the owner is terminating or was recreated."""
        if not orphans:
            return False
        wanted = owner["metadata"]
        answer = await self._client.get(self._owners, wanted["namespace"], wanted["name"])
        answer.expect(404)
        found = answer.document["metadata"] if answer.is_success else {}
        if found.get("uid") != wanted["uid"] or found.get("deletionTimestamp"):
            return True

        async def take(pod: Document) -> None:
            known = pod["metadata"].get("ownerReferences") or ()
            await self._write_owners(owner, pod, [*known, owner_reference(self._owners, owner)])

        await each(orphans, take)
        return True

    async def _write_owners(self, owner: Document, pod: Document, references: Sequence[Document]) -> None:
        metadata = pod["metadata"]
        known = {name: metadata[name] for name in ("uid", "resourceVersion")}
        body = {"metadata": {**known, "ownerReferences": references}}
        answer = await self._client.patch(PODS, metadata["namespace"], metadata["name"], body=body)
        answer.expect(404)
        if answer.is_success:
            self._note(owner["metadata"]["uid"], version_of(answer.document))

    async def create(self, owner: Document, pods: Sequence[Document]) -> None:
        """Creates pods. Ignores a 409 for an existing name, because the watch will deliver that pod."""
        last: Document | None = None
        body = b""

        async def post(pod: Document) -> None:
            nonlocal last, body
            if pod is not last:
                last, body = pod, orjson.dumps(pod)
            answer = await self._client.create(PODS, pod["metadata"]["namespace"], body)
            if answer.is_success:
                created = answer.document
                self._note(owner["metadata"]["uid"], version_of(created))
                self._record(owner, "SuccessfulCreate", f"Created pod: {created['metadata']['name']}")
            elif answer.status != _CONFLICT:
                self._record(owner, "FailedCreate", f"Error creating: {answer.message}", kind="Warning")
                raise RefusedError(answer)

        await each(pods, post)

    async def delete(self, owner: Document, pods: Sequence[Document]) -> None:
        """Requests the deletion of pods, with their uids as precondition."""

        async def drop(pod: Document) -> None:
            metadata = pod["metadata"]
            self._going.add(metadata["uid"])
            try:
                answer = await self._client.delete(
                    PODS, metadata["namespace"], metadata["name"], uid=metadata["uid"], propagation="Background"
                )
                answer.expect(404, _CONFLICT)
            except (RefusedError, TransportError) as error:
                self._going.discard(metadata["uid"])
                self._record(owner, "FailedDelete", f"Error deleting: {error}", kind="Warning")
                raise
            self._record(owner, "SuccessfulDelete", f"Deleted pod: {metadata['name']}")
            if self._cache.find(f"{metadata['namespace']}/{metadata['name']}") is None:
                self._going.discard(metadata["uid"])

        await each(pods, drop)

    def _record(self, owner: Document, reason: str, message: str, *, kind: str = "Normal") -> None:
        if self._events is not None:
            self._events.record(self._owners, owner, kind, reason, message)

    def _note(self, owner_uid: str, version: int) -> None:
        self._written[owner_uid] = max(version, self._written.get(owner_uid, 0))
        if len(self._written) > WRITTEN_OWNERS_MAX:  # owners deleted before they were reconciled again
            seen = self._cache.version
            self._written = {uid: written for uid, written in self._written.items() if written > seen}

    def _forget_deleted(self, old: Document | None, new: Document | None) -> None:
        if old is not None and new is None:
            self._going.discard(old["metadata"]["uid"])

    @staticmethod
    def _controls(pod: Document, owner_uid: str) -> bool:
        return any(r["uid"] == owner_uid and r.get("controller") for r in pod["metadata"]["ownerReferences"])
