"""In-process requests to an `ApiServer`: `wire.Transport` without a socket.

Used by controllers, fake kubelets, tests and the seeded simulation. A `DirectTransport` owns only its user. It needs a
running asyncio loop and yields to it once per request, so that no caller can starve the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from multisched.cluster.api.server import ApiServer
from multisched.cluster.api.watch import WatchStream
from multisched.cluster.base.request import ADMIN, ApiRequest, UserInfo
from multisched.model.wire import JSON, AnswerLostError, LineStream, Response


class DirectTransport:
    """Implements `wire.Transport` for one user."""

    def __init__(self, server: ApiServer, user: UserInfo = ADMIN) -> None:
        self._server = server
        self._user = user

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
        """Handles the request. Raises AnswerLostError for a watch, whose response never completes."""
        del timeout_s  # an in-process request cannot time out
        await asyncio.sleep(0)
        answer = self._server.handle(ApiRequest(method, path, body, content_type, accept, self._user))
        if isinstance(answer, WatchStream):
            answer.close()
            raise AnswerLostError("a watch has no complete response; use stream()")
        return answer

    @asynccontextmanager
    async def stream(
        self, path: str, *, connect_timeout_s: float = 5.0, idle_timeout_s: float = 90.0
    ) -> AsyncIterator[LineStream]:
        """Opens a watch; closes it when the block is left."""
        del connect_timeout_s
        await asyncio.sleep(0)
        answer = self._server.handle(ApiRequest("GET", path, user=self._user))
        if isinstance(answer, Response):
            yield _Refused(answer)
            return
        try:
            yield _Lines(answer, idle_timeout_s)
        finally:
            answer.close()


class _Refused:
    """A complete response where a watch was requested."""

    def __init__(self, answer: Response) -> None:
        self.status = answer.status
        self.headers: Mapping[str, str] = answer.headers
        self._body = answer.body

    async def read_body(self) -> bytes:
        return self._body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for line in self._body.splitlines():
            yield line


class _Lines:
    """An open watch, line by line."""

    def __init__(self, stream: WatchStream, idle_timeout_s: float) -> None:
        self.status = stream.status
        self.headers: Mapping[str, str] = stream.headers
        self._stream = stream
        self._idle_timeout_s = idle_timeout_s

    async def read_body(self) -> bytes:
        return b""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            try:
                async with asyncio.timeout(self._idle_timeout_s):
                    lines = await self._stream.read()
            except TimeoutError:
                raise AnswerLostError(f"the watch sent nothing for {self._idle_timeout_s:g} s") from None
            if not lines:
                break
            for line in lines:
                yield line[:-1]
        if self._stream.is_broken:
            raise AnswerLostError("the watch connection was lost")
