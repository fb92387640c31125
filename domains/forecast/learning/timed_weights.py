"""Timed weights: the least squares behind attribution, for each time of the week on its own and all times tied together.

Services have days of their own: one that moved at noon shows what it uses at noon. So every node has a level, and every
service a weight, at each time: two hours of working days, or of rest days. The result is the mean over the week. A
prior ties a service's weights at different times to their mean. So times at which it was never seen to move say little
and are no certainty. In closed form; bounded by MATRIX_CELLS_MAX. Pure, for attribution.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from domains.forecast.curves.slot_grid import Numbers, slots_of
from domains.forecast.learning.nonnegative import nonnegative
from domains.forecast.units import HOUR_S

DAY_HOURS: Final = 24
WEEK_HOURS: Final = 168
TIME_HOURS: Final = (2, 4, 12)
"""Hours of a time, the first that MATRIX_CELLS_MAX has room for; with still more services the whole week is one time."""
MATRIX_CELLS_MAX: Final = 24_000_000
"""Times x services x services: 192 MB, twice that for a moment, and some seconds of inverting."""
OWN_SHARE: Final = 0.5
"""Of a weight: the prior's standard deviation of its weights at different times."""
IDLE_SHARE: Final = 0.1
"""Of the mean weight: a smaller one is treated as so large where something is relative to it."""
RIDGE: Final = 1e-6
"""Of the diagonal: keeps matrices definite, far below what decides a weight."""

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]


class Times(msgspec.Struct, frozen=True):
    """How the week is cut."""

    of_hour: Numbers
    """int64[168]"""
    of_step: Numbers
    """int64[steps]"""
    share: Vector
    """float64[times]: of the use of a week, of what follows the common shape; of the steps where there is none."""

    @property
    def count(self) -> int:
        return len(self.share)


class Block(msgspec.Struct, frozen=True):
    """Some nodes' stretches; sorted by node."""

    node: Numbers
    """int64[stretches]: place within the block."""
    first: Numbers
    """int64[nodes]: its first stretch."""
    change: Matrix
    """float64[stretches, services]: replicas, less those of the node's first stretch; exactly 0 for what never moved."""
    count: Matrix
    """float64[stretches, times]: samples."""
    mean: Matrix
    """float64[stretches, times]"""
    variance: Vector
    """float64[nodes]: of samples within a stretch and time."""


class Sums(msgspec.Struct):
    """The normal equations; services by number."""

    matrix: NDArray[np.float64]
    """float64[times, services, services]"""
    right: Matrix
    """float64[times, services]"""
    freedom: float = 0.0
    """Means of stretches and times, less the levels of nodes and times."""


class Solution(msgspec.Struct, frozen=True):
    """Of the services `seen`, by number."""

    seen: NDArray[np.intp]
    weight: Vector
    """The mean over the week."""
    error: Vector
    """Its standard error."""
    timed: Matrix
    """float64[times, seen]: the weight at each time."""
    correlation: Matrix
    """Of the changes of any two: where it is nearly singular, they cannot be separated."""
    covariance: Matrix
    """Of the weights, each in units of its own: only their ratios mean something."""


def times_of(start_s: float, step_s: float, shape: Vector, zone: str, rest_days: Iterable[int], services: int) -> Times:
    """`shape`: float64[steps], the common shape of use."""
    hour = np.arange(WEEK_HOURS)
    is_rest = np.isin(hour // DAY_HOURS, list(rest_days))
    of_hour = np.zeros(WEEK_HOURS, np.int64)
    for size in TIME_HOURS:
        per_day = DAY_HOURS // size
        if 2 * per_day * services * services <= MATRIX_CELLS_MAX:
            of_hour = hour % DAY_HOURS // size + per_day * is_rest
            break
    of_step = of_hour[slots_of(start_s + step_s * np.arange(len(shape), dtype=np.float64), zone, HOUR_S)]
    share = np.bincount(of_step, shape, int(of_hour.max()) + 1)
    return Times(of_hour, of_step, share / max(float(shape.sum()), 1e-300))


def sums_of(blocks: Iterable[Block], times: int, services: int) -> Sums:
    """Adds up the normal equations of each time."""
    sums = Sums(np.zeros((times, services, services)), np.zeros((times, services)))
    for block in blocks:
        for time in range(times):
            weight = _weight(block, time)
            weighted = block.change * weight[:, None]
            target = block.mean[:, time]
            total = np.maximum(np.add.reduceat(weight, block.first), 1e-300)
            # Less the levels of the nodes: each is the weighted mean of what stands there.
            held, level = np.add.reduceat(weighted, block.first, axis=0), np.add.reduceat(weight * target, block.first)
            sums.matrix[time] += weighted.T @ block.change - (held / total[:, None]).T @ held
            sums.right[time] += weighted.T @ target - (level / total) @ held
            has_samples = weight > 0
            sums.freedom += int(has_samples.sum()) - len(np.unique(block.node[has_samples]))
    return sums


def _weight(block: Block, time: int) -> Vector:
    """float64[stretches]"""
    weight: Vector = block.count[:, time] / block.variance[block.node]
    return weight


def solve(sums: Sums, share: Vector, again: Callable[[], Iterable[Block]]) -> Solution:
    """Weights of the services that changed at all. Uses up `sums`; `again`: the blocks that they are of, once more."""
    pooled = sums.matrix.sum(axis=0)
    length = np.sqrt(np.diag(pooled))
    seen = np.flatnonzero(length > 1e-9 * max(float(length.max(initial=0.0)), 1e-300))
    unit = length[seen]
    correlation = pooled[np.ix_(seen, seen)] / np.outer(unit, unit)
    matrix, right = sums.matrix[:, seen[:, None], seen], sums.right[:, seen] / unit
    matrix /= np.outer(unit, unit)
    sums.matrix = np.zeros((0, 0, 0))
    prior = _prior(correlation, right.sum(axis=0), unit)
    known = 0.0
    tied, back = RIDGE * len(share) * np.diag(prior), np.zeros_like(correlation)
    spread = np.zeros_like(correlation)
    for time, part in enumerate(share.tolist()):
        inverse = np.linalg.inv(matrix[time] + np.diag(prior))
        known += len(seen) - float(prior @ np.diag(inverse))
        tied += np.diag(prior) - prior[:, None] * inverse * prior
        back += part * inverse * prior
        spread += part * part * inverse
        matrix[time] = inverse
    lead = back @ np.linalg.inv(tied)
    middle = np.linalg.solve(tied, prior * np.einsum("tij,tj->i", matrix, right))
    timed = np.einsum("tij,tj->ti", matrix, right + prior * middle)
    weight, covariance = share @ timed, spread + lead @ back.T
    rest, variance = _rest(again(), timed / unit, seen, share, (lead * prior, matrix, unit))
    noise = max(1.0, rest / max(sums.freedom - known, 1.0))
    error = np.sqrt(np.maximum(noise * np.diag(covariance), variance))
    if (weight < 0).any():
        precision = np.linalg.inv(covariance + RIDGE * np.diag(np.diag(covariance)))
        weight = nonnegative(precision, precision @ weight)
    return Solution(seen, weight / unit, error / unit, np.maximum(timed, 0) / unit, correlation, covariance)


def _prior(correlation: Matrix, right: Vector, unit: Vector) -> Vector:
    """Precision of a service's weight at a time around its mean; no finer than what the samples of all times would tell."""
    one_for_all = nonnegative(correlation + RIDGE * np.eye(len(unit)), right) / unit
    usual = float(one_for_all.mean()) if len(unit) else 0.0
    deviation = OWN_SHARE * np.maximum(one_for_all, IDLE_SHARE * usual) * unit
    precision: Vector = 1 / np.maximum(deviation, 1.0) ** 2
    return precision


def _rest(
    blocks: Iterable[Block],
    timed: Matrix,
    seen: NDArray[np.intp],
    share: Vector,
    gains: tuple[Matrix, NDArray[np.float64], Vector],
) -> tuple[float, Vector]:
    """The weighted squares that the weights leave, and the variance of each mean weight if only nodes are independent.

    Samples of one node are not: its noise, and what the model lacks, last for hours. Source: Liang and Zeger, Longitudinal
    data analysis using generalized linear models, Biometrika 73 (1986). `gains`: what a right-hand side adds to the weights
    (lead, inverse of each time), and the services' units.
    """
    lead, inverse, unit = gains
    rest, variance = 0.0, np.zeros(len(seen))
    for block in blocks:
        change = block.change[:, seen]
        moved: Matrix = np.zeros((len(block.variance), len(seen)))
        for time, part in enumerate(share.tolist()):
            weight = _weight(block, time)
            left = block.mean[:, time] - change @ timed[time]
            total = np.maximum(np.add.reduceat(weight, block.first), 1e-300)
            left -= (np.add.reduceat(weight * left, block.first) / total)[block.node]
            rest += float((weight * left**2).sum())
            score = np.add.reduceat((weight * left)[:, None] * change, block.first, axis=0) / unit @ inverse[time]
            moved += part * score + score @ lead.T
        variance += (moved**2).sum(axis=0)
    return rest, variance
