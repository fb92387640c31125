"""The demand of inference over time: from a CSV, or a shape with seeded noise; and the forecast that a tide would have of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from domains.gpu.simulation.openb import csv_rows
from domains.gpu.simulation.tide.section import CurveShape, ForecastError
from domains.gpu.tide.demand import HISTORY_MIN_DAYS, LearnedDemand, learn_demand, rise_error
from domains.gpu.tide.state import DemandForecast
from multisched.config.document import Problem
from multisched.forecasting.time_units import DAY_S

BEGIN_S: Final = 1_767_571_200.0
"""Begin of the played days of a shape: a Monday, 00:00 UTC."""
NOISE_STEP_S: Final = 60.0
NOISE_MEMORY_S: Final = 600.0
HISTORY_STEP_S: Final = 300.0
SMOOTH_S: Final = 900.0
LINES_MAX: Final = 1_000_000
CARDS_MAX: Final = 1_000_000
PROBLEMS_MAX: Final = 20

Numbers = NDArray[np.float64]


class Curve(msgspec.Struct, frozen=True):
    """Demand in cards at moments in ascending order; linear between them."""

    at_s: Numbers
    cards: Numbers

    def sampled(self, moments: Numbers) -> Numbers:
        return np.interp(moments, self.at_s, self.cards)

    def mean(self, from_s: float, to_s: float) -> float:
        """Returns the mean in cards."""
        return float(self.sampled(np.arange(from_s, to_s, NOISE_STEP_S)).mean())


def shape_curve(shape: CurveShape, peak: int, days: int, history_days: int, seed: int) -> Curve:
    """Returns the demand of `history_days` before BEGIN_S and `days` after it. Deterministic in its arguments."""
    begin_s, end_s = BEGIN_S - history_days * DAY_S, BEGIN_S + days * DAY_S
    at_s = np.arange(begin_s, end_s + NOISE_STEP_S, NOISE_STEP_S)
    rng = np.random.default_rng([seed, 1])
    keep = math.exp(-NOISE_STEP_S / NOISE_MEMORY_S)
    steps = rng.standard_normal(len(at_s)) * shape.noise * math.sqrt(1 - keep * keep)
    noise, level = np.empty(len(at_s)), 0.0
    for number, step in enumerate(steps.tolist()):
        level = keep * level + step
        noise[number] = level
    base = _day(shape)(at_s)
    return Curve(at_s, np.clip((base + noise) * peak, 0, peak))


def _day(shape: CurveShape) -> Callable[[Numbers], Numbers]:
    """Returns the periodic shape without noise: epoch seconds -> share of the peak.

    A logistic rise by `1 - low` is fastest in its middle: within 30 min it rises by tanh(15 min / 2 tau) of that.
    """
    swing = 1 - shape.low
    tau_h = 0.25 / (2 * math.atanh(min(0.999, shape.rise_in_30m / swing)))
    hours = (shape.mean_over_peak - shape.low) / swing * 24

    def at(moments: Numbers) -> Numbers:
        since_h = (moments / 3_600 - shape.rises_at_hour) % 24
        found = np.zeros(len(moments))
        for day in (-24, 0, 24):
            rise = 1 / (1 + np.exp(-(since_h + day) / tau_h))
            fall = 1 / (1 + np.exp(-(since_h + day - hours) / (2 * tau_h)))
            found += rise - fall
        return shape.low + swing * found

    return at


def read_curve(path: Path, problems: list[Problem]) -> Curve | None:
    """Reads `timestamp,cards`; adds problems, each with line and fix. Times are epoch seconds or ISO 8601 (UTC without a zone)."""
    found: list[tuple[float, float]] = []
    before = len(problems)
    for line, row in csv_rows(path, ("timestamp", "cards"), LINES_MAX, problems):
        moment = read_timestamp(row["timestamp"], problems, path, line)
        cards = read_number(row["cards"], CARDS_MAX)
        if moment is None:
            continue
        if cards is None:
            add(problems, path, line, "cards", f"{row['cards'][:40]!r} is not a number from 0 to {CARDS_MAX}")
        elif found and moment <= found[-1][0]:
            add(problems, path, line, "timestamp", "is not after the line before; sort the lines by time")
        else:
            found.append((moment, cards))
    if len(problems) == before and (len(found) < 2 or found[-1][0] - found[0][0] < DAY_S / 24):
        add(problems, path, 1, "", "has less than an hour of demand; write at least two lines an hour apart")
    if len(problems) > before:
        return None
    table = np.array(found, np.float64)
    return Curve(table[:, 0], table[:, 1])


def read_time(text: str) -> float | None:
    """Returns epoch seconds, or None for a text that is no time."""
    if (number := read_number(text, 1e11)) is not None:
        return number
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


def read_timestamp(text: str, problems: list[Problem], path: Path, line: int) -> float | None:
    """The same as `read_time`, for the column `timestamp` of a line; adds a problem if the text is not a time."""
    moment = read_time(text)
    if moment is None:
        add(problems, path, line, "timestamp", f"{text[:40]!r} is no time; write ISO 8601 or epoch seconds")
    return moment


def read_number(text: str, most: float) -> float | None:
    """Returns a number from 0 to `most`, or None."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if 0 <= number <= most else None


def add(problems: list[Problem], path: Path, line: int, column: str, message: str) -> None:
    if len(problems) < PROBLEMS_MAX:
        problems.append(Problem(str(path), line, 1, column, message))


class CurveForecast:
    """The forecast that a tide has of a curve, with a declared error.

    It is learned by the product from the days before `begin_s`. Without at least two of them, it is the curve itself, smoothed over
    15 minutes: a forecast without any other error than the declared one.
    """

    def __init__(self, curve: Curve, begin_s: float, horizon_s: float, error: ForecastError) -> None:
        """`horizon_s`: notice + grace."""
        self._error = error
        self._learned = self._learn(curve, begin_s, horizon_s)
        self._known = None if self._learned is not None else _smoothed(curve, horizon_s)
        self._last: tuple[float, DemandForecast] | None = None

    @property
    def is_learned(self) -> bool:
        return self._learned is not None

    def at(self, now_s: float) -> DemandForecast:
        """Returns the forecast at a moment; the same object within a slot of 15 minutes."""
        slot_s = now_s // SMOOTH_S * SMOOTH_S
        if self._last is None or self._last[0] != slot_s:
            self._last = slot_s, self._distorted(slot_s)
        return self._last[1]

    def _distorted(self, now_s: float) -> DemandForecast:
        late_s, scale = self._error.late_minutes * 60, self._error.scale
        if self._learned is not None:
            found = self._learned.forecast(now_s - late_s)
        else:
            assert self._known is not None, "it is learned or known"
            found = self._known
        return msgspec.structs.replace(
            found,
            from_s=found.from_s + late_s,
            expected_cards=tuple(scale * cards for cards in found.expected_cards),
            upper_cards=tuple(scale * cards for cards in found.upper_cards),
        )

    @staticmethod
    def _learn(curve: Curve, begin_s: float, horizon_s: float) -> LearnedDemand | None:
        moments = np.arange(curve.at_s[0], begin_s, HISTORY_STEP_S)
        if len(moments) * HISTORY_STEP_S < HISTORY_MIN_DAYS * DAY_S:
            return None
        samples = list(zip(moments.tolist(), curve.sampled(moments).tolist(), strict=True))
        return learn_demand({"inference": samples}, now_s=begin_s, horizon_s=horizon_s)


def _smoothed(curve: Curve, horizon_s: float) -> DemandForecast:
    moments = np.arange(curve.at_s[0], curve.at_s[-1] + NOISE_STEP_S, NOISE_STEP_S)
    cards, width = curve.sampled(moments), int(SMOOTH_S / NOISE_STEP_S)
    padded = np.pad(cards, width, mode="edge")
    expected = np.convolve(padded, np.full(2 * width + 1, 1 / (2 * width + 1)), mode="valid")
    above = float(np.quantile(np.maximum(cards - expected, 0), 0.975))
    forecast = DemandForecast(
        float(moments[0]), NOISE_STEP_S, tuple(expected.tolist()), tuple((expected + above).tolist())
    )
    samples = zip(moments.tolist(), cards.tolist(), strict=True)
    return msgspec.structs.replace(forecast, error_cards=rise_error(samples, forecast, horizon_s))
