"""The shape of a conversation with a Kubernetes API server, without any HTTP library.

Owns nothing; promises only names and types. Three things speak it: `multisched.client` (the real network),
`multisched.cluster` (in process, no socket) and the simulation of `tests/kit` (in process, with faults).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol

import msgspec

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"

ANSWER_BYTES_MAX = 256 * 1024 * 1024
"""No answer is read past this size: a compromised server must not be able to exhaust memory."""


UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""All that msgspec raises for bytes that are no document of the wanted shape. A text that is not UTF-8, and a document
nested too deeply, raise no DecodeError: a handler of that one alone would miss them."""


class TransportError(Exception):
    """No HTTP answer arrived. Subclasses say whether the server may have acted on the request."""


class ConnectFailedError(TransportError):
    """Nothing was sent: the request certainly had no effect."""


class AnswerLostError(TransportError):
    """The request may have been sent, but no complete answer arrived (timeout, reset, truncation): its effect is unknown."""


class Response(msgspec.Struct, frozen=True):
    """One complete HTTP answer. Any status, 4xx and 5xx included: the caller decides what a status means."""

    status: int
    body: bytes
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Header names in lower case."""


class LineStream(Protocol):
    """An open watch. `status` is known at once; lines come without their newline."""

    status: int
    headers: Mapping[str, str]

    async def read_body(self) -> bytes:
        """The whole body, for a status other than 200."""
        ...

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Ends when the server closes cleanly; raises TransportError when the connection breaks or stays silent too long."""
        ...


class Transport(Protocol):
    """Authenticated requests to one API server. `path` starts with a slash and carries its query string."""

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
        """Raises TransportError when no complete answer arrived within `timeout_s`."""
        ...

    def stream(
        self, path: str, *, connect_timeout_s: float = 5.0, idle_timeout_s: float = 90.0
    ) -> AbstractAsyncContextManager[LineStream]:
        """A streaming GET. Raises TransportError when no answer starts, or when nothing arrives for `idle_timeout_s`."""
        ...
