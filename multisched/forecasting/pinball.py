"""Pinball loss, the error measure of the backtest and of shrinkage. Pure."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from multisched.forecasting.quantiles import Series


def pinball(above: Series, quantile: float) -> NDArray[np.float64]:
    """Returns float64[series]: mean pinball loss over the known samples; NaN without samples. `above`: truth - curve."""
    loss = np.maximum(quantile * above, (quantile - 1) * above)
    is_known = loss == loss
    count = np.count_nonzero(is_known, axis=1)
    total = np.where(is_known, loss, 0).sum(axis=1, dtype=np.float64)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)
