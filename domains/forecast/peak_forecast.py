"""PeakForecast: puts pods where the predicted week stays even and its worst moment stays below capacity.

The default scores of Kubernetes go by requests, which say nothing of the evening peak, of log volume or of the network.
This one goes by profiles: use per replica, dimension and slot of the week, summed over the pods of the row. While there are
no profiles it goes by requests. As a score, as a filter with a threshold, or both: `peak_forecast` makes the one that the
settings ask for.
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

UNSTATED: Final = 1.0
"""Milli-units: a node whose capacity is unknown, while only requests speak."""


class PeakForecast(Forecast):
    """Score 0..100."""

    def score(self, cycle: CycleView, pod: Pod, rows: Rows) -> Scores:
        """int64[rows], 0..100: see `level_score`; without profiles `room_percent` of the worst dimension."""
        if not len(rows):
            return np.zeros(0, np.int64)
        own, anchor = self._predict(cycle, pod)
        if own.curve is None:
            return _by_requests(self._ledger, rows, own)
        outlook, factors = self._look(rows, own.curve)
        return scores_of(level_squares(outlook, own.curve, factors, self._weights), anchor)


def _by_requests(ledger: PeakLedger, rows: Rows, own: Prediction) -> Scores:
    """int64[rows], 0..100: the room left in the worst dimension, in percent of the row's capacity.

    A dimension whose capacity a node does not state counts as 1 / (1 + peak). Less load is better, and rows differ
    however much they have.
    """
    room = _room_percent(ledger.peak(rows) + own.column, ledger.capacity(rows))
    worst = np.minimum(room[0], float(MAX_SCORE))
    for one in room[1:]:
        np.minimum(worst, one, out=worst)
    np.maximum(worst, 0.0, out=worst)
    scores: Scores = worst.astype(np.int64)
    return scores


def _room_percent(peak: Amounts, capacity: Amounts) -> Amounts:
    """float64[dimensions, rows]: room in each dimension, below zero where it is exceeded.

    A node without any of what is needed has no room; one without any of what is not needed is no worse for it.
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
    """Both."""


_BY_MODE: Final[Mapping[Mode, type[Forecast]]] = {
    Mode.SCORE: PeakForecast,
    Mode.FILTER: PeakFilter,
    Mode.BOTH: PeakForecastAndFilter,
}


def peak_forecast_class(args: Mapping[str, Any]) -> type[Forecast]:
    """Which of them the settings ask for. Raises PluginArgsError."""
    return _BY_MODE[PeakSettings.from_config(args).mode]


def peak_forecast(args: Mapping[str, Any], context: PluginContext) -> Forecast:
    """The plugin that the settings ask for. Raises PluginArgsError, HistoryError."""
    return peak_forecast_class(args)(args, context)
