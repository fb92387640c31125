"""Sandbox sizes: requests are rounded up, and the price is that of the rounded size."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domains.job.providers.sizes import GIB, ListedSizes, Price, Size, SteppedSizes

sizes = st.builds(Size, st.integers(1, 64_000), st.integers(1, 512 * GIB))
requests = st.tuples(st.integers(0, 80_000), st.integers(0, 600 * GIB))
prices = st.builds(Price, st.floats(0, 10), st.floats(0, 10))


@given(st.lists(sizes, min_size=1, max_size=20), requests, prices)
def test_a_listed_size_is_the_cheapest_that_holds_the_requests(
    listed: list[Size], asked: tuple[int, int], price: Price
) -> None:
    found = ListedSizes(listed, price).rounded(*asked)
    holding = [size for size in listed if size.cpu_milli >= asked[0] and size.memory_bytes >= asked[1]]

    assert (found in holding) if holding else found is None
    if found is not None:
        assert price.of(found, 3600) == min(price.of(size, 3600) for size in holding)


@given(sizes, requests)
def test_a_stepped_size_is_the_least_multiple_that_holds_the_requests(step: Size, asked: tuple[int, int]) -> None:
    found = SteppedSizes(step).rounded(*asked)

    assert found is not None
    for size, unit, amount in (
        (found.cpu_milli, step.cpu_milli, asked[0]),
        (found.memory_bytes, step.memory_bytes, asked[1]),
    ):
        assert size % unit == 0
        assert size >= amount
        assert size - unit < max(amount, 1)


def test_requests_above_the_largest_size_have_none() -> None:
    stepped = SteppedSizes(Size(250, GIB), largest=Size(4000, 16 * GIB))

    assert stepped.rounded(3_900, 16 * GIB) == Size(4000, 16 * GIB)
    assert stepped.rounded(4_001, GIB) is None
    assert stepped.rounded(250, 16 * GIB + 1) is None


def test_price_is_that_of_the_rounded_size_and_its_time() -> None:
    price = Price(per_cpu=0.04, per_gib=0.005)
    fargate = ListedSizes([Size(1000, 2 * GIB), Size(500, GIB), Size(500, 2 * GIB)], price)
    size = fargate.rounded(300, GIB + 1)

    assert size == Size(500, 2 * GIB)
    assert price.of(size, 1800) == pytest.approx((0.5 * 0.04 + 2 * 0.005) / 2)


@pytest.mark.parametrize("wrong", [[], [Size(0, GIB)], [Size(1, 0)]])
def test_sizes_without_cpu_or_memory_are_refused(wrong: list[Size]) -> None:
    with pytest.raises(ValueError, match="positive"):
        ListedSizes(wrong, Price())
    for size in wrong:
        with pytest.raises(ValueError, match="positive"):
            SteppedSizes(size)
