"""Recent: mean and highest sample per slot of the last days, shown together with the profiles.

Immutable and compact: two bytes per slot, service and dimension; 17 MB for 5,000 services, 5 dimensions and hourly
slots. Computed in a worker thread after each fit; not used for placement.
"""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from multisched.forecasting.slot_grid import wall_times
from multisched.forecasting.time_units import DAY_S
from multisched.forecasting.usage import Samples, Usage

DAYS: Final = 14
CODES_MAX: Final = 64_000_000
"""Limit of `mean` and `top` together, in bytes; with many services or short slots, fewer than DAYS are kept."""
CODE_MAX: Final = 254
CODE_NAN: Final = 255
_CHUNK: Final = 256

Codes = NDArray[np.uint8]


class Recent(msgspec.Struct, frozen=True):
    """Recently measured use per replica."""

    start_s: float
    """Start of the first slot, in epoch seconds."""
    slot_s: int
    services: tuple[str, ...]
    dimensions: tuple[str, ...]
    scale: NDArray[np.float32]
    """float32[services, dimensions]: amount per code step."""
    mean: Codes
    """uint8[services, dimensions, slots]; CODE_NAN where nothing was measured."""
    top: Codes
    """uint8[services, dimensions, slots]: the highest sample."""


def recent_of(usage: Usage, zone: str, slot_s: int) -> Recent:
    """Returns the last DAYS of the usage; slots are aligned with those of profiles in that zone."""
    series = max(1, len(usage.services) * len(usage.dimensions))
    days = min(DAYS, CODES_MAX * slot_s // (2 * series * DAY_S))
    slots = days * DAY_S // slot_s
    end_s = usage.start_s + usage.step_s * usage.values.shape[2]
    begun_s = int(wall_times(np.array([end_s - 1.0]), zone)[0] + 1) % slot_s or slot_s
    start_s = end_s - begun_s + slot_s - slots * slot_s
    shape = (len(usage.services), len(usage.dimensions))
    mean, top = np.full((2, *shape, slots), CODE_NAN, np.uint8)
    scale = np.zeros(shape, np.float32)
    parts = int(np.ceil(usage.step_s / slot_s))
    step_s = usage.step_s / parts
    moments = usage.start_s + step_s * np.arange(usage.values.shape[2] * parts)
    index = np.floor((moments - start_s) / slot_s).astype(np.int64)
    first = int(np.searchsorted(index, 0))
    begins = np.flatnonzero(np.diff(index[first:], prepend=-1))
    for begin in range(0, len(usage.services), _CHUNK) if len(begins) else ():
        part = slice(begin, begin + _CHUNK)
        values = usage.values[part] if parts == 1 else np.repeat(usage.values[part], parts, axis=2)
        values = values[:, :, first:]
        means, tops, scale[part] = _summed(values, begins)
        mean[part, :, index[first:][begins]] = _coded(means, scale[part])
        top[part, :, index[first:][begins]] = _coded(tops, scale[part])
    return Recent(start_s, slot_s, usage.services, usage.dimensions, scale, mean, top)


def _summed(values: Samples, begins: NDArray[np.intp]) -> tuple[Samples, Samples, Samples]:
    """Returns means and highest samples per slot, and the scale of each series."""
    is_good = np.isfinite(values) & (values >= 0)
    counts = np.add.reduceat(is_good, begins, axis=2, dtype=np.int32)
    sums = np.add.reduceat(np.where(is_good, values, 0), begins, axis=2)
    tops = np.maximum.reduceat(np.where(is_good, values, -1), begins, axis=2)
    means = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan).astype(np.float32)
    tops = np.where(counts > 0, tops, np.nan).astype(np.float32)
    return means, tops, np.maximum(np.nan_to_num(tops), 0).max(axis=2, initial=0.0) / CODE_MAX


def _coded(values: Samples, scale: Samples) -> Codes:
    steps = values / np.where(scale > 0, scale, 1)[..., None]
    codes: Codes = np.where(np.isnan(steps), CODE_NAN, np.nan_to_num(np.rint(steps))).clip(0, 255).astype(np.uint8)
    return codes
