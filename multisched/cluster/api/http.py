"""The API server on a TLS socket: authentication, complete responses and watch streams.

Owns the listening socket and the connections. Users authenticate by bearer token or client certificate. If a client
reads its watch too slowly and the stream's backlog reaches its bound, the connection is aborted.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from typing import Any

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from multisched.cluster.access.rbac import Attributes
from multisched.cluster.api.server import ApiServer
from multisched.cluster.api.verbs import BODY_BYTES_MAX
from multisched.cluster.api.watch import WatchStream
from multisched.cluster.base import errors
from multisched.cluster.base.request import ANONYMOUS, ApiRequest, UserInfo
from multisched.model.wire import JSON, Response

KEEPALIVE_S = 300.0
"""Time after which an idle connection is closed."""

SHUTDOWN_S = 1.0
"""Time for open requests to finish when the server stops."""

WATCH_WRITE_BYTES = 256 * 1024
"""Approximate size of the writes to which watch lines are joined."""

SEPARATOR = b"\n"


class HttpServer:
    """Serves one ApiServer over TLS."""

    def __init__(self, api: ApiServer, context: ssl.SSLContext) -> None:
        self._api = api
        self._context = context
        self._web = web.Server(
            self._answer,
            request_factory=self._request,
            handler_cancellation=True,
            keepalive_timeout=KEEPALIVE_S,
            access_log=None,
        )
        self._listener: asyncio.Server | None = None

    async def listen(self, host: str, port: int) -> int:
        """Starts listening; returns the port."""
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(self._web, host, port, ssl=self._context, backlog=1_024)
        bound: int = self._listener.sockets[0].getsockname()[1]
        return bound

    async def close(self) -> None:
        """Stops listening and closes every connection."""
        if self._listener is not None:
            self._listener.close()
        self._api.drop_watches()
        await self._web.shutdown(SHUTDOWN_S)
        if self._listener is not None:
            await self._listener.wait_closed()

    def _request(
        self,
        message: Any,
        payload: Any,
        protocol: RequestHandler,
        writer: Any,
        task: asyncio.Task[None],
    ) -> web.BaseRequest:
        return web.BaseRequest(
            message, payload, protocol, writer, task, asyncio.get_running_loop(), client_max_size=BODY_BYTES_MAX + 1
        )

    # -- authentication ------------------------------------------------------------------------------------------

    def _user(self, request: web.BaseRequest) -> UserInfo | None:
        """Authenticates the client; returns None for an invalid token. As in upstream, a certificate takes precedence over a token."""
        by_certificate = _certificate_user(request.transport)
        if by_certificate is not ANONYMOUS:
            return by_certificate
        given = request.headers.get("Authorization")
        if given is not None:
            scheme, _, token = given.partition(" ")
            return self._api.tokens.authenticate(token.strip()) if scheme.lower() == "bearer" else None
        return ANONYMOUS

    def _impersonated(self, request: web.BaseRequest, user: UserInfo) -> UserInfo:
        name = request.headers.get("Impersonate-User")
        if not name:
            return user
        self._api.rbac.check(user, Attributes("impersonate", plural="users", name=name))
        groups = tuple(request.headers.getall("Impersonate-Group", ()))
        for group in groups:
            self._api.rbac.check(user, Attributes("impersonate", plural="groups", name=group))
        if name.startswith("system:serviceaccount:") and not groups:
            namespace = name.split(":")[2]
            groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}")
        return UserInfo(name, (*groups, "system:authenticated"))

    # -- requests ------------------------------------------------------------------------------------------------

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        user = self._user(request)
        if user is None:
            return _plain(errors.unauthorized().response())
        headers = request.headers
        try:
            body = await request.read() if request.body_exists else None
            if "Impersonate-User" in headers:
                user = self._impersonated(request, user)
        except errors.ApiError as refusal:
            return _plain(refusal.response())
        except web.HTTPRequestEntityTooLarge:
            message = f"Request entity too large: limit is {BODY_BYTES_MAX}"
            return _plain(errors.ApiError(413, "RequestEntityTooLarge", message).response())
        asked = ApiRequest(
            request.method,
            request.raw_path,
            body,
            headers.get("Content-Type", JSON),
            headers.get("Accept", JSON),
            user,
            headers.get("User-Agent", ""),
        )
        answer = self._api.handle(asked)
        if isinstance(answer, WatchStream):
            return await self._stream(request, answer)
        return _plain(answer)

    async def _stream(self, request: web.BaseRequest, stream: WatchStream) -> web.StreamResponse:
        response = web.StreamResponse(status=200, headers=stream.headers)
        response.enable_chunked_encoding()
        transport = request.transport
        if transport is not None:
            stream.on_drop = transport.abort
        try:
            await response.prepare(request)
            while lines := await stream.read():
                await _write(response, lines)
            if not stream.is_broken:
                await response.write_eof()
        except ConnectionError:
            pass  # the client has disconnected
        finally:
            stream.close()
        return response


async def _write(response: web.StreamResponse, lines: list[bytes]) -> None:
    batch: list[bytes] = []
    size = 0
    for line in lines:
        batch.append(line)
        size += len(line)
        if size >= WATCH_WRITE_BYTES:
            await response.write(b"".join(batch))
            batch, size = [], 0
    if batch:
        await response.write(b"".join(batch))


def _plain(answer: Response) -> web.Response:
    headers: Mapping[str, str] = answer.headers
    return web.Response(body=answer.body, status=answer.status, headers=headers)


def _certificate_user(transport: asyncio.Transport | None) -> UserInfo:
    found = transport.get_extra_info("peercert") if transport is not None else None
    if not found:
        return ANONYMOUS
    attributes = [pair for entry in found.get("subject", ()) for pair in entry]
    names = [value for key, value in attributes if key == "commonName"]
    groups = tuple(value for key, value in attributes if key == "organizationName")
    return UserInfo(names[0] if names else "", (*groups, "system:authenticated"))
