"""Profiles from CSV history: a quantile for each hour of the week.

Per series two estimates are mixed (OWN_SHARE): the quantile of the slot's own samples, and that of the same hour over all working
days, or over the weekend: the first knows what is special about a day, the second has five times the samples. A series
without samples in every hour of the week gets one quantile for the whole week. A pure function of the samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from domains.forecast.history_file import Samples
from domains.forecast.profiles import SLOT_S_DEFAULT, WEEK_S, Origin, Profiles

DAY_S: Final = 86_400
SLOTS: Final = WEEK_S // SLOT_S_DEFAULT
HOURS: Final = 24
_MONDAY_S: Final = 4 * DAY_S
"""The first Monday after the epoch, which was a Thursday."""
WORKING_DAYS: Final = 5
OWN_SHARE: Final = 0.75
"""How much a slot's own samples say; the same hour of the other working days, or of the weekend, says the rest."""
UNKNOWN_ERROR: Final = np.float32(np.nan)

Values = NDArray[np.float64]


def slot_profiles(samples: Samples, *, percentile: float, window_days: float) -> Profiles:
    """Of all services that have samples in the window, which reaches back from the newest sample."""
    oldest_s = samples.newest_s - window_days * DAY_S
    curves: dict[str, dict[str, tuple[Values, Origin]]] = {}
    for (service, resource), series in samples.series.items():
        seconds, values = np.frombuffer(series.seconds), np.frombuffer(series.values)
        inside = seconds > oldest_s
        if inside.any():
            found = _curve(seconds[inside], values[inside], percentile)
            curves.setdefault(service, {})[resource] = found
    return _profiles(curves, samples.newest_s)


def _profiles(curves: Mapping[str, Mapping[str, tuple[Values, Origin]]], newest_s: float) -> Profiles:
    dimensions = tuple(sorted({name for found in curves.values() for name in found}))
    peak = np.full((len(curves), len(dimensions), SLOTS), np.nan, np.float32)
    origin = np.zeros(peak.shape[:2], np.uint8)
    for number, found in enumerate(curves.values()):
        for name, (curve, source) in found.items():
            peak[number, dimensions.index(name)] = curve
            origin[number, dimensions.index(name)] = source
    error = np.full(peak.shape[:2], UNKNOWN_ERROR, np.float32)
    return Profiles(0, newest_s, newest_s, tuple(curves), dimensions, peak, peak, peak, origin, error)


def _curve(seconds: Values, values: Values, percentile: float) -> tuple[Values, Origin]:
    """float64[SLOTS]"""
    slots = ((seconds - _MONDAY_S) // SLOT_S_DEFAULT % SLOTS).astype(np.intp)
    own = _quantiles(slots, values, SLOTS, percentile)
    if np.isnan(own).any():
        return np.full(SLOTS, np.percentile(values, percentile)), Origin.QUANTILE
    is_weekend = slots >= WORKING_DAYS * HOURS
    pooled = _quantiles(slots % HOURS + HOURS * is_weekend, values, 2 * HOURS, percentile)
    week = np.concatenate([np.tile(pooled[:HOURS], WORKING_DAYS), np.tile(pooled[HOURS:], 7 - WORKING_DAYS)])
    return OWN_SHARE * own + (1 - OWN_SHARE) * week, Origin.SLOT_QUANTILE


def _quantiles(slots: NDArray[np.intp], values: Values, count: int, percentile: float) -> Values:
    """float64[count]: the percentile of each slot's values, linearly interpolated as numpy does; NaN where it has none."""
    order = np.lexsort((values, slots))
    ranked, sizes = values[order], np.bincount(slots, minlength=count)
    firsts = np.cumsum(sizes) - sizes
    place = (sizes - 1) * (percentile / 100)
    below = np.floor(place).astype(np.intp)
    above = np.minimum(below + 1, np.maximum(sizes - 1, 0))
    at = np.clip(firsts + below, 0, len(ranked) - 1), np.clip(firsts + above, 0, len(ranked) - 1)
    low, high = ranked[at[0]], ranked[at[1]]
    return np.where(sizes > 0, low + (high - low) * (place - below), np.nan)
