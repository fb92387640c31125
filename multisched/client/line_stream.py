"""Bodies of aiohttp responses: whole ones up to a size limit, and the lines of an open watch.

Owns one response at a time. Reads nothing beyond the size limit; a stream that ends inside a line is an error, and
every failure is an `AnswerLostError`. Called by `transport` only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import aiohttp

from multisched.model.wire import AnswerLostError, TransportError

LINE_BYTES_MAX: Final = 16 * 1024 * 1024
"""etcd refuses objects over 1.5 MiB by default and 8 MiB where operators raise it; a watch line adds little."""
ERROR_BODY_BYTES_MAX: Final = 1024 * 1024
LOST: Final = (TransportError, aiohttp.ClientError, asyncio.TimeoutError, OSError)
"""Everything that can end an exchange before its response is complete."""


class HttpLineStream:
    """`model.wire.LineStream`: splits chunks into lines as they arrive."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self._ready: list[bytes] = []
        self._rest: list[bytes] = []
        self._rest_bytes = 0
        self.status = response.status
        self.headers: Mapping[str, str] = lower(response.headers)

    async def read_body(self) -> bytes:
        """Returns the body, of at most 1 MiB."""
        try:
            return await read_capped(self._response, ERROR_BODY_BYTES_MAX)
        except LOST as error:
            raise AnswerLostError(f"the answer broke off: {reason(error)}") from error

    def __aiter__(self) -> HttpLineStream:
        return self

    async def __anext__(self) -> bytes:
        while not self._ready:
            chunk = await self._read_chunk()
            if not chunk:
                if self._rest:
                    raise AnswerLostError("the stream ended inside a line")
                raise StopAsyncIteration
            self._cut(chunk)
        return self._ready.pop()

    async def _read_chunk(self) -> bytes:
        try:
            return await self._response.content.readany()
        except LOST as error:
            raise AnswerLostError(f"the stream broke: {reason(error)}") from error

    def _cut(self, chunk: bytes) -> None:
        """Appends whole lines to `_ready`, last first; keeps the unfinished rest in pieces, so that long lines cost O(n)."""
        lines = chunk.split(b"\n")
        tail = lines.pop()
        if lines:
            if self._rest:
                self._rest.append(lines[0])
                lines[0] = b"".join(self._rest)
                self._rest.clear()
                self._rest_bytes = 0
            lines.reverse()
            self._ready = [line for line in lines if line]
        if tail:
            self._rest.append(tail)
            self._rest_bytes += len(tail)
            if self._rest_bytes > LINE_BYTES_MAX:
                raise AnswerLostError(f"a line of the stream exceeds {LINE_BYTES_MAX} bytes")


async def read_capped(response: aiohttp.ClientResponse, bytes_max: int) -> bytes:
    """Returns the whole body; raises ClientPayloadError for a longer one before all of it is in memory."""
    length = response.content_length
    if length is not None and length > bytes_max:
        raise aiohttp.ClientPayloadError(f"an answer of {length} bytes exceeds {bytes_max} bytes")
    if length is not None:
        return await response.read()
    chunks, total = [], 0
    while chunk := await response.content.readany():
        total += len(chunk)
        if total > bytes_max:
            raise aiohttp.ClientPayloadError(f"the answer exceeds {bytes_max} bytes")
        chunks.append(chunk)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def lower(headers: Mapping[str, str]) -> Mapping[str, str]:
    return MappingProxyType({name.lower(): value for name, value in headers.items()})


def reason(error: BaseException) -> str:
    if isinstance(error, TransportError):
        return str(error)[:256]
    return f"{type(error).__name__} {error}".strip()[:256]
