"""Weighted quantiles of the latest run times. Pure.

The last two runs weigh one half together, because recent runs predict best (Tsafrir, Etsion, Feitelson, TPDS 2007); older ones share the
other half. With up to four runs all weigh the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

LATEST: Final = 2
LATEST_WEIGHT: Final = 0.5
_ROUNDING: Final = 1e-9


def weights_of(count: int) -> list[float]:
    """Returns the weights of `count` runs, oldest first; their sum is 1."""
    if count <= 2 * LATEST:
        return [1.0 / count] * count
    older = (1.0 - LATEST_WEIGHT) / (count - LATEST)
    return [older] * (count - LATEST) + [LATEST_WEIGHT / LATEST] * LATEST


def quantile_of(values: Sequence[float], share: float, *, above: float = -1.0) -> float | None:
    """Returns the smallest value up to which the weights reach `share` of those of all values > `above`; None if there is none.

    `values`: oldest first.
    """
    weighted = sorted((v, w) for v, w in zip(values, weights_of(len(values)), strict=True) if v > above)
    wanted = share * sum(weight for _, weight in weighted) - _ROUNDING
    reached = 0.0
    for value, weight in weighted:
        reached += weight
        if reached >= wanted:
            return value
    return None
