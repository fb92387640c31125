"""The demand of inference in cards: what it was recently, how many evictions for it were needed, and what is expected.

`RecentDemand` and `NeedTally` are mutable; the background task and the simulation own one of each. The forecasts are pure.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from domains.gpu.tide.settings import TideSettings
from domains.gpu.tide.state import DemandForecast, DemandSample, ForecastOrigin
from multisched.forecasting.time_units import DAY_S

if TYPE_CHECKING:
    from multisched.forecasting.series_forecast import SeriesForecast

SAMPLE_S: Final = 10.0
"""Interval of which one sample is kept: the maximum."""
SAMPLES_MAX: Final = 10_000
AHEAD_S: Final = 86_400.0
"""Length of forecasts."""
HISTORY_STEP_S: Final = 300.0
"""Step over which samples of the history are averaged."""
SLOT_S: Final = 900
"""The forecast has one value per slot of the week; between the centres of slots it is interpolated."""
HISTORY_MIN_DAYS: Final = 2.0
"""With less history, no day remains to learn from."""
HELD_OUT_DAYS: Final = 1.0
"""Last days of the history on which the error is measured, with a forecast from the days before."""
ERROR_QUANTILE: Final = 0.99
_TOTAL: Final = "total"

History = Mapping[str, Iterable[tuple[float, float]]]
"""Inference service -> (epoch seconds, cards of all its replicas). All services are sampled at the same times; a
missing sample counts as 0."""


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
    """Counts evicted cards, and how many of them inference needed, as if gangs could be evicted card by card.

    Cards evicted beyond the need are a surplus. When fewer cards are free than the surplus, the difference was taken: by
    inference, then these cards were needed after all; or by training, then they were evicted unnecessarily. So a gang of 8 that
    is evicted for one card counts 8 evicted and 1 needed, until inference grows by the other 7.
    """

    def __init__(self) -> None:
        self.evicted_cards = 0
        self.needed_cards = 0
        self._surplus = 0

    def evicted(self, cards: int) -> None:
        self.evicted_cards += cards
        self._surplus += cards

    def inference_has(self, free_cards: int) -> None:
        """Records how many cards are free, including leaving ones, after inference took some; below 0 if inference waits for cards."""
        used = min(self._surplus, max(0, self._surplus - max(0, free_cards)))
        self.needed_cards += used
        self._surplus -= used

    def training_has(self, free_cards: int) -> None:
        """Records how many cards are free, including leaving ones, after training took some."""
        self._surplus = min(self._surplus, max(0, free_cards))

    @property
    def ratio(self) -> float:
        """Evicted over needed cards: 1 if none were evicted, infinite if none of these were needed so far."""
        if not self.evicted_cards:
            return 1.0
        return self.evicted_cards / self.needed_cards if self.needed_cards else float("inf")


class LearnedDemand(msgspec.Struct, frozen=True):
    """The demand that was learned from the history of inference. Immutable; computed in a thread, because that takes a second."""

    total: SeriesForecast
    """Forecast of the sum of all services, because upper bands of several series do not add up."""
    error_cards: float
    """The ERROR_QUANTILE of the rise of demand above the forecast's rise within the horizon, on the days held out."""

    def forecast(self, now_s: float) -> DemandForecast:
        """Returns the forecast of the next 24 h, which also covers the slot of `now_s`."""
        begin_s = math.floor(now_s / SLOT_S) * SLOT_S - SLOT_S / 2  # the centre of the slot before
        moments = [begin_s + SLOT_S * number for number in range(int(AHEAD_S / SLOT_S) + 3)]
        expected = tuple(self.total.expected(moment) for moment in moments)
        upper = tuple(max(self.total.upper(moment), low) for moment, low in zip(moments, expected, strict=True))
        return DemandForecast(begin_s, float(SLOT_S), expected, upper, self.error_cards)


def learn_demand(history: History, *, now_s: float, horizon_s: float, zone: str = "UTC") -> LearnedDemand | None:
    """Learns from the services that exist now; returns None if their history is shorter than HISTORY_MIN_DAYS.

    `horizon_s`: notice + grace.
    """
    sums: dict[float, float] = defaultdict(float)
    for samples in history.values():
        for moment, cards in samples:
            sums[moment] += cards
    if not sums or now_s - min(sums) < HISTORY_MIN_DAYS * DAY_S:
        return None
    total = sorted(sums.items())
    learned = _learned(total, now_s, zone)
    if any(math.isnan(learned.expected(now_s + SLOT_S * number)) for number in range(int(AHEAD_S / SLOT_S))):
        return None
    cut_s = now_s - HELD_OUT_DAYS * DAY_S
    tested = _learned([sample for sample in total if sample[0] < cut_s], cut_s, zone)
    held_out = [sample for sample in total if sample[0] >= cut_s]
    return LearnedDemand(learned, rise_error(held_out, LearnedDemand(tested, 0.0).forecast(cut_s), horizon_s))


def _learned(total: list[tuple[float, float]], now_s: float, zone: str) -> SeriesForecast:
    from multisched.forecasting.fit_settings import FitSettings
    from multisched.forecasting.series_forecast import forecast_series

    settings = FitSettings(zone=zone, slot_s=SLOT_S)
    return forecast_series({_TOTAL: total}, step_s=HISTORY_STEP_S, settings=settings, now_s=now_s)[_TOTAL]


def rise_error(samples: Iterable[tuple[float, float]], forecast: DemandForecast, horizon_s: float) -> float:
    """Returns the ERROR_QUANTILE of the rise of demand above the forecast's rise within the horizon; at least 0.

    `samples`: (epoch seconds, cards) in order. A distance of two samples that exceeds the horizon counts as the horizon.
    """
    table = np.array(list(samples), np.float64).reshape(-1, 2)
    if len(table) < 2:
        return 0.0
    above = table[:, 1] - np.array([forecast.expected(moment) for moment in table[:, 0]])
    reach = max(1, int(horizon_s / float(np.median(np.diff(table[:, 0])))))
    rises = np.max(
        [above[step:][: len(above) - reach] - above[: len(above) - reach] for step in range(1, reach + 1)], axis=0
    )
    return max(0.0, float(np.quantile(rises, ERROR_QUANTILE))) if len(rises) else 0.0


def expected_demand(
    learned: LearnedDemand | None, settings: TideSettings, now_s: float, demand_cards: int
) -> DemandForecast:
    """Returns the forecast to plan with: from history, else from the configured windows, else the demand now."""
    if learned is not None:
        return learned.forecast(now_s)
    return settings.windows.forecast(now_s) if settings.windows is not None else flat_forecast(now_s, demand_cards)


def flat_forecast(now_s: float, cards: int) -> DemandForecast:
    """Returns the forecast without history and windows: constant demand as now, and all demand above it is unexpected."""
    return DemandForecast(now_s, AHEAD_S, (float(cards),), (float(cards),), 0.0, ForecastOrigin.NONE)
