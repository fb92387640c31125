"""Attributed profiles: weights from node totals as curves, where no use per replica is measured. Pure."""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from domains.forecast.curves.profiles import Backtest, Curves, Origin, Profiles
from domains.forecast.learning.attribution import Attribution
from domains.forecast.units import HOUR_S

BAND_ERRORS: Final = 2.0
"""Standard errors of the weight on each side of the band."""


def with_attribution(profiles: Profiles, found: Attribution) -> Profiles:
    """The same profiles, of services and dimensions of both; what was NONE and has a weight becomes ATTRIBUTED.

    The curve is the weight times the service's shape of the week times the peak of whole nodes over what is expected of them.
    Nodes average over their services, so a service's own peak may be higher. Undetermined weights stay NONE.
    The band and the error are of the weight: two standard errors to each side, and one over the weight.
    Raises ValueError where the two are of different time zones.
    """
    if profiles.zone != found.zone:
        raise ValueError(
            f"zone: profiles are in {profiles.zone}, the attribution in {found.zone}; fit both in one zone"
        )
    measured = profiles.numbers()
    services = profiles.services + tuple(name for name in found.services if name not in measured)
    number = {name: place for place, name in enumerate(services)}
    dimensions = profiles.dimensions + tuple(name for name in found.dimensions if name not in profiles.dimensions)
    columns = [dimensions.index(name) for name in found.dimensions]
    place = np.ix_([number[name] for name in found.services], columns)
    known = profiles.origin.shape
    origin = np.full((len(services), len(dimensions)), Origin.NONE, np.uint8)
    origin[: known[0], : known[1]] = profiles.origin
    error = np.full(origin.shape, np.nan, np.float32)
    error[: known[0], : known[1]] = profiles.error
    is_taken = (origin[place] == Origin.NONE) & ~np.isnan(found.weight)
    origin[place] = np.where(is_taken, np.uint8(Origin.ATTRIBUTED), origin[place])
    error[place] = np.where(is_taken, _relative_error(found), error[place])
    curves = []
    for curve, added in zip((profiles.peak, profiles.low, profiles.high), _curves(found, profiles), strict=True):
        whole = np.full((*origin.shape, profiles.slots), np.nan, np.float32)
        whole[: known[0], : known[1]] = curve
        whole[place] = np.where(is_taken[..., None], added, whole[place])
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
    """What is attributed is not tested."""
    if tested is None:
        return None
    wide = np.full((4, *shape), np.nan, np.float32)
    wide[:, : tested.regression.shape[0], : tested.regression.shape[1]] = msgspec.structs.astuple(tested)
    return Backtest(*_frozen(wide))


def _relative_error(found: Attribution) -> NDArray[np.float32]:
    """float32[services, dimensions]: the weight's standard error over the weight; NaN where the weight is nothing."""
    is_some = found.weight > 0
    relative: NDArray[np.float32] = np.full(found.weight.shape, np.nan, np.float32)
    np.divide(found.standard_error, found.weight, out=relative, where=is_some)
    return relative


def _curves(found: Attribution, profiles: Profiles) -> tuple[Curves, Curves, Curves]:
    """Peak, low and high, float32[services, dimensions, slots] of the attribution."""
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
