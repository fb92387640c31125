"""The demand of inference in cards: what it was recently, what evictions for it were needed, and what is expected.

`RecentDemand` and `NeedTally` are mutable; the background task and the simulation own one of each. The forecasts are pure.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from domains.gpu.tide.state import DemandForecast, DemandSample, ForecastOrigin

SAMPLE_S: Final = 10.0
"""Samples of one such interval are kept as their maximum."""
SAMPLES_MAX: Final = 10_000
AHEAD_S: Final = 86_400.0
"""How far forecasts reach."""


class RecentDemand:
    """The demand of the last `keep_s` seconds, for `InferenceState.recent`. At most SAMPLES_MAX samples."""

    def __init__(self, keep_s: float) -> None:
        """`keep_s`: at least `TideSettings.quiet_s`, and more than `planner.TREND_S`."""
        self._keep_s = keep_s
        self._samples: deque[DemandSample] = deque(maxlen=SAMPLES_MAX)

    def add(self, at_s: float, cards: int) -> None:
        """Adds the demand at a moment that is not before the last one."""
        while self._samples and self._samples[0].at_s < at_s - self._keep_s:
            self._samples.popleft()
        if self._samples and at_s // SAMPLE_S == self._samples[-1].at_s // SAMPLE_S:
            last = self._samples.pop()
            at_s, cards = last.at_s, max(last.cards, cards)
        self._samples.append(DemandSample(at_s, cards))

    @property
    def samples(self) -> tuple[DemandSample, ...]:
        """Oldest first."""
        return tuple(self._samples)


class NeedTally:
    """Cards evicted, and how many of them inference needed, as if gangs could be evicted card by card.

    Cards evicted beyond the need are a surplus. Inference uses the surplus up when fewer cards are free than it has; cards of
    the surplus that training takes instead were evicted in vain. So a gang of 8 that is evicted for one card counts 8 evicted
    and 1 needed, until inference grows by the other 7.
    """

    def __init__(self) -> None:
        self.evicted_cards = 0
        self.needed_cards = 0
        self._surplus = 0

    def evicted(self, cards: int) -> None:
        self.evicted_cards += cards
        self._surplus += cards

    def inference_has(self, free_cards: int) -> None:
        """Notes how many cards are free, leaving ones included, after inference took or waits for some (then below 0)."""
        used = min(self._surplus, max(0, self._surplus - max(0, free_cards)))
        self.needed_cards += used
        self._surplus -= used

    def training_has(self, free_cards: int) -> None:
        """Notes how many cards are free, leaving ones included, after training took some."""
        self._surplus = min(self._surplus, max(0, free_cards))

    @property
    def ratio(self) -> float:
        """Evicted over needed: 1 if nothing was evicted, infinite if nothing of it was needed so far."""
        if not self.evicted_cards:
            return 1.0
        return self.evicted_cards / self.needed_cards if self.needed_cards else float("inf")


def flat_forecast(now_s: float, cards: int) -> DemandForecast:
    """Returns the forecast without history and windows: the demand now lasts, and all demand above it is unexpected."""
    return DemandForecast(now_s, AHEAD_S, (float(cards),), (float(cards),), 0.0, ForecastOrigin.NONE)
