"""Weighted quantiles of the latest run times. Pure.

The last two runs together have half of the weight, because recent runs predict best (Tsafrir, Etsion, Feitelson, TPDS 2007); older runs
share the other half. Up to four runs have equal weights. For runs from one distribution, the weighted P90 covers only 84 % of the next
runs, because it may be below six of 30 older runs. Therefore `bound_of` also uses an unweighted rank.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import cache
from math import ceil
from operator import itemgetter
from typing import Final

LATEST: Final = 2
LATEST_WEIGHT: Final = 0.5
_ROUNDING: Final = 1e-9


@cache
def weights_of(count: int) -> tuple[float, ...]:
    """Returns the weights of `count` runs, oldest first; their sum is 1."""
    if count <= 2 * LATEST:
        return (1.0 / count,) * count if count else ()
    older = (1.0 - LATEST_WEIGHT) / (count - LATEST)
    return (older,) * (count - LATEST) + (LATEST_WEIGHT / LATEST,) * LATEST


def bound_of(values: Sequence[float], share: float) -> float | None:
    """Returns a bound that the next value does not exceed with a probability of `share`; None if there are no values.

    It is the larger one of the weighted quantile, which follows recent runs, and the value of rank ceil(share * (n + 1)), which has this
    probability for n values of any one distribution (order statistics; Wilks 1941). If the rank exceeds n, the largest value is used.
    """
    weighted = quantile_of(values, share)
    if weighted is None:
        return None
    rank = min(len(values), ceil(share * (len(values) + 1) - _ROUNDING))
    return max(weighted, sorted(values)[rank - 1])


def quantile_of(values: Sequence[float], share: float, *, above: float = -1.0) -> float | None:
    """Returns the weighted quantile of the values greater than `above`; None if there are none.

    It is the smallest value such that it and the smaller ones have at least `share` of the weight. `values`: the oldest first.
    """
    weighted = sorted(zip(values, weights_of(len(values)), strict=True))
    weighted = weighted[bisect_right(weighted, above, key=itemgetter(0)) :]
    wanted = share * sum([weight for _, weight in weighted]) - _ROUNDING
    reached = 0.0
    for value, weight in weighted:
        reached += weight
        if reached >= wanted:
            return value
    return None
