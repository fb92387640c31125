"""PeakForecast: prefers rows whose predicted load stays even over the week and below capacity.

The default scores of Kubernetes use requests, which contain neither daily peaks nor log volume nor network traffic.
PeakForecast uses profiles: use per replica, dimension and slot of the week, summed over the pods of a row. Without
profiles it uses requests. It runs as a score, as a filter with a threshold, or as both: `peak_forecast` creates the
configured variant.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from domains.forecast.curves.flat_peaks import Amounts
from domains.forecast.curves.level_score import level_squares, scores_of
from domains.forecast.curves.predictor import Prediction
from domains.forecast.forecast import Forecast
from domains.forecast.ledger.peak_ledger import PeakLedger
from domains.forecast.peak_filter import PeakFilter
from domains.forecast.settings.args import Mode, PeakSettings
from multisched.framework.context import PluginContext
from multisched.framework.node_view import Rows, Scores, any_true
from multisched.framework.normalize import MAX_SCORE
from multisched.framework.points import CycleView
from multisched.model.objects import Pod

FEW_ROWS: Final = 4
"""Up to this many rows are scored one by one in Python: one call of numpy takes longer than the formula for one row."""
UNSTATED: Final = 1.0
"""Milli-units: assumed capacity of a node that states none, if there are no profiles."""


class PeakForecast(Forecast):
    """The Score plugin; scores are 0..100."""

    def score(self, cycle: CycleView, pod: Pod, rows: Rows) -> Scores:
        """Returns int64[rows], 0..100: see `level_score`; without profiles, `_by_requests`."""
        if not len(rows):
            return np.zeros(0, np.int64)
        own, anchor = self._predict(cycle, pod)
        if own.curve is None:
            return _by_requests(self._ledger, rows, own)
        outlook, factors = self._outlook_of(rows, own.curve)
        return scores_of(level_squares(outlook, own.curve, factors, self._weights), anchor)


def _by_requests(ledger: PeakLedger, rows: Rows, own: Prediction) -> Scores:
    """Returns int64[rows], 0..100: the lowest free percentage of capacity over the dimensions.

    A dimension in which the node states no capacity counts as 100 / (1 + peak), which falls with load at any load.
    """
    if len(rows) <= FEW_ROWS:
        return np.array([_percent_of(ledger, row, own.peaks) for row in rows.tolist()], np.int64)
    room = _room_percent(ledger.peak(rows) + own.column, ledger.capacity(rows))
    worst = np.minimum(room[0], float(MAX_SCORE))
    for one in room[1:]:
        np.minimum(worst, one, out=worst)
    np.maximum(worst, 0.0, out=worst)
    scores: Scores = worst.astype(np.int64)
    return scores


def _percent_of(ledger: PeakLedger, row: int, peaks: tuple[int, ...]) -> int:
    """Returns the score of one row: the formula of `_room_percent` in Python numbers, with equal results."""
    worst = float(MAX_SCORE)
    for used, more, capacity in zip(ledger.peak_of(row), peaks, ledger.capacity_of(row), strict=True):
        peak = float(used) + float(more)
        if capacity > 0:
            room = (capacity - peak) * MAX_SCORE / capacity
        elif capacity < 0:
            room = MAX_SCORE * UNSTATED / (UNSTATED + peak)
        else:
            room = 0.0 if peak > 0 else float(MAX_SCORE)
        worst = min(worst, room)
    return int(max(worst, 0.0))


def _room_percent(peak: Amounts, capacity: Amounts) -> Amounts:
    """Returns float64[dimensions, rows]: the free percentage of each capacity, negative where the peak exceeds it.

    With a stated capacity of zero the result is 0 if any of the dimension is used, else 100.
    """
    if not any_true(capacity <= 0):
        room = capacity - peak
        room *= MAX_SCORE
        room /= capacity
        return room
    room = (capacity - peak) * MAX_SCORE / np.maximum(capacity, 1.0)
    room = np.where(capacity > 0, room, np.where(peak > 0, 0.0, float(MAX_SCORE)))
    return np.where(capacity < 0, MAX_SCORE * UNSTATED / (UNSTATED + peak), room)


class PeakForecastAndFilter(PeakForecast, PeakFilter):
    """The plugin as both score and filter."""


_BY_MODE: Final[Mapping[Mode, type[Forecast]]] = {
    Mode.SCORE: PeakForecast,
    Mode.FILTER: PeakFilter,
    Mode.BOTH: PeakForecastAndFilter,
}


def peak_forecast_class(args: Mapping[str, Any]) -> type[Forecast]:
    """Returns the class for the configured mode. Raises PluginArgsError."""
    return _BY_MODE[PeakSettings.from_config(args).mode]


def peak_forecast(args: Mapping[str, Any], context: PluginContext) -> Forecast:
    """Creates the plugin for the configured mode. Raises PluginArgsError, HistoryError."""
    return peak_forecast_class(args)(args, context)
