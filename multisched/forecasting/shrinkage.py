"""Shrinkage: moves a curve towards a simple day wave, depending on how well the curve predicted the held-out days.

If a service has no weekly pattern, its curve is noise from few samples per slot, and placement would follow the noise.
So the curve is mixed with the service's day wave (`day_wave`) in steps of a quarter. The simplest mixture is chosen that
predicts the held-out days nearly as well as the best one. Strong patterns keep most or all of the curve; noise keeps none.

Sources: J. B. Copas, Regression, Prediction and Shrinkage (1983): a prediction is shrunk by its fit to new data. L. Breiman
et al., Classification and Regression Trees (1984), 3.4.3: of models that are equally good within the error, take the
simplest. The loss is pinball, as in the backtest. The tolerance is relative to a median, so outliers do not raise it. Pure.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from multisched.forecasting.pinball import pinball
from multisched.forecasting.quantiles import Series, flat_quantiles

SHARES: Final = (1.0, 0.75, 0.5, 0.25, 0.0)
"""Candidate shares of the curve in the mixture. Finer steps would follow the noise of the held-out days."""

PLAINER_LOSS: Final = 0.03
"""The day wave is chosen if its loss exceeds that of the curve by at most this share of the spread (see `kept_shares`)."""

Shares = NDArray[np.float32]
"""float32[series], values of SHARES; 1 if not tested."""


def mixture_losses(above_curve: Series, above_plain: Series, quantile: float) -> NDArray[np.float64]:
    """Returns float64[shares, series]: pinball loss of each mixture of curve and day wave, in the order of SHARES.

    `above_curve`, `above_plain`: truth - curve and truth - day wave, float32[series, steps].
    """
    return np.stack([pinball(_mixed(above_curve, above_plain, np.float32(share)), quantile) for share in SHARES])


def kept_shares(losses: NDArray[np.float64], above_curve: Series) -> Shares:
    """Returns the share of the curve in the mixture with the lowest loss plus PLAINER_LOSS * share * spread.

    `losses`: from `mixture_losses`. The spread is the median distance of the truth from the curve.
    """
    shares, spread = np.array(SHARES, np.float32), flat_quantiles(np.abs(above_curve), (0.5,))[0]
    leaning = losses + PLAINER_LOSS * shares[:, None] * spread
    # All losses of an untested series are NaN: argmin returns 0, which is share 1.
    chosen: Shares = shares[leaning.argmin(axis=0)]
    return chosen


def shrunk(curves: NDArray[np.float32], plain: NDArray[np.float32], kept: Shares) -> NDArray[np.float32]:
    """Returns float32[levels, series, slots]: the mixture of curves and day waves (same shape) with the kept shares."""
    return _mixed(curves, plain, kept[:, None])


def _mixed(curve: NDArray[np.float32], plain: NDArray[np.float32], share: Shares | np.float32) -> NDArray[np.float32]:
    mixed: NDArray[np.float32] = share * curve + (1 - share) * plain
    return mixed
