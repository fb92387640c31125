"""The judge's figures against the same figures counted one number at a time, on placements of a generator of its own."""

from __future__ import annotations

import math
import random
from statistics import fmean, pstdev

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multisched.simulate.judge import Figures, judge, node_load
from multisched.simulate.recorded_run import PlacementInterval, RunResult
from multisched.simulate.scenario import NodeSpec, Scenario, Service
from multisched.simulate.scenario_time import DAY_S
from multisched.simulate.usage_table import UsageTable

BEGIN_S = 1_767_571_200
KNOWN_DAYS, JUDGED_DAYS, PER_DAY = 1, 2, 24
STEP_S = DAY_S // PER_DAY
BUSY_STEPS = 2
"""Two hours."""
ALWAYS = (-math.inf, math.inf)


def scenario(seed: int, *, services: int = 5, nodes: int = 3, same_capacity: bool = True) -> Scenario:
    """Use drawn from the seed: a peak at an hour of its own for every service, and noise."""
    rng = random.Random(seed)
    steps = (KNOWN_DAYS + JUDGED_DAYS) * PER_DAY
    values = [
        [
            [
                rng.lognormvariate(0, 0.5) * (0.2 + (1 + math.cos(math.tau * (t - peak) / PER_DAY))) * size
                for t in range(steps)
            ]
            for size in (1.0, rng.lognormvariate(0, 1))
        ]
        for peak in (rng.randrange(PER_DAY) for _ in range(services))
    ]
    names = tuple(f"s{number}" for number in range(services))
    usage = UsageTable(BEGIN_S, STEP_S, names, (), ("cpu", "log"), np.array(values))
    capacities = [(10.0, 20.0) if same_capacity else (10.0 + n, 20.0 - 3 * n) for n in range(nodes)]
    judged_s = BEGIN_S + KNOWN_DAYS * DAY_S
    return Scenario(
        "drawn",
        usage,
        tuple(Service(name, 4, {}) for name in names),
        tuple(NodeSpec(f"node-{n}", {}, {}, capacity) for n, capacity in enumerate(capacities)),
        (),
        (),
        (0,),
        "listed",
        BEGIN_S,
        judged_s,
        judged_s,
        judged_s + JUDGED_DAYS * DAY_S,
        tuple((s,) * 4 for s in range(services)),
    )


def result_of(*stays: PlacementInterval) -> RunResult:
    return RunResult(stays, 0, len(stays), (), ())


def plain_load(made: Scenario, stays: list[PlacementInterval], dimension: int) -> list[list[float]]:
    """Node by node, step by step: what stands there when the step begins, over capacity."""
    loads: list[list[float]] = []
    for number, node in enumerate(made.nodes):
        loads.append([])
        for step in range(KNOWN_DAYS * PER_DAY, made.usage.steps):
            now_s = BEGIN_S + step * STEP_S
            here = [s for s in stays if s.node == number and s.begin_s <= now_s < s.end_s]
            used = math.fsum(float(made.usage.values[s.series, dimension, step]) for s in here)
            loads[-1].append(used / node.capacity[dimension])
    return loads


def plain_figures(loads: list[list[float]], capacities: list[float]) -> dict[str, float]:
    """The definitions, word for word."""
    busy = []
    for day in range(len(loads[0]) // PER_DAY):
        steps = range(day * PER_DAY, (day + 1) * PER_DAY)
        used = {t: math.fsum(load[t] * c for load, c in zip(loads, capacities, strict=True)) for t in steps}
        busy += sorted(steps, key=lambda t: -used[t])[:BUSY_STEPS]
    columns = [[load[t] for load in loads] for t in busy]
    return {
        "cv": fmean(pstdev(c) / fmean(c) if any(c) else 0.0 for c in columns),
        "max_over_mean": fmean(max(c) / fmean(c) if any(c) else 1.0 for c in columns),
        "busy_over_80": sum(any(load[t] > 0.8 for t in busy) for load in loads),
        "top": max(map(max, loads)),
        "over_80": sum(max(load) > 0.8 for load in loads),
        "over_100": sum(max(load) > 1.0 for load in loads),
    }


def compared_figures(found: Figures) -> dict[str, float]:
    return {
        "cv": found.busiest.cv,
        "max_over_mean": found.busiest.max_over_mean,
        "busy_over_80": found.busiest.nodes_over_80,
        "top": found.worst.load,
        "over_80": found.nodes_over_80,
        "over_100": found.nodes_over_100,
    }


@given(seed=st.integers(0, 10_000), same_capacity=st.booleans())
def test_figures_equal_a_plain_calculation(seed: int, same_capacity: bool) -> None:
    made, rng = scenario(seed, same_capacity=same_capacity), random.Random(seed)
    judged_s = made.judged_from_s
    stays = []
    for series in range(5):
        for _ in range(rng.randrange(1, 5)):
            changed_s = judged_s + rng.uniform(-1, JUDGED_DAYS) * DAY_S
            first, second = rng.randrange(3), rng.randrange(3)
            stays += [
                PlacementInterval(series, first, -math.inf, changed_s),
                PlacementInterval(series, second, changed_s, math.inf),
            ]
    figures = judge(made, result_of(*stays))
    for dimension in range(2):
        loads = plain_load(made, stays, dimension)
        capacities = [node.capacity[dimension] for node in made.nodes]
        assert compared_figures(figures.whole[dimension]) == pytest.approx(plain_figures(loads, capacities), rel=1e-9)
        for day in range(JUDGED_DAYS):
            of_day = [load[day * PER_DAY : (day + 1) * PER_DAY] for load in loads]
            assert compared_figures(figures.days[day][dimension]) == pytest.approx(
                plain_figures(of_day, capacities), rel=1e-9
            )


def test_the_worst_slot_is_named_with_its_node_and_moment() -> None:
    made = scenario(1)
    values = made.usage.values
    values[:] = 1.0
    values[2, 1, (KNOWN_DAYS + 1) * PER_DAY + 20] = 25.0
    stays = [PlacementInterval(series, series % 3, *ALWAYS) for series in range(5)]
    worst = judge(made, result_of(*stays)).whole[1].worst
    assert (worst.node, worst.load) == ("node-2", 25.0 / 20.0)
    assert worst.at_s == made.judged_from_s + DAY_S + 20 * STEP_S
    assert (worst.nodes_over_80, worst.nodes_over_100) == (1, 1)
    assert worst.max_over_mean == pytest.approx(25.0 / ((2 + 2 + 25) / 3))


def test_pod_counts_from_the_first_step_that_begins_after_its_placement() -> None:
    made = scenario(2)
    made.usage.values[:] = 1.0
    begin_s = made.judged_from_s + 3 * STEP_S + 1
    load = node_load(made, result_of(PlacementInterval(0, 1, begin_s, begin_s + 2 * STEP_S)))
    assert np.flatnonzero(load[1, 0]).tolist() == [4, 5]
    assert load[1, 0, 4] == 1.0 / 10.0


def test_gaps_of_judged_days_are_interpolated() -> None:
    made = scenario(3)
    made.usage.values[0, 0, -3:] = [2.0, np.nan, 4.0]
    assert node_load(made, result_of(PlacementInterval(0, 0, *ALWAYS)))[0, 0, -3:].tolist() == [
        0.2,
        pytest.approx(0.3),
        0.4,
    ]


def test_unused_nodes_are_even_and_hourly_peaks_are_maxima() -> None:
    figures = judge(scenario(4), result_of())
    assert figures.whole[0].busiest.cv == 0.0
    assert figures.tops.shape == (2, JUDGED_DAYS * 24)
