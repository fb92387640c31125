"""Server-sent events for pages: one document, sent again whenever it has changed.

All streams share one sampling task, which runs only while a stream is open. Every event carries the whole document, so a
client that misses some loses nothing: a resumed stream (`Last-Event-ID`) begins with the current document, or with
silence if the client has it. A client that has not taken the last event gets none until it has; after SLOW_S it is
dropped. So each holds at most one event in memory, besides a small socket buffer. A stream ends after STREAM_S, within
the time that a connection may take to answer; the page then opens another one, which is authorized again.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Final

import msgspec
from aiohttp import web

logger = logging.getLogger(__name__)

STREAMS_MAX: Final = 32
"""Open at once; below the limit of connections, which never closes one that is still answered."""
STREAMS_PER_USER_MAX: Final = 12
INTERVAL_S: Final = 1.0
"""Between two samples."""
HEARTBEAT_S: Final = 15.0
"""A comment is sent after this much silence, which keeps proxies from closing the connection."""
SLOW_S: Final = 10.0
STREAM_S: Final = 240.0
RETRY_MS: Final = 2_000
"""When the client should connect again."""
SEND_BUFFER_BYTES: Final = 64 * 1024
HEADERS: Final = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Accel-Buffering": "no",
}
HEARTBEAT: Final = b":\n\n"


class StreamLimits(msgspec.Struct, frozen=True):
    """Limits of all streams of a server."""

    streams: int = STREAMS_MAX
    per_user: int = STREAMS_PER_USER_MAX
    interval_s: float = INTERVAL_S
    heartbeat_s: float = HEARTBEAT_S
    slow_s: float = SLOW_S
    stream_s: float = STREAM_S


class TooManyStreamsError(Exception):
    """The limit of streams is reached; the message says which one."""


class EventStreams:
    """All open streams of one document."""

    def __init__(self, sample: Callable[[], Awaitable[bytes]], limits: StreamLimits | None = None) -> None:
        """`sample`: makes the current document as JSON, in one line."""
        self.limits = limits or StreamLimits()
        self.dropped = 0
        """Clients that were too slow."""
        self._sample = sample
        self._users: Counter[str] = Counter()
        self._origin = secrets.token_hex(4)
        """Event ids of another process are never taken for those of this one."""
        self._version = 0
        self._document = b""
        self._turn = asyncio.Event()
        self._sampling: asyncio.Task[None] | None = None
        self._is_closing = False

    def __len__(self) -> int:
        return self._users.total()

    async def serve(self, request: web.Request, user: str) -> web.StreamResponse:
        """Sends events until the client leaves or the stream's time is over. Raises TooManyStreamsError."""
        if len(self) >= self.limits.streams:
            raise TooManyStreamsError(f"{self.limits.streams} streams are open; close a page, or retry later")
        if self._users[user] >= self.limits.per_user:
            raise TooManyStreamsError(f"{self.limits.per_user} streams of one user are open; close a page")
        self._users[user] += 1
        try:
            response = web.StreamResponse(headers=HEADERS)
            await response.prepare(request)
            await response.write(f"retry: {RETRY_MS}\n\n".encode())
            await self._send(request, response)
        except ConnectionError:  # the client has disconnected
            pass
        finally:
            self._users[user] -= 1
            self._users += Counter()
        return response

    async def close(self) -> None:
        """Ends all streams, for a server that stops."""
        self._is_closing = True
        self._turn.set()
        if self._sampling is not None:
            self._sampling.cancel()

    async def _send(self, request: web.Request, response: web.StreamResponse) -> None:
        loop, transport = asyncio.get_running_loop(), request.transport
        _limit_buffer(transport)
        began_s = sent_s = taken_s = loop.time()
        sent = self._known(request.headers)
        while not self._is_closing and loop.time() - began_s < self.limits.stream_s:
            if transport is None or transport.is_closing():
                return
            now_s, event = loop.time(), b""
            if transport.get_write_buffer_size() == 0:
                taken_s = now_s
                if self._is_sampling and self._version and sent != self._version:
                    sent = self._version
                    head = f"id: {self._origin}.{sent}\nevent: overview\ndata: ".encode()
                    event = head + self._document + b"\n\n"
                elif now_s - sent_s >= self.limits.heartbeat_s:
                    event = HEARTBEAT
            if event:
                sent_s = now_s
                with suppress(TimeoutError):  # below, it has not taken this event
                    async with asyncio.timeout(self.limits.slow_s):
                        await response.write(event)
            if transport.get_write_buffer_size() > 0 and loop.time() - taken_s >= self.limits.slow_s:
                self.dropped += 1
                logger.info("dropped a page that does not read its events", extra={"open": len(self)})
                transport.abort()
                return
            if not await self._next_turn():
                return

    def _known(self, headers: Mapping[str, str]) -> int:
        """Returns the version that a resumed stream has already received; 0: none of this process."""
        origin, _, number = headers.get("Last-Event-ID", "").partition(".")
        is_ours = origin == self._origin and number.isascii() and number.isdigit() and len(number) <= 18
        return int(number) if is_ours else 0

    @property
    def _is_sampling(self) -> bool:
        """False: the document may be as old as the last stream."""
        return self._sampling is not None and not self._sampling.done()

    async def _next_turn(self) -> bool:
        """Waits for the next sample, and begins to sample if nothing does. Returns False if sampling failed."""
        sampling = self._sampling
        if sampling is None or sampling.done():
            self._sampling = sampling = asyncio.create_task(self._run())
        waiting = asyncio.ensure_future(self._turn.wait())
        try:
            await asyncio.wait((waiting, sampling), return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        if not sampling.done() or sampling.cancelled() or (error := sampling.exception()) is None:
            return True
        logger.error("the overview cannot be read", exc_info=error)
        return False

    async def _run(self) -> None:
        while len(self) and not self._is_closing:
            document = await self._sample()
            if document != self._document:
                self._document = document
                self._version += 1
            turn, self._turn = self._turn, asyncio.Event()
            turn.set()
            await asyncio.sleep(self.limits.interval_s)


def _limit_buffer(transport: asyncio.Transport | None) -> None:
    """Lets the system buffer little for a client, so that one that does not read is noticed soon."""
    sock = None if transport is None else transport.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
