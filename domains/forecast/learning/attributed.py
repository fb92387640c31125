"""Attributed profiles: converts weights from node totals to curves, for dimensions not measured per replica. Pure."""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from domains.forecast.learning.attribution import Attribution
from multisched.forecasting.profiles import Backtest, Curves, Origin, Profiles
from multisched.forecasting.time_units import HOUR_S

BAND_ERRORS: Final = 2.0
"""Half width of the band, in standard errors of the weight."""


def with_attribution(profiles: Profiles, found: Attribution) -> Profiles:
    """Returns the profiles with attributed curves added; curves with origin NONE and a known weight become ATTRIBUTED.

    Curve = weight * weekly shape of the service * peak share (quantile of node use / expected node use). Nodes average
    over their services, so the true peak of a service can be higher. Undetermined weights stay NONE. The band is two
    standard errors of the weight to each side; `error` is the standard error / the weight.
    Raises ValueError if the time zones differ.
    """
    if profiles.zone != found.zone:
        raise ValueError(
            f"zone: profiles have {profiles.zone}, the attribution has {found.zone}; fit both in the same zone"
        )
    measured = profiles.numbers()
    services = profiles.services + tuple(name for name in found.services if name not in measured)
    number = {name: index for index, name in enumerate(services)}
    dimensions = profiles.dimensions + tuple(name for name in found.dimensions if name not in profiles.dimensions)
    columns = [dimensions.index(name) for name in found.dimensions]
    index = np.ix_([number[name] for name in found.services], columns)
    known = profiles.origin.shape
    origin = np.full((len(services), len(dimensions)), Origin.NONE, np.uint8)
    origin[: known[0], : known[1]] = profiles.origin
    error = np.full(origin.shape, np.nan, np.float32)
    error[: known[0], : known[1]] = profiles.error
    is_taken = (origin[index] == Origin.NONE) & ~np.isnan(found.weight)
    origin[index] = np.where(is_taken, np.uint8(Origin.ATTRIBUTED), origin[index])
    error[index] = np.where(is_taken, _relative_error(found), error[index])
    curves = []
    for curve, added in zip((profiles.peak, profiles.low, profiles.high), _curves(found, profiles), strict=True):
        whole = np.full((*origin.shape, profiles.slots), np.nan, np.float32)
        whole[: known[0], : known[1]] = curve
        whole[index] = np.where(is_taken[..., None], added, whole[index])
        curves.append(_frozen(whole))
    return msgspec.structs.replace(
        profiles,
        newest_s=max(profiles.newest_s, found.newest_s),
        services=services,
        dimensions=dimensions,
        peak=curves[0],
        low=curves[1],
        high=curves[2],
        origin=_frozen(origin),
        error=_frozen(error),
        tested=_widened(profiles.tested, origin.shape),
    )


def _widened(tested: Backtest | None, shape: tuple[int, ...]) -> Backtest | None:
    """Returns the backtest widened to `shape`; attributed series have NaN (not tested)."""
    if tested is None:
        return None
    wide = np.full((4, *shape), np.nan, np.float32)
    wide[:, : tested.regression.shape[0], : tested.regression.shape[1]] = msgspec.structs.astuple(tested)
    return Backtest(*_frozen(wide))


def _relative_error(found: Attribution) -> NDArray[np.float32]:
    """Returns float32[services, dimensions]: standard error / weight; NaN where the weight is 0."""
    is_some = found.weight > 0
    relative: NDArray[np.float32] = np.full(found.weight.shape, np.nan, np.float32)
    np.divide(found.standard_error, found.weight, out=relative, where=is_some)
    return relative


def _curves(found: Attribution, profiles: Profiles) -> tuple[Curves, Curves, Curves]:
    """Returns (peak, low, high) of the attributed services, each float32[services, dimensions, slots]."""
    hour = np.arange(profiles.slots) * profiles.slot_s // HOUR_S
    shape = found.own_shape[:, :, hour]
    peak_shape = shape * found.peak_share[:, None]
    margin = BAND_ERRORS * np.nan_to_num(found.standard_error)
    low = np.maximum(found.weight - margin, 0)[..., None] * shape
    high = (found.weight + margin)[..., None] * peak_shape
    return found.weight[..., None] * peak_shape, low, high


def _frozen(values: NDArray[np.generic]) -> NDArray[np.generic]:
    values.flags.writeable = False
    return values
