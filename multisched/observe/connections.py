"""The open connections of an HTTP server: how many, for how long, and which one is closed when there are too many.

aiohttp reads and writes on them; this module accepts and closes them. At most `connections` are open. Each has a
deadline for its current step: receive a whole request (TLS handshake included), compute the response, send it, idle. If
the limit is reached, the connection that has been idle longest is closed; if none is idle, the one that has been
receiving its request longest, then the one that has been sending its response longest. Responses that are being
computed are finished. Used on one event loop.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from enum import Enum, auto
from typing import Final, cast

import msgspec
from aiohttp import web

from multisched.observe.token_bucket import TokenBucket

logger = logging.getLogger(__name__)

CONNECTIONS_MAX: Final = 100
ACCEPTS_PER_S: Final = 100.0
"""New connections, after a burst of as many as the limit: TLS handshakes take CPU from the scheduler's loop."""
REQUEST_TIMEOUT_S: Final = 10.0
"""From the first byte, or from the start of the connection, to the end of the request."""
ANSWER_TIMEOUT_S: Final = 330.0
"""Until the response begins. Plans are queued, and their callers wait for 300 s."""
SEND_TIMEOUT_S: Final = 30.0
"""Until the client has received the whole response."""
IDLE_TIMEOUT_S: Final = 75.0
GOODBYE_TIMEOUT_S: Final = 1.0
"""For the TLS shutdown on both sides."""
ACCEPT_PAUSE_S: Final = 0.1
"""Pause after the system had no file descriptor for a new connection."""
BACKLOG: Final = 128
_RESET: Final = struct.pack("ii", 1, 0)
"""SO_LINGER with a time of zero."""


class ConnectionLimits(msgspec.Struct, frozen=True):
    """Limits of one listening socket."""

    connections: int = CONNECTIONS_MAX
    accepts_per_s: float = ACCEPTS_PER_S
    request_s: float = REQUEST_TIMEOUT_S
    answer_s: float = ANSWER_TIMEOUT_S
    send_s: float = SEND_TIMEOUT_S
    idle_s: float = IDLE_TIMEOUT_S


class _State(Enum):
    RECEIVING = auto()
    ANSWERING = auto()
    ANSWERED = auto()


class _Connection(asyncio.Protocol):
    """Connects the transport with aiohttp's handler, and tracks the connection's current step."""

    def __init__(self, owner: Connections, handler: asyncio.Protocol, sock: socket.socket) -> None:
        self._owner = owner
        self._sock = sock
        self.handler = handler
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_lost = False
        self.opening: asyncio.Task[None] | None = None
        """The TLS handshake, while it runs."""
        self.state = _State.RECEIVING
        self.since = self._loop.time()
        self._end_in(owner.limits.request_s)

    @property
    def is_idle(self) -> bool:
        """True if the last response was sent completely and nothing was received since."""
        return self.state is _State.ANSWERED and not self.is_sending

    @property
    def is_sending(self) -> bool:
        """True if the client has not received all of the last response."""
        return self._transport is not None and self._transport.get_write_buffer_size() > 0

    def received(self) -> None:
        """Notes that a whole request was received."""
        self._enter(_State.ANSWERING, self._owner.limits.answer_s)

    def answered(self) -> None:
        """Notes that the response is computed and being sent."""
        self._enter(_State.ANSWERED, self._owner.limits.send_s)
        if self._is_lost:
            self._owner.forget(self)

    def abort(self) -> None:
        """Closes it at once: without flushing, without a TLS shutdown, and unsent data is discarded."""
        if self._timer is not None:
            self._timer.cancel()
        with suppress(OSError):
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        if self._transport is not None:
            self._transport.abort()
        elif self.opening is not None:
            self.opening.cancel()
        if self.state is not _State.ANSWERING:
            self._owner.forget(self)

    def _enter(self, state: _State, seconds: float) -> None:
        self.state, self.since = state, self._loop.time()
        self._end_in(seconds)

    def _end_in(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if self._is_lost else self._loop.call_later(seconds, self._on_deadline)

    def _on_deadline(self) -> None:
        transport = self._transport
        has_taken_all = self.is_idle and transport is not None and not transport.is_closing()
        idle_left_s = self.since + self._owner.limits.idle_s - self._loop.time()
        if has_taken_all and idle_left_s > 0:
            self._end_in(idle_left_s)
        else:
            self.abort()

    # ---- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.handler.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self.is_idle:
            self._enter(_State.RECEIVING, self._owner.limits.request_s)
        self.handler.data_received(data)

    def eof_received(self) -> None:
        self.handler.eof_received()

    def pause_writing(self) -> None:
        self.handler.pause_writing()

    def resume_writing(self) -> None:
        self.handler.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
        self.handler.connection_lost(exc)
        if self.state is not _State.ANSWERING:
            self._owner.forget(self)


class Connections:
    """All connections of one listening socket."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self._open: dict[object, _Connection] = {}
        """aiohttp's handler -> its connection. A closed connection stays until its response is computed, so that responses in progress are
        limited, too.
        """
        self._left = asyncio.Event()

    def __len__(self) -> int:
        return len(self._open)

    def received(self, request: web.Request) -> None:
        """Must be called when a whole request was received."""
        connection = self._open.get(request.protocol)
        if connection is not None:
            connection.received()

    def answered(self, request: web.Request) -> None:
        """Must be called when the response is computed or has failed."""
        connection = self._open.get(request.protocol)
        if connection is not None:
            connection.answered()

    def forget(self, connection: _Connection) -> None:
        """Removes a connection that has ended."""
        if self._open.pop(connection.handler, None) is not None:
            self._left.set()

    @asynccontextmanager
    async def listening(
        self, runner: web.AppRunner, address: str, port: int, tls: ssl.SSLContext | None
    ) -> AsyncIterator[tuple[str, int]]:
        """Accepts connections while the context is open; yields address and port. Raises OSError if it cannot listen there."""
        listener = _listener(address, port)
        try:
            accepting = asyncio.create_task(self._accept_all(listener, runner, tls))
            try:
                yield listener.getsockname()[:2]
            finally:
                accepting.cancel()
                await asyncio.gather(accepting, return_exceptions=True)
        finally:
            listener.close()
            await runner.cleanup()  # waits for responses in progress for a while
            for connection in list(self._open.values()):
                connection.abort()

    async def _accept_all(self, listener: socket.socket, runner: web.AppRunner, tls: ssl.SSLContext | None) -> None:
        loop = asyncio.get_running_loop()
        bucket = TokenBucket(loop.time, rate=self.limits.accepts_per_s, burst=self.limits.connections)
        while True:
            await asyncio.sleep(bucket.take())
            try:
                sock, _ = await loop.sock_accept(listener)
            except OSError as error:
                logger.warning("cannot accept a connection", extra={"reason": error.strerror})
                self._make_room()
                await asyncio.sleep(ACCEPT_PAUSE_S)
                continue
            try:
                while len(self._open) >= self.limits.connections and not self._make_room():
                    self._left.clear()
                    await self._left.wait()
            except BaseException:
                sock.close()
                raise
            assert runner.server is not None
            handler = runner.server()
            connection = self._open[handler] = _Connection(self, handler, sock)
            connection.opening = loop.create_task(self._open_one(connection, sock, tls))

    async def _open_one(self, connection: _Connection, sock: socket.socket, tls: ssl.SSLContext | None) -> None:
        loop = asyncio.get_running_loop()
        timeouts = {} if tls is None else {"ssl_shutdown_timeout": GOODBYE_TIMEOUT_S}
        try:
            await loop.connect_accepted_socket(lambda: connection, sock, ssl=tls, **timeouts)
        except (OSError, asyncio.CancelledError):  # no TLS, or a timeout
            self.forget(connection)
        finally:
            connection.opening = None

    def _make_room(self) -> bool:
        """Closes the least useful connection; returns False if all are computing a response."""
        idle = [one for one in self._open.values() if one.is_idle]
        receiving = [one for one in self._open.values() if one.state is _State.RECEIVING]
        sending = [one for one in self._open.values() if one.state is _State.ANSWERED and one.is_sending]
        least = min(idle or receiving or sending, key=lambda one: one.since, default=None)
        if least is not None:
            least.abort()
        return least is not None


def _listener(address: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if listener.family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.setblocking(False)
        listener.bind((address, port))
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener
