"""QuantizedProfiles: profiles as placement counts them: whole numbers of a quantum, which add up and come off without a trace.

Made once for each set of profiles that is put in force; immutable but for namespaces' means, which are made when first
asked for.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from itertools import count
from typing import Final

import numpy as np
from numpy.typing import NDArray

from domains.forecast.curves.profiles import Profiles
from domains.forecast.units import MILLI
from multisched.model.objects import CPU, MEMORY

Quanta = NDArray[np.int32]
"""int32[dimensions, slots]"""
Floats = NDArray[np.float32]

QUANTA_PER_PEAK: Final = 1 << 18
"""The highest profile of a dimension has so many quanta: 8,192 such pods fit into a row's int32."""
QUANTA_MAX: Final = 1 << 24
"""One pod counts for no more in any slot: 128 such pods fit into a row's int32."""
QUANTUM_MILLI_MIN: Final[Mapping[str, float]] = {CPU: 0.25, MEMORY: 65_536.0 * MILLI}
"""Where requests may stand in: so that 4,194 cores and a tebibyte still count in full beside tiny profiles."""
STAND_IN_MILLI: Final[Mapping[str, float]] = {CPU: 32.0 * MILLI, MEMORY: float(MILLI << 37)}
STAND_IN_REPLICAS: Final = 20
"""A node that states no capacity is judged as if so many replicas of the heaviest service filled it."""
FLOAT_QUANTA: Final = 1.0 / 65_536
"""What one quantum is in the floats that scores are computed from: their fourth powers stay far from the end of float32."""

_numbers = count(1)


class Curve:
    """What one pod adds in each dimension and slot. Never changed."""

    __slots__ = ("floats", "mark", "mass", "quanta", "squares", "uses")

    def __init__(self, quanta: Quanta, mark: Hashable) -> None:
        self.quanta = quanta
        self.mark = mark
        """Equal for curves that are the same."""
        self.floats: Floats = quanta.astype(np.float32) * np.float32(FLOAT_QUANTA)
        self.mass: NDArray[np.float64] = self.floats.sum(axis=1, dtype=np.float64)[:, None]
        """float64[dimensions, 1]: the sum over the slots."""
        self.squares: NDArray[np.float64] = (self.floats.astype(np.float64) ** 2).sum(axis=1)[:, None]
        """float64[dimensions, 1]: that of the squares."""
        self.uses: NDArray[np.bool_] = self.mass[:, 0] > 0
        """bool[dimensions]"""


class QuantizedProfiles:
    """The profiles in force, in whole numbers of a quantum per dimension."""

    def __init__(self, profiles: Profiles, dimensions: Sequence[str]) -> None:
        self.profiles = profiles
        self.dimensions = tuple(dimensions)
        self.number = next(_numbers)
        """Another for each object of the process: what is cached under one is never taken for another's."""
        at = {name: index for index, name in enumerate(profiles.dimensions)}
        self._at = tuple(at.get(name) for name in self.dimensions)
        self._numbers = profiles.numbers()
        self._members: dict[str, list[int]] = {}
        for name, number in self._numbers.items():
            namespace, slash, _ = name.partition("/")
            if slash:
                self._members.setdefault(namespace, []).append(number)
        self._means: dict[str, NDArray[np.float64]] = {}
        self.largest_milli = tuple(0.0 if at is None else _largest(profiles.peak[:, at]) * MILLI for at in self._at)
        """Per dimension: the highest slot of its heaviest service."""
        self.quantum_milli: NDArray[np.float64] = np.array([
            max(largest / QUANTA_PER_PEAK, QUANTUM_MILLI_MIN.get(name, 0.0)) or 1.0
            for name, largest in zip(self.dimensions, self.largest_milli, strict=True)
        ]).reshape(-1, 1)  # fmt: skip
        """float64[dimensions, 1]"""
        self.stand_in_milli: NDArray[np.float64] = np.array([
            STAND_IN_REPLICAS * largest or STAND_IN_MILLI.get(name, float(MILLI))
            for name, largest in zip(self.dimensions, self.largest_milli, strict=True)
        ]).reshape(-1, 1)  # fmt: skip
        """float64[dimensions, 1]: the capacity of a node that does not state any."""

    def service(self, namespace: str, name: str) -> Hashable | None:
        """Whose profile is meant by a name: `namespace/service` goes before `service`; None: nothing is known of it.

        A name with a slash means nobody: an owner's name is the author's to choose, and would stand for another namespace's service.
        """
        if not name or "/" in name:
            return None
        found = self._numbers.get(f"{namespace}/{name}")
        return self._numbers.get(name) if found is None else found

    def namespace(self, namespace: str) -> Hashable | None:
        """Stands for the mean of the services that are known by this namespace; None: none is."""
        return namespace if namespace in self._members else None

    def lacking(self, source: Hashable | None) -> tuple[bool, ...]:
        """Per dimension: True where the source says nothing."""
        if source is None:
            return (True,) * len(self.dimensions)
        values = self._values(source)
        return tuple(at is None or not bool(np.isfinite(values[at]).any()) for at in self._at)

    def curve(self, source: Hashable | None, flat_milli: Sequence[int]) -> Curve:
        """The source's profile, and where it says nothing these amounts all week long."""
        quanta: Quanta = np.zeros((len(self.dimensions), self.profiles.slots), np.int32)
        lacking = self.lacking(source)
        for dimension, at in enumerate(self._at):
            quantum = self.quantum_milli.item(dimension)
            if lacking[dimension] or at is None:
                quanta[dimension] = min(QUANTA_MAX, math.ceil(flat_milli[dimension] / quantum))
                continue
            values = self._values(source)[at].astype(np.float64) * MILLI
            known = np.isfinite(values)
            values = np.where(known, values, values[known].max())  # a gap might hide the peak
            quanta[dimension] = np.clip(np.rint(values / quantum), 0, QUANTA_MAX).astype(np.int32)
        quanta.flags.writeable = False
        return Curve(quanta, (self.number, source, tuple(flat_milli)))

    def _values(self, source: Hashable) -> NDArray[np.floating]:
        """float[dimensions of the profiles, slots]: of a service, by its number, or of a namespace, by its name."""
        if isinstance(source, int):
            values: NDArray[np.float32] = self.profiles.peak[source]
            return values
        namespace = str(source)
        mean = self._means.get(namespace)
        if mean is None:
            mean = self._means[namespace] = _mean(self.profiles.peak[self._members[namespace]])
        return mean


def _mean(values: NDArray[np.float32]) -> NDArray[np.float64]:
    known = np.isfinite(values)
    total = np.where(known, values, 0.0).sum(axis=0, dtype=np.float64)
    counted = known.sum(axis=0)
    return np.where(counted > 0, total / np.maximum(counted, 1), np.nan)


def _largest(values: NDArray[np.float32]) -> float:
    finite = values[np.isfinite(values)]
    return max(0.0, float(finite.max(initial=0.0)))
