"""Events of controllers, as `kubectl describe` shows them: one per object, reason and message, counted up when it recurs.

Owns nothing. Events may be lost: a refusal is passed over, since what they tell of is in the objects too.
"""

from __future__ import annotations

import hashlib

from multisched.cluster.controller_context import ControllerContext
from multisched.cluster.object_client import EVENTS, Document, Resource, timestamp

_EXISTS = 409


class EventWriter:
    """Writes the events of one component."""

    def __init__(self, context: ControllerContext, component: str) -> None:
        self._context = context
        self._component = component

    async def write(self, resource: Resource, about: Document, kind: str, reason: str, message: str) -> None:
        """`kind` is Normal or Warning."""
        metadata = about["metadata"]
        namespace = metadata.get("namespace") or "default"
        digest = hashlib.sha256("\0".join((metadata["uid"], self._component, kind, reason, message)).encode())
        name = f"{metadata['name']}.{digest.hexdigest()[:16]}"
        now = timestamp(self._context.now())
        event: Document = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": {
                "apiVersion": resource.api_version,
                "kind": resource.kind,
                **{field: metadata[field] for field in ("namespace", "name", "uid") if metadata.get(field)},
            },
            "reason": reason,
            "message": message,
            "type": kind,
            "source": {"component": self._component},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        client = self._context.client
        if (await client.create(EVENTS, namespace, event)).status != _EXISTS:
            return
        known = await client.get(EVENTS, namespace, name)
        if known.is_success:
            count = int(known.document.get("count") or 0) + 1
            await client.patch(EVENTS, namespace, name, body={"count": count, "lastTimestamp": now})
