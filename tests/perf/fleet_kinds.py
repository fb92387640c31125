"""Fleets of many kinds, made in memory, for `forecast_quality_bench`: what each service asks for and what one replica uses.

The same kind and seed give the same fleet. Requests say nothing of use, as in most fleets. Each kind is one thing that
real fleets do and that a forecast may take wrongly for a week of its own, or miss.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

STEPS_PER_DAY: Final = 96
KNOWN_DAYS: Final = 21
JUDGED_DAYS: Final = 14
SHORT_DAYS: Final = 5
"""Of history, in the kind `short`."""
PEAKS: Final = ((20.5, 12.5, 3.0), (0.5, 0.25, 0.25))
"""Hours at which services peak, and their shares."""
VMS: Final = 500
SIZE_MAX: Final = 7.0
"""No VM is larger than so many mean ones: more would fill a node alone."""
LEAST: Final = 1e-4

Floats = NDArray[np.float64]
Random = np.random.Generator


class Fleet(NamedTuple):
    """One fleet and its nodes."""

    replicas: NDArray[np.int64]
    """int64[services]"""
    asked: Floats
    """float64[services]: cores that each replica requests."""
    use: Floats
    """float64[services, dimensions, steps]: of one replica."""
    sizes: Floats
    """float64[nodes]: relative to one another."""
    known: int
    """Steps that came before placement."""


class _Shape(NamedTuple):
    """The time of a fleet."""

    rng: Random
    known_days: int

    @property
    def hours(self) -> Floats:
        hours: Floats = np.arange((self.known_days + JUDGED_DAYS) * STEPS_PER_DAY) / 4
        return hours

    def lasting(self, count: int, keep: float, deviation: float | Floats) -> Floats:
        """float64[count, steps]: noise of which the share `keep` lasts to the next step, `deviation` what comes new."""
        steps = len(self.hours)
        noise = self.rng.normal(0, 1, (count, steps)) * deviation
        noise[:, 0] /= np.sqrt(1 - keep * keep)
        for at in range(1, steps):
            noise[:, at] += keep * noise[:, at - 1]
        return noise


def make_fleet(kind: str, seed: int) -> Fleet:
    """`kind`: one of KINDS."""
    rng = np.random.default_rng([seed, zlib.crc32(kind.encode())])
    return KINDS[kind](_Shape(rng, SHORT_DAYS if kind == "short" else KNOWN_DAYS))


# -- services of several replicas, in three dimensions, with days of their own -------------------------------------------


def _days(shape: _Shape, count: int, weekend: tuple[float, float]) -> Floats:
    """float64[count, steps]: around 1 at the peak; `weekend`: by how much less a service is used then, from and to."""
    rng, hours = shape.rng, shape.hours
    peak = rng.choice(PEAKS[0], (count, 1), p=PEAKS[1]) + rng.normal(0, 0.7, (count, 1))
    away = (hours - peak + 12) % 24 - 12
    days = np.exp(-((away / rng.uniform(2, 5, (count, 1))) ** 2))
    days = np.where(rng.random((count, 1)) < 0.15, 0.5, days)  # some never peak
    days = days * (1 - (hours // 24 % 7 >= 5) * rng.uniform(*weekend, (count, 1)))
    grown: Floats = days * (1 + rng.choice([0, 0, 0.1], (count, 1)) * hours / hours[-1])
    return grown


def _services(shape: _Shape, days: Floats, replicas: tuple[int, int], sizes: Floats, noise: float = 0.05) -> Fleet:
    """Few services write most of the logs."""
    rng, count = shape.rng, len(days)
    days = days * np.maximum(1 + shape.lasting(count, 0.8, noise), 0.01)
    levels = ((0.0, 0.6, 0.06), (-1.0, 1.3, 0.1), (1.0, 0.9, 0.05))
    use = [rng.lognormal(mean, spread, (count, 1)) * (rest + days) for mean, spread, rest in levels]
    return Fleet(
        rng.integers(replicas[0], replicas[1] + 1, count),
        rng.choice([0.5, 1, 1, 2, 2, 4], count),
        np.stack(use, axis=1),
        sizes,
        shape.known_days * STEPS_PER_DAY,
    )


def _cycle(shape: _Shape) -> Fleet:
    return _services(shape, _days(shape, 60, (-0.2, 0.6)), (3, 15), np.ones(40))


def _mixed(shape: _Shape) -> Fleet:
    """Few services of many replicas, on nodes of three sizes."""
    return _services(shape, _days(shape, 30, (-0.2, 0.6)), (4, 40), np.repeat([1.0, 2.0, 4.0], [20, 8, 4]))


def _weekly(shape: _Shape) -> Fleet:
    """Half are offices, which rest at the weekend, half are what people do then."""
    sign = shape.rng.choice([-1.0, 1.0], (60, 1))
    weekend = shape.hours // 24 % 7 >= 5
    days = _days(shape, 60, (0.0, 0.0))
    return _services(shape, days * np.where(weekend, 1 - 0.7 * sign, 1.0), (3, 15), np.ones(40))


def _batch(shape: _Shape) -> Fleet:
    """Half of all run batches in the same two hours of the night, by little and by much; the others are the day's."""
    rng, hours = shape.rng, shape.hours
    night = ((hours % 24 >= 2) & (hours % 24 < 4)) * rng.lognormal(0, 0.5, (60, 1))
    night = night * np.exp(shape.lasting(60, 0.95, 0.08))
    is_batch = rng.random((60, 1)) < 0.5
    return _services(shape, np.where(is_batch, night, _days(shape, 60, (-0.2, 0.6))), (3, 15), np.ones(40), 0.1)


# -- VMs of one replica, in one dimension, that differ in size much and in their days little ------------------------------


def _vms(shape: _Shape, level: Floats, size: Floats) -> Fleet:
    return Fleet(
        np.ones(VMS, np.int64),
        shape.rng.choice([1.0, 2, 4, 8], VMS),
        np.maximum(0.2 * np.minimum(size, SIZE_MAX * size.mean()) * level, LEAST)[:, None],
        np.ones(40),
        shape.known_days * STEPS_PER_DAY,
    )


def _weak_days(shape: _Shape, most: float) -> Floats:
    """Days that swing by less than `most`; three of five VMs peak in the afternoon."""
    rng = shape.rng
    hour = np.where(rng.random((VMS, 1)) < 0.6, 15, rng.uniform(0, 24, (VMS, 1)))
    swing: Floats = 1 + rng.uniform(0, most, (VMS, 1)) * np.cos(2 * np.pi * (shape.hours - hour) / 24)
    return swing * np.exp(shape.lasting(VMS, 0.85, rng.uniform(0.03, 0.15, (VMS, 1))))


def _sizes(rng: Random) -> Floats:
    size: Floats = rng.lognormal(0, 1.2, (VMS, 1))
    return size


def _weak(shape: _Shape) -> Fleet:
    return _vms(shape, _weak_days(shape, 0.3), _sizes(shape.rng))


def _heavy(shape: _Shape) -> Fleet:
    """Weak days, and sizes with the heaviest of tails."""
    return _vms(shape, _weak_days(shape, 0.3), 1 + shape.rng.pareto(1.3, (VMS, 1)))


def _noise(shape: _Shape) -> Fleet:
    """No days at all."""
    level = np.exp(shape.lasting(VMS, 0.85, shape.rng.uniform(0.05, 0.25, (VMS, 1))))
    return _vms(shape, level, _sizes(shape.rng))


def _drift(shape: _Shape) -> Fleet:
    """Levels wander, by a quarter in weeks."""
    return _vms(shape, _weak_days(shape, 0.3) * np.exp(shape.lasting(VMS, 0.998, 0.015)), _sizes(shape.rng))


def _bursty(shape: _Shape) -> Fleet:
    """Bursts of hours, at any time, two to twenty in a week, to some three times the level."""
    rng, level = shape.rng, _weak_days(shape, 0.3)
    for vm, per_week in enumerate(rng.uniform(2, 20, VMS).tolist()):
        count = rng.poisson(per_week * level.shape[1] / (7 * STEPS_PER_DAY))
        begins, lasts = rng.integers(0, level.shape[1], count), 1 + rng.exponential(6, count).astype(int)
        for begin, steps, high in zip(begins, lasts, rng.lognormal(0.7, 0.5, count), strict=True):
            level[vm, begin : begin + steps] += high
    return _vms(shape, level, _sizes(rng))


KINDS: Final[Mapping[str, Callable[[_Shape], Fleet]]] = {
    "cycle": _cycle,
    "short": _cycle,
    "mixed": _mixed,
    "weekly": _weekly,
    "batch": _batch,
    "weak": _weak,
    "heavy": _heavy,
    "noise": _noise,
    "drift": _drift,
    "bursty": _bursty,
}
