"""PeakForecast: prefers the row whose predicted peak, with this pod added, leaves the most room in its worst dimension.

The default scores of Kubernetes go by requests, which say nothing of the evening peak, of log volume or of the network.
This one goes by history: percentile per service and resource, summed over the pods of the row.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from domains.forecast.capacity import SettingError, default_capacity
from domains.forecast.history import NO_HISTORY, History, load_history
from domains.forecast.peak_ledger import Amounts, PeakLedger
from domains.forecast.predictor import FALLBACK_REASONS, Predictor
from domains.forecast.settings import PeakSettings
from multisched.framework.cycle_state import StateKey
from multisched.framework.node_view import Rows, Scores, any_true
from multisched.framework.plugin import MAX_SCORE, CycleView, Dependency, PluginContext
from multisched.model.objects import CPU, MEMORY, Pod

REFERENCE_REPLICAS = 10
"""A node whose capacity is unknown is judged as if this many replicas of the heaviest service halved its room."""

_PREDICTED: StateKey[Amounts] = StateKey("PeakForecast.predicted")
"""float64[dimensions, 1]: what the pod adds."""

logger = logging.getLogger(__name__)


class PeakStatistics(msgspec.Struct, frozen=True):
    """What the forecast stands on, for metrics and `explain`."""

    services: int
    samples: int
    ignored_lines: int
    fallbacks: Mapping[str, int]


class PeakForecast:
    """Score 0..100 by predicted peak. PostBind counts the pods that were placed without a forecast."""

    name = "PeakForecast"
    depends_on = Dependency.ROW

    def __init__(self, args: Mapping[str, Any], context: PluginContext) -> None:
        settings = PeakSettings.from_config(args)
        self._history = _load(settings)
        dimensions = settings.dimensions or tuple(sorted({CPU, MEMORY} | self._history.resources))
        self._predictor = Predictor(self._history, dimensions)
        capacities = [settings.capacities.get(name) or default_capacity(name) for name in dimensions]
        fresh = PeakLedger(f"predicted-peaks/{context.domain}", self._predictor, capacities)
        ledger = context.hold.register(fresh)
        if not (isinstance(ledger, PeakLedger) and ledger.sums_like(fresh)):
            raise SettingError(f"ledger {fresh.name} is kept with another history already; restart to change it")
        self._ledger = ledger
        self._references = np.array([[_reference(self._history, name)] for name in dimensions], np.float64)
        self.fallbacks: dict[str, int] = dict.fromkeys(FALLBACK_REASONS, 0)
        """Reason -> pods bound without a forecast since the start: the metric forecast_fallback_total."""

    @property
    def dimensions(self) -> Sequence[str]:
        """The dimensions of the forecast, in the order of the ledger's columns."""
        return self._predictor.dimensions

    def statistics(self) -> PeakStatistics:
        history = self._history
        return PeakStatistics(len(history), history.sample_count, history.problem_count, dict(self.fallbacks))

    def score(self, cycle: CycleView, pod: Pod, rows: Rows) -> Scores:
        """int64[rows], 0..100: the room left in the worst dimension, in percent of the row's capacity.

        A dimension whose capacity a node does not state counts as reference / (reference + peak): less load is better,
        and rows stay apart however much they have.
        """
        if not len(rows):
            return np.zeros(0, np.int64)
        own = cycle.state.find(_PREDICTED)
        if own is None:
            own = self._predictor.predict(pod).column
            cycle.state.write(_PREDICTED, own)
        room = _room_percent(self._ledger.peak(rows) + own, self._ledger.capacity(rows), self._references)
        worst = np.minimum(room[0], float(MAX_SCORE))
        for one in room[1:]:
            np.minimum(worst, one, out=worst)
        np.maximum(worst, 0.0, out=worst)
        scores: Scores = worst.astype(np.int64)
        return scores

    def sign(self, pod: Pod) -> Hashable:
        return self._predictor.predict(pod).peaks

    def post_bind(self, cycle: CycleView, pod: Pod, node: str) -> None:
        fallback = self._predictor.predict(pod).fallback
        if fallback:
            self.fallbacks[fallback] += 1


def _room_percent(peak: Amounts, capacity: Amounts, reference: Amounts) -> Amounts:
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
    return np.where(capacity < 0, MAX_SCORE * reference / (reference + peak), room)


def _reference(history: History, dimension: str) -> int:
    return max(1, REFERENCE_REPLICAS * history.largest_milli.get(dimension, 0))


def _load(settings: PeakSettings) -> History:
    if not settings.files:
        return NO_HISTORY
    history = load_history(settings.files, percentile=settings.percentile, window_days=settings.window_days)
    if history.problem_count:
        logger.warning(
            "history lines left out", extra={"lines": history.problem_count, "first": str(history.problems[0])}
        )
    return history
