"""Everything of a cluster that bears on where pods may stand, as raw JSON, in consistent pages kind by kind."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Final

import msgspec

from multisched.client.errors import ApiError
from multisched.client.lister import list_pages
from multisched.model.wire import Transport

PATHS: Final[Mapping[str, str]] = {
    "Namespace": "/api/v1/namespaces",
    "Node": "/api/v1/nodes",
    "StorageClass": "/apis/storage.k8s.io/v1/storageclasses",
    "CSINode": "/apis/storage.k8s.io/v1/csinodes",
    "PersistentVolume": "/api/v1/persistentvolumes",
    "PersistentVolumeClaim": "/api/v1/persistentvolumeclaims",
    "Pod": "/api/v1/pods",
}
REQUIRED: Final = ("Node", "Pod")
"""Without these nothing can be said."""
_REFUSED: Final = (401, 403, 404)


async def cluster_pages(
    transport: Transport, refused: dict[str, str]
) -> AsyncGenerator[tuple[str, list[msgspec.Raw]], None]:
    """(kind, objects) page by page, pods last: who was there before a pod was placed is known before the pod is.

    A kind that is not served or may not be read is left out and named in `refused` with the server's words. For nodes
    and pods a refusal raises what `list_pages` raises.
    """
    for kind, path in PATHS.items():
        try:
            async for page in list_pages(transport, path):
                yield kind, page.items
        except ApiError as error:
            if kind in REQUIRED or error.status not in _REFUSED:
                raise
            refused[kind] = str(error)
