"""Durations as Go writes and reads them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multisched.model.go_duration import go_duration, parse_go_duration


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (3, "3s"),
        (1.5, "1.5s"),
        (0.25, "250ms"),
        (0.0015, "1.5ms"),
        (2e-6, "2µs"),
        (5e-9, "5ns"),
        (60, "1m0s"),
        (900, "15m0s"),
        (3723.5, "1h2m3.5s"),
        (7200, "2h0m0s"),
    ],
)
def test_duration_is_read_as_in_go(seconds: float, text: str) -> None:
    assert go_duration(seconds) == text


@given(st.integers(0, 10**13))
def test_written_duration_reads_back_equal(nanoseconds: int) -> None:
    assert parse_go_duration(go_duration(nanoseconds / 1e9)) == pytest.approx(nanoseconds / 1e9, abs=1e-9)
