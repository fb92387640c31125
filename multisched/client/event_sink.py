"""Writes events.k8s.io/v1 Events in the background.

Owns the queue of unsent events and the recent series. `record` never blocks, repeated events become one Event with a
count, binds are sent first (`WriteLimiter`), and dropped events are counted. Events that wait are sent together: one
system call and one TLS record for up to 16 of them. The shell runs `run()`; all other callers use `ports.EventSink`.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Final

import anyio
import msgspec
import orjson
from msgspec.structs import replace

from multisched.client.background_write import (
    ATTEMPTS_MAX,
    WRITE_TIMEOUT_S,
    is_definite,
    wait_after_loss_s,
    wait_after_s,
)
from multisched.client.errors import parse_status
from multisched.client.limits import WriteLimiter
from multisched.client.paths import segment
from multisched.framework.ports import Clock, Event, ObjectRef
from multisched.model.api_time import micro_timestamp
from multisched.model.wire import (
    STRATEGIC_MERGE_PATCH,
    PipelinedTransport,
    Request,
    Response,
    Transport,
    TransportError,
)

logger = logging.getLogger(__name__)

QUEUE_EVENTS_MAX: Final = 32_768
SERIES_MAX: Final = 4_096
"""Number of events that are remembered to count repeats."""
SERIES_FLUSH_S: Final = 30.0
"""Interval at which the count of a repeated event is written again."""
SERIES_IDLE_S: Final = 360.0
"""After this time without a repeat the next one is a new Event (client-go's six minutes)."""
WORKERS: Final = 4
TOGETHER_MAX: Final = 16
"""Events that a worker sends together at most."""
TOGETHER_S: Final = 0.1
"""Events that are sent together should take this long at most, so that a slow server does not use up their timeout."""
NOTE_BYTES_MAX: Final = 1_024
FIELD_CHARS_MAX: Final = 128
"""Limit of action, reason and reportingInstance."""
NAME_CHARS_MAX: Final = 253

_Key = tuple[str, ...]


class EventStatistics(msgspec.Struct):
    """Counters since start, and the current backlog."""

    recorded: int = 0
    aggregated: int = 0
    stored: int = 0
    patched: int = 0
    dropped_full: int = 0
    dropped_refused: int = 0
    dropped_unreachable: int = 0
    retries: int = 0
    backlog: int = 0


class _Entry:
    """One Event object: unsent, sent, or repeated since it was sent."""

    __slots__ = (
        "count",
        "event",
        "first_seen",
        "is_queued",
        "is_stored",
        "key",
        "last_at",
        "last_seen",
        "name",
        "sent",
    )

    def __init__(self, event: Event, key: _Key, seen: str, at: float) -> None:
        self.event = event
        self.key = key
        self.count = 1
        self.sent = 0
        """The count that the API server last received."""
        self.first_seen = seen
        self.last_seen = seen
        self.last_at = at
        self.name = ""
        self.is_queued = True
        self.is_stored = False


class ApiEventSink:
    """`ports.EventSink` over any Transport. `instance` names this process in `reportingInstance`."""

    def __init__(self, transport: Transport, limiter: WriteLimiter, clock: Clock, *, instance: str) -> None:
        if not instance:
            raise ValueError("the API server refuses events without a reporting instance")
        self._transport = transport
        self._pipeline = transport if isinstance(transport, PipelinedTransport) else None
        self._limiter = limiter
        self._clock = clock
        self._instance = instance[:FIELD_CHARS_MAX]
        self._mark = f"{zlib.crc32(instance.encode()) & 0xFFFF:04x}"
        self._queue: deque[_Entry] = deque()
        self._series: OrderedDict[_Key, _Entry] = OrderedDict()
        self._repeated: dict[_Key, _Entry] = {}
        self._wakeup = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._in_hand = 0
        """Number of events that workers are writing."""
        self._together = 1
        """Number of events that a worker sends together."""
        self._last_suffix = 0
        self._counters = EventStatistics()

    def record(self, event: Event) -> None:
        """Queues the event, or adds it to the count of an equal recent one. Never blocks; drops and counts when full."""
        self._counters.recorded += 1
        now, at = micro_timestamp(self._clock.now()), self._clock.monotonic()
        key = _key(event)
        known = self._series.get(key)
        if known is not None and at - known.last_at < SERIES_IDLE_S:
            self._repeat(known, now, at)
            return
        if len(self._queue) >= QUEUE_EVENTS_MAX:
            self._counters.dropped_full += 1
            return
        entry = _Entry(event, key, now, at)
        self._remember(entry)
        self._enqueue(entry)

    async def run(self) -> None:
        """Runs the workers until cancelled."""
        async with anyio.create_task_group() as workers:
            for _ in range(WORKERS):
                workers.start_soon(self._work)
            workers.start_soon(self._flush_series)

    async def drain(self, timeout_s: float) -> bool:
        """Waits at most `timeout_s` until everything queued is written or dropped; returns whether it is."""
        self._queue_repeated()
        with anyio.move_on_after(timeout_s):
            await self._idle.wait()
            self._queue_repeated()  # repeats that were recorded while their event was being sent
            await self._idle.wait()
        return self._idle.is_set()

    def statistics(self) -> EventStatistics:
        return replace(self._counters, backlog=len(self._queue) + self._in_hand)

    # ---- queue

    def _repeat(self, entry: _Entry, now: str, at: float) -> None:
        self._counters.aggregated += 1
        entry.count += 1
        entry.last_seen = now
        entry.last_at = at
        self._series.move_to_end(entry.key)
        if entry.is_stored and not entry.is_queued:
            self._repeated[entry.key] = entry

    def _remember(self, entry: _Entry) -> None:
        self._series[entry.key] = entry
        if len(self._series) > SERIES_MAX:
            _, oldest = self._series.popitem(last=False)
            if self._repeated.pop(oldest.key, None) is not None:
                self._enqueue(oldest)

    def _enqueue(self, entry: _Entry) -> None:
        entry.is_queued = True
        if not self._queue:  # else a worker is awake, or will look at the queue before it sleeps
            self._idle.clear()
            self._wakeup.set()
        self._queue.append(entry)

    async def _flush_series(self) -> None:
        """Writes new counts periodically, so that a frequent series costs two requests a minute."""
        while True:
            await asyncio.sleep(SERIES_FLUSH_S)
            self._queue_repeated()

    def _queue_repeated(self) -> None:
        for entry in self._repeated.values():
            self._enqueue(entry)
        self._repeated.clear()

    # ---- workers

    async def _work(self) -> None:
        while True:
            while not self._queue:
                self._wakeup.clear()
                await self._wakeup.wait()
            entries = [self._queue.popleft()]
            self._in_hand += 1
            try:
                await self._limiter.admit_background()
                more = self._limiter.admit_more_background(min(self._together - 1, len(self._queue)))
                self._in_hand += more
                entries += [self._queue.popleft() for _ in range(more)]
                await self._write(entries)
            finally:
                self._in_hand -= len(entries)
                if not self._queue and not self._in_hand:
                    self._idle.set()

    async def _write(self, entries: Sequence[_Entry]) -> None:
        """Writes events that have been admitted; after ATTEMPTS_MAX failed tries drops and counts them.

        They are tried again one by one: the event that broke the connection must not break it for the others each time.
        """
        left = list(entries)
        for attempt in range(ATTEMPTS_MAX):
            groups = [left] if attempt == 0 else [[entry] for entry in left]
            left, wait_s = [], 0.0
            for group in groups:
                if attempt > 0:
                    await self._limiter.admit_background()
                again, seconds = await self._try_to_write(group, wait_after_loss_s(attempt))
                left, wait_s = left + again, max(wait_s, seconds)
            if not left:
                return
            self._counters.retries += len(left)
            await asyncio.sleep(wait_s)
        self._counters.dropped_unreachable += len(left)
        for entry in left:
            self._forget(entry)

    async def _try_to_write(self, entries: Sequence[_Entry], loss_wait_s: float) -> tuple[list[_Entry], float]:
        """Returns the events to be tried again, and the seconds until then."""
        began_s = self._clock.monotonic()
        try:
            responses = await self._send([self._request(entry) for entry in entries])
        except TransportError:
            self._together = 1
            return list(entries), loss_wait_s
        if self._pipeline is not None:
            took_s = max(self._clock.monotonic() - began_s, 0.001)
            self._together = max(1, min(TOGETHER_MAX, int(TOGETHER_S * len(responses) / took_s)))
        left = list(entries[len(responses) :])
        wait_s = loss_wait_s if left else 0.0
        for entry, response in zip(entries, responses, strict=False):
            if response.status == 409 and not entry.is_stored:
                # The name is unique, so an earlier try stored it and its response was lost. `sent` is at least 1; a higher
                # count is written again.
                entry.sent = 1
                self._settle(entry)
            elif response.status < 300:
                self._settle(entry)
            elif is_definite(response):
                self._refuse(entry, response)
            else:
                left.append(entry)
                wait_s = max(wait_s, wait_after_s(response, self._limiter))
        return left, wait_s

    def _settle(self, entry: _Entry) -> None:
        if entry.is_stored:
            self._counters.patched += 1
        else:
            self._counters.stored += 1
            entry.is_stored = True
        entry.is_queued = False
        if entry.count > entry.sent:
            self._repeated[entry.key] = entry

    def _refuse(self, entry: _Entry, response: Response) -> None:
        """Drops an event that was refused: its namespace is terminating, a webhook or RBAC refused it, or the stored
        Event was deleted.
        """
        self._counters.dropped_refused += 1
        self._forget(entry)
        message = parse_status(response.body).message
        logger.info("event refused", extra={"reason": entry.event.reason, "status": response.status, "error": message})

    def _forget(self, entry: _Entry) -> None:
        """Drops the entry; a later repeat becomes a new Event."""
        if self._series.get(entry.key) is entry:
            del self._series[entry.key]
        self._repeated.pop(entry.key, None)

    async def _send(self, requests: Sequence[Request]) -> Sequence[Response]:
        """Returns the responses of the first requests. Raises TransportError if there is none."""
        if len(requests) > 1 and self._pipeline is not None:
            return await self._pipeline.request_all(requests, timeout_s=WRITE_TIMEOUT_S)
        one = requests[0]
        response = await self._transport.request(
            one.method, one.path, body=one.body, content_type=one.content_type, timeout_s=WRITE_TIMEOUT_S
        )
        return (response,)

    def _request(self, entry: _Entry) -> Request:
        path = f"/apis/events.k8s.io/v1/namespaces/{segment(_namespace(entry.event))}/events"
        entry.sent = entry.count
        if entry.is_stored:
            body = orjson.dumps({"series": _series(entry)})
            return Request("PATCH", f"{path}/{segment(entry.name)}", body, STRATEGIC_MERGE_PATCH)
        if not entry.name:
            entry.name = self._new_name(entry.event.regarding.name)
        return Request("POST", path, orjson.dumps(self._body(entry)))

    def _new_name(self, subject: str) -> str:
        """Returns `<object>.<hex>`, as client-go does: the time, made unique within this process, and a suffix for the
        process.

        Replicas observe one change at the same moment; without the suffix their Events could get the same name.
        """
        micros = int(self._clock.now().timestamp() * 1_000_000)
        self._last_suffix = max(self._last_suffix + 1, micros * 1_000)
        suffix = f".{self._last_suffix:x}{self._mark}"
        return subject[: NAME_CHARS_MAX - len(suffix)].rstrip(".-") + suffix

    def _body(self, entry: _Entry) -> dict[str, object]:
        event = entry.event
        body: dict[str, object] = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": entry.name, "namespace": _namespace(event)},
            "eventTime": entry.first_seen,
            "reportingController": event.reporter,
            "reportingInstance": self._instance,
            "action": event.action[:FIELD_CHARS_MAX] or event.reason[:FIELD_CHARS_MAX],
            "reason": event.reason[:FIELD_CHARS_MAX],
            "type": event.type,
            "note": cut_note(event.note),
            "regarding": _reference(event.regarding),
        }
        related = event.related
        if related is not None:
            body["related"] = _reference(related)
        if entry.count > 1:
            body["series"] = _series(entry)
        return body


def _reference(ref: ObjectRef) -> dict[str, str]:
    return {
        "apiVersion": ref.api_version,
        "kind": ref.kind,
        "name": ref.name,
        "namespace": ref.namespace,
        "uid": ref.uid,
    }


_CUT = " ..."


def cut_note(note: str) -> str:
    """Cuts the note to at most 1,024 bytes of UTF-8, whole characters; the end of a cut one is kube-scheduler's (truncateMessage)."""
    encoded = note.encode("utf-8", "replace")  # a plugin's text may contain lone surrogates, which no server accepts
    if len(encoded) <= NOTE_BYTES_MAX:
        return encoded.decode()
    return encoded[: NOTE_BYTES_MAX - len(_CUT)].decode("utf-8", "ignore") + _CUT


def _key(event: Event) -> _Key:
    """Returns what makes two events one series: as upstream, including the related object. In addition the note:
    another text is another event.
    """
    return (
        event.regarding.uid,
        event.regarding.name,
        event.reason,
        event.action,
        event.type,
        event.reporter,
        event.note,
        event.related.uid if event.related is not None else "",
    )


def _namespace(event: Event) -> str:
    """Returns the event's namespace: `default` for cluster-scoped objects (the API server insists)."""
    return event.regarding.namespace or "default"


def _series(entry: _Entry) -> dict[str, object]:
    return {"count": entry.count, "lastObservedTime": entry.last_seen}
