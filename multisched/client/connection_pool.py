"""Short HTTP/1.1 exchanges over kept connections. They are most of the cost of binds, events and reads.

Owns its connections to one server and one timer. `ConnectFailedError` means that nothing was sent. A connection is
reused only if the server allowed it, the requests were sent completely, and the last response ended exactly where it declared.
Every wait ends by its deadline, and no response is read beyond its size limit. Called by `transport` only.

Written by hand on `asyncio.Protocol` and httptools because a general client costs more CPU than the rest of a bind (see
tests/perf/measure_client.py).
"""

from __future__ import annotations

import asyncio
import math
import socket
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, cast
from urllib.parse import urlsplit

import msgspec
from aiohappyeyeballs import start_connection

from multisched.client.answer_reader import AnswerReader, BrokenAnswerError
from multisched.model.wire import AnswerLostError, ConnectFailedError, Response

CONNECT_TIMEOUT_S: Final = 5.0
IDLE_TIMEOUT_S: Final = 30.0
"""An unused connection is closed before a server (kube-apiserver: 90 s) or a load balancer (often 60 s) closes it."""
NEXT_ADDRESS_DELAY_S: Final = 0.25
"""The next address of a name is tried if the last one has not connected within this time (RFC 8305)."""
TIMER_SLACK_S: Final = 0.002
"""uvloop's timers count whole milliseconds and may fire a little early."""


class StaleConnectionError(AnswerLostError):
    """A kept connection broke before the first byte of the response: most likely the server had closed it already."""


class Endpoint(msgspec.Struct, frozen=True):
    """The address of a server and the TLS settings that verify it."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    server_name: str | None
    """The name that its certificate must have; None without TLS."""
    authority: str
    """Value of the Host header."""
    base_path: str
    """Prefix of every path; without a trailing slash."""

    @classmethod
    def of(cls, url: str, tls: ssl.SSLContext | None, server_name: str | None) -> Endpoint:
        """Parses the URL. Raises ValueError for anything but http and https."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("not an http or https address")
        is_secure = parts.scheme == "https"
        assert tls is not None or not is_secure
        return cls(
            host=parts.hostname,
            port=parts.port or (443 if is_secure else 80),
            tls=tls if is_secure else None,
            server_name=(server_name or parts.hostname.rstrip(".")) if is_secure else None,
            authority=parts.netloc.rpartition("@")[2],
            base_path=parts.path.rstrip("/"),
        )

    async def connect(self, new_connection: Callable[[], Connection]) -> Connection:
        """Returns a connection after its TLS handshake. Raises OSError or ValueError."""
        loop = asyncio.get_running_loop()
        addresses = await loop.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        sock = await start_connection(addresses, happy_eyeballs_delay=NEXT_ADDRESS_DELAY_S, loop=loop)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            _, connection = await loop.create_connection(
                new_connection, sock=sock, ssl=self.tls, server_hostname=self.server_name
            )
        except BaseException:
            sock.close()
            raise
        return connection


class Connection(asyncio.Protocol):
    """One connection with at most one exchange at a time: of one request, or of several that are sent one behind the other."""

    def __init__(self, pool: ConnectionPool, answer_bytes_max: int) -> None:
        self._pool = pool
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._reader = AnswerReader(answer_bytes_max)
        self._answer: asyncio.Future[list[Response]] | None = None
        self._has_answered = False
        self.is_lost = False
        self.deadline = math.inf
        """In the loop's time: when the responses must be complete, or when an idle connection is closed."""

    def send(self, requests: bytes, deadline: float, expected: int = 1) -> asyncio.Future[list[Response]]:
        """Sends the bytes of `expected` requests. The future gets the responses, or an AnswerLostError if there is none.

        If the connection breaks between two responses, there are fewer than expected.
        """
        assert self._answer is None
        assert self._transport is not None
        self.deadline = deadline
        self._reader.expected = expected
        self._answer = answer = self._loop.create_future()
        self._transport.write(requests)
        return answer

    def awaits(self, answer: asyncio.Future[list[Response]]) -> bool:
        """Returns whether `answer` is still outstanding, also if its caller was cancelled."""
        return self._answer is answer

    def end(self, error: Exception | None = None) -> None:
        """Aborts the connection and ends the exchange, if there is one: with the complete responses, or with `error`.

        Sends no TLS close_notify: a silent peer would block it for half a minute, and nothing here depends on one.
        """
        if self.is_lost:
            return
        self.is_lost = True
        if self._transport is not None:
            self._transport.abort()
        self._reader.discard()
        self._pool.forget(self)
        if error is not None:
            self._settle(self._reader.responses or error)

    def _settle(self, outcome: list[Response] | Exception) -> None:
        answer, self._answer = self._answer, None
        if answer is None or answer.done():
            return
        if isinstance(outcome, Exception):
            answer.set_exception(outcome)
        else:
            answer.set_result(outcome)

    # ---- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._answer is None:
            self.end()
            return
        reader = self._reader
        try:
            reader.feed(data)
        except BrokenAnswerError as error:
            self.end(AnswerLostError(str(error)))
            return
        if not reader.is_complete:
            return
        assert self._transport is not None
        responses = reader.responses
        is_reusable = reader.may_be_followed and self._transport.get_write_buffer_size() == 0
        self._has_answered = True
        reader.begin()
        self._settle(responses)
        if is_reusable:
            self._pool.release_connection(self)
        else:
            self.end()

    def eof_received(self) -> None:
        self._on_closed(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._on_closed(exc)

    def _on_closed(self, error: Exception | None) -> None:
        if self._answer is not None and error is None:
            response = self._reader.close()
            if response is not None:
                self._settle([*self._reader.responses, response])
        is_stale = self._has_answered and self._reader.bytes_read == 0
        lost = (StaleConnectionError if is_stale else AnswerLostError)(
            f"{type(error).__name__} {error}" if error is not None else "the server closed the connection"
        )
        lost.__cause__ = error
        self.end(lost)


class ConnectionPool:
    """Connections to one endpoint. The last used one is used next, so that surplus ones stay idle and are closed."""

    def __init__(self, endpoint: Endpoint, *, connections_max: int, answer_bytes_max: int) -> None:
        self._endpoint = endpoint
        self._connections_max = connections_max
        self._answer_bytes_max = answer_bytes_max
        self._loop = asyncio.get_running_loop()
        self._connections: set[Connection] = set()
        self._idle: list[Connection] = []
        self._places_taken = 0
        """Number of connections that are open or being opened."""
        self._waiting: deque[asyncio.Future[Connection | None]] = deque()
        """First come, first served; bounded by the callers, each of which waits until its deadline at most."""
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = math.inf
        self._in_flight_wait: tuple[int, asyncio.Future[None]] | None = None
        """The number of requests in flight that ends the wait of `wait_in_flight`, and its future."""
        self._is_closed = False

    @property
    def in_flight(self) -> int:
        """Number of requests without a response so far."""
        return len(self._connections) - len(self._idle)

    async def wait_in_flight(self, least: int) -> None:
        """Waits until at least `least` requests are in flight or the pool is closed. One caller at a time."""
        while self.in_flight < least and not self._is_closed:
            reached: asyncio.Future[None] = self._loop.create_future()
            self._in_flight_wait = (least, reached)
            await reached

    async def exchange(self, request: bytes, *, is_repeatable: bool, timeout_s: float) -> Response:
        """Sends a whole request. Raises ConnectFailedError if certainly nothing was sent, else AnswerLostError.

        A repeatable request that meets a stale connection is sent once more on another.
        """
        now = self._loop.time()
        deadline = now + timeout_s
        connection = self._idle.pop() if self._idle else await self._obtain_by(now + _connect_timeout_s(timeout_s))
        try:
            return (await self._converse(connection, request, deadline))[0]
        except StaleConnectionError:
            if not is_repeatable:
                raise
        try:
            connection = await self._obtain_by(now + _connect_timeout_s(timeout_s))
        except ConnectFailedError as error:
            raise AnswerLostError(f"sent once, then: {error}") from error
        return (await self._converse(connection, request, deadline))[0]

    async def exchange_all(self, requests: Sequence[bytes], *, timeout_s: float) -> list[Response]:
        """Sends whole requests in one write on one connection; none is repeated.

        Returns the responses of the first ones: of all, unless the connection broke in between. Raises as `exchange` if there is none.
        """
        now = self._loop.time()
        connection = self._idle.pop() if self._idle else await self._obtain_by(now + _connect_timeout_s(timeout_s))
        return await self._converse(connection, b"".join(requests), now + timeout_s, len(requests))

    async def _converse(
        self, connection: Connection, requests: bytes, deadline: float, expected: int = 1
    ) -> list[Response]:
        answer = connection.send(requests, deadline, expected)
        if deadline < self._alarm_at:
            self._set_alarm(deadline)
        if self._in_flight_wait is not None and self.in_flight >= self._in_flight_wait[0]:
            self._end_in_flight_wait()
        try:
            return await answer
        finally:
            if connection.awaits(
                answer
            ):  # a cancelled exchange cannot reuse its connection: the response still arrives
                connection.end(AnswerLostError("cancelled"))

    def close(self) -> None:
        """Aborts every connection; exchanges in flight and later ones fail."""
        self._is_closed = True
        self._end_in_flight_wait()
        for turn in self._waiting:
            if not turn.done():
                turn.set_exception(ConnectFailedError("the transport was closed"))
        for connection in list(self._connections):
            connection.end(AnswerLostError("the transport was closed"))
        if self._alarm is not None:
            self._alarm.cancel()

    def _end_in_flight_wait(self) -> None:
        crowd, self._in_flight_wait = self._in_flight_wait, None
        if crowd is not None and not crowd[1].done():
            crowd[1].set_result(None)

    # ---- called by connections

    def release_connection(self, connection: Connection) -> None:
        """Accepts a connection whose response is complete."""
        connection.deadline = self._loop.time() + IDLE_TIMEOUT_S
        if connection.deadline < self._alarm_at:
            self._set_alarm(connection.deadline)
        if not self._waiting or not self._pass_on(connection):
            self._idle.append(connection)

    def forget(self, connection: Connection) -> None:
        """Removes a lost connection."""
        if connection in self._connections:
            self._connections.discard(connection)
            if connection in self._idle:
                self._idle.remove(connection)
            self._vacate()

    # ---- places

    async def _obtain_by(self, deadline: float) -> Connection:
        if self._is_closed:
            raise ConnectFailedError("the transport is closed")
        try:
            async with asyncio.timeout_at(deadline):
                return await self._obtain()
        except (OSError, ValueError) as error:  # ValueError: an invalid host name
            raise ConnectFailedError(f"{type(error).__name__} {error}".strip()) from error

    async def _obtain(self) -> Connection:
        """Returns a new connection, or one that has just completed another exchange: never one that was idle."""
        while self._places_taken >= self._connections_max:
            if self._idle:
                self._idle[0].end()
                continue
            handed = await self._wait_turn()
            if handed is None:
                return await self._open()
            if not handed.is_lost:
                return handed
        self._places_taken += 1
        return await self._open()

    async def _wait_turn(self) -> Connection | None:
        """Returns a connection, or None: the caller may open one."""
        turn: asyncio.Future[Connection | None] = self._loop.create_future()
        self._waiting.append(turn)
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._return_turn(turn.result())
            raise

    def _return_turn(self, handed: Connection | None) -> None:
        """Passes a connection or permission that arrived after its waiter was cancelled to the next waiter."""
        if handed is None:
            self._vacate()
        elif not handed.is_lost:
            self.release_connection(handed)

    async def _open(self) -> Connection:
        """Opens a connection; the caller has counted it in `_places_taken`."""
        connection: Connection | None = None
        try:
            connection = await self._endpoint.connect(lambda: Connection(self, self._answer_bytes_max))
        finally:
            if connection is None:
                self._vacate()
        if connection.is_lost or self._is_closed:
            connection.end()
            self._vacate()
            raise ConnectionAbortedError("closed at once")
        self._connections.add(connection)
        return connection

    def _vacate(self) -> None:
        if not self._pass_on(None):
            self._places_taken -= 1

    def _pass_on(self, handed: Connection | None) -> bool:
        """Passes a connection, or None for permission to open one, to the longest waiter; returns False if there is none."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(handed)
                return True
        return False

    # ---- deadlines: one timer for all, because nearly all exchanges end long before their deadline

    def _set_alarm(self, deadline: float) -> None:
        """Sets the timer to a deadline that is earlier than that of the timer."""
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_at = deadline
        self._alarm = self._loop.call_at(deadline, self._end_overdue)

    def _end_overdue(self) -> None:
        self._alarm, self._alarm_at = None, math.inf
        latest = self._loop.time() + TIMER_SLACK_S
        for connection in [connection for connection in self._connections if connection.deadline <= latest]:
            connection.end(AnswerLostError("TimeoutError: no whole answer in time"))
        if self._connections:
            self._set_alarm(min(connection.deadline for connection in self._connections))


def _connect_timeout_s(timeout_s: float) -> float:
    """Returns a shorter timeout: that distinguishes an unreachable server from one that did not respond."""
    return min(CONNECT_TIMEOUT_S, timeout_s * 0.8)
