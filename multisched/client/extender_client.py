"""HTTP to one extender, and the objects that it is sent; implements `framework.ports.ExtenderClient` and `Documents`.

Owns the connections to the extender. A request ends within the extender's timeout. Requests follow no redirects;
responses are not decompressed or read beyond their size limit. An extender that has stopped responding gets no requests
for a while; its pods are refused at once and no cycle waits.
"""

from __future__ import annotations

import asyncio
import logging
import math
import ssl
from typing import Final

import aiohttp
import msgspec
import orjson

from multisched.client.binder import READ_TIMEOUT_S
from multisched.client.errors import in_words
from multisched.client.line_stream import read_capped
from multisched.client.object_feed import ReflectorHandler
from multisched.client.paths import pod_path
from multisched.client.tls_trust import context_of
from multisched.client.transport import USER_AGENT
from multisched.framework.ports import ExtenderError, ExtenderSettings, UnreachableError
from multisched.model.wire import JSON, Transport, TransportError

logger = logging.getLogger(__name__)

CONNECTIONS_MAX: Final = 64
SILENCES_MAX: Final = 3
"""Requests in a row without a response after which no more are sent for a while."""

LEFT_ALONE_S: Final = 5.0
"""The length of that pause; then one request tests whether the extender responds again."""

NODES_BYTES_MAX: Final = 512 * 1024 * 1024
"""Memory for whole nodes; of the nodes beyond it only the name is sent."""


class HttpExtenderClient:
    """Sends requests to one extender."""

    def __init__(self, settings: ExtenderSettings) -> None:
        """Reads the certificates. Raises ExtenderError if they cannot be used."""
        self.settings = settings
        self._tls = _tls_context(settings)
        self._session: aiohttp.ClientSession | None = None
        self._silences = 0
        self._left_alone_until_s = -math.inf

    async def post(self, verb: str, body: bytes, *, answer_bytes_max: int) -> bytes:
        """See `ExtenderClient`."""
        now_s = asyncio.get_running_loop().time
        if now_s() < self._left_alone_until_s:
            text = f"does not respond; it is called only every {LEFT_ALONE_S:g} s"
            raise ExtenderError(self._named(verb, text), was_sent=False)
        if self._silences >= SILENCES_MAX:  # this request is the test; the others fail at once until it has ended
            self._left_alone_until_s = now_s() + max(LEFT_ALONE_S, self.settings.timeout_s)
        try:
            answer = await self._exchange(verb, body, answer_bytes_max)
        except _SilenceError as error:
            self._silences += 1
            if self._silences >= SILENCES_MAX:
                self._left_alone_until_s = now_s() + LEFT_ALONE_S
            raise ExtenderError(self._named(verb, str(error)), was_sent=error.was_sent) from error
        except ExtenderError:
            self._answered()
            raise
        self._answered()
        return answer

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    def _answered(self) -> None:
        self._silences = 0
        self._left_alone_until_s = -math.inf

    async def _exchange(self, verb: str, body: bytes, answer_bytes_max: int) -> bytes:
        url = f"{self.settings.url.rstrip('/')}/{verb}"
        timeout_s = self.settings.timeout_s
        try:
            async with (
                asyncio.timeout(timeout_s),
                self._opened().post(
                    url, data=body, headers=_HEADERS, allow_redirects=False, server_hostname=self._server_name()
                ) as response,
            ):
                if response.status != 200:
                    raise ExtenderError(f"failed {verb} with extender at URL {url}, code {response.status}")
                return await self._read(verb, response, answer_bytes_max)
        except TimeoutError as error:
            raise _SilenceError(f"no answer within {timeout_s:g} s") from error
        except aiohttp.ClientConnectorError as error:
            raise _SilenceError(f"cannot be reached: {in_words(error)}", was_sent=False) from error
        except (aiohttp.ClientError, OSError) as error:
            raise _SilenceError(f"the answer was lost: {in_words(error)}") from error

    async def _read(self, verb: str, response: aiohttp.ClientResponse, answer_bytes_max: int) -> bytes:
        try:
            return await read_capped(response, answer_bytes_max)
        except aiohttp.ClientPayloadError as error:
            response.close()
            raise ExtenderError(self._named(verb, f"the answer was not read to its end: {error}")) from error

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=CONNECTIONS_MAX, ssl=self._tls),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                timeout=aiohttp.ClientTimeout(total=None),
            )
        return self._session

    def _server_name(self) -> str | None:
        is_tls = self._tls is not True
        return self.settings.trust.server_name or None if is_tls else None

    def _named(self, verb: str, text: str) -> str:
        return f'extender "{self.settings.url}" ({verb}): {text}'


class _SilenceError(Exception):
    """The extender did not respond, or not completely."""

    def __init__(self, message: str, *, was_sent: bool = True) -> None:
        super().__init__(message)
        self.was_sent = was_sent


_HEADERS: Final = {
    "Content-Type": JSON,
    "Accept": JSON,
    "Accept-Encoding": "identity",
    "User-Agent": USER_AGENT,
}


def _tls_context(settings: ExtenderSettings) -> ssl.SSLContext | bool:
    try:
        return context_of(settings.url, settings.trust)
    except (OSError, ssl.SSLError, ValueError) as error:
        raise ExtenderError(f'extender "{settings.url}": tlsConfig cannot be used: {in_words(error)}') from error


class ApiDocuments:
    """Pods as the API server returns them at the time of the request, nodes as last seen by the watch."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._nodes: dict[str, bytes] = {}
        self._nodes_bytes = 0
        self._is_full = False

    async def pod(self, namespace: str, name: str) -> bytes | None:
        """See `Documents`."""
        path = pod_path(namespace, name)
        try:
            response = await self._transport.request("GET", path, timeout_s=READ_TIMEOUT_S)
        except TransportError as error:
            raise UnreachableError(f"pod {namespace}/{name} could not be read for an extender: {error}") from error
        if response.status == 404:
            return None
        if response.status != 200:
            text = f"pod {namespace}/{name} could not be read for an extender: HTTP {response.status}"
            raise UnreachableError(text)
        return _lean(response.body)

    def node(self, name: str) -> bytes:
        """See `Documents`."""
        return self._nodes.get(name) or b'{"metadata":{"name":%b}}' % orjson.dumps(name)

    def keep(self, name: str, raw: bytes) -> None:
        self.drop(name)
        lean = _lean(raw)
        if self._nodes_bytes + len(lean) > NODES_BYTES_MAX:
            if not self._is_full:
                self._is_full = True
                logger.warning("no room for more whole nodes for extenders", extra={"bytes_max": NODES_BYTES_MAX})
            return
        self._nodes[name] = lean
        self._nodes_bytes += len(lean)

    def drop(self, name: str) -> None:
        self._nodes_bytes -= len(self._nodes.pop(name, b""))

    def watching(self, inner: ReflectorHandler) -> ReflectorHandler:
        """Returns a handler that stores each node here and then passes it to `inner`."""
        return _NodeTap(self, inner)


class _NodeTap:
    """A handler of nodes that stores each one and passes it to the inner handler."""

    def __init__(self, documents: ApiDocuments, inner: ReflectorHandler) -> None:
        self._documents = documents
        self._inner = inner

    def upsert(self, key: str, raw: msgspec.Raw) -> None:
        self._documents.keep(key, bytes(raw))
        self._inner.upsert(key, raw)

    def delete(self, key: str, raw: msgspec.Raw | None) -> None:
        self._documents.drop(key)
        self._inner.delete(key, raw)

    def replaced(self, version: str) -> None:
        self._inner.replaced(version)


def _lean(raw: bytes) -> bytes:
    """Returns the object without managedFields, which upstream drops, too; returns `raw` if it is not an object."""
    try:
        document = orjson.loads(raw)
        document["metadata"].pop("managedFields", None)
    except (ValueError, KeyError, TypeError, AttributeError):
        return raw
    return orjson.dumps(document)
