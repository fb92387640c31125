"""Quantiles over groups agree with numpy's, gaps included."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from multisched.forecasting.quantiles import grouped_quantiles

SAMPLES = st.one_of(st.just(np.float32(np.nan)), st.floats(0, 1e6, width=32))


@given(
    arrays(np.float32, (3, 17), elements=SAMPLES),
    arrays(np.int64, 17, elements=st.integers(-1, 4)),
    st.lists(st.floats(0, 1), min_size=1, max_size=3),
)
def test_quantiles_of_groups_are_those_of_numpy(values: np.ndarray, group: np.ndarray, levels: list[float]) -> None:
    found = grouped_quantiles(values, group, 5, levels)

    for row in range(3):
        for number in range(5):
            chosen = values[row, group == number]
            chosen = chosen[~np.isnan(chosen)]
            if len(chosen):
                np.testing.assert_allclose(found[:, row, number], np.quantile(chosen, levels), rtol=1e-5, atol=1e-30)
            else:
                assert np.isnan(found[:, row, number]).all()
