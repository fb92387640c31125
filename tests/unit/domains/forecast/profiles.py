"""Profiles written by hand, for the tests of the forecast and of whatever shows it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from multisched.forecasting.profiles import SLOT_S_DEFAULT, Profiles
from multisched.forecasting.time_units import WEEK_S


def make_profiles(
    dimensions: tuple[str, ...], *, version: int = 1, **services: Mapping[str, NDArray[np.float64]]
) -> Profiles:
    """`services`: dimension -> use in each of the week's 168 hours; two underscores stand for the slash of a namespace."""
    peak = np.full((len(services), len(dimensions), 168), np.nan, np.float32)
    for number, curves in enumerate(services.values()):
        for name, curve in curves.items():
            peak[number, dimensions.index(name)] = curve
    names = tuple(name.replace("__", "/") for name in services)
    origin, error = np.zeros(peak.shape[:2], np.uint8), np.zeros(peak.shape[:2], np.float32)
    return Profiles(version, 0.0, 0.0, names, dimensions, peak, peak, peak, origin, error)


def no_profiles(dimensions: tuple[str, ...] = (), slot_s: int = SLOT_S_DEFAULT) -> Profiles:
    """Of no service: everything falls back to requests."""
    empty = np.zeros((0, len(dimensions), WEEK_S // slot_s), np.float32)
    flat = np.zeros((0, len(dimensions)))
    return Profiles(
        0, 0.0, 0.0, (), dimensions, empty, empty, empty, flat.astype(np.uint8), flat.astype(np.float32), slot_s=slot_s
    )
