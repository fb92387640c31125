"""List and watch of one path, until cancelled, for the kubelets and controllers of the embedded cluster.

Owns the resource version up to which it has delivered changes. Its handler receives a complete list (`replace`) first and after every gap
(410), and between two lists every change once, in order. After an error, the watch is retried with backoff. Used by
ObjectCache, the fake kubelets and the garbage collector. (The scheduler's reflector is in `multisched.client`, which this package may
not import.)
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlencode

import msgspec

from multisched.cluster.client.object_client import ObjectClient, RefusedError
from multisched.model.wire import TransportError

logger = logging.getLogger(__name__)

BACKOFF_FIRST_S, BACKOFF_FACTOR, BACKOFF_MAX_S = 0.2, 2.0, 30.0
WATCH_SECONDS_MIN, WATCH_SECONDS_MAX = 300, 600
_GONE = 410


class WatchHandler(Protocol):
    """Receives the changes of a watch. Its methods are synchronous, so each change is applied in one step."""

    def replace(self, items: list[msgspec.Raw]) -> None:
        """Replaces all objects; those not in `items` no longer exist."""
        ...

    def put(self, item: msgspec.Raw) -> None:
        """Adds or replaces an object."""
        ...

    def remove(self, item: msgspec.Raw) -> None:
        """Removes an object that was deleted or no longer matches the selector; `item` is its last state."""
        ...


@dataclass(slots=True)
class WatchStatistics:
    """Counters of a watch. `breaks`: errors, and watches that ended without an event."""

    relists: int = 0
    breaks: int = 0
    events: int = 0


class _Line(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Version(msgspec.Struct):
    resourceVersion: str = ""


class _Versioned(msgspec.Struct):
    metadata: _Version = msgspec.field(default_factory=_Version)
    code: int = 0
    message: str = ""


_LINE = msgspec.json.Decoder(_Line)
_VERSIONED = msgspec.json.Decoder(_Versioned)


class _HistoryLostError(Exception):
    """The version to resume from is no longer in the server's history."""


class ObjectWatch:
    """Lists and watches one path for one handler, until cancelled."""

    def __init__(
        self,
        client: ObjectClient,
        path: str,
        handler: WatchHandler,
        *,
        rng: random.Random,
        query: Mapping[str, str] | None = None,
    ) -> None:
        self._client = client
        self._path = path
        self._handler = handler
        self._rng = rng
        self._query = dict(query or {})
        self._version = ""
        self.reached = 0
        """The newest version known to the handler, from lists, events, deletions and bookmarks."""
        self.statistics = WatchStatistics()
        self.synced = asyncio.Event()

    async def run(self) -> None:
        """Lists, watches, resumes and relists until cancelled."""
        delay_s = BACKOFF_FIRST_S
        while True:
            events = self.statistics.events
            try:
                if not self._version:
                    await self._list()
                    delay_s = BACKOFF_FIRST_S
                await self._watch()
                if self.statistics.events > events:
                    continue
            except _HistoryLostError:
                self._version = ""
            except RefusedError as refused:
                if refused.answer.status == _GONE:
                    self._version = ""
                logger.warning("watch refused", extra={"path": self._path, "error": str(refused)})
            except (TransportError, msgspec.DecodeError) as error:
                logger.info("watch broken", extra={"path": self._path, "error": str(error)})
            self.statistics.breaks += 1
            if self.statistics.events > events:
                delay_s = BACKOFF_FIRST_S
            await asyncio.sleep(delay_s * (0.5 + self._rng.random() / 2))
            delay_s = min(BACKOFF_MAX_S, delay_s * BACKOFF_FACTOR)

    async def _list(self) -> None:
        items: list[msgspec.Raw] = []
        version = ""
        async for page in self._client.pages(self._path, self._query):
            items += page.items
            version = version or page.metadata.resourceVersion
        self._handler.replace(items)
        self.statistics.relists += 1
        self._reach(version)
        self.synced.set()

    async def _watch(self) -> None:
        query = {
            **self._query,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(self._rng.randint(WATCH_SECONDS_MIN, WATCH_SECONDS_MAX)),
        }
        async with self._client.transport.stream(f"{self._path}?{urlencode(query)}") as stream:
            if stream.status == _GONE:
                raise _HistoryLostError
            if stream.status != 200:
                raise TransportError(f"watch returned {stream.status}: {(await stream.read_body())[:200]!r}")
            async for line in stream:
                self._take(_LINE.decode(line))

    def _take(self, line: _Line) -> None:
        meta = _VERSIONED.decode(line.object)
        match line.type:
            case "ADDED" | "MODIFIED":
                self._handler.put(line.object)
            case "DELETED":
                self._handler.remove(line.object)
            case "BOOKMARK":
                pass
            case "ERROR" if meta.code == _GONE:
                raise _HistoryLostError
            case _:
                raise TransportError(f"watch sent {line.type}: {meta.message[:200]}")
        self.statistics.events += 1
        self._reach(meta.metadata.resourceVersion or self._version)

    def _reach(self, version: str) -> None:
        self._version = version
        if version.isdigit():
            self.reached = max(self.reached, int(version))
