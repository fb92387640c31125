"""QuantizedProfiles: profiles as integer multiples of a quantum per dimension, so that sums are exact.

Created once for each set of profiles that becomes active. Immutable except for the means of namespaces, which are
computed on first use.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from itertools import count
from typing import Final

import numpy as np
from numpy.typing import NDArray

from domains.forecast.units import MILLI
from multisched.forecasting.profiles import Profiles
from multisched.model.objects import CPU, MEMORY

Quanta = NDArray[np.int32]
"""int32[dimensions, slots]"""
Floats = NDArray[np.float32]

QUANTA_PER_PEAK: Final = 1 << 18
"""Quanta of the highest peak of a dimension; the sum of 8,191 such pods fits into int32."""
QUANTA_MAX: Final = 1 << 24
"""Limit of quanta of one pod in a slot; the sum of 127 such pods fits into int32."""
QUANTUM_MILLI_MIN: Final[Mapping[str, float]] = {CPU: 0.25, MEMORY: 65_536.0 * MILLI}
"""Smallest quantum of dimensions with requests: with it, requests up to 4,194 cores or 1 TiB stay below QUANTA_MAX."""
STAND_IN_MILLI: Final[Mapping[str, float]] = {CPU: 32.0 * MILLI, MEMORY: float(MILLI << 37)}
STAND_IN_REPLICAS: Final = 20
"""Assumed capacity of a node that states none, in replicas of the heaviest service."""
FLOAT_QUANTA: Final = 1.0 / 65_536
"""Scale from quanta to the floats used by scores; it keeps their third powers far below the maximum of float32."""

_numbers = count(1)


class Curve:
    """Predicted use of one pod per dimension and slot, in quanta. Immutable."""

    __slots__ = ("floats", "mark", "mass", "quanta", "source", "squares", "uses")

    def __init__(self, quanta: Quanta, mark: Hashable, source: Hashable | None = None) -> None:
        """`source`: the number of a service, the name of a namespace, or None, see `QuantizedProfiles`."""
        self.quanta = quanta
        self.source = source
        self.mark = mark
        """Equal for equal curves."""
        self.floats: Floats = quanta.astype(np.float32) * np.float32(FLOAT_QUANTA)
        self.mass: NDArray[np.float64] = self.floats.sum(axis=1, dtype=np.float64)[:, None]
        """float64[dimensions, 1]: sum of `floats` over the slots."""
        self.squares: NDArray[np.float64] = (self.floats.astype(np.float64) ** 2).sum(axis=1)[:, None]
        """float64[dimensions, 1]: sum of the squares of `floats` over the slots."""
        self.uses: NDArray[np.bool_] = self.mass[:, 0] > 0
        """bool[dimensions]: whether the pod uses any of the dimension."""


class QuantizedProfiles:
    """The active profiles, in integer multiples of a quantum per dimension."""

    def __init__(self, profiles: Profiles, dimensions: Sequence[str]) -> None:
        self.profiles = profiles
        self.dimensions = tuple(dimensions)
        self.number = next(_numbers)
        """Unique within the process; part of cache keys."""
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
        """Per dimension: the peak of its heaviest service."""
        self.quantum_milli: NDArray[np.float64] = np.array([
            max(largest / QUANTA_PER_PEAK, QUANTUM_MILLI_MIN.get(name, 0.0)) or 1.0
            for name, largest in zip(self.dimensions, self.largest_milli, strict=True)
        ]).reshape(-1, 1)  # fmt: skip
        """float64[dimensions, 1]"""
        self.stand_in_milli: NDArray[np.float64] = np.array([
            STAND_IN_REPLICAS * largest or STAND_IN_MILLI.get(name, float(MILLI))
            for name, largest in zip(self.dimensions, self.largest_milli, strict=True)
        ]).reshape(-1, 1)  # fmt: skip
        """float64[dimensions, 1]: assumed capacity of a node that states none."""

    def service(self, namespace: str, name: str) -> Hashable | None:
        """Returns the profile of a service: that of `namespace/name`, else that of `name`, else None.

        Returns None for a name with a slash: users choose owner names, and could name another namespace's service.
        """
        if not name or "/" in name:
            return None
        found = self._numbers.get(f"{namespace}/{name}")
        return self._numbers.get(name) if found is None else found

    def namespace(self, namespace: str) -> Hashable | None:
        """Returns a source for the mean of the namespace's services; None if none has a profile."""
        return namespace if namespace in self._members else None

    def lacking(self, source: Hashable | None) -> tuple[bool, ...]:
        """Returns per dimension whether the source has no values."""
        if source is None:
            return (True,) * len(self.dimensions)
        values = self._values(source)
        return tuple(at is None or not bool(np.isfinite(values[at]).any()) for at in self._at)

    def curve(self, source: Hashable | None, flat_milli: Sequence[int]) -> Curve:
        """Returns the source's profile as a curve; dimensions that it lacks have the constant amount in `flat_milli`."""
        quanta: Quanta = np.zeros((len(self.dimensions), self.profiles.slots), np.int32)
        lacking = self.lacking(source)
        for dimension, at in enumerate(self._at):
            quantum = self.quantum_milli.item(dimension)
            if lacking[dimension] or at is None:
                quanta[dimension] = min(QUANTA_MAX, math.ceil(flat_milli[dimension] / quantum))
                continue
            values = self._values(source)[at].astype(np.float64) * MILLI
            known = np.isfinite(values)
            values = np.where(known, values, values[known].max())  # the true peak may be in a gap
            quanta[dimension] = np.clip(np.rint(values / quantum), 0, QUANTA_MAX).astype(np.int32)
        quanta.flags.writeable = False
        return Curve(quanta, (self.number, source, tuple(flat_milli)), source)

    def _values(self, source: Hashable) -> NDArray[np.floating]:
        """Returns float[dimensions of the profiles, slots] of a service (by number) or of a namespace's mean (by name)."""
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
