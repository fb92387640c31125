"""Requests to and responses of a Kubernetes API server, without any HTTP library.

Owns nothing; defines only names and types. Three packages implement them: `multisched.client` (the real network),
`multisched.cluster` (in process, no socket) and the simulation of `tests/kit` (in process, with faults).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol, runtime_checkable

import msgspec

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"

ANSWER_BYTES_MAX = 256 * 1024 * 1024
"""Responses are not read beyond this size: a compromised server must not be able to exhaust memory."""


UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""All errors that msgspec raises for bytes that do not have the wanted shape. Text that is not UTF-8, and a document
nested too deeply, do not raise DecodeError, so a handler of DecodeError alone would miss them."""


class TransportError(Exception):
    """No HTTP response arrived. Subclasses tell whether the server may have acted on the request."""


class ConnectFailedError(TransportError):
    """Nothing was sent: the request certainly had no effect."""


class AnswerLostError(TransportError):
    """The request may have been sent, but no complete response arrived (timeout, reset, truncation): its effect is unknown."""


class Response(msgspec.Struct, frozen=True):
    """One complete HTTP response of any status, including 4xx and 5xx: the caller interprets the status."""

    status: int
    body: bytes
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Header names in lower case."""


class Request(msgspec.Struct, frozen=True):
    """One write for `PipelinedTransport.request_all`; the fields are the arguments of `Transport.request`."""

    method: str
    path: str
    body: bytes
    content_type: str = JSON


class LineStream(Protocol):
    """An open watch. `status` is known at once; lines have no trailing newline."""

    status: int
    headers: Mapping[str, str]

    async def read_body(self) -> bytes:
        """Reads the whole body, for a status other than 200."""
        ...

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Ends when the server closes cleanly. Raises TransportError if the connection breaks or is silent too long."""
        ...


class Transport(Protocol):
    """Authenticated requests to one API server. `path` starts with a slash and includes the query string."""

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
        """Sends a request. Raises TransportError if no complete response arrives within `timeout_s`."""
        ...

    def stream(
        self, path: str, *, connect_timeout_s: float = 5.0, idle_timeout_s: float = 90.0
    ) -> AbstractAsyncContextManager[LineStream]:
        """Opens a streaming GET. Raises TransportError if no response starts, or if nothing arrives for `idle_timeout_s`."""
        ...


@runtime_checkable
class PipelinedTransport(Transport, Protocol):
    """A Transport that can send several requests one behind the other on one connection, which takes much less CPU per request."""

    async def request_all(self, requests: Sequence[Request], *, timeout_s: float) -> list[Response]:
        """Sends the requests; the server answers them in this order. `timeout_s`: for all of them.

        Returns the responses of the first ones. If there are fewer than requests, the effect of the others is unknown. Raises
        TransportError if there is none.
        """
        ...
