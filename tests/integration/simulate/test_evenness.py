"""The forecast domain as it ships keeps nodes as even as the better of two plain sums, whether days are weak or strong.

`python -m tests.perf.forecast_quality_bench` is the large form of this, over ten kinds.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.perf.fleet_kinds import Fleet, make_fleet
from tests.perf.fleet_placements import Evenness, all_figures, policy

pytestmark = pytest.mark.slow

ORDERS = range(4)
SHIPPED = policy("peak-forecast")
SPREADING = "PodTopologySpread"


def part_of(fleet: Fleet, services: int, nodes: int) -> Fleet:
    """The first services, on nodes of as many sizes."""
    kept = np.linspace(0, len(fleet.sizes) - 1, nodes).round().astype(int)
    return fleet._replace(
        replicas=fleet.replicas[:services],
        asked=fleet.asked[:services],
        use=fleet.use[:services],
        sizes=fleet.sizes[kept],
    )


def means(found: dict[str, list[Evenness]]) -> dict[str, Evenness]:
    return {name: Evenness(*np.mean(figures, axis=0).tolist()) for name, figures in found.items()}


@pytest.mark.parametrize(
    ("kind", "services", "peak_share", "busy_share"),
    [("weak", 200, 1.0, 1.03), ("bursty", 200, 1.0, 1.03), ("cycle", 24, 1.0, 0.75)],
)
def test_forecast_is_as_even_as_the_better_plain_sum(
    kind: str, services: int, peak_share: float, busy_share: float
) -> None:
    found = means(all_figures(part_of(make_fleet(kind, 0), services, 16), [SHIPPED], ORDERS))

    best = Evenness(*np.min([found["p95 sum"], found["mean sum"]], axis=0).tolist())
    assert found[SHIPPED.name].peak_cv <= peak_share * best.peak_cv
    assert found[SHIPPED.name].busy_cv <= busy_share * best.busy_cv


def test_spreading_does_not_worsen_the_forecast_on_unequal_nodes() -> None:
    off = policy("off", {"base": "forecast", "plugins": {"enabled": [{"name": SPREADING, "weight": 0}]}})
    heavy = policy("heavy", {"base": "forecast", "plugins": {"enabled": [{"name": SPREADING, "weight": 2}]}})

    found: dict[str, list[Evenness]] = {}
    for seed in range(3):  # of one fleet alone the order decides more
        fleet = part_of(make_fleet("mixed", seed), 10, 14)
        for name, figures in all_figures(fleet, [SHIPPED, off, heavy], range(6)).items():
            found.setdefault(name, []).extend(figures)
    mean = means(found)

    assert mean[SHIPPED.name].peak_cv <= 1.03 * mean["off"].peak_cv
    assert mean["heavy"].peak_cv > 1.1 * mean["off"].peak_cv
