"""Revisions of the pod templates of StatefulSets and DaemonSets, stored as ControllerRevisions for updates and rollbacks.

Each template has one revision, numbered in the order in which templates were last used. Revisions in use are never
deleted. Called by the controllers of those two kinds.

Source: pkg/controller/history/controller_history.go (1.36). As upstream, a revision contains a strategic merge patch that
restores its template; `kubectl rollout undo` sends it. The hash in its name differs from upstream's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import orjson

from multisched.cluster.client.object_client import (
    CONTROLLER_REVISIONS,
    Document,
    RefusedError,
    Resource,
    controller_of,
    owner_reference,
)
from multisched.cluster.controllers.context import ControllerContext

REVISION_LABEL = "controller-revision-hash"
"""Pod label: the name (StatefulSet) or the hash (DaemonSet) of the revision from which the pod was created."""
COLLISIONS_MAX = 10
"""Names tried for one revision; after that, the owner is retried later."""
_NAME_CHARACTERS_MAX = 223
_HASH_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
_HASH_CHARACTERS = 10
_CONFLICT = 409


def template_hash(template: Document, collisions: int = 0) -> str:
    """Returns a hash of a pod template, ten characters long."""
    data = orjson.dumps(template, option=orjson.OPT_SORT_KEYS) + (str(collisions).encode() if collisions else b"")
    number = int.from_bytes(hashlib.sha256(data).digest()[:8], "big")
    characters = []
    for _ in range(_HASH_CHARACTERS):
        number, index = divmod(number, len(_HASH_ALPHABET))
        characters.append(_HASH_ALPHABET[index])
    return "".join(characters)


@dataclass(frozen=True, slots=True)
class TemplateHistory:
    """The revisions of one owner, oldest first. `update` is the revision of its current template."""

    revisions: Sequence[Document]
    update: Document
    collisions: int
    """Name collisions so far, for the owner's status."""

    def current(self, name: str) -> Document:
        """Returns the revision with this name, from the owner's status; `update` if it does not exist."""
        return next((r for r in self.revisions if name_of(r) == name), self.update)


class TemplateRevisions:
    """The ControllerRevisions of one kind of owner."""

    def __init__(self, context: ControllerContext, owners: Resource, *, hash_label: str) -> None:
        self._context = context
        self._owners = owners
        self._hash_label = hash_label

    async def history(self, owner: Document) -> TemplateHistory:
        """Returns the owner's revisions, after storing its current template as the newest one if necessary."""
        known = sorted(self._known(owner), key=_age)
        data = {"spec": {"template": {**owner["spec"]["template"], "$patch": "replace"}}}
        collisions = int((owner.get("status") or {}).get("collisionCount") or 0)
        number = known[-1]["revision"] + 1 if known else 1
        equal = next((revision for revision in reversed(known) if revision["data"] == data), None)
        if equal is None:
            made, collisions = await self._create(owner, data, number, collisions)
            return TemplateHistory([*known, made], made, collisions)
        if equal is known[-1]:
            return TemplateHistory(known, equal, collisions)
        renewed = await self._renumber(equal, number)
        return TemplateHistory([*(r for r in known if r is not equal), renewed], renewed, collisions)

    async def truncate(self, owner: Document, history: TemplateHistory, live: Collection[str]) -> None:
        """Deletes the oldest revisions beyond the owner's limit, except those named in `live`."""
        limit = owner["spec"].get("revisionHistoryLimit", 10)
        idle = [revision for revision in history.revisions if name_of(revision) not in live]
        for revision in idle[: max(0, len(idle) - limit)] if limit >= 0 else ():
            metadata = revision["metadata"]
            answer = await self._context.client.delete(
                CONTROLLER_REVISIONS, metadata["namespace"], metadata["name"], uid=metadata["uid"]
            )
            answer.expect(404, _CONFLICT)

    def _known(self, owner: Document) -> list[Document]:
        uid = owner["metadata"]["uid"]
        return [r for r in self._context.revisions.under(uid) if (controller_of(r) or {}).get("uid") == uid]

    async def _create(self, owner: Document, data: Document, number: int, collisions: int) -> tuple[Document, int]:
        """Stores a revision; tries further names if another revision has its name. Returns it and the collision count."""
        metadata = owner["metadata"]
        labels = (owner["spec"]["template"].get("metadata") or {}).get("labels") or {}
        for tried in range(collisions, collisions + COLLISIONS_MAX):
            digest = template_hash(data, tried)
            body: Document = {
                "apiVersion": CONTROLLER_REVISIONS.api_version,
                "kind": CONTROLLER_REVISIONS.kind,
                "metadata": {
                    "name": f"{metadata['name'][:_NAME_CHARACTERS_MAX]}-{digest}",
                    "namespace": metadata["namespace"],
                    "labels": {**labels, self._hash_label: digest},
                    "annotations": dict(metadata.get("annotations") or {}),
                    "ownerReferences": [owner_reference(self._owners, owner)],
                },
                "data": data,
                "revision": number,
            }
            answer = await self._context.client.create(CONTROLLER_REVISIONS, metadata["namespace"], body)
            if answer.status != _CONFLICT:
                return answer.expect().document, tried
            taken = await self._context.client.get(
                CONTROLLER_REVISIONS, metadata["namespace"], body["metadata"]["name"]
            )
            stored = taken.expect().document
            holder = controller_of(stored)
            if stored["data"] == data and (holder or {}).get("uid") == metadata["uid"]:
                return stored, tried  # the owner's own revision: the cache was stale
            if stored["data"] == data and holder is None and not stored["metadata"].get("deletionTimestamp"):
                return await self._adopt(owner, stored), tried
        raise RefusedError(answer)

    async def _adopt(self, owner: Document, revision: Document) -> Document:
        """Adopts the orphaned revision of an earlier owner of the same name: adopted pods refer to it."""
        metadata = revision["metadata"]
        references = [*(metadata.get("ownerReferences") or ()), owner_reference(self._owners, owner)]
        known = {name: metadata[name] for name in ("uid", "resourceVersion")}
        body = {"metadata": {**known, "ownerReferences": references}}
        answer = await self._context.client.patch(
            CONTROLLER_REVISIONS, metadata["namespace"], metadata["name"], body=body
        )
        return answer.expect().document

    async def _renumber(self, revision: Document, number: int) -> Document:
        metadata = revision["metadata"]
        body = {"metadata": {"uid": metadata["uid"]}, "revision": number}
        answer = await self._context.client.patch(
            CONTROLLER_REVISIONS, metadata["namespace"], metadata["name"], body=body
        )
        return answer.expect().document


def template_of(revision: Document) -> Document:
    """Returns the pod template of a revision."""
    return {name: value for name, value in revision["data"]["spec"]["template"].items() if name != "$patch"}


def name_of(revision: Document) -> str:
    return str(revision["metadata"]["name"])


def _age(revision: Document) -> tuple[int, str, str]:
    metadata = revision["metadata"]
    return int(revision["revision"]), str(metadata.get("creationTimestamp", "")), str(metadata["name"])
