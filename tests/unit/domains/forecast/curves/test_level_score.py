"""Scores have their finest steps where the fleet is with the pod on it, whatever the pod's size."""

from __future__ import annotations

import numpy as np
import pytest

from domains.forecast.curves.flat_peaks import Amounts
from domains.forecast.curves.level_score import LEVEL_HYSTERESIS, ROW_HYSTERESIS, FleetLevel, scores_of
from domains.forecast.curves.quantized_profiles import FLOAT_QUANTA, Curve

SLOTS = 168
WEIGHTS = np.ones(2)
ROW = np.array([[0.5], [0.25]])
"""Shares of capacity per float of a curve."""


def flat_curve(cpu: float, log: float = 0.0) -> Curve:
    """`cpu` and `log`: shares of the capacity of ROW."""
    quanta = np.array([[cpu], [log]]) / ROW / FLOAT_QUANTA
    return Curve(np.repeat(quanta.round().astype(np.int64), SLOTS, axis=1), (cpu, log))


def fleet_level(square: float, row: Amounts = ROW) -> FleetLevel:
    found = FleetLevel()
    found.update(square, row)
    return found


@pytest.mark.parametrize("pod", [0.001, 0.05, 0.5, 2.0])
def test_pod_of_any_size_scores_50_on_the_mean_row(pod: float) -> None:
    level = 0.5
    anchor = fleet_level(level * level).anchor(flat_curve(pod), WEIGHTS)

    cost = ((level + pod) ** 3 - level**3) / (3 * pod)

    assert anchor == pytest.approx(cost, rel=1e-3)
    assert scores_of(np.array([0.99, 1.01]) * cost, anchor).tolist() == [50, 49]


def test_most_used_dimension_counts_most_and_zero_weight_not_at_all() -> None:
    fleet, pod = fleet_level(0.25), flat_curve(0.01, 0.4)

    assert fleet.anchor(pod, WEIGHTS) == pytest.approx(fleet.anchor(flat_curve(0.0, 0.39), WEIGHTS), rel=0.01)
    assert fleet.anchor(pod, np.array([1.0, 0.0])) == pytest.approx(fleet.anchor(flat_curve(0.01), WEIGHTS))


def test_pod_without_usage_or_fleet_without_capacity_uses_the_fleet_anchor() -> None:
    assert fleet_level(0.25).anchor(flat_curve(0.0), WEIGHTS) == 0.25
    assert fleet_level(0.25, np.zeros((2, 1))).anchor(flat_curve(0.5), WEIGHTS) == 0.25


def test_anchor_changes_only_after_large_changes_of_fleet_or_mean_row() -> None:
    fleet = fleet_level(0.25)
    version = fleet.version

    fleet.update(0.25 * 2 ** (LEVEL_HYSTERESIS * 0.9), ROW * 2 ** (-ROW_HYSTERESIS * 0.9))
    assert (fleet.version, fleet.number) == (version, -2)
    fleet.update(0.25, ROW * 2 ** (ROW_HYSTERESIS * 1.1))
    assert fleet.version == version + 1
    fleet.update(1.0, fleet.row)
    assert (fleet.version, fleet.number) == (version + 2, 0)
    fleet.update(1.0, np.array([[0.5], [0.0]]))
    assert fleet.version == version + 3
