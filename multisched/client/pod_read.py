"""Reads one pod from the API server."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from multisched.client.errors import error_for
from multisched.client.paths import pod_path
from multisched.framework.ports import UnreachableError
from multisched.model.wire import UNREADABLE, Transport, TransportError

T = TypeVar("T")


async def read_pod(
    transport: Transport, namespace: str, name: str, decoder: msgspec.json.Decoder[T], *, timeout_s: float
) -> T | None:
    """Reads the pod by a GET without resourceVersion, which is served from etcd's quorum, never from a stale cache.

    Returns None for a 404. Raises UnreachableError.
    """
    try:
        response = await transport.request("GET", pod_path(namespace, name), timeout_s=timeout_s)
    except TransportError as error:
        raise UnreachableError(f"pod {namespace}/{name} could not be read: {error}") from error
    if response.status == 404:
        return None
    if response.status != 200:
        raise UnreachableError(f"pod {namespace}/{name} could not be read") from error_for(response)
    try:
        return decoder.decode(response.body)
    except UNREADABLE as error:
        raise UnreachableError(f"pod {namespace}/{name} could not be read: the response is not a pod") from error
