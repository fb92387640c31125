"""One document in a ConfigMap, replaced as a whole: `moving.DocumentStore` over any Transport.

Owns the resourceVersion that it saw last; a write never replaces a newer one. If two processes both believe that they
lead, the one that read last wins and the other gets a conflict. Writes are background writes: binds are sent first.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
import orjson

from multisched.client.errors import sentence_of
from multisched.client.limits import WriteLimiter
from multisched.client.paths import segment, within
from multisched.client.timed_write import ANSWER_GRACE_S
from multisched.framework.moving import DocumentAnswer, DocumentReply
from multisched.framework.ports import UnreachableError
from multisched.model.wire import UNREADABLE, Response, Transport, TransportError

TIMEOUT_S: Final = 5.0
BYTES_MAX: Final = 900_000
"""A ConfigMap holds 1 MiB including its metadata."""
KEY: Final = "run.json"
LABELS: Final = {"app.kubernetes.io/managed-by": "multisched"}


class _Metadata(msgspec.Struct):
    version: str = msgspec.field(name="resourceVersion", default="")


class _ConfigMap(msgspec.Struct):
    metadata: _Metadata
    data: dict[str, str] | None = None


_DECODER: Final = msgspec.json.Decoder(_ConfigMap)


class ForbiddenReadError(UnreachableError):
    """The role of this program does not allow reading the ConfigMap."""


class ConfigMapDocument:
    """Keeps one document in a ConfigMap, and replaces only the version that it saw last. For use by one task at a time."""

    def __init__(self, transport: Transport, limiter: WriteLimiter, namespace: str, name: str, key: str = KEY) -> None:
        """`key`: of the document in the ConfigMap's data."""
        self._transport = transport
        self._key = key
        self._limiter = limiter
        self._name = name
        self._collection = f"/api/v1/namespaces/{segment(namespace)}/configmaps"
        self._path = f"{self._collection}/{segment(name)}"
        self._version = ""
        """Empty: as far as is known the ConfigMap does not exist."""

    async def read(self) -> bytes | None:
        """See `DocumentStore`. A ConfigMap without the document's key counts as empty and will be overwritten."""
        try:
            response = await self._transport.request("GET", self._path, timeout_s=TIMEOUT_S)
        except TransportError as error:
            raise UnreachableError(f"ConfigMap {self._name}: {error}") from error
        if response.status == 404:
            self._version = ""
            return None
        if response.status == 403:
            raise ForbiddenReadError(f"ConfigMap {self._name}: {sentence_of(response)}")
        if response.status != 200:
            raise UnreachableError(f"ConfigMap {self._name}: {sentence_of(response)}")
        return self._seen(response)

    async def write(self, document: bytes) -> DocumentReply:
        """See `DocumentStore`."""
        if len(document) > BYTES_MAX:
            return DocumentReply(DocumentAnswer.REFUSED, f"{len(document)} bytes, more than {BYTES_MAX}")
        await self._limiter.admit_background()
        try:
            response = await self._send(document)
            if response.status == 409:
                return await self._conflict(document)
            if response.status in (200, 201):
                self._seen(response)
                return DocumentReply(DocumentAnswer.WRITTEN)
        except (TransportError, UnreachableError) as error:
            return DocumentReply(DocumentAnswer.UNKNOWN, str(error))
        if response.status == 404 and self._version:  # it was deleted: the next write creates it
            self._version = ""
            return DocumentReply(DocumentAnswer.UNKNOWN, sentence_of(response))
        is_definite = 400 <= response.status < 500 and response.status not in (408, 429)
        return DocumentReply(DocumentAnswer.REFUSED if is_definite else DocumentAnswer.UNKNOWN, sentence_of(response))

    async def _send(self, document: bytes) -> Response:
        metadata: dict[str, Any] = {"name": self._name, "labels": LABELS}
        if self._version:
            metadata["resourceVersion"] = self._version
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {self._key: document.decode()}}
        method, path = ("PUT", self._path) if self._version else ("POST", self._collection)
        return await self._transport.request(
            method, within(path, TIMEOUT_S), body=orjson.dumps(body), timeout_s=TIMEOUT_S + ANSWER_GRACE_S
        )

    async def _conflict(self, document: bytes) -> DocumentReply:
        """Handles a 409: another process wrote it, or this process did and the response was lost."""
        version = self._version
        if await self.read() == document:
            return DocumentReply(DocumentAnswer.WRITTEN)
        self._version = version
        return DocumentReply(DocumentAnswer.CONFLICT, f"ConfigMap {self._name} was written by another")

    def _seen(self, response: Response) -> bytes:
        try:
            found = _DECODER.decode(response.body)
        except UNREADABLE as error:
            raise UnreachableError(f"ConfigMap {self._name}: the response is not a ConfigMap: {error}") from error
        self._version = found.metadata.version
        return (found.data or {}).get(self._key, "").encode()
