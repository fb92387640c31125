"""Shrinkage: how far a curve's swing over the week is believed, by what it foretold of the held-out days.

Where a service has no week of its own, its curve is the noise of few samples per slot, and placement would follow that.
A curve goes towards the plainest day (`day_wave`), by as many quarters as foretell the held-out days nearly as well as
the best do. Of days that are strong that is few or none, of mere noise all four.

Sources: J. B. Copas, Regression, Prediction and Shrinkage (1983): a prediction is shrunk by what fits new data. L. Breiman
et al., Classification and Regression Trees (1984), 3.4.3: of those that are as good within the error, the plainest. Loss is
pinball, as in the backtest, and what it is compared with is a median, so that few absurd samples say little. Pure functions.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from domains.forecast.curves.slot_grid import Numbers
from domains.forecast.learning.pinball import mean_loss
from domains.forecast.learning.quantiles import Series, flat_quantiles

SHARES: Final = (1.0, 0.75, 0.5, 0.25, 0.0)
"""Of the curve that may be kept. Finer ones would take the chance of a week for knowledge."""

PLAINER_LOSS: Final = 0.03
"""Of the spread: so much more may the plainest day lose than the whole curve, and counts as good. Of noise it is half the loss."""

Shares = NDArray[np.float32]
"""float32[series], of SHARES; 1 where nothing tells."""


def mixture_losses(
    curve: NDArray[np.float32], plain: NDArray[np.float32], truth: Series, slot: Numbers, quantile: float
) -> NDArray[np.float64]:
    """float64[shares, series]: how badly each mixture of `curve` and `plain`, float32[series, slots] both, foretells the truth.

    By SHARES: the first is that of the whole curve, the last that of `plain`.
    """
    above_curve, above_plain = (truth - np.take(one, slot, axis=1) for one in (curve, plain))
    return np.stack([mean_loss(_mixed(above_curve, above_plain, np.float32(share)), quantile) for share in SHARES])


def spread_around(curve: NDArray[np.float32], truth: Series, slot: Numbers) -> NDArray[np.float32]:
    """float32[series]: how far the truth usually is from the whole curve."""
    spread: NDArray[np.float32] = flat_quantiles(np.abs(truth - np.take(curve, slot, axis=1)), (0.5,))[0]
    return spread


def kept_shares(losses: NDArray[np.float64], spread: NDArray[np.float32]) -> Shares:
    """How much of a curve the mixture has that foretells best, where plainer ones may lose a little more.

    `losses`: of `mixture_losses`; `spread`: of `spread_around`.
    """
    shares = np.array(SHARES, np.float32)
    leaning = losses + PLAINER_LOSS * shares[:, None] * spread
    chosen: Shares = shares[leaning.argmin(axis=0)]  # the first one of NaN: where nothing tells, all is NaN
    return chosen


def shrunk(curves: NDArray[np.float32], plain: NDArray[np.float32], kept: Shares) -> NDArray[np.float32]:
    """float32[levels, series, slots]: between each curve and the plain one of the same quantile, of the same shape."""
    return _mixed(curves, plain, kept[:, None])


def _mixed(curve: NDArray[np.float32], plain: NDArray[np.float32], share: Shares | np.float32) -> NDArray[np.float32]:
    mixed: NDArray[np.float32] = share * curve + (1 - share) * plain
    return mixed
