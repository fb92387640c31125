"""How evenly and how fully the nodes were loaded: figures of a run over the judged days, computed on arrays.

Load is what all pods of a node use in a step, over the node's capacity, per dimension. The two busiest hours of a day
are the steps with the most use over all nodes, two hours in total, per dimension. A pod counts in a step if it is on the node at the
beginning of the step. Uses no code of the scheduler.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np
from numpy.typing import NDArray

from multisched.simulate.recorded_run import RunResult
from multisched.simulate.scenario import Scenario
from multisched.simulate.scenario_time import DAY_S
from multisched.simulate.usage_table import filled

Load = NDArray[np.float64]
"""float64[nodes, dimensions, steps]: use over capacity."""

BUSIEST_S = 7_200
HIGH, FULL = 0.8, 1.0


class Busiest(msgspec.Struct, frozen=True):
    """The two busiest hours: means over their steps, and nodes over a threshold in any of them."""

    cv: float
    """Standard deviation over mean of the nodes' load."""
    max_over_mean: float
    nodes_over_80: int
    nodes_over_100: int


class Worst(msgspec.Struct, frozen=True):
    """The step with the highest load of any node."""

    load: float
    """The highest load; 1 is the node's capacity."""
    at_s: int
    node: str
    cv: float
    max_over_mean: float
    nodes_over_80: int
    nodes_over_100: int


class Figures(msgspec.Struct, frozen=True):
    """Figures of one dimension over some days."""

    busiest: Busiest
    worst: Worst
    nodes_over_80: int
    """Number of nodes over 80 % in any step."""
    nodes_over_100: int


class RunFigures(msgspec.Struct, frozen=True):
    """Figures of one run, per dimension in the order of the usage's dimensions."""

    whole: tuple[Figures, ...]
    days: tuple[tuple[Figures, ...], ...]
    tops: NDArray[np.float64]
    """float64[dimensions, hours]: the highest load of any node in each hour, for plots."""


def node_load(scenario: Scenario, result: RunResult) -> Load:
    """Returns the load of all nodes in the judged days."""
    usage = scenario.usage
    begin, end = usage.step_at(scenario.judged_from_s), usage.step_at(scenario.judged_to_s)
    values, _ = filled(usage.values[:, :, begin:end])
    load = np.zeros((len(scenario.nodes), *values.shape[1:]))
    for stay in result.placement_intervals:
        first, last = (_first_step(at_s, scenario, values.shape[2]) for at_s in (stay.begin_s, stay.end_s))
        load[stay.node, :, first:last] += values[stay.series, :, first:last]
    load /= scenario.capacities()[:, :, None]
    return load


def _first_step(epoch_s: float, scenario: Scenario, steps: int) -> int:
    """Returns the first judged step that begins at this moment or later; `steps` if there is none."""
    passed = (epoch_s - scenario.judged_from_s) / scenario.usage.step_s
    return math.ceil(min(max(passed, 0.0), steps))


def judge(scenario: Scenario, result: RunResult) -> RunFigures:
    """Returns the figures of a run, over all judged days and per day."""
    load = node_load(scenario, result)
    step_s = scenario.usage.step_s
    per_day = DAY_S // step_s
    count = load.shape[2] // per_day
    names = [node.name for node in scenario.nodes]
    capacity = scenario.capacities()
    busiest = [
        _busiest_steps((load[:, d] * capacity[:, d, None]).sum(0), per_day, step_s) for d in range(load.shape[1])
    ]

    def of(day_from: int, day_to: int) -> tuple[Figures, ...]:
        begin, end = day_from * per_day, day_to * per_day
        origin_s = scenario.judged_from_s + begin * step_s
        return tuple(
            figures(load[:, d, begin:end], steps[day_from:day_to].ravel() - begin, origin_s, step_s, names)
            for d, steps in enumerate(busiest)
        )

    hours = load.max(0).reshape(load.shape[1], count * 24, -1) if per_day % 24 == 0 else load.max(0)[:, :, None]
    return RunFigures(of(0, count), tuple(of(day, day + 1) for day in range(count)), hours.max(2))


def _busiest_steps(total: Load, per_day: int, step_s: int) -> NDArray[np.int64]:
    """Returns int64[days, steps]: the steps of each day with the most use, two hours in total; of equal steps, the earlier ones."""
    days = total.reshape(-1, per_day)
    wanted = max(1, BUSIEST_S // step_s)
    chosen: NDArray[np.int64] = np.argsort(-days, axis=1, kind="stable")[:, :wanted]
    return chosen + np.arange(len(days))[:, None] * per_day


def figures(load: Load, busiest: NDArray[np.int64], origin_s: int, step_s: int, names: list[str]) -> Figures:
    """Returns the figures of one dimension: `load` is float64[nodes, steps], `busiest` the indices of the busiest steps."""
    busy = load[:, busiest]
    node, step = np.unravel_index(int(load.argmax()), load.shape)
    then = load[:, [step]]
    return Figures(
        Busiest(_cv(busy), _max_over_mean(busy), _over(busy, HIGH), _over(busy, FULL)),
        Worst(
            float(load[node, step]),
            origin_s + int(step) * step_s,
            names[node],
            _cv(then),
            _max_over_mean(then),
            _over(then, HIGH),
            _over(then, FULL),
        ),
        _over(load, HIGH),
        _over(load, FULL),
    )


def _cv(load: Load) -> float:
    """Returns the coefficient of variation of the nodes' load, averaged over the steps; it is 0 in a step without use."""
    mean = load.mean(0)
    return float(np.divide(load.std(0), mean, out=np.zeros_like(mean), where=mean > 0).mean())


def _max_over_mean(load: Load) -> float:
    mean = load.mean(0)
    return float(np.divide(load.max(0), mean, out=np.ones_like(mean), where=mean > 0).mean())


def _over(load: Load, mark: float) -> int:
    """Counts nodes over the threshold in any step."""
    return int((load > mark).any(1).sum())
