"""Weighted quantiles of the latest run times. Pure.

The last two runs weigh one half together, because recent runs predict best (Tsafrir, Etsion, Feitelson, TPDS 2007); older ones share the
other half. With up to four runs all weigh the same. The weighted P90 alone covers 84 % of runs that come from one distribution, because
six of 30 older ones may be above it; so `bound_of` is at least the rank that covers the next run (see there).
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
    """Returns a value that the next one does not exceed with a probability of `share`; None if there are no values.

    It is the larger of two: the weighted quantile, which follows recent runs, and the value of rank ceil(share * (n + 1)), which holds
    for any n values of one distribution (order statistics; Wilks 1941). With fewer values than that rank, the largest.
    """
    weighted = quantile_of(values, share)
    if weighted is None:
        return None
    rank = min(len(values), ceil(share * (len(values) + 1) - _ROUNDING))
    return max(weighted, sorted(values)[rank - 1])


def quantile_of(values: Sequence[float], share: float, *, above: float = -1.0) -> float | None:
    """Returns the smallest value up to which the weights reach `share` of those of all values > `above`; None if there is none.

    `values`: oldest first.
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
