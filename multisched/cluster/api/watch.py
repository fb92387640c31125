"""Open watches: the changes that a client sees, their encoding, bookmarks, deadline, and the limit of unread bytes.

A `WatchStream` is filled synchronously by its collection and read by one asynchronous consumer (a socket or a
DirectTransport). It owns its queue. If the unread lines exceed WATCH_BACKLOG_BYTES, it is closed, as in upstream.
It uses the running loop's time, so streams work unchanged in virtual time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import orjson

from multisched.cluster.base.selectors import FieldTest, LabelTest
from multisched.cluster.base.storage import Collection, Event, Stored

WATCH_BACKLOG_BYTES = 64 * 1024 * 1024
"""Maximum number of unread bytes; a watch with more is closed."""

BOOKMARK_PERIOD_S = 60.0
"""Time between bookmarks."""

BOOKMARK_LEAD_S = 2.0
"""Time between the last bookmark of a watch and its deadline."""

TIMER_EARLY_S = 1e-6
"""Tolerance for timers that fire early, within the clock's resolution. Without it, a loop in virtual time would repeat the wait forever."""

INITIAL_EVENTS_END = "k8s.io/initial-events-end"

Encoder = Callable[[str, bytes], bytes]
"""Encodes event type and object bytes to one line, with its newline."""


def plain_line(kind: str, raw: bytes) -> bytes:
    """Encodes the line for a client that asked for JSON."""
    return b'{"type":"%s","object":%s}\n' % (kind.encode(), raw)


@dataclass(frozen=True, slots=True)
class Filter:
    """The objects of a collection that a client sees."""

    namespace: str = ""
    name: str = ""
    labels: LabelTest | None = None
    fields: FieldTest | None = None

    @property
    def is_open(self) -> bool:
        """Reports whether every object passes."""
        return not (self.namespace or self.name or self.labels or self.fields)

    def scope(self, key: str) -> bool:
        """Reports whether a key is in the requested namespace and has the requested name."""
        if self.namespace and not key.startswith(self.namespace + "/"):
            return False
        return not self.name or key.rpartition("/")[2] == self.name

    def selects(self, key: str, stored: Stored) -> bool:
        """Reports whether one version of an object passes the selectors."""
        if self.labels is not None and not self.labels(stored.labels):
            return False
        return self.fields is None or self.fields(key, stored.fields)

    def matches(self, key: str, stored: Stored) -> bool:
        """Reports whether scope and selectors match."""
        return self.scope(key) and self.selects(key, stored)


@dataclass(frozen=True, slots=True)
class Terms:
    """Options of a watch request."""

    timeout_s: float
    bookmarks: bool
    encode: Encoder = plain_line
    encoding: object = None
    """Watches with equal encodings share encoded lines."""
    bookmark_object: Callable[[int, Mapping[str, str]], bytes] = lambda version, _annotations: orjson.dumps(
        {"metadata": {"resourceVersion": str(version)}}
    )


class WatchStream:
    """One open watch. Consumers use `read`, `close`, `is_broken` and `on_drop`; the server uses the rest."""

    status = 200
    headers: Mapping[str, str]

    def __init__(
        self, collection: Collection, chosen: Filter, terms: Terms, current: Callable[[], int], since: int
    ) -> None:
        self.headers = {"content-type": "application/json", "cache-control": "no-cache, private"}
        self._collection = collection
        self._filter = chosen
        self._is_open = chosen.is_open
        self._terms = terms
        self._current = current
        self._since = since
        self._lines: list[bytes] = []
        self._backlog_bytes = 0
        self._waiter: asyncio.Future[None] | None = None
        self._closed = False
        self.is_broken = False
        """True once the stream was dropped, also by exceeding WATCH_BACKLOG_BYTES; consumers then report a lost connection."""
        self.on_drop: Callable[[], None] | None = None
        """Called when the stream is dropped, because the consumer may be blocked in a write."""
        self._deadline_s: float | None = None
        self._bookmark_s = 0.0
        collection.observers[self] = None

    # -- filled by the server ------------------------------------------------------------------------------------

    def offer(self, event: Event, lines: dict[tuple[str, object], bytes]) -> None:
        """Queues a change if this client sees it; `lines` caches encoded lines shared by watches."""
        if event.version <= self._since:
            return
        before, after = event.before, event.after
        if self._is_open:
            kind = "DELETED" if after is None else "ADDED" if before is None else "MODIFIED"
        else:
            if not self._filter.scope(event.key):
                return
            seen = before is not None and self._filter.selects(event.key, before)
            sees = after is not None and self._filter.selects(event.key, after)
            if not seen and not sees:
                return
            kind = "DELETED" if not sees else "MODIFIED" if seen else "ADDED"
        place = (kind, self._terms.encoding)
        line = lines.get(place)
        if line is None:
            if kind == "DELETED" and before is not None:
                raw = before.at_version(event.version)
            else:
                assert after is not None
                raw = after.raw
            line = lines[place] = self._terms.encode(kind, raw)
        self.put(line)

    def put(self, line: bytes) -> None:
        """Queues one line and wakes the consumer; drops the stream if it has more than WATCH_BACKLOG_BYTES unread bytes."""
        if self._closed:
            return
        self._lines.append(line)
        self._backlog_bytes += len(line)
        if self._backlog_bytes > WATCH_BACKLOG_BYTES:
            self._lines.clear()
            self.drop()
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def start_with(self, items: Iterable[tuple[str, Stored]], ends_at: int | None) -> None:
        """Queues the current state as ADDED events; with `ends_at`, followed by the initial-events-end bookmark."""
        for key, stored in items:
            if self._filter.matches(key, stored):
                self.put(self._terms.encode("ADDED", stored.raw))
        if ends_at is not None:
            self.put(self._bookmark(ends_at, {INITIAL_EVENTS_END: "true"}))

    def start_after(self, events: Iterable[Event]) -> None:
        """Queues the events since the requested version."""
        for event in events:
            self.offer(event, {})

    def fail(self, status: bytes) -> None:
        """Ends the watch with an in-stream ERROR."""
        self.put(plain_line("ERROR", status))
        self.close()

    def drop(self) -> None:
        """Ends the watch like a broken connection."""
        self.is_broken = True
        self.close()
        if self.on_drop is not None:
            self.on_drop()

    def close(self) -> None:
        """Ends the watch; queued lines are still delivered."""
        self._collection.observers.pop(self, None)
        self._closed = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # -- read by the consumer ------------------------------------------------------------------------------------

    async def read(self) -> list[bytes]:
        """Returns all queued lines, waiting for the first; empty when the watch has ended."""
        loop = asyncio.get_running_loop()
        if self._deadline_s is None:
            self._deadline_s = loop.time() + self._terms.timeout_s
            self._plan_bookmark(loop.time())
        while not self._lines:
            if self._closed:
                return []
            now = loop.time() + TIMER_EARLY_S
            if now >= self._deadline_s:
                self.close()
                return []
            if self._terms.bookmarks and now >= self._bookmark_s:
                self._plan_bookmark(now)
                return [self._bookmark(self._current(), {})]
            await self._wait(
                loop, min(self._deadline_s, self._bookmark_s if self._terms.bookmarks else self._deadline_s)
            )
        lines, self._lines, self._backlog_bytes = self._lines, [], 0
        return lines

    async def _wait(self, loop: asyncio.AbstractEventLoop, until_s: float) -> None:
        waiter = self._waiter = loop.create_future()
        timer = loop.call_at(until_s, _wake, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            self._waiter = None

    def _plan_bookmark(self, now_s: float) -> None:
        assert self._deadline_s is not None
        last_s = self._deadline_s - BOOKMARK_LEAD_S
        regular_s = now_s + BOOKMARK_PERIOD_S
        self._bookmark_s = last_s if now_s < last_s < regular_s else regular_s

    def _bookmark(self, version: int, annotations: Mapping[str, str]) -> bytes:
        # A watch from a future version gets no bookmark of an earlier version.
        version = max(version, self._since)
        return self._terms.encode("BOOKMARK", self._terms.bookmark_object(version, annotations))


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
