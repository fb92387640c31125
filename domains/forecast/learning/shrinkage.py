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

from domains.forecast.learning.pinball import pinball
from domains.forecast.learning.quantiles import Series, flat_quantiles

SHARES: Final = (1.0, 0.75, 0.5, 0.25, 0.0)
"""Of the curve that may be kept. Finer ones would take the chance of a week for knowledge."""

PLAINER_LOSS: Final = 0.03
"""Of the spread: so much more may the plainest day lose than the whole curve, and counts as good. Of noise it is half the loss."""

Shares = NDArray[np.float32]
"""float32[series], of SHARES; 1 where nothing tells."""


def mixture_losses(above_curve: Series, above_plain: Series, quantile: float) -> NDArray[np.float64]:
    """float64[shares, series]: how badly each mixture of a curve and the plainest day foretells the truth.

    By how far the truth lies above each of them, float32[series, steps]. By SHARES: the first is that of the whole curve.
    """
    return np.stack([pinball(_mixed(above_curve, above_plain, np.float32(share)), quantile) for share in SHARES])


def kept_shares(losses: NDArray[np.float64], above_curve: Series) -> Shares:
    """How much of a curve the mixture has that foretells best, where plainer ones may lose a little more.

    `losses`: of `mixture_losses`. The spread is how far the truth usually is from the whole curve.
    """
    shares, spread = np.array(SHARES, np.float32), flat_quantiles(np.abs(above_curve), (0.5,))[0]
    leaning = losses + PLAINER_LOSS * shares[:, None] * spread
    chosen: Shares = shares[leaning.argmin(axis=0)]  # the first one of NaN: where nothing tells, all is NaN
    return chosen


def shrunk(curves: NDArray[np.float32], plain: NDArray[np.float32], kept: Shares) -> NDArray[np.float32]:
    """float32[levels, series, slots]: between each curve and the plain one of the same quantile, of the same shape."""
    return _mixed(curves, plain, kept[:, None])


def _mixed(curve: NDArray[np.float32], plain: NDArray[np.float32], share: Shares | np.float32) -> NDArray[np.float32]:
    mixed: NDArray[np.float32] = share * curve + (1 - share) * plain
    return mixed
