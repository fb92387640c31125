"""Least squares without negative weights: the conditions of optimality hold for any positive definite matrix."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from domains.forecast.learning.nonnegative import nonnegative


@given(st.integers(0, 10_000), st.integers(1, 25), st.booleans())
def test_nonnegative_solution_is_optimal(seed: int, count: int, is_near_singular: bool) -> None:
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(count, count))
    if is_near_singular and count > 1:
        root[:, -1] = root[:, 0] * (1 + 1e-4 * rng.normal(size=count))
    matrix = root.T @ root + 1e-6 * np.eye(count)
    right = rng.normal(size=count)

    found = nonnegative(matrix, right)

    gradient = matrix @ found - right
    assert (found >= 0).all()
    assert (gradient > -1e-6).all()
    assert np.abs(gradient[found > 0]).max(initial=0) < 1e-6


def test_positive_unconstrained_solution_is_returned_unchanged() -> None:
    np.testing.assert_allclose(nonnegative(np.diag([2.0, 4.0]), np.array([2.0, 2.0])), [1.0, 0.5])
