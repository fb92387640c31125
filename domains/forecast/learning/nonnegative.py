"""Non-negative least squares by block principal pivoting. Pure."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

TOLERANCE: Final = 1e-10
"""Negative values above minus this share of the largest right-hand side count as zero."""
TRIES: Final = 3
"""Number of full exchanges without progress before single exchanges (Murty's rule)."""
PIVOTS_PER_WEIGHT: Final = 20


def nonnegative(matrix: NDArray[np.float64], right: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns float64[weights]: x >= 0 that minimises x @ matrix @ x / 2 - right @ x. `matrix` must be positive definite.

    Each step exchanges all variables with a negative weight or a negative gradient; without progress it uses Murty's
    rule.
    Source: Kim and Park, Fast nonnegative matrix factorization, SIAM J. Sci. Comput. 33 (2011), section 3.
    """
    count = len(right)
    is_free = np.ones(count, np.bool_)
    least_wrong, tries, slack = count + 1, TRIES, TOLERANCE * float(np.abs(right).max(initial=0.0))
    found = np.zeros(count)
    for _ in range(PIVOTS_PER_WEIGHT * (count + 1)):
        free = np.flatnonzero(is_free)
        found = np.zeros(count)
        found[free] = np.linalg.solve(matrix[np.ix_(free, free)], right[free])
        gradient = matrix @ found - right
        is_wrong = np.where(is_free, found, gradient) < -slack
        wrong = int(is_wrong.sum())
        if not wrong:
            break
        if wrong < least_wrong:
            least_wrong, tries = wrong, TRIES
        else:
            tries -= 1
        if tries < 0:
            is_wrong[: np.flatnonzero(is_wrong)[-1]] = False
        is_free ^= is_wrong
    return np.maximum(found, 0)
