"""Attribution: what each service uses per replica, where only the totals of whole nodes are measured.

Regression over combinations: whenever replicas come and go, a node's total changes by their weights. Each node keeps a
level of its own (daemons, what never moves), so only changes speak. A service that never moved is reported as
undetermined, and so are services that always moved together. Nothing is guessed. Pure; NaN stands for no measurement.

Model: total[node, t] = shape[t] * (level[node, time] + sum over services of replicas[node, service, t] *
weight[service, time]) + noise. Here shape is what all nodes follow over the week. Time is a part of the day
(`timed_weights`), since services have days of their own. The result is the mean over the week, >= 0: least squares over
stretches without a move, weighted by their samples and the node's noise.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec
import numpy as np
from numpy.typing import NDArray

from domains.forecast.curves.slot_grid import slots_of
from domains.forecast.curves.usage import NodeTotals
from domains.forecast.learning.quantiles import grouped_quantiles
from domains.forecast.learning.replica_changes import (
    ReplicaChanges,
    Stretches,
    node_blocks,
    replica_changes_of,
    stretches_of,
)
from domains.forecast.learning.timed_weights import IDLE_SHARE, Block, Solution, Times, solve, sums_of, times_of
from domains.forecast.units import DAY_S, HOUR_S

SHAPE_MIN: Final = 0.1
"""Of its mean: hours of less use count as so much, else their noise would be blown up."""
CLIP_DEVIATIONS: Final = 5.0
DEVIATION_PER_MEDIAN: Final = 1.4826
NOISE_SHARE_MIN: Final = 1e-3
"""Of the mean variance, and of the mean total: no node counts as less noisy."""
SHARE_MIN: Final = 0.01
"""Of a service's column in directions that are not determined: from there on it is confused with others."""
PARTNER_MIN: Final = 0.1
"""Of what ties a service to itself there: who is tied to it so much is named."""
CORRELATION_MIN: Final = 0.7
"""Of two weights' errors: who is named for a weight that is too noisy."""
SPREAD_SAMPLES_MIN: Final = 12
"""Of a stretch: with fewer, what is usual on its node tells which samples are spikes."""
EXPECTED_SAMPLES_MIN: Final = 6
"""Of a stretch and time: fewer follow their own mean too closely to tell how far samples lie above it."""

Matrix = NDArray[np.float64]
Vector = NDArray[np.float64]


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
    rest_days: tuple[int, ...] = (5, 6)
    """Of the week, Monday is 0: their hours are other times than those of working days."""
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
    """By name; empty where it cannot be separated from the nodes it stands on."""


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
    """float32[dimensions, 168]: of the week, mean 1; use in that hour over the mean use, of all together."""
    own_shape: NDArray[np.float32]
    """float32[services, dimensions, 168]: the same of each service; where its weight is not known, that of all."""
    peak_share: NDArray[np.float32]
    """float32[dimensions]: the quantile of what nodes use, over what their replicas and the hour let expect; at least 1."""
    zone: str
    """Of the shape."""
    newest_s: float
    """When the last step of the totals begins."""


def attribute(totals: NodeTotals, settings: AttributionSettings) -> Attribution:
    """Weights of all services of the placement_intervals. Raises ValueError for placement intervals or totals that cannot be."""
    moves = replica_changes_of(totals)
    services, dimensions = len(moves.services), len(totals.dimensions)
    weight, error = (np.full((services, dimensions), np.nan, np.float32) for _ in range(2))
    verdict = np.zeros((services, dimensions), np.uint8)
    shape, peak_share = np.ones((dimensions, 168), np.float32), np.ones(dimensions, np.float32)
    own_shape = np.ones((services, dimensions, 168), np.float32)
    undetermined: list[Undetermined] = []
    for number, dimension in enumerate(totals.dimensions):
        values = _believable(totals.values[:, number])
        at_steps = np.ones(values.shape[1])
        if settings.has_shape and values.size:
            shape[number], at_steps = _shape(values, totals, settings.zone)
            values = values / at_steps
        times = times_of(totals.start_s, totals.step_s, at_steps, settings.zone, settings.rest_days, services)
        solution, peak_share[number] = _solved(values, moves, times, settings)
        found = _judge(solution, moves, settings)
        weight[:, number], error[:, number], verdict[:, number], confused = found
        own_shape[:, number] = _own_shape(solution, times, shape[number], services)
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
        own_shape=own_shape,
        peak_share=peak_share,
        zone=settings.zone,
        newest_s=totals.start_s + totals.step_s * max(totals.values.shape[2] - 1, 0),
    )


def _believable(values: NDArray[np.float32]) -> Matrix:
    return np.where((values >= 0) & np.isfinite(values), values, np.nan).astype(np.float64)


def _solved(
    values: Matrix, moves: ReplicaChanges, times: Times, settings: AttributionSettings
) -> tuple[Solution, float]:
    """Weights, and how far samples lie above what is expected of them, at least 1."""
    shares: list[tuple[float, float]] = []

    def blocks() -> Iterator[Block]:
        shares.clear()
        for block, share, samples in _blocks(values, moves, times, settings.quantile):
            shares.append((share, samples))
            yield block

    solution = solve(sums_of(blocks(), times.count, len(moves.services)), times.share, blocks)
    share, samples = np.array(shares or [(1.0, 1.0)]).T
    return solution, max(1.0, float(np.average(share, weights=np.maximum(samples, 1.0))))


def _own_shape(solution: Solution, times: Times, shape: NDArray[np.float32], services: int) -> NDArray[np.float32]:
    """float32[services, 168], mean 1 over the window."""
    own = np.repeat(shape[None, :], services, axis=0)
    timed = solution.timed.T
    mean = timed @ times.share
    has_any = mean > 0
    ratio = timed[has_any] / mean[has_any, None]
    own[solution.seen[has_any]] *= ratio[:, times.of_hour].astype(np.float32)
    return own


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


def _blocks(
    values: Matrix, moves: ReplicaChanges, times: Times, quantile: float
) -> Iterator[tuple[Block, float, float]]:
    """Stretches of each block of nodes; the quantile of samples over the mean of their stretch and time; how many there are."""
    for nodes in node_blocks(moves, len(values) if values.size else 0):
        stretches = stretches_of(moves, nodes, values.shape[1])
        count, mean, variance, share = _summary(values[nodes], stretches, times, quantile)
        if count.any():
            usual = float(np.average(mean, weights=count))
            least = max(NOISE_SHARE_MIN * float(variance.mean()), (NOISE_SHARE_MIN * usual) ** 2) or 1.0
            first = np.searchsorted(stretches.node, np.arange(len(variance)))
            change = stretches.replicas - stretches.replicas[first][stretches.node]
            block = Block(stretches.node, first, change, count, mean, np.maximum(variance, least))
            yield block, share, float(count.sum())


def _summary(
    values: Matrix, stretches: Stretches, times: Times, quantile: float
) -> tuple[Matrix, Matrix, Vector, float]:
    """Samples and mean by stretch and time, the variance of each node around these means, and the quantile of samples over
    them; spikes clipped.

    A spike is found by the median of its own stretch, so that no move is taken for one.
    """
    cells = len(stretches.node) * times.count
    cell = (stretches.of_step * times.count + times.of_step).ravel()
    clipped = _clipped(values, stretches)
    is_known = np.isfinite(clipped)
    clipped = np.where(is_known, clipped, 0)
    count = np.bincount(cell, is_known, cells).astype(np.float64)
    mean = np.bincount(cell, clipped, cells) / np.maximum(count, 1)
    rest = np.where(is_known, clipped - mean[cell], 0).reshape(values.shape)
    by_stretch = count.reshape(-1, times.count)
    means_of_node = np.bincount(stretches.node, (by_stretch > 0).sum(axis=1), len(values))
    freedom = is_known.reshape(values.shape).sum(axis=1) - means_of_node
    variance = (rest**2).sum(axis=1) / np.maximum(freedom, 1)
    is_used = is_known & (mean[cell] > 0) & (count[cell] >= EXPECTED_SAMPLES_MIN)
    share = np.quantile(clipped[is_used] / mean[cell][is_used], quantile) if is_used.any() else 1.0
    return by_stretch, mean.reshape(-1, times.count), variance, float(share)


def _clipped(values: Matrix, stretches: Stretches) -> Vector:
    """float64[nodes * steps]: NaN where a move happened.

    Samples are no further from the median of their stretch than is usual in it or on its node.
    """
    stretch, flat = stretches.of_step.ravel(), np.where(stretches.is_settled, values, np.nan).ravel()
    known = np.bincount(stretch, np.isfinite(flat), len(stretches.node)).astype(np.int64)
    median = _medians(flat, stretch, known)
    distance = np.abs(flat - median[stretch])
    by_node = distance.reshape(values.shape)
    has_samples = np.isfinite(by_node).any(axis=1)
    deviation = np.zeros(len(values))
    deviation[has_samples] = np.nanmedian(by_node[has_samples], axis=1)
    own = np.where(known >= SPREAD_SAMPLES_MIN, _medians(distance, stretch, known), 0)
    limit = CLIP_DEVIATIONS * DEVIATION_PER_MEDIAN * np.maximum(deviation[stretches.node], own)
    clipped: Vector = median[stretch] + np.clip(flat - median[stretch], -limit[stretch], limit[stretch])
    return clipped


def _medians(flat: Vector, stretch: NDArray[np.int64], known: NDArray[np.int64]) -> Vector:
    """float64[stretches]: the upper of two middle ones; NaN without any."""
    order = np.lexsort((flat, stretch))
    first = np.searchsorted(stretch, np.arange(len(known)))
    medians: Vector = flat[order[np.minimum(first + known // 2, len(flat) - 1)]]
    return medians


def _judge(
    solution: Solution, moves: ReplicaChanges, settings: AttributionSettings
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.uint8], dict[int, tuple[str, ...]]]:
    """Weights, standard errors and verdicts per service; who is confused with whom."""
    weight, error = np.full(len(moves.services), np.nan), np.full(len(moves.services), np.nan)
    verdict = np.where(moves.count < settings.moves_min, Verdict.STILL, Verdict.UNMEASURED).astype(np.uint8)
    seen, found, spread = solution.seen, solution.weight, solution.error
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
    return weight, error, verdict, _partners(tie, solution.covariance, is_confused, is_noisy, names, seen)


def _ties(correlation: Matrix, separation_min: float) -> Matrix:
    """The projector on the directions that the history hardly shows: what ties services to one another."""
    size, direction = np.linalg.eigh(correlation)
    hidden = direction[:, size < separation_min]
    ties: Matrix = hidden @ hidden.T
    return ties


def _partners(
    tie: Matrix,
    covariance: Matrix,
    is_confused: NDArray[np.bool_],
    is_noisy: NDArray[np.bool_],
    names: list[str],
    seen: NDArray[np.intp],
) -> dict[int, tuple[str, ...]]:
    """Service number -> names of those it cannot be separated from."""
    partners: dict[int, tuple[str, ...]] = {}
    error = np.sqrt(np.diag(covariance))
    for place in np.flatnonzero(is_confused | is_noisy).tolist():
        if is_confused[place]:
            is_tied = np.abs(tie[place]) > PARTNER_MIN * tie[place, place]
        else:
            is_tied = np.abs(covariance[place]) > CORRELATION_MIN * error[place] * error
        is_tied[place] = False
        if is_tied.any():
            partners[int(seen[place])] = tuple(names[other] for other in np.flatnonzero(is_tied).tolist())
    return partners
