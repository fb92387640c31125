"""Placement histories with known weights, for the tests of attribution; the same seed gives the same history."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from domains.forecast.curves.node_usage import NodeTotals, PlacementInterval
from tests.unit.forecasting.weeks import DAY_S, FIVE_MINUTES_S, MONDAY_S

END_S = MONDAY_S + 14 * DAY_S


def wandering_intervals(moves: list[int], *, nodes: int, replicas: int, seed: int = 0) -> tuple[PlacementInterval, ...]:
    """Each service has so many replicas on nodes drawn at random, and moves one of them so many times."""
    rng = np.random.default_rng(seed)
    intervals = []
    for service, count in enumerate(moves):
        begin_s = [MONDAY_S - DAY_S] * replicas
        where = rng.integers(0, nodes, replicas).tolist()
        for moment_s in np.sort(rng.uniform(MONDAY_S, END_S, count)).tolist():
            replica = int(rng.integers(0, replicas))
            intervals.append(PlacementInterval(f"s{service:03}", f"n{where[replica]}", begin_s[replica], moment_s))
            begin_s[replica] = moment_s
            where[replica] = (where[replica] + int(rng.integers(1, nodes))) % nodes
        intervals += [
            PlacementInterval(f"s{service:03}", f"n{node}", began, END_S + DAY_S)
            for node, began in zip(where, begin_s, strict=True)
        ]
    return tuple(intervals)


def own_cycles(services: int, *, weekends: bool = False, seed: int = 2) -> NDArray[np.float64]:
    """float64[services, steps], mean 1: each service has a peak of its own in the day, and less or more at weekends."""
    rng = np.random.default_rng(seed)
    days = np.arange(round(14 * DAY_S / FIVE_MINUTES_S)) / 288
    swing, peak = rng.uniform(0.2, 0.9, (services, 1)), rng.uniform(0, 1, (services, 1))
    cycles = 1 + swing * np.cos(2 * np.pi * (days - peak))
    if weekends:
        cycles = cycles * np.where(days.astype(int) % 7 >= 5, rng.uniform(0.4, 1.2, (services, 1)), 1.0)
    mean_one: NDArray[np.float64] = cycles / cycles.mean(axis=1, keepdims=True)
    return mean_one


def totals_of(
    intervals: tuple[PlacementInterval, ...],
    weight: NDArray[np.float64],
    *,
    nodes: int,
    noise: float,
    cycle: float = 0.0,
    own: NDArray[np.float64] | None = None,
    seed: int = 1,
) -> NodeTotals:
    """Of two weeks at five minutes: replicas' weights, a level of the node's own, a common cycle of the day, noise.

    `own`: float64[services, steps], cycles of the services' own.
    """
    rng = np.random.default_rng(seed)
    steps = round(14 * DAY_S / FIVE_MINUTES_S)
    use = np.repeat(rng.uniform(0, 2, (nodes, 1)), steps, axis=1)
    for interval in intervals:
        begin, end = (
            np.clip((moment - MONDAY_S) / FIVE_MINUTES_S, 0, steps) for moment in (interval.begin_s, interval.end_s)
        )
        service, during = int(interval.service[1:]), slice(int(begin), int(end))
        cycle_of = 1.0 if own is None else own[service, during]
        use[int(interval.node[1:]), during] += weight[service] * interval.replicas * cycle_of
    shape = 1 + cycle * np.cos(2 * np.pi * (np.arange(steps) / 288 - 20 / 24))
    values = use * shape * (1 + noise * rng.normal(size=use.shape))
    names = tuple(f"n{node}" for node in range(nodes))
    return NodeTotals(MONDAY_S, FIVE_MINUTES_S, names, ("log",), values[:, None].astype(np.float32), intervals)
