"""HTTP to one API server: `connect()` and the Transport, with credentials from kubernetes-asyncio.

Short exchanges use a `ConnectionPool`, watches use aiohttp; if there is a proxy, everything uses aiohttp.

Owns the connections and implements the contract of `model.wire.Transport`. A status never raises; `ConnectFailedError`
means that nothing was sent, `AnswerLostError` that something may have been. Responses are not read beyond their size
limit or decompressed. Every connection is returned to its pool or aborted. The shell opens one per process and passes
it to everything else in this package.
"""

from __future__ import annotations

import asyncio
import os
import re
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from itertools import zip_longest
from pathlib import Path
from time import perf_counter
from typing import Final
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import msgspec
from msgspec.structs import replace
from multidict import CIMultiDict
from yarl import URL

from multisched.client.auth import (
    Access,
    Credentials,
    CredentialSource,
    InClusterSource,
    KubeconfigSource,
    Vendor,
    import_vendor,
)
from multisched.client.connection_pool import CONNECT_TIMEOUT_S, ConnectionPool, Endpoint
from multisched.client.errors import STATUS_TEXT_CHARS_MAX, CredentialsError
from multisched.client.kubeconfig_files import default_kubeconfig
from multisched.client.line_stream import LOST, HttpLineStream, lower, read_capped, reason
from multisched.client.request_counts import NO_ANSWER, RequestCounts
from multisched.model.wire import (
    ANSWER_BYTES_MAX,
    JSON,
    AnswerLostError,
    ConnectFailedError,
    LineStream,
    Request,
    Response,
    TransportError,
)
from multisched.tls.contexts import load_pair

WATCH_ANSWER_TIMEOUT_S: Final = 30.0
"""Time limit for the status line of a connected watch."""
GOODBYE_S: Final = 1.0
"""Time limit for the peer's close frame of a WebSocket."""
CONNECTIONS_MAX: Final = 640
"""One request each: 512 binds of a domain (the default of `bindWorkers.max`), and everything else."""
READ_BUFFER_BYTES: Final = 2 * 1024 * 1024
USER_AGENT: Final = "multisched"

_NOT_SENT: Final = (
    ConnectFailedError,
    aiohttp.ClientConnectorError,
    aiohttp.ConnectionTimeoutError,
    aiohttp.ClientHttpProxyError,
    aiohttp.InvalidURL,
)
_METHODS: Final = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE"})
_TARGET: Final = re.compile(r"/[!-~]*")
"""Allowed characters of a request target: no blank, no line end, ASCII only."""
_HEADER_VALUE: Final = re.compile(r"[ -~]*")


@asynccontextmanager
async def connect(
    kubeconfig: Path | None = None, context: str | None = None, *, counts: RequestCounts | None = None
) -> AsyncIterator[HttpTransport]:
    """Returns an authenticated transport with the credentials of `kubeconfig`, else the pod's service account, else the
    user's default kubeconfig.

    Makes no request. Raises CredentialsError if there are no usable credentials. `counts`: where requests are counted.
    """
    vendor = import_vendor()
    credentials = await find_credentials(vendor, kubeconfig, context)
    async with open_transport(credentials, counts=counts) as transport:
        yield transport


@asynccontextmanager
async def open_transport(
    credentials: Credentials,
    *,
    connections_max: int = CONNECTIONS_MAX,
    counts: RequestCounts | None = None,
) -> AsyncIterator[HttpTransport]:
    """Returns a transport for given credentials."""
    transport = HttpTransport(credentials, connections_max, counts)
    try:
        yield transport
    finally:
        await transport.close()


async def find_credentials(vendor: Vendor, kubeconfig: Path | None, context: str | None) -> Credentials:
    """Returns the credentials of the file; without one those of the pod's service account, else of the user's own kubeconfig."""
    if kubeconfig is not None:
        return await Credentials.load(KubeconfigSource(vendor, kubeconfig, context))
    inside: CredentialSource = InClusterSource(vendor)
    try:
        return await Credentials.load(inside)
    except CredentialsError as outside:
        default = Path(default_kubeconfig(os.environ))
        try:
            return await Credentials.load(KubeconfigSource(vendor, default, context))
        except CredentialsError as error:
            raise CredentialsError(f"{error}; {outside}") from error


class TransportStatistics(msgspec.Struct):
    """Counters since start."""

    requests: int = 0
    streams: int = 0
    connect_failures: int = 0
    lost_answers: int = 0
    unauthorized: int = 0
    sessions: int = 0


class _Channel:
    """The connections for one Access. After a renewal of the certificates it closes when its last request has ended."""

    def __init__(self, access: Access, connections_max: int) -> None:
        tls = _tls(access)
        self.session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=connections_max, ssl=True if tls is None else tls),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            read_bufsize=READ_BUFFER_BYTES,
            timeout=aiohttp.ClientTimeout(total=None),
        )
        self.access = access
        self.users = 0
        self._base = access.host
        self._server_name = access.tls_server_name
        self._headers: dict[tuple[str, str], CIMultiDict[str]] = {}
        self._heads: dict[tuple[str, str], str] = {}
        self._endpoint = _endpoint(access, tls)
        self._proxy = None if self._endpoint is None else access.proxy or _proxy_of_environment(access.host)
        self.pool: ConnectionPool | None = None
        """For short exchanges; None if they must use the session: there is a proxy, or no usable address."""
        if self._endpoint is not None and self._proxy is None:
            self.pool = ConnectionPool(
                self._endpoint, connections_max=connections_max, answer_bytes_max=ANSWER_BYTES_MAX
            )

    async def send(
        self, method: str, path: str, headers: CIMultiDict[str], body: bytes | None, timeout: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        if self._endpoint is None:
            raise ConnectFailedError("the server's address is not an http or https URL")
        return await self.session.request(
            method,
            URL(self._base + path, encoded=True),
            data=body,
            headers=headers,
            timeout=timeout,
            allow_redirects=False,
            proxy=self._proxy,
            server_hostname=self._server_name,
        )

    def websocket(self, path: str, protocol: str) -> AbstractAsyncContextManager[aiohttp.ClientWebSocketResponse]:
        if self._endpoint is None:
            raise ConnectFailedError("the server's address is not an http or https URL")
        return self.session.ws_connect(
            URL(self._base + path, encoded=True),
            protocols=(protocol,),
            timeout=aiohttp.ClientWSTimeout(ws_close=GOODBYE_S),
            headers=self.headers(JSON, ""),
            proxy=self._proxy,
            server_hostname=self._server_name,
        )

    def headers(self, accept: str, content_type: str) -> CIMultiDict[str]:
        """Returns the headers of a request; `content_type` is empty without a body."""
        prepared = self._headers.get((accept, content_type))
        if prepared is None:
            prepared = CIMultiDict({"Accept": accept, "Accept-Encoding": "identity", "User-Agent": USER_AGENT})
            if content_type:
                prepared["Content-Type"] = content_type
            if self.access.authorization:
                prepared["Authorization"] = self.access.authorization
            self._headers[accept, content_type] = prepared
        return prepared

    def request_bytes(self, method: str, path: str, types: tuple[str, str], body: bytes | None) -> bytes:
        """Returns a whole request for the pool. Raises ConnectFailedError for a method or path that would not form a
        valid request line.
        """
        assert self._endpoint is not None
        if method not in _METHODS or _TARGET.fullmatch(path) is None:
            raise ConnectFailedError(f"not a request line: {method[:16]!r} {path[:128]!r}")
        head = self._heads.get(types) or self._prepare_head(types)
        length = "" if body is None and method in ("GET", "DELETE") else f"Content-Length: {len(body or b'')}\r\n"
        return f"{method} {self._endpoint.base_path}{path} {head}{length}\r\n".encode("ascii") + (body or b"")

    def _prepare_head(self, types: tuple[str, str]) -> str:
        assert self._endpoint is not None
        lines = ["HTTP/1.1", f"Host: {self._endpoint.authority}"]
        for name, value in self.headers(*types).items():
            if _HEADER_VALUE.fullmatch(value) is None:
                raise ConnectFailedError(
                    f"the value for the header {name} holds a character that no header may contain"
                )
            lines.append(f"{name}: {value}")
        head = self._heads[types] = "\r\n".join(lines) + "\r\n"
        return head

    def adopt(self, access: Access) -> None:
        """Uses a new token over the same connections."""
        self.access = access
        self._headers.clear()
        self._heads.clear()

    async def close(self) -> None:
        if self.pool is not None:
            self.pool.close()
        await self.session.close()


def _tls(access: Access) -> ssl.SSLContext | None:
    """Returns None for plain http. Raises CredentialsError if the certificates cannot be used."""
    if access.host.lower().startswith("http:"):
        return None
    try:
        context = ssl.create_default_context(cafile=access.ca_file)
        if access.cert_file:
            load_pair(context, Path(access.cert_file), Path(access.key_file) if access.key_file else None)
    except (ssl.SSLError, OSError, ValueError) as error:
        why = f"{type(error).__name__} {error}"[:STATUS_TEXT_CHARS_MAX]
        text = f"the certificates for {access.host} cannot be used ({why}); check certificate-authority, client-certificate and client-key"
        raise CredentialsError(text) from error
    if not access.verify_tls:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _endpoint(access: Access, tls: ssl.SSLContext | None) -> Endpoint | None:
    """Returns None for an invalid address."""
    try:
        endpoint = Endpoint.of(access.host, tls, access.tls_server_name)
    except ValueError:
        return None
    is_sound = _TARGET.fullmatch(f"/{endpoint.base_path}{endpoint.authority}") is not None
    return endpoint if is_sound else None


def _proxy_of_environment(host: str) -> str | None:
    """Returns the proxy by HTTPS_PROXY, HTTP_PROXY and NO_PROXY, as kubectl does."""
    parts = urlsplit(host)
    if parts.hostname is None or proxy_bypass(parts.hostname):
        return None
    return getproxies().get(parts.scheme)


class HttpTransport:
    """`model.wire.PipelinedTransport` over HTTP/1.1 with keep-alive."""

    def __init__(
        self,
        credentials: Credentials,
        connections_max: int = CONNECTIONS_MAX,
        counts: RequestCounts | None = None,
    ) -> None:
        self.counts = counts if counts is not None else RequestCounts()
        """Counts all requests, including those of transports from `separate_connections`."""
        self._credentials = credentials
        self._connections_max = connections_max
        self._counters = TransportStatistics()
        self._channel = self._open_channel()
        self._retired: set[_Channel] = set()
        self._unusable: Access | None = None
        """Renewed credentials with which no connections could be set up."""
        self._timeouts: dict[float, aiohttp.ClientTimeout] = {}

    @property
    def host(self) -> str:
        """The server's base address, for messages."""
        return self._credentials.access.host

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
        """See `model.wire.Transport`. After a 401 repeats the request once if the credentials have changed."""
        content_type = content_type if body is not None else ""
        if self._credentials.is_due:
            await self._credentials.reread()
        channel = self._current_channel()
        access = channel.access
        response = await self._exchange(channel, method, path, body, (accept, content_type), timeout_s)
        if response.status != 401:
            return response
        renewed = await self._renewed(access)
        if renewed is None:
            return response
        return await self._exchange(renewed, method, path, body, (accept, content_type), timeout_s)

    async def request_all(self, requests: Sequence[Request], *, timeout_s: float) -> list[Response]:
        """See `model.wire.PipelinedTransport`. Through a proxy the requests are sent one by one."""
        channel = await self._take_channel()
        if channel.pool is None:
            return await self._request_one_by_one(requests, timeout_s)
        responses = await self._exchange_all(channel, channel.pool, requests, timeout_s)
        refused = next((at for at, response in enumerate(responses) if response.status == 401), None)
        if refused is None:
            return responses
        # `request` renews the credentials.
        return responses[:refused] + await self._request_one_by_one(requests[refused : len(responses)], timeout_s)

    async def _request_one_by_one(self, requests: Sequence[Request], timeout_s: float) -> list[Response]:
        """Returns the responses before the first failure; raises it if there is none."""
        responses: list[Response] = []
        for one in requests:
            try:
                responses.append(
                    await self.request(
                        one.method, one.path, body=one.body, content_type=one.content_type, timeout_s=timeout_s
                    )
                )
            except TransportError:
                if not responses:
                    raise
                break
        return responses

    @asynccontextmanager
    async def stream(
        self, path: str, *, connect_timeout_s: float = CONNECT_TIMEOUT_S, idle_timeout_s: float = 90.0
    ) -> AsyncIterator[LineStream]:
        """See `model.wire.Transport`. Aborts the connection on exit: a TLS close_notify to a silent peer takes half a minute."""
        self._counters.streams += 1
        timeout = aiohttp.ClientTimeout(
            total=None, connect=connect_timeout_s, sock_connect=connect_timeout_s, sock_read=idle_timeout_s
        )
        channel = await self._take_channel()
        access = channel.access
        response = await self._open_stream(channel, path, timeout)
        if response.status == 401:
            renewed = await self._renewed_for_stream(channel, response, access)
            if renewed is not None:
                channel = renewed
                response = await self._open_stream(channel, path, timeout)
        try:
            yield HttpLineStream(response)
        finally:
            await self._end_stream(channel, response)

    @asynccontextmanager
    async def websocket(
        self, path: str, protocol: str, *, timeout_s: float
    ) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """Opens a WebSocket. `timeout_s`: until it is open. Raises TransportError, aiohttp.ClientError, TimeoutError and OSError."""
        channel = await self._take_channel()
        channel.users += 1
        try:
            async with AsyncExitStack() as stack:
                async with asyncio.timeout(timeout_s):
                    opened = await stack.enter_async_context(channel.websocket(path, protocol))
                yield opened
        finally:
            await self._give_back(channel)

    @asynccontextmanager
    async def separate_connections(self, connections_max: int) -> AsyncIterator[HttpTransport]:
        """Opens a second transport with the same credentials and separate connections, for requests that must not crowd
        out others.
        """
        opened = open_transport(self._credentials, connections_max=connections_max, counts=self.counts)
        async with opened as transport:
            yield transport

    async def wait_in_flight(self, least: int) -> None:
        """Waits until at least `least` short requests are in flight. One caller at a time."""
        while True:
            channel = self._channel
            if channel.pool is None:
                await asyncio.get_running_loop().create_future()  # requests through a proxy are not counted
            else:
                await channel.pool.wait_in_flight(least)
            if channel is self._channel:
                return

    def statistics(self) -> TransportStatistics:
        return replace(self._counters)

    async def close(self) -> None:
        """Closes every connection."""
        for channel in (self._channel, *self._retired):
            await channel.close()
        self._retired.clear()

    # ---- one exchange

    async def _exchange(
        self, channel: _Channel, method: str, path: str, body: bytes | None, types: tuple[str, str], timeout_s: float
    ) -> Response:
        self._counters.requests += 1
        channel.users += 1
        status, started_s = NO_ANSWER, perf_counter()
        try:
            if channel.pool is None:
                response = await self._exchange_over_session(channel, method, path, body, types, timeout_s)
            else:
                request = channel.request_bytes(method, path, types, body)
                response = await channel.pool.exchange(request, is_repeatable=method == "GET", timeout_s=timeout_s)
            status = response.status
        except LOST as error:
            raise self._failure(error, method) from error
        finally:
            self.counts.ended(method, status, perf_counter() - started_s)
            channel.users -= 1
            if self._retired:
                await self._close_unused()
        return response

    async def _exchange_all(
        self, channel: _Channel, pool: ConnectionPool, requests: Sequence[Request], timeout_s: float
    ) -> list[Response]:
        self._counters.requests += len(requests)
        channel.users += 1
        responses: list[Response] = []
        started_s = perf_counter()
        try:
            whole = [
                channel.request_bytes(one.method, one.path, (JSON, one.content_type), one.body) for one in requests
            ]
            responses = await pool.exchange_all(whole, timeout_s=timeout_s)
        except LOST as error:
            raise self._failure(error, requests[0].method) from error
        finally:
            # The server answers one after the other.
            each_s = (perf_counter() - started_s) / len(requests)
            for one, response in zip_longest(requests, responses):
                self.counts.ended(one.method, NO_ANSWER if response is None else response.status, each_s)
            channel.users -= 1
            if self._retired:
                await self._close_unused()
        return responses

    async def _exchange_over_session(
        self, channel: _Channel, method: str, path: str, body: bytes | None, types: tuple[str, str], timeout_s: float
    ) -> Response:
        answer = await channel.send(method, path, channel.headers(*types), body, self._timeout(timeout_s))
        try:
            content = await read_capped(answer, ANSWER_BYTES_MAX)
        except BaseException:
            answer.close()
            raise
        answer.release()
        return Response(answer.status, content, lower(answer.headers))

    async def _open_stream(
        self, channel: _Channel, path: str, timeout: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        channel.users += 1
        try:
            async with asyncio.timeout((timeout.connect or CONNECT_TIMEOUT_S) + WATCH_ANSWER_TIMEOUT_S):
                response = await channel.send("GET", path, channel.headers(JSON, ""), None, timeout)
        except LOST as error:
            self.counts.began("GET", NO_ANSWER)
            await self._give_back(channel)
            raise self._failure(error, "GET") from error
        except BaseException:
            await self._give_back(channel)
            raise
        self.counts.began("GET", response.status)
        return response

    async def _end_stream(self, channel: _Channel, response: aiohttp.ClientResponse) -> None:
        connection = response.connection
        if connection is not None and connection.transport is not None:
            connection.transport.abort()
        response.close()
        await self._give_back(channel)

    def _failure(self, error: BaseException, method: str) -> TransportError:
        if isinstance(error.__cause__ or error, ssl.SSLError | aiohttp.ClientSSLError):
            self._credentials.expire()
        if isinstance(error, _NOT_SENT):
            self._counters.connect_failures += 1
            return ConnectFailedError(f"cannot connect to {self.host}: {reason(error)}")
        self._counters.lost_answers += 1
        return AnswerLostError(f"no complete answer to {method} from {self.host}: {reason(error)}")

    def _timeout(self, timeout_s: float) -> aiohttp.ClientTimeout:
        timeout = self._timeouts.get(timeout_s)
        if timeout is None:
            if len(self._timeouts) >= 64:
                self._timeouts.clear()
            # The connect deadline is earlier: that distinguishes an unreachable server from one that did not respond.
            connect_s = min(CONNECT_TIMEOUT_S, timeout_s * 0.8)
            timeout = aiohttp.ClientTimeout(total=timeout_s, connect=connect_s, sock_connect=connect_s)
            self._timeouts[timeout_s] = timeout
        return timeout

    # ---- channels

    def _open_channel(self) -> _Channel:
        self._counters.sessions += 1
        return _Channel(self._credentials.access, self._connections_max)

    async def _take_channel(self) -> _Channel:
        if self._credentials.is_due:
            await self._credentials.reread()
        return self._current_channel()

    async def _renewed(self, refused: Access) -> _Channel | None:
        """Returns the channel on which to repeat a refused request; None if the credentials have not changed.

        `refused` are the credentials that the request was sent with: another request may have renewed them meanwhile.
        """
        self._counters.unauthorized += 1
        if not await self._credentials.renew(refused):
            return None
        return self._current_channel()

    async def _renewed_for_stream(
        self, channel: _Channel, response: aiohttp.ClientResponse, refused: Access
    ) -> _Channel | None:
        try:
            renewed = await self._renewed(refused)
        except BaseException:
            await self._end_stream(channel, response)
            raise
        if renewed is not None:
            await self._end_stream(channel, response)
        return renewed

    def _current_channel(self) -> _Channel:
        """Returns the channel of the current credentials: the same one with a new token, or a new one for new certificates."""
        access = self._credentials.access
        channel = self._channel
        if access is channel.access:
            return channel
        if access.connects_like(channel.access):
            channel.adopt(access)
            return channel
        if access is self._unusable:
            return channel
        try:
            self._channel = self._open_channel()
        except CredentialsError as error:  # a renewal may be written only in part
            self._unusable = access
            self._credentials.report_unusable(error)
            return channel
        self._retired.add(channel)
        return self._channel

    async def _give_back(self, channel: _Channel) -> None:
        channel.users -= 1
        if self._retired:
            await self._close_unused()

    async def _close_unused(self) -> None:
        """Closes retired channels without requests in flight."""
        for retired in [retired for retired in self._retired if retired.users == 0]:
            self._retired.discard(retired)
            await retired.close()
