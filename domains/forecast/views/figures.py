"""The forecast's metrics: profiles and refits, forecast errors, predicted and measured load of nodes. Labels are bounded.

Computed on the loop at each scrape from sums in the ledger: some milliseconds at 5,000 nodes. While rows are being
recomputed after new profiles, the metrics of nodes keep their last values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from domains.forecast.curves.predictor import SOURCES
from domains.forecast.curves.quantized_profiles import FLOAT_QUANTA, QuantizedProfiles
from domains.forecast.ledger.peak_ledger import PeakLedger
from multisched.forecasting.profiles import Origin
from multisched.framework.introspection import PluginMetric
from multisched.framework.node_view import Rows

if TYPE_CHECKING:
    from domains.forecast.learning.refit import RefitState
    from domains.forecast.ledger.node_loads import NodeLoad

PERCENTILES: Final[Mapping[str, float]] = {"50": 0.5, "95": 0.95, "100": 1.0}
"""Percentiles over nodes; 100 is the fullest node. The label is not `quantile`, which Prometheus reserves for summaries."""
ERROR_PERCENTILES: Final[Mapping[str, float]] = {"50": 0.5, "90": 0.9}
"""Percentiles over services."""
_Values = dict[tuple[str, ...], float]


class Figures:
    """Metrics of one forecast."""

    def __init__(self, ledger: PeakLedger, rows: Callable[[], Rows], fallbacks: Mapping[str, int]) -> None:
        """`rows` returns the rows of the domain, ascending. `fallbacks`: reason -> pods bound without a profile of their own."""
        self._ledger = ledger
        self._rows = rows
        self._fallbacks = fallbacks
        self._profile_metrics: tuple[int, list[PluginMetric]] = (0, [])
        self._of_nodes: list[PluginMetric] = []

    def all(self, now_s: float, state: RefitState | None, loads: Mapping[str, NodeLoad]) -> list[PluginMetric]:
        """Returns all metrics. `now_s`: epoch seconds; `state`: of the refit, if there is one."""
        quantized, ledger = self._ledger.predictor.quantized, self._ledger
        text = "Pods bound without a profile of their own, by the fallback used."
        fallbacks: _Values = {(reason,): count for reason, count in self._fallbacks.items()}
        found = [PluginMetric("forecast_fallback", text, fallbacks, ("reason",), is_counter=True)]
        if quantized is not None:
            if self._profile_metrics[0] != quantized.number:
                self._profile_metrics = (quantized.number, _of_profiles(quantized))
            found += self._profile_metrics[1]
            age: _Values = {(): now_s - quantized.profiles.newest_s} if quantized.profiles.newest_s else {}
            found.append(
                PluginMetric("forecast_profiles_age_seconds", "Age of the newest sample in the active profiles.", age)
            )
        left: _Values = {(): ledger.rows_left if quantized is not None else 0}
        found.append(PluginMetric("forecast_catch_up_rows", "Nodes not yet recomputed after new profiles.", left))
        if not ledger.rows_left:
            self._of_nodes = self._nodes(now_s, quantized)
        return found + self._of_nodes + _measured(loads) + _of_refits(state)

    # -- nodes -----------------------------------------------------------------------------------------------------

    def _nodes(self, now_s: float, quantized: QuantizedProfiles | None) -> list[PluginMetric]:
        rows = self._rows()
        pods = self._ledger.sources(rows).tolist()
        sources: _Values = {(name,): count for name, count in zip(SOURCES, pods, strict=True)}
        text = "Pods on the domain's nodes, by source of their prediction; no_history and no_service use requests."
        found = [PluginMetric("forecast_pods", text, sources, ("source",))]
        if quantized is None or not len(rows):
            return found
        curves, capacity = self._ledger.settled(rows), self._ledger.capacity(rows)
        unit = quantized.quantum_milli / FLOAT_QUANTA
        with np.errstate(divide="ignore", invalid="ignore"):
            peaks = np.where(capacity > 0, curves.peaks(rows) * unit / capacity, np.nan)
            expected = np.where(
                capacity > 0, curves.at_slot(rows, quantized.profiles.slot_of(now_s)) * unit / capacity, np.nan
            )
        times: _Values = {}
        for dimension, (name, shares) in enumerate(zip(quantized.dimensions, peaks, strict=True)):
            if np.isfinite(shares).any():
                fullest = curves.of(rows[[int(np.nanargmax(shares))]])[0, dimension]
                times[(name,)] = float(fullest.argmax() * quantized.profiles.slot_s)
        label = ("dimension", "percentile")
        ahead = "Predicted peak of nodes over their capacity, in the fullest slot of the week; percentile over nodes."
        text = "When the node with the highest predicted peak is fullest: seconds since Monday 00:00 in the profiles' zone."
        now = "Predicted load of nodes over their capacity at this time of the week; percentile over nodes."
        return [
            *found,
            PluginMetric(
                "forecast_node_peak_ratio", ahead, _percentiles(quantized.dimensions, peaks, PERCENTILES), label
            ),
            PluginMetric("forecast_node_peak_time_seconds", text, times, ("dimension",)),
            PluginMetric(
                "forecast_node_expected_ratio", now, _percentiles(quantized.dimensions, expected, PERCENTILES), label
            ),
        ]


def _measured(loads: Mapping[str, NodeLoad]) -> list[PluginMetric]:
    shares: _Values = {}
    seen: _Values = {}
    for name, load in loads.items():
        shares |= _percentiles((name,), load.shares.reshape(1, -1), PERCENTILES)
        seen[(name,)] = load.seen_s
    text = "Last measured load of nodes over their capacity; percentile over nodes."
    return [
        PluginMetric("forecast_node_load_ratio", text, shares, ("dimension", "percentile")),
        PluginMetric(
            "forecast_node_load_time_seconds", "Unix time of the last measurement of node load.", seen, ("dimension",)
        ),
    ]


def _percentiles(names: tuple[str, ...], values: NDArray[np.float64], asked: Mapping[str, float]) -> _Values:
    """Returns (name, percentile) -> value; `values` has a row per name, NaN is skipped."""
    found: _Values = {}
    for name, row in zip(names, values, strict=True):
        known = row[np.isfinite(row)]
        if len(known):
            for text, value in zip(asked, np.quantile(known, list(asked.values())).tolist(), strict=True):
                found[name, text] = value
    return found


def _of_profiles(quantized: QuantizedProfiles) -> list[PluginMetric]:
    """Returns the metrics of profiles, which are constant for one set of profiles."""
    profiles = quantized.profiles
    kinds: _Values = {
        (name, origin.name.lower()): int((profiles.origin[:, number] == origin).sum())
        for number, name in enumerate(profiles.dimensions)
        for origin in Origin
    }
    is_attributed = profiles.origin == Origin.ATTRIBUTED
    tested, weighed = (
        _percentiles(
            profiles.dimensions, np.where(chosen, profiles.error, np.nan).T.astype(np.float64), ERROR_PERCENTILES
        )
        for chosen in (~is_attributed, is_attributed)
    )
    text = "Mean pinball loss of the peak on the last days, over the mean of the series; percentile over services."
    of_weights = "Standard error of what is attributed from node totals, over the weight; percentile over services."
    return [
        PluginMetric("forecast_profiles_version", "Version of the active profiles.", {(): profiles.version}),
        PluginMetric("forecast_services", "Services with a profile.", {(): len(profiles.services)}),
        PluginMetric(
            "forecast_profiles", "Profiles by how they were computed.", kinds, ("dimension", "origin")
        ),
        PluginMetric("forecast_backtest_error_ratio", text, tested, ("dimension", "percentile")),
        PluginMetric("forecast_attribution_error_ratio", of_weights, weighed, ("dimension", "percentile")),
    ]  # fmt: skip


def _of_refits(state: RefitState | None) -> list[PluginMetric]:
    if state is None:
        return []
    last: _Values = {(): state.last_error_s} if state.last_error_s else {}
    took: _Values = {(): state.duration_s} if state.refits else {}
    return [
        PluginMetric("forecast_refits", "Successful refits.", {(): state.refits}, is_counter=True),
        PluginMetric("forecast_refit_failures", "Refits that failed.", {(): state.failures}, is_counter=True),
        PluginMetric(
            "forecast_refit_failures_in_a_row", "Failed refits since the last successful one.", {(): state.failures_in_a_row}
        ),
        PluginMetric("forecast_refit_last_error_time_seconds", "Unix time of the last failed refit.", last),
        PluginMetric("forecast_refit_duration_seconds", "Duration of the last successful refit.", took),
        PluginMetric(
            "forecast_polls_failed", "Failed measurements of the current load.", {(): state.polls_failed}, is_counter=True
        ),
    ]  # fmt: skip
