"""Lists everything in a cluster that affects where pods can be placed, as raw JSON, in consistent pages kind by kind."""

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
    "Device": "/apis/scheduling.koordinator.sh/v1alpha1/devices",
    "Pod": "/api/v1/pods",
}
DEVICE: Final = "Device"
"""Koordinator's kind, which is listed only if a node has such GPUs."""
DEVICE_NODE: Final = b'"koordinator.sh/gpu'
"""Part of every node with such GPUs."""
REQUIRED: Final = ("Node", "Pod")
"""Without these no answer is possible."""
_REFUSED: Final = (401, 403, 404)


async def cluster_pages(
    transport: Transport, refused: dict[str, str]
) -> AsyncGenerator[tuple[str, list[msgspec.Raw]], None]:
    """Yields (kind, objects) page by page; pods come last, so that the objects that their placement depends on are
    known before.

    A kind that is not served or may not be read is left out, and `refused` gets the server's message for it. For nodes
    and pods such an error of `list_pages` is raised.
    """
    has_devices = False
    for kind, path in PATHS.items():
        if kind == DEVICE and not has_devices:
            continue
        try:
            async for page in list_pages(transport, path):
                has_devices = has_devices or (kind == "Node" and any(DEVICE_NODE in bytes(raw) for raw in page.items))
                yield kind, page.items
        except ApiError as error:
            if kind in REQUIRED or error.status not in _REFUSED:
                raise
            refused[kind] = str(error)
