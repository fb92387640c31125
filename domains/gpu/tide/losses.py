"""The cost of the tide: evictions, the work that they lost, and counters since the process started. Mutable; one per domain."""

from __future__ import annotations

from collections import Counter, deque
from typing import Final

import msgspec

from domains.gpu.tide.demand import NeedTally
from domains.gpu.tide.hook import HookOutcome
from domains.gpu.tide.notices import Notice
from domains.gpu.tide.snapshot import Snapshot
from domains.gpu.tide.state import DueEviction
from multisched.forecasting.time_units import HOUR_S

SHOWN_MAX: Final = 256
"""Limit of evictions kept for views."""
RECENT_MAX: Final = 65_536
GANGS_MAX: Final = 4096
"""Limit of gangs whose last eviction is remembered."""


class Loss(msgspec.Struct, frozen=True):
    """One gang that was evicted."""

    at_s: float
    gang: str
    cards: int
    lost_card_s: float
    """Card-seconds of work that it repeats."""
    for_demand: str


class TideCounts(msgspec.Struct):
    """Counters since the start."""

    notices: int = 0
    notices_withdrawn: int = 0
    notices_refused: int = 0
    """Notices that the API server refused to store."""
    notices_ignored: int = 0
    """Annotations of other clients that were ignored and removed."""
    overridden: int = 0
    """Notices to gangs within their minimum run time, because demand exceeded the upper band."""
    gangs: int = 0
    """Gangs evicted."""
    cards: int = 0
    lost_card_s: float = 0.0
    evictions_refused: int = 0
    """Answers to evictions of single pods, such as 429 of a PodDisruptionBudget."""
    hook_calls: Counter[str] = msgspec.field(default_factory=lambda: Counter({one.value: 0 for one in HookOutcome}))
    """Outcome -> calls."""


class Losses:
    """The evictions of one domain's tide."""

    def __init__(self) -> None:
        self.counts = TideCounts()
        self.need = NeedTally()
        self.shown: deque[Loss] = deque(maxlen=SHOWN_MAX)
        """The latest, oldest first."""
        self._recent: deque[tuple[float, int]] = deque(maxlen=RECENT_MAX)
        self._evicted_s: dict[str, float] = {}
        """Gang -> when it was evicted last."""
        self._before: tuple[int, int] = (0, 0)
        """Cards of inference, and of training, at the last snapshot."""

    def evicted(self, due: DueEviction, notice: Notice, now_s: float) -> None:
        """Counts a gang once, when the first of its members was evicted."""
        counts = self.counts
        counts.gangs += 1
        counts.cards += due.cards
        counts.lost_card_s += due.work_lost_card_s
        self.need.evicted(due.cards)
        self.shown.append(Loss(now_s, due.gang, due.cards, due.work_lost_card_s, notice.for_demand))
        self._recent.append((now_s, due.cards))
        self._evicted_s.pop(due.gang, None)
        if len(self._evicted_s) >= GANGS_MAX:
            del self._evicted_s[next(iter(self._evicted_s))]
        self._evicted_s[due.gang] = now_s

    def last_hour_cards(self, now_s: float) -> int:
        while self._recent and self._recent[0][0] < now_s - HOUR_S:
            self._recent.popleft()
        return sum(cards for _, cards in self._recent)

    def returned_s(self, gang: str, started_s: float) -> float | None:
        """Returns when the gang started again after this process evicted it; None if it did not."""
        return started_s if started_s > self._evicted_s.get(gang, started_s) else None

    def see(self, snapshot: Snapshot) -> None:
        """Determines which evicted cards inference needed, from the growth of each use since the last snapshot."""
        waits = sum(pod.cards for pod in snapshot.waiting_inference)
        inference, training = snapshot.inference_cards, sum(one.gang.cards for one in snapshot.gangs.values())
        free = sum(node.free + node.leaving for node in snapshot.nodes)
        if inference > self._before[0] or waits:
            self.need.inference_has(free - waits)
        if training > self._before[1]:
            self.need.training_has(free)
        self._before = inference, training
