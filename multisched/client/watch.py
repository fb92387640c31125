"""Runs one watch at a time from the feed's position on: opens it, passes its events on, and reports how it ended."""

from __future__ import annotations

import asyncio
import logging
import random
from enum import Enum, auto
from typing import Final

import anyio
import msgspec

from multisched.client.errors import ApiError, Gone, StatusBody, TooManyRequests, error_for, error_of, parse_status
from multisched.client.known_objects import is_older
from multisched.client.lister import with_query
from multisched.client.object_feed import BATCH_ITEMS, ObjectFeed, metadata_of
from multisched.client.read_troubles import ReadTroubles
from multisched.framework.ports import Clock
from multisched.model.wire import UNREADABLE, LineStream, Response, Transport, TransportError

logger = logging.getLogger(__name__)

TIMEOUT_MIN_S: Final = 240
TIMEOUT_MAX_S: Final = 540
IDLE_TIMEOUT_S: Final = 90.0
"""Bookmarks arrive about once a minute; a longer silence means a half-open connection."""


class Ending(Enum):
    """How one watch ended, and therefore what follows."""

    RESUME = auto()
    """Closed normally by the server: watch again at once."""
    RETRY = auto()
    """A fault: wait, then watch again from the same version."""
    SUSPECT = auto()
    """An error that the same version may cause again: as RETRY, but list again after `RESUMES_MAX` in a row."""
    RELIST = auto()
    """The version has expired: list again."""


class _WatchLine(msgspec.Struct, gc=False):
    type: str
    object: msgspec.Raw


_line_decoder = msgspec.json.Decoder(_WatchLine)


class WatchCounters(msgspec.Struct):
    """Counters since start."""

    watches: int = 0
    failures: int = 0
    events: int = 0
    bookmarks: int = 0
    malformed: int = 0
    expired: int = 0


class Watch:
    """Watches one kind for one reflector."""

    def __init__(
        self,
        transport: Transport,
        path: str,
        feed: ObjectFeed,
        clock: Clock,
        rng: random.Random,
        *,
        name: str,
        field_selector: str,
        label_selector: str,
        troubles: ReadTroubles,
    ) -> None:
        """`name`: the reflector's."""
        self._troubles = troubles
        self.counters = WatchCounters()
        self.progress = 0
        """Number of events of the latest watch that were passed on."""
        self.retry_after_s = 0.0
        """The server's Retry-After when the latest watch ended."""
        self._transport = transport
        self.url = path
        """See `ListReader.url`."""
        self._name = name
        self._feed = feed
        self._clock = clock
        self._rng = rng
        self._field_selector = field_selector
        self._label_selector = label_selector
        self._disconnected_since: float | None = clock.monotonic()
        self._scope: anyio.CancelScope | None = None

    def staleness_s(self) -> float:
        """Returns the seconds since the last open watch ended, or since the start if none was open yet; 0 while one is open."""
        return 0.0 if self._disconnected_since is None else self._clock.monotonic() - self._disconnected_since

    def end(self) -> None:
        """Ends the open watch, if there is one; RELIST follows."""
        if self._scope is not None:
            self._scope.cancel()

    async def once(self) -> Ending:
        """Opens a watch and returns when it has ended. Raises only errors of the handler."""
        self.progress = 0
        self.retry_after_s = 0.0
        self.counters.watches += 1
        ending = Ending.RELIST  # the result if `end` cancels the scope
        try:
            with anyio.CancelScope() as scope:
                self._scope = scope
                ending = await self._open_and_consume()
        except TransportError as error:
            self.counters.failures += 1
            self._troubles.broken_watches.failed(self._name, error)
            ending = Ending.RETRY
        finally:
            self._scope = None
        if self._disconnected_since is None:
            self._disconnected_since = self._clock.monotonic()
        return ending

    async def _open_and_consume(self) -> Ending:
        async with self._transport.stream(self._watch_path(), idle_timeout_s=IDLE_TIMEOUT_S) as stream:
            if stream.status != 200:
                body = await stream.read_body()
                return self._refused(error_for(Response(stream.status, body, stream.headers)))
            self._disconnected_since = None
            self._troubles.watches.fine(self._name)
            self._troubles.broken_watches.fine(self._name)
            return await self._consume(stream)

    def _watch_path(self) -> str:
        return with_query(
            self.url,
            watch="1",
            allowWatchBookmarks="true",
            resourceVersion=self._feed.position,
            timeoutSeconds=str(self._rng.randint(TIMEOUT_MIN_S, TIMEOUT_MAX_S)),
            fieldSelector=self._field_selector,
            labelSelector=self._label_selector,
        )

    async def _consume(self, stream: LineStream) -> Ending:
        """Passes events on until the watch ends."""
        async for line in stream:
            try:
                event = _line_decoder.decode(line)
                ending = self._apply(event)
            except UNREADABLE:
                self.counters.malformed += 1
                logger.warning("malformed watch line", extra={"path": self._name, "length": len(line)})
                return Ending.SUSPECT
            if ending is not None:
                return ending
            self.progress += 1
            if not self.progress % BATCH_ITEMS:
                await asyncio.sleep(0)
        return Ending.RESUME

    def _apply(self, event: _WatchLine) -> Ending | None:
        """Applies one watch event; returns an ending if it was the last one."""
        if event.type == "ERROR":
            return self._refused_in_stream(parse_status(event.object))
        metadata = metadata_of(event.object)
        if event.type in ("ADDED", "MODIFIED"):
            self.counters.events += 1
            self._feed.observe(metadata, event.object)
        elif event.type == "DELETED":
            self.counters.events += 1
            self._feed.remove(metadata, event.object)
        elif event.type == "BOOKMARK":
            self.counters.bookmarks += 1
            if is_older(metadata.version, self._feed.position):
                return Ending.RELIST  # a server that lags, or the history went back: a list decides
        else:
            self.counters.malformed += 1
            return None
        self._feed.advance(metadata.version)
        return None

    def _refused_in_stream(self, status: StatusBody) -> Ending:
        if status.reason in ("Expired", "Gone"):
            status.code = 410
        return self._refused(error_of(status.code or 500, status))

    def _refused(self, error: ApiError) -> Ending:
        self.counters.failures += 1
        self.retry_after_s = error.retry_after_s
        if isinstance(error, Gone):
            self.counters.expired += 1
            return Ending.RELIST
        self._troubles.watches.failed(self._name, error)
        is_about_load = isinstance(error, TooManyRequests) or error.status in (502, 503)
        return Ending.RETRY if is_about_load else Ending.SUSPECT
