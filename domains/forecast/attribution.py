"""Attribution: what each service uses per replica, where only the totals of whole nodes are measured.

Regression over combinations: whenever replicas come and go, a node's total changes by their weights. Each node keeps a level
of its own (daemons, what never moves), so only changes speak: a service that never moved is told as undetermined, and so are
services that always moved together. Nothing is guessed. Pure; NaN stands for no measurement.

Model: total[node, t] = shape[t] * (level[node] + sum over services of replicas[node, service, t] * weight[service]) + noise,
weights >= 0; least squares over stretches without a move, weighted by their length and the node's noise.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec
import numpy as np
from numpy.typing import NDArray

from domains.forecast.moves import Moves, Stretches, moves_of, node_blocks, stretches_of
from domains.forecast.nonnegative import nonnegative
from domains.forecast.quantiles import grouped_quantiles
from domains.forecast.slot_grid import slots_of
from domains.forecast.usage import NodeTotals

HOUR_S: Final = 3_600
DAY_S: Final = 86_400
SHAPE_MIN: Final = 0.1
"""Of its mean: hours of less use count as so much, else their noise would be blown up."""
CLIP_DEVIATIONS: Final = 5.0
DEVIATION_PER_MEDIAN: Final = 1.4826
NOISE_SHARE_MIN: Final = 1e-3
"""Of the mean variance, and of the mean total: no node counts as less noisy."""
RIDGE: Final = 1e-6
"""Of the diagonal: keeps the matrix definite, far below what decides a weight."""
SHARE_MIN: Final = 0.01
"""Of a service's column in directions that are not determined: from there on it is confused with others."""
PARTNER_MIN: Final = 0.1
"""Of what ties a service to itself there: who is tied to it so much is named."""
CORRELATION_MIN: Final = 0.7
"""Of two weights' errors: who is named for a weight that is too noisy."""
IDLE_SHARE: Final = 0.1
"""Of the mean weight: an error is judged relative to at least so much, so that a weight of zero can be certain."""

Matrix = NDArray[np.float64]


class Verdict(IntEnum):
    """Why a weight is known or not."""

    DETERMINED = 0
    STILL = 1
    """It moved too seldom."""
    CONFUSED = 2
    """It moved, but together with others."""
    NOISY = 3
    """Its standard error is too large."""
    UNMEASURED = 4
    """The nodes it moved between have no samples in this dimension."""


class AttributionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Checked when made."""

    moves_min: int = 5
    """Arrivals or departures, whichever are more, within the window."""
    separation_min: float = 1e-3
    """Smallest eigenvalue of the correlation of changes that counts as determined: 0 is never apart, 1 is independent."""
    relative_error_max: float = 0.04
    """Largest standard error of a weight, relative to it: nearly all weights are then within a tenth."""
    has_shape: bool = True
    """Whether use follows one shape of the day, or of the week where there are two, that all share."""
    zone: str = "UTC"
    """IANA name: days and weeks of the shape are those of its wall clock."""
    quantile: float = 0.95
    """Of a node's samples over what is expected of it: `peak_share`."""

    def __post_init__(self) -> None:
        if self.moves_min < 1:
            raise ValueError(f"moves_min: {self.moves_min} must be at least 1; what never moved is never determined")
        try:
            ZoneInfo(self.zone)
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise ValueError(f"zone: {self.zone!r} is no time zone; give an IANA name such as Europe/Berlin") from error
        for name in ("separation_min", "relative_error_max", "quantile"):
            if not 0 < getattr(self, name) < 1:
                raise ValueError(f"{name}: {getattr(self, name)} is not between 0 and 1")


class Undetermined(msgspec.Struct, frozen=True):
    """A weight that the placement history does not tell."""

    service: str
    dimension: str
    verdict: Verdict
    confused_with: tuple[str, ...] = ()
    """By name; empty where it is the nodes it stands on that it cannot be told from."""


class Attribution(msgspec.Struct, frozen=True):
    """Weights per replica: the mean use over the window. Arrays are [services, dimensions]."""

    services: tuple[str, ...]
    dimensions: tuple[str, ...]
    weight: NDArray[np.float32]
    """NaN where undetermined."""
    standard_error: NDArray[np.float32]
    """NaN where there is none."""
    verdict: NDArray[np.uint8]
    moves: NDArray[np.int64]
    """int64[services]"""
    undetermined: tuple[Undetermined, ...]
    shape: NDArray[np.float32]
    """float32[dimensions, 168]: of the week, mean 1; use in that hour over the mean use."""
    peak_share: NDArray[np.float32]
    """float32[dimensions]: the quantile of what nodes use, over what their replicas and the hour let expect; at least 1."""
    zone: str
    """Of the shape."""
    newest_s: float
    """When the last step of the totals begins."""


class _Normal(msgspec.Struct):
    """The normal equations of one dimension; services by number."""

    matrix: Matrix
    right: NDArray[np.float64]
    square: float = 0.0
    freedom: int = 0
    peak_shares: list[tuple[float, float]] = msgspec.field(default_factory=list)
    """Of each block of nodes, and how many samples it is from."""


class _Block(msgspec.Struct, frozen=True):
    """Stretches of some nodes; arrays are by stretch."""

    node: NDArray[np.int64]
    count: NDArray[np.float64]
    weight: NDArray[np.float64]
    """Samples over the node's variance."""
    change: Matrix
    """float64[stretches, services]: replicas less the node's mean."""
    target: NDArray[np.float64]
    """Total less the node's mean."""
    peak_share: float


class _Solution(msgspec.Struct, frozen=True):
    """Of the services `seen`, by number."""

    seen: NDArray[np.intp]
    unit: NDArray[np.float64]
    """Length of each service's changes; the matrices are in these units."""
    correlation: Matrix
    inverse: Matrix
    weight: NDArray[np.float64]
    error: NDArray[np.float64]


def attribute(totals: NodeTotals, settings: AttributionSettings) -> Attribution:
    """Weights of all services of the stays. Raises ValueError for stays or totals that cannot be."""
    moves = moves_of(totals)
    services, dimensions = len(moves.services), len(totals.dimensions)
    weight, error = (np.full((services, dimensions), np.nan, np.float32) for _ in range(2))
    verdict = np.zeros((services, dimensions), np.uint8)
    shape, peak_share = np.ones((dimensions, 168), np.float32), np.ones(dimensions, np.float32)
    undetermined: list[Undetermined] = []
    for number, dimension in enumerate(totals.dimensions):
        values = np.where(
            (totals.values[:, number] >= 0) & np.isfinite(totals.values[:, number]), totals.values[:, number], np.nan
        )
        values = values.astype(np.float64)
        if settings.has_shape and values.size:
            shape[number], at_steps = _shape(values, totals, settings.zone)
            values = values / at_steps
        normal = _normal(_blocks(values, moves, settings.quantile), services)
        shares, samples = np.array(normal.peak_shares or [(1.0, 1.0)]).T
        peak_share[number] = max(1.0, float(np.average(shares, weights=samples)))
        solution = _solve(normal)
        clustered = _clustered(_blocks(values, moves, settings.quantile), solution, services)
        found = _judge(solution, np.maximum(solution.error, clustered), moves, settings)
        weight[:, number], error[:, number], verdict[:, number], confused = found
        undetermined += [
            Undetermined(moves.services[row], dimension, Verdict(verdict[row, number]), confused.get(row, ()))
            for row in np.flatnonzero(verdict[:, number]).tolist()
        ]
    return Attribution(
        services=moves.services,
        dimensions=totals.dimensions,
        weight=weight,
        standard_error=error,
        verdict=verdict,
        moves=moves.count,
        undetermined=tuple(undetermined),
        shape=shape,
        peak_share=peak_share,
        zone=settings.zone,
        newest_s=totals.start_s + totals.step_s * max(totals.values.shape[2] - 1, 0),
    )


def _shape(values: Matrix, totals: NodeTotals, zone: str) -> tuple[NDArray[np.float32], Matrix]:
    """float32[168] of the week, and float64[steps]: mean total of the nodes by hour, over the mean of all hours.

    Samples far from what is usual on their node at their hour are clipped first.
    """
    steps = values.shape[1]
    period = 168 if steps * totals.step_s >= 14 * DAY_S else 24
    hour = slots_of(totals.start_s + totals.step_s * np.arange(steps, dtype=np.float64), zone, HOUR_S) % period
    middle = np.take(grouped_quantiles(values.astype(np.float32), hour, period, (0.5,))[0], hour, axis=1)
    distance = (values - middle).astype(np.float32)
    deviation = np.take(grouped_quantiles(np.abs(distance), hour, period, (0.5,))[0], hour, axis=1)
    limit = CLIP_DEVIATIONS * DEVIATION_PER_MEDIAN * deviation
    clipped = middle + np.clip(distance, -limit, limit)
    is_known = np.isfinite(clipped)
    counts = np.bincount(hour, is_known.sum(axis=0), period)
    means = np.bincount(hour, np.where(is_known, clipped, 0).sum(axis=0), period) / np.maximum(counts, 1)
    overall = float(means[counts > 0].mean()) if counts.any() else 0.0
    share = np.where((counts > 0) & (overall > 0), means / (overall or 1.0), 1.0)
    share = np.maximum(share, SHAPE_MIN)
    return np.tile(share, 168 // period).astype(np.float32), share[hour]


def _blocks(values: Matrix, moves: Moves, quantile: float) -> Iterator[_Block]:
    """Stretches of each block of nodes, as changes against the node's own mean only."""
    for nodes in node_blocks(moves, len(values) if values.size else 0):
        stretches = stretches_of(moves, nodes, values.shape[1])
        count, mean, noise, peak_share = _summary(values[nodes], stretches, quantile)
        if not count.any():
            continue
        least = max(NOISE_SHARE_MIN * float(noise.mean()), (NOISE_SHARE_MIN * float(mean.mean())) ** 2) or 1.0
        weight = count / np.maximum(noise, least)[stretches.node]
        total = np.maximum(np.bincount(stretches.node, weight, len(noise)), 1e-300)
        level = np.bincount(stretches.node, weight * mean, len(noise)) / total
        sums = np.zeros((len(noise), len(moves.services)))
        np.add.at(sums, stretches.node, weight[:, None] * stretches.replicas)
        yield _Block(
            node=stretches.node,
            count=count,
            weight=weight,
            change=stretches.replicas - (sums / total[:, None])[stretches.node],
            target=mean - level[stretches.node],
            peak_share=peak_share,
        )


def _normal(blocks: Iterator[_Block], services: int) -> _Normal:
    """Adds up the normal equations."""
    normal = _Normal(np.zeros((services, services)), np.zeros(services))
    for block in blocks:
        weighted = block.change * block.weight[:, None]
        normal.matrix += weighted.T @ block.change
        normal.right += weighted.T @ block.target
        normal.square += float((block.weight * block.target**2).sum())
        normal.freedom += int((block.count > 0).sum()) - len(np.unique(block.node[block.count > 0]))
        normal.peak_shares.append((block.peak_share, float(block.count.sum())))
    return normal


def _clustered(blocks: Iterator[_Block], solution: _Solution, services: int) -> NDArray[np.float64]:
    """float64[services seen]: standard errors that hold where the noise of a node's stretches is alike (clustered by node).

    Source: Liang and Zeger, Longitudinal data analysis using generalized linear models, Biometrika 73 (1986).
    """
    weight = np.zeros(services)
    weight[solution.seen] = solution.weight
    variance = np.zeros(len(solution.seen))
    for block in blocks:
        rest = block.weight * (block.target - block.change @ weight)
        scores = np.zeros((int(block.node[-1]) + 1, len(solution.seen)))
        np.add.at(scores, block.node, rest[:, None] * block.change[:, solution.seen])
        variance += ((scores / solution.unit @ solution.inverse) ** 2).sum(axis=0)
    return np.sqrt(variance) / solution.unit


def _summary(
    values: Matrix, stretches: Stretches, quantile: float
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], float]:
    """Samples and mean of each stretch, the variance of each node within its stretches, and the quantile of samples over
    the mean of their stretch; spikes clipped.

    A spike is told by the median of its own stretch, so that no move is taken for one.
    """
    stretch, flat = stretches.of_step.ravel(), np.where(stretches.is_settled, values, np.nan).ravel()
    order = np.lexsort((flat, stretch))
    known = np.bincount(stretch, np.isfinite(flat), len(stretches.node)).astype(np.int64)
    first = np.searchsorted(stretch, np.arange(len(stretches.node)))
    median = flat[order[np.minimum(first + known // 2, len(flat) - 1)]]
    distance = np.abs(flat - median[stretch]).reshape(values.shape)
    has_samples = np.isfinite(distance).any(axis=1)
    deviation = np.zeros(len(values))
    deviation[has_samples] = np.nanmedian(distance[has_samples], axis=1) * DEVIATION_PER_MEDIAN
    limit = np.repeat(CLIP_DEVIATIONS * deviation, values.shape[1])
    clipped = median[stretch] + np.clip(flat - median[stretch], -limit, limit)
    is_known = np.isfinite(clipped)
    clipped = np.where(is_known, clipped, 0)
    mean = np.bincount(stretch, clipped, len(stretches.node)) / np.maximum(known, 1)
    rest = np.where(is_known, clipped - mean[stretch], 0).reshape(values.shape)
    variance = (rest**2).sum(axis=1) / np.maximum(is_known.reshape(values.shape).sum(axis=1), 1)
    is_used = is_known & (mean[stretch] > 0)
    share = np.quantile(clipped[is_used] / mean[stretch][is_used], quantile) if is_used.any() else 1.0
    return known.astype(np.float64), mean, variance, float(share)


def _solve(normal: _Normal) -> _Solution:
    """Weights of the services that changed at all, and their standard errors, all stretches taken for independent."""
    length = np.sqrt(np.diag(normal.matrix))
    seen = np.flatnonzero(length > 1e-9 * max(float(length.max(initial=0.0)), 1e-300))
    unit = length[seen]
    correlation = normal.matrix[np.ix_(seen, seen)] / np.outer(unit, unit)
    definite = correlation + RIDGE * np.eye(len(seen))
    right = normal.right[seen] / unit
    scaled = nonnegative(definite, right)
    inverse = np.linalg.inv(definite)
    rest = normal.square - 2 * scaled @ right + scaled @ correlation @ scaled
    noise = max(1.0, rest / max(normal.freedom - len(seen), 1))
    return _Solution(seen, unit, correlation, inverse, scaled / unit, np.sqrt(noise * np.diag(inverse)) / unit)


def _judge(
    solution: _Solution, spread: NDArray[np.float64], moves: Moves, settings: AttributionSettings
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.uint8], dict[int, tuple[str, ...]]]:
    """Weights, standard errors and verdicts per service; who is confused with whom."""
    weight, error = np.full(len(moves.services), np.nan), np.full(len(moves.services), np.nan)
    verdict = np.where(moves.count < settings.moves_min, Verdict.STILL, Verdict.UNMEASURED).astype(np.uint8)
    seen, found = solution.seen, solution.weight
    if not len(seen):
        return weight, error, verdict, {}
    tie = _ties(solution.correlation, settings.separation_min)
    is_confused = np.diag(tie) > SHARE_MIN
    is_noisy = spread > settings.relative_error_max * np.maximum(found, IDLE_SHARE * found.mean())
    judged = np.select([is_confused, is_noisy], [Verdict.CONFUSED, Verdict.NOISY], Verdict.DETERMINED)
    has_moved = moves.count[seen] >= settings.moves_min
    verdict[seen[has_moved]] = judged[has_moved]
    error[seen] = spread
    is_known = verdict[seen] == Verdict.DETERMINED
    weight[seen[is_known]] = found[is_known]
    names = [moves.services[row] for row in seen]
    return weight, error, verdict, _partners(tie, solution.inverse, is_confused, is_noisy, names, seen)


def _ties(correlation: Matrix, separation_min: float) -> Matrix:
    """The projector on the directions that the history hardly shows: what ties services to one another."""
    size, direction = np.linalg.eigh(correlation)
    hidden = direction[:, size < separation_min]
    ties: Matrix = hidden @ hidden.T
    return ties


def _partners(
    tie: Matrix,
    inverse: Matrix,
    is_confused: NDArray[np.bool_],
    is_noisy: NDArray[np.bool_],
    names: list[str],
    seen: NDArray[np.intp],
) -> dict[int, tuple[str, ...]]:
    """Service number -> names of those it cannot be told from."""
    partners: dict[int, tuple[str, ...]] = {}
    error = np.sqrt(np.diag(inverse))
    for place in np.flatnonzero(is_confused | is_noisy).tolist():
        if is_confused[place]:
            is_tied = np.abs(tie[place]) > PARTNER_MIN * tie[place, place]
        else:
            is_tied = np.abs(inverse[place]) > CORRELATION_MIN * error[place] * error
        is_tied[place] = False
        if is_tied.any():
            partners[int(seen[place])] = tuple(names[other] for other in np.flatnonzero(is_tied).tolist())
    return partners
