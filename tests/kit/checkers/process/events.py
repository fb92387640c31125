"""What one simulated process tells users by Events, held against what the API server has of it.

No event says what the process did not record, nor more often. Of a process that has ended in time, all are sent.
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
"""Notes are compared by their beginning: the end of a long one is cut."""
_SENTENCE: Final = re.compile(r"0/(\d+) nodes are available:")
_COUNT: Final = re.compile(r"(?:^|,) (\d+) ")


def fault_of_counts(message: str) -> str:
    """Where one reason is given for more nodes than there are; empty for nowhere.

    All together may be of more, as a node may be refused for several reasons, or of fewer: extenders drop nodes without a word.
    The amounts in sentences of quotas are no counts.
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
    """uid of the other object that it is about."""


class EventChecker:
    """Stands before one process's event sink."""

    is_drained = False
    """All that was recorded was written, or dropped and counted, before the process ended."""

    def __init__(
        self, sink: ApiEventSink, identity: str, bounds: Collection[Bound], complain: Callable[[str], None]
    ) -> None:
        """`bounds`: of the quotas that the process has observed until now."""
        self._sink, self._identity, self._complain = sink, identity, complain
        self._bounds = bounds
        self._recorded: Counter[_News] = Counter()
        self._late: Counter[_News] = Counter()
        """What was recorded after all was written, just before the process ended: that is lost."""
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

    def said(self, uid: str, message: str) -> None:
        """A pod's condition is about to be written."""
        self._check_message(uid, message)

    def _check_message(self, uid: str, message: str) -> None:
        fault = fault_of_counts(message)
        if fault:
            self._complain(f"I3: {self._identity} writes of {uid} that {fault} refuse it: {message[:160]!r}")
        fault = fault_of_sentences(message, self._bounds)
        if fault:
            self._complain(f"I3: {self._identity} writes of {uid}: {fault}")

    async def drain(self, timeout_s: float) -> bool:
        self.is_drained = await self._drain(timeout_s)
        return self.is_drained

    def check_true(self, stored: Iterable[Mapping[str, Any]]) -> None:
        """`stored`: all Events that the API server has, in the shape of core/v1."""
        for news in self._written(stored) - self._recorded:
            self._complain(
                f"I3: {self._identity} wrote of {news.uid} what it never recorded: {news.reason} {news.note[:80]!r}"
            )

    def check_whole(self, stored: Iterable[Mapping[str, Any]]) -> None:
        """Of a process that has ended: what it had to say was written, unless it says itself that it was not."""
        statistics = self._sink.statistics()
        dropped = statistics.dropped_full, statistics.dropped_refused, statistics.dropped_unreachable
        if any(dropped) or not self.is_drained:
            return
        for news, times in (self._recorded - self._written(stored) - self._late).items():
            self._complain(
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
