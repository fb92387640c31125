"""Shrinkage: how far a curve's swing over the week is believed, by what it foretold of the held-out days.

Where a service has no week of its own, its curve is the noise of few samples per slot, and placement would follow that.
A curve goes towards one quantile for the whole week, by as many quarters as foretell the held-out days best. Of days that
are strong that is none, of mere noise all four.

Source: J. B. Copas, Regression, Prediction and Shrinkage (1983): a prediction is shrunk by what fits new data. The loss
is that by which the backtest chooses the kind of curve, pinball, so that few absurd samples say little. Pure functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from domains.forecast.curves.slot_grid import Numbers
from domains.forecast.learning.pinball import pinball
from domains.forecast.learning.quantiles import Series, flat_quantiles

SHARES: Final = (1.0, 0.75, 0.5, 0.25, 0.0)
"""Of the curve that may be kept. Finer ones would take the chance of a week for knowledge."""

GAIN_MIN: Final = 0.03
"""Of the loss of the whole curve: by so much less at least, or all of it is kept. Where days are weak it is 5 to 30 %."""

Shares = NDArray[np.float32]
"""float32[series], of SHARES; 1 where nothing tells."""


def mixture_losses(
    curve: NDArray[np.float32], flat: NDArray[np.float32], truth: Series, slot: Numbers, quantile: float
) -> NDArray[np.float64]:
    """float64[shares, series]: how badly each mixture of `curve` and `flat`, float32[series, slots] both, foretells the truth.

    By SHARES: the first is that of the whole curve, the last that of `flat`.
    """
    return np.stack([pinball(truth, _mixed(curve, flat, np.float32(share)), slot, quantile) for share in SHARES])


def kept_shares(losses: NDArray[np.float64]) -> Shares:
    """How much of a curve the mixture with the least loss has, by `mixture_losses`."""
    losses = np.where(np.isnan(losses), np.inf, losses)
    best, least = losses.argmin(axis=0), losses.min(axis=0)
    chosen: Shares = np.where(least < (1 - GAIN_MIN) * losses[0], np.array(SHARES, np.float32)[best], np.float32(1))
    return chosen


def shrunk(curves: NDArray[np.float32], values: Series, kept: Shares, levels: Sequence[float]) -> NDArray[np.float32]:
    """float32[levels, series, slots]: between each curve and the same quantile of all samples."""
    flat = flat_quantiles(values, levels)[:, :, None]
    return np.where(kept[:, None] < 1, _mixed(curves, flat, kept[:, None]), curves)


def _mixed(curve: NDArray[np.float32], flat: NDArray[np.float32], share: Shares | np.float32) -> NDArray[np.float32]:
    mixed: NDArray[np.float32] = share * curve + (1 - share) * flat
    return mixed
