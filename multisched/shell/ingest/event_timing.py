"""Measures the handling of watch events, under kube-scheduler's event names: `event_handling_duration_seconds`.

Only one event in EVENTS_PER_SAMPLE is timed, including its decoding, because there may be tens of thousands per second. The
name is that of the last cluster event passed to the queues. If none was passed (a heartbeat, a pod of another scheduler, a Service
that no plugin has registered), the name is KIND + "Other".
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec

from multisched.client.object_feed import ReflectorHandler
from multisched.framework.durations import Durations, growing
from multisched.shell.ingest.router import Router

EVENTS_PER_SAMPLE = 16

BUCKETS_S = growing(0.0001, 2, 12)
"""Kube-scheduler's: 0.1 ms to 205 ms."""


class EventTimes:
    """Durations of sampled watch events, by event name."""

    def __init__(self, stopwatch: Callable[[], float], router: Router) -> None:
        """`stopwatch`: seconds of a monotonic clock."""
        self.durations: dict[str, Durations] = {}
        self.handled = 0
        """Number of events since the start."""
        self._stopwatch = stopwatch
        self._router = router

    def watching(self, kind: str, handler: ReflectorHandler) -> ReflectorHandler:
        """Returns the handler, wrapped to count and time its events."""
        return _Timed(kind, handler, self)

    def measure(self, kind: str, call: Callable[[], None]) -> None:
        """Calls `call` and records its duration under the resulting event name."""
        started_s = self._stopwatch()
        label = self._router.label_of(call) or f"{kind}Other"
        seconds = self._stopwatch() - started_s
        found = self.durations.get(label)
        if found is None:
            found = self.durations[label] = Durations(BUCKETS_S)
        found.observe(seconds)


class _Timed:
    """A `ReflectorHandler` that counts and times another one."""

    __slots__ = ("_handler", "_kind", "_left", "_times", "replaced")

    def __init__(self, kind: str, handler: ReflectorHandler, times: EventTimes) -> None:
        self._kind = kind
        self._handler = handler
        self._times = times
        self._left = EVENTS_PER_SAMPLE
        self.replaced = handler.replaced

    def upsert(self, key: str, raw: msgspec.Raw) -> None:
        self._times.handled += 1
        self._left -= 1
        if self._left:
            self._handler.upsert(key, raw)
            return
        self._left = EVENTS_PER_SAMPLE
        self._times.measure(self._kind, partial(self._handler.upsert, key, raw))

    def delete(self, key: str, raw: msgspec.Raw | None) -> None:
        self._times.handled += 1
        self._left -= 1
        if self._left:
            self._handler.delete(key, raw)
            return
        self._left = EVENTS_PER_SAMPLE
        self._times.measure(self._kind, partial(self._handler.delete, key, raw))
