"""Attribution: use per replica of each service, estimated from totals of whole nodes.

A regression: when replicas are added to or removed from a node, its total changes by their weights. Each node has an
unknown base level (daemons, services that never moved), so only changes give information. Services that never moved, or
always moved together, are reported as undetermined and not guessed. Pure; NaN means no measurement.

Model: total[node, t] = shape[t] * (level[node, time] + sum over services of replicas[node, service, t] *
weight[service, time]) + noise. `shape` is the weekly shape common to all nodes. `time` is a part of the day
(`timed_weights`), because services have different daily shapes. The result is the mean weight over the week, >= 0. It is
computed by least squares over stretches without a replica change, weighted by number of samples and noise of the node.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec
import numpy as np
from numpy.typing import NDArray

from domains.forecast.curves.node_usage import NodeTotals
from domains.forecast.learning.replica_changes import (
    ReplicaChanges,
    Stretches,
    node_blocks,
    replica_changes_of,
    stretches_of,
)
from domains.forecast.learning.timed_weights import IDLE_SHARE, Block, Solution, Times, solve, sums_of, times_of
from multisched.forecasting.quantiles import grouped_quantiles
from multisched.forecasting.slot_grid import slots_of
from multisched.forecasting.time_units import DAY_S, HOUR_S

SHAPE_MIN: Final = 0.1
"""Lower limit of the shape, whose mean is 1; division by a smaller shape would amplify noise."""
CLIP_DEVIATIONS: Final = 5.0
DEVIATION_PER_MEDIAN: Final = 1.4826
NOISE_SHARE_MIN: Final = 1e-3
"""Lower limit of a node's noise: this share of the mean variance, and of the mean total (squared)."""
SHARE_MIN: Final = 0.01
"""A service with more than this share in undetermined directions is CONFUSED."""
PARTNER_MIN: Final = 0.1
"""A partner of a CONFUSED service is named if their tie (`_ties`) exceeds this share of the service's tie to itself."""
CORRELATION_MIN: Final = 0.7
"""A partner of a NOISY service is named if the correlation of their errors exceeds this."""
SPREAD_SAMPLES_MIN: Final = 12
"""With fewer samples in a stretch, spikes are judged by the deviation of the whole node."""
EXPECTED_SAMPLES_MIN: Final = 6
"""Smallest number of samples of a stretch and time used for `peak_share`; fewer lie too close to their own mean."""

Matrix = NDArray[np.float64]
Vector = NDArray[np.float64]


class WeightStatus(IntEnum):
    """Whether a weight is determined, and if not, why."""

    DETERMINED = 0
    STILL = 1
    """The service moved too seldom."""
    CONFUSED = 2
    """The service moved only together with others."""
    NOISY = 3
    """The standard error is too large."""
    UNMEASURED = 4
    """The nodes between which it moved have no samples in this dimension."""


class AttributionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the attribution; checked on creation."""

    moves_min: int = 5
    """Smallest number of moves in the window: the larger of arrivals and departures."""
    separation_min: float = 1e-3
    """Smallest eigenvalue of the correlation of changes that counts as determined. 0: always together; 1: independent."""
    relative_error_max: float = 0.04
    """Largest standard error of a weight, relative to the weight; nearly all weights are then within 10 %."""
    has_shape: bool = True
    """Whether all use shares one shape: of the week with at least two weeks of samples, else of the day."""
    zone: str = "UTC"
    """IANA name of the time zone of the shape."""
    rest_days: tuple[int, ...] = (5, 6)
    """Weekdays (Monday is 0) whose hours are separate times from those of working days."""
    quantile: float = 0.95
    """Quantile for `peak_share`."""

    def __post_init__(self) -> None:
        if self.moves_min < 1:
            raise ValueError(f"moves_min: {self.moves_min} must be at least 1; without moves no weight is determined")
        try:
            ZoneInfo(self.zone)
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise ValueError(
                f"zone: {self.zone!r} is not a time zone; give an IANA name such as Europe/Berlin"
            ) from error
        for name in ("separation_min", "relative_error_max", "quantile"):
            if not 0 < getattr(self, name) < 1:
                raise ValueError(f"{name}: {getattr(self, name)} is not between 0 and 1")


class Undetermined(msgspec.Struct, frozen=True):
    """A weight that the placement history does not determine."""

    service: str
    dimension: str
    verdict: WeightStatus
    confused_with: tuple[str, ...] = ()
    """Names of the services it cannot be separated from; empty if it cannot be separated from the level of its nodes."""


class Attribution(msgspec.Struct, frozen=True):
    """Weights: mean use per replica over the window. Arrays are [services, dimensions] if not stated otherwise."""

    services: tuple[str, ...]
    dimensions: tuple[str, ...]
    weight: NDArray[np.float32]
    """NaN where undetermined."""
    standard_error: NDArray[np.float32]
    """NaN where unknown."""
    verdict: NDArray[np.uint8]
    moves: NDArray[np.int64]
    """int64[services]: the larger of arrivals and departures."""
    undetermined: tuple[Undetermined, ...]
    shape: NDArray[np.float32]
    """float32[dimensions, 168]: common weekly shape: use in each hour / mean use, over all nodes; mean 1."""
    own_shape: NDArray[np.float32]
    """float32[services, dimensions, 168]: weekly shape of each service; the common shape if its weight is unknown."""
    peak_share: NDArray[np.float32]
    """float32[dimensions]: quantile of node use / node use expected by the model, at least 1."""
    zone: str
    """Time zone of the shapes."""
    newest_s: float
    """Start of the last step of the totals, in epoch seconds."""


def attribute(totals: NodeTotals, settings: AttributionSettings) -> Attribution:
    """Estimates the weights of all services in the placement intervals. Raises ValueError for invalid intervals or totals."""
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
            Undetermined(moves.services[row], dimension, WeightStatus(verdict[row, number]), confused.get(row, ()))
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
    """Returns the solution, and `peak_share` of the dimension."""
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
    """Returns float32[services, 168]: weekly shapes of services, with mean 1 over the window."""
    own = np.repeat(shape[None, :], services, axis=0)
    timed = solution.timed.T
    mean = timed @ times.share
    has_any = mean > 0
    ratio = timed[has_any] / mean[has_any, None]
    own[solution.seen[has_any]] *= ratio[:, times.of_hour].astype(np.float32)
    return own


def _shape(values: Matrix, totals: NodeTotals, zone: str) -> tuple[NDArray[np.float32], Matrix]:
    """Returns the common shape (mean total of nodes by hour / mean of all hours), as float32[168] and float64[steps].

    First clips samples far from the median of their node and hour.
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
    """Yields for each block of nodes: the block, the quantile of sample / mean of its stretch and time, number of samples."""
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
    """Returns number and mean of samples by stretch and time, the variance of each node around these means, and the quantile
    of sample / mean. Spikes are clipped.

    Spikes are found by the median of their stretch, so that a replica change is not taken for one.
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
    """Returns float64[nodes * steps]: samples clipped around the median of their stretch; NaN in steps with a change.

    The limit is CLIP_DEVIATIONS times the larger of the deviations in the stretch and on the node.
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
    """Returns float64[stretches]: medians (the upper of two middle values); NaN without samples."""
    order = np.lexsort((flat, stretch))
    first = np.searchsorted(stretch, np.arange(len(known)))
    medians: Vector = flat[order[np.minimum(first + known // 2, len(flat) - 1)]]
    return medians


def _judge(
    solution: Solution, moves: ReplicaChanges, settings: AttributionSettings
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.uint8], dict[int, tuple[str, ...]]]:
    """Returns weights, standard errors and verdicts per service, and partners that cannot be separated (see `_partners`)."""
    weight, error = np.full(len(moves.services), np.nan), np.full(len(moves.services), np.nan)
    verdict = np.where(moves.count < settings.moves_min, WeightStatus.STILL, WeightStatus.UNMEASURED).astype(np.uint8)
    seen, found, spread = solution.seen, solution.weight, solution.error
    if not len(seen):
        return weight, error, verdict, {}
    tie = _ties(solution.correlation, settings.separation_min)
    is_confused = np.diag(tie) > SHARE_MIN
    is_noisy = spread > settings.relative_error_max * np.maximum(found, IDLE_SHARE * found.mean())
    judged = np.select([is_confused, is_noisy], [WeightStatus.CONFUSED, WeightStatus.NOISY], WeightStatus.DETERMINED)
    has_moved = moves.count[seen] >= settings.moves_min
    verdict[seen[has_moved]] = judged[has_moved]
    error[seen] = spread
    is_known = verdict[seen] == WeightStatus.DETERMINED
    weight[seen[is_known]] = found[is_known]
    names = [moves.services[row] for row in seen]
    return weight, error, verdict, _partners(tie, solution.covariance, is_confused, is_noisy, names, seen)


def _ties(correlation: Matrix, separation_min: float) -> Matrix:
    """Returns the projector on the undetermined directions; its entries are the ties between services."""
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
    """Returns service number -> names of the services it cannot be separated from."""
    partners: dict[int, tuple[str, ...]] = {}
    error = np.sqrt(np.diag(covariance))
    for index in np.flatnonzero(is_confused | is_noisy).tolist():
        if is_confused[index]:
            is_tied = np.abs(tie[index]) > PARTNER_MIN * tie[index, index]
        else:
            is_tied = np.abs(covariance[index]) > CORRELATION_MIN * error[index] * error
        is_tied[index] = False
        if is_tied.any():
            partners[int(seen[index])] = tuple(names[other] for other in np.flatnonzero(is_tied).tolist())
    return partners
