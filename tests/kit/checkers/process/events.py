"""Compares the Events of one process with those in the API server.

No Event has content that the process did not record, or a higher count. All Events of a process that stopped in time are written.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple

from multisched.client.event_sink import ApiEventSink
from multisched.framework.ports import Event
from tests.kit.checkers.quota_messages import Bound, fault_of_sentences, without_sentences

NOTE_CHARS: Final = 250
"""Number of compared characters of a note: long notes are truncated."""
_SENTENCE: Final = re.compile(r"0/(\d+) nodes are available:")
_COUNT: Final = re.compile(r"(?:^|,) (\d+) ")


def fault_of_counts(message: str) -> str:
    """Returns a reason whose count exceeds the number of nodes; empty for none.

    The sum of all counts may be larger, since a node may be refused for several reasons, or smaller: extenders may drop nodes
    without a reason. Amounts in sentences about quotas are not counts.
    """
    _, *parts = _SENTENCE.split(without_sentences(message))
    for total, reasons in zip(parts[::2], parts[1::2], strict=True):
        counts = [int(count) for count in _COUNT.findall(reasons)]
        if counts and max(counts) > int(total):
            return f"{counts} of {total} nodes"
    return ""


class _News(NamedTuple):
    uid: str
    type: str
    reason: str
    note: str
    about: str
    """uid of the related object."""


class EventChecker:
    """Wraps the event sink of one process."""

    is_drained = False
    """All recorded Events were written, or dropped and counted, before the process ended."""

    def __init__(
        self, sink: ApiEventSink, identity: str, bounds: Collection[Bound], report_violation: Callable[[str], None]
    ) -> None:
        """`bounds`: of all quotas that the process has observed until now."""
        self._sink, self._identity, self._report_violation = sink, identity, report_violation
        self._bounds = bounds
        self._recorded: Counter[_News] = Counter()
        self._late: Counter[_News] = Counter()
        """Events that were recorded after the drain, just before the process ended: these are lost."""
        self._record = sink.record
        sink.record = self.record  # type: ignore[method-assign]
        self._drain = sink.drain
        sink.drain = self.drain  # type: ignore[method-assign]

    def record(self, event: Event) -> None:
        self._check_message(event.regarding.uid, event.note)
        about = event.related.uid if event.related is not None else ""
        note = event.note[:NOTE_CHARS]
        news = _News(event.regarding.uid, event.type, event.reason, note, about)
        self._recorded[news] += 1
        self._late[news] += self.is_drained
        self._record(event)

    def check_condition(self, uid: str, message: str) -> None:
        """Checks the message of a condition that is about to be written."""
        self._check_message(uid, message)

    def _check_message(self, uid: str, message: str) -> None:
        fault = fault_of_counts(message)
        if fault:
            self._report_violation(f"I3: {self._identity} writes of {uid} that {fault} refuse it: {message[:160]!r}")
        fault = fault_of_sentences(message, self._bounds)
        if fault:
            self._report_violation(f"I3: {self._identity} writes of {uid}: {fault}")

    async def drain(self, timeout_s: float) -> bool:
        self.is_drained = await self._drain(timeout_s)
        return self.is_drained

    def check_true(self, stored: Iterable[Mapping[str, Any]]) -> None:
        """Checks that all written Events were recorded. `stored`: all Events of the API server, in the form of core/v1."""
        for news in self._written(stored) - self._recorded:
            self._report_violation(
                f"I3: {self._identity} wrote of {news.uid} what it never recorded: {news.reason} {news.note[:80]!r}"
            )

    def check_whole(self, stored: Iterable[Mapping[str, Any]]) -> None:
        """Checks, for a process that has stopped, that all recorded Events were written, unless its statistics report drops."""
        statistics = self._sink.statistics()
        dropped = statistics.dropped_full, statistics.dropped_refused, statistics.dropped_unreachable
        if any(dropped) or not self.is_drained:
            return
        for news, times in (self._recorded - self._written(stored) - self._late).items():
            self._report_violation(
                f"I3: {self._identity} left {times} times unsaid of {news.uid}: {news.reason} {news.note[:80]!r}"
            )

    def _written(self, stored: Iterable[Mapping[str, Any]]) -> Counter[_News]:
        written: Counter[_News] = Counter()
        for event in stored:
            if event.get("reportingInstance") == self._identity:
                note, about = event["message"][:NOTE_CHARS], event.get("related", {}).get("uid", "")
                news = _News(event["involvedObject"]["uid"], event["type"], event["reason"], note, about)
                written[news] += event.get("series", {}).get("count", 1)
        return written
