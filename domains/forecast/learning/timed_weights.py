"""Timed weights: the least squares of attribution, with a weight of each service for each time of the week.

Services have different daily shapes, and a move at noon shows the use at noon. So each node has a level, and each
service a weight, per *time*: by default two hours of working days, or of rest days. The result is the mean over the
week. A prior ties the weights of a service at different times to their mean; it covers times without moves, with a large
error. Closed form; limited by MATRIX_CELLS_MAX. Pure, for attribution.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from domains.forecast.learning.nonnegative import nonnegative
from multisched.forecasting.slot_grid import Numbers, slots_of
from multisched.forecasting.time_units import HOUR_S

DAY_HOURS: Final = 24
WEEK_HOURS: Final = 168
TIME_HOURS: Final = (2, 4, 12)
"""Candidate lengths of a time in hours; the first within MATRIX_CELLS_MAX is used. If none is, the week is one time."""
MATRIX_CELLS_MAX: Final = 24_000_000
"""Limit of times x services x services: 192 MB (briefly twice that), and some seconds of inversion."""
OWN_SHARE: Final = 0.5
"""Standard deviation of a service's weights at different times in the prior, as a share of its mean weight."""
IDLE_SHARE: Final = 0.1
"""Lower limit of a weight in relative measures, as a share of the mean weight of all services."""
RIDGE: Final = 1e-6
"""Share of the diagonal added to keep matrices positive definite; too small to change a weight."""

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]


class Times(msgspec.Struct, frozen=True):
    """Division of the week into times."""

    of_hour: Numbers
    """int64[168]: the time of each hour of the week."""
    of_step: Numbers
    """int64[steps]: the time of each step."""
    share: Vector
    """float64[times]: share of the weekly use in each time, by the common shape (without one: share of the steps)."""

    @property
    def count(self) -> int:
        return len(self.share)


class Block(msgspec.Struct, frozen=True):
    """Stretches of a block of nodes, sorted by node."""

    node: Numbers
    """int64[stretches]: index of the node within the block."""
    first: Numbers
    """int64[nodes]: first stretch of the node."""
    change: Matrix
    """float64[stretches, services]: replicas - replicas in the node's first stretch; exactly 0 for services that never moved."""
    count: Matrix
    """float64[stretches, times]: number of samples."""
    mean: Matrix
    """float64[stretches, times]: mean of the samples."""
    variance: Vector
    """float64[nodes]: variance of samples within a stretch and time."""


class Sums(msgspec.Struct):
    """The normal equations of each time; services by number."""

    matrix: NDArray[np.float64]
    """float64[times, services, services]"""
    right: Matrix
    """float64[times, services]"""
    freedom: float = 0.0
    """Degrees of freedom: number of means (stretch and time) - number of levels (node and time)."""


class Solution(msgspec.Struct, frozen=True):
    """Weights of the services with changes (`seen`)."""

    seen: NDArray[np.intp]
    """Numbers of the services; the other arrays are in this order."""
    weight: Vector
    """Mean weight over the week."""
    error: Vector
    """Standard error of the weight."""
    timed: Matrix
    """float64[times, seen]: weight at each time."""
    correlation: Matrix
    """Correlation of the changes; services cannot be separated in directions in which it is nearly singular."""
    covariance: Matrix
    """Covariance of the weights, each in its own unit; only correlations can be derived from it."""


def times_of(start_s: float, step_s: float, shape: Vector, zone: str, rest_days: Iterable[int], services: int) -> Times:
    """Divides the week into times. `shape`: float64[steps], the common shape of use; `services`: their number."""
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
            # Eliminates the levels of nodes: a level is the weighted mean of the node's residuals.
            held, level = np.add.reduceat(weighted, block.first, axis=0), np.add.reduceat(weight * target, block.first)
            sums.matrix[time] += weighted.T @ block.change - (held / total[:, None]).T @ held
            sums.right[time] += weighted.T @ target - (level / total) @ held
            has_samples = weight > 0
            sums.freedom += int(has_samples.sum()) - len(np.unique(block.node[has_samples]))
    return sums


def _weight(block: Block, time: int) -> Vector:
    """Returns float64[stretches]: the weight of each mean, number of samples / variance of the node."""
    weight: Vector = block.count[:, time] / block.variance[block.node]
    return weight


def solve(sums: Sums, share: Vector, again: Callable[[], Iterable[Block]]) -> Solution:
    """Solves for the weights of services with changes. Overwrites `sums`; `again` yields the same blocks a second time."""
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
    """Returns the prior precision of each service's weight at a time around its mean weight; at most 1 in its unit, the
    precision given by the samples of all times."""
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
    """Returns the weighted sum of squared residuals, and the variance of each mean weight, clustered by node.

    Samples of the same node are not independent, because noise and model errors last for hours. Source: Liang and Zeger,
    Longitudinal data analysis using generalized linear models, Biometrika 73 (1986). `gains`: the derivatives of weights
    by the right-hand side (lead, inverse of each time), and the units of services.
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
