"""A Transport for `multisched run --dry-run`: reads are sent to the API server; writes are logged and never sent.

Each write is answered as if the server had done it, so that the program continues. This module never calls
`inner.request` with a method other than GET.
"""

from __future__ import annotations

import logging
from contextlib import AbstractAsyncContextManager
from typing import Final

import msgspec

from multisched.model.wire import JSON, UNREADABLE, LineStream, Response, Transport

logger = logging.getLogger(__name__)

_POD: Final = ("api", "v1", "namespaces")


class _Target(msgspec.Struct, frozen=True):
    name: str = ""


class _Binding(msgspec.Struct, frozen=True):
    target: _Target = _Target()


class DryRunTransport:
    """Reads through `inner`; writes nothing."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        content_type: str = JSON,
        accept: str = JSON,
        timeout_s: float = 30.0,
    ) -> Response:
        """Passes a GET to the inner transport and answers everything else itself."""
        if method == "GET":
            return await self._inner.request("GET", path, accept=accept, timeout_s=timeout_s)
        _log(method, path.partition("?")[0], body or b"")
        return Response(201 if method == "POST" else 200, b"{}")

    def stream(
        self, path: str, *, connect_timeout_s: float = 5.0, idle_timeout_s: float = 90.0
    ) -> AbstractAsyncContextManager[LineStream]:
        """See `model.wire.Transport`."""
        return self._inner.stream(path, connect_timeout_s=connect_timeout_s, idle_timeout_s=idle_timeout_s)


def _log(method: str, path: str, body: bytes) -> None:
    """Logs binds, evictions and deletions of pods at info level; other writes (events, conditions, statuses) at debug level."""
    parts = tuple(path.strip("/").split("/"))
    pod = f"{parts[3]}/{parts[5]}" if parts[:3] == _POD and parts[4:5] == ("pods",) and len(parts) > 5 else ""
    if method == "POST" and pod and parts[6:] == ("binding",):
        logger.info("would bind", extra={"pod": pod, "node": _node(body)})
    elif method == "POST" and pod and parts[6:] == ("eviction",):
        logger.info("would evict", extra={"pod": pod})
    elif method == "DELETE" and pod and not parts[6:]:
        logger.info("would delete", extra={"pod": pod})
    else:
        logger.debug("would write", extra={"method": method, "path": path})


def _node(body: bytes) -> str:
    try:
        return msgspec.json.decode(body, type=_Binding).target.name
    except UNREADABLE:
        return ""
