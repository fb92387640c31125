"""Reads a live cluster into a snapshot: consistent lists, kind by kind, decoded page by page."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

import msgspec

from multisched.client.errors import ApiError, Gone, with_hint
from multisched.client.lister import MalformedAnswerError, list_pages
from multisched.config.options import ExitCode, RefusedError
from multisched.model.decode import Decoder
from multisched.model.object_kinds import ObjectKind
from multisched.model.wire import Transport
from multisched.whatif.sandbox import ClusterSnapshot, SnapshotReader

LIST_TRIES: Final = 3
"""Number of times that a list whose continue token expires between two pages is started."""
_REFUSED: Final = (401, 403, 404)
NOT_THERE: Final = 404


class Listed(msgspec.Struct, frozen=True):
    """A kind to list."""

    path: str
    kind: str
    group: str = ""
    is_required: bool = False
    """Without it no answer is possible."""
    is_optional: bool = False
    """The server need not serve it."""


PODS: Final = Listed("/api/v1/pods", "Pod", is_required=True)
NODES: Final = Listed("/api/v1/nodes", "Node", is_required=True)
PRIORITY_CLASSES: Final = Listed("/apis/scheduling.k8s.io/v1/priorityclasses", "PriorityClass", "scheduling.k8s.io")


def listed(kind: ObjectKind) -> Listed:
    definition = kind.definition
    return Listed(definition.path, definition.name, definition.group, is_optional=definition.is_optional)


def all_kinds() -> Sequence[Listed]:
    """Returns all kinds that scheduling reads."""
    return (NODES, PODS, PRIORITY_CLASSES, *map(listed, ObjectKind))


async def read_cluster(
    transport: Transport, kinds: Sequence[Listed], decoder: Decoder, now: datetime
) -> ClusterSnapshot:
    """Returns the objects of the kinds. Raises RefusedError if a required one cannot be listed, and TransportError.

    Kinds that may not be read or are not served are left out; the snapshot's `notes` name them.
    """
    for _ in range(LIST_TRIES):
        reader = SnapshotReader(decoder)
        try:
            for kind in kinds:
                await _read(transport, kind, reader)
        except Gone:
            continue
        return reader.snapshot(now)
    message = f"a list's continue token expired in each of {LIST_TRIES} attempts; try again"
    raise RefusedError(message, ExitCode.NO_CLUSTER)


async def _read(transport: Transport, kind: Listed, reader: SnapshotReader) -> None:
    try:
        async for page in list_pages(transport, kind.path):
            for raw in page.items:
                reader.add(raw, kind.kind, kind.group)
    except Gone:
        raise
    except (ApiError, MalformedAnswerError) as error:
        status = error.status if isinstance(error, ApiError) else 0
        if kind.is_optional and status == NOT_THERE:
            return
        if kind.is_required or status not in _REFUSED:
            raise RefusedError(
                f"{kind.kind} objects cannot be listed: {with_hint(error)}", ExitCode.NO_CLUSTER
            ) from error
        reader.note(f"{kind.kind} objects cannot be listed: {error}")
