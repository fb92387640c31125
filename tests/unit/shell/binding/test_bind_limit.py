"""The gate before the binds: never too many at once, first come first served, wider with success, narrower with 429."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multisched.framework.ports import BindAnswer
from multisched.shell.binding.bind_limit import LIMIT_MIN, BindLimit
from multisched.testing.sim_loop import SimLoop, simulate


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def enter(limit: BindLimit, name: int, order: list[int]) -> None:
    await limit.enter()
    order.append(name)


async def test_bind_slots_are_given_in_request_order() -> None:
    limit, order = BindLimit(2), list[int]()
    tasks = [asyncio.create_task(enter(limit, number, order)) for number in range(5)]
    await settle()
    assert order == [0, 1]
    limit.leave()
    newcomer = asyncio.create_task(enter(limit, 99, order))
    await settle()
    assert order == [0, 1, 2]
    for _ in range(4):
        limit.leave()
        await settle()
    assert order == [0, 1, 2, 3, 4, 99]
    await asyncio.gather(*tasks, newcomer)


async def test_cancelled_waiter_keeps_the_order_of_others() -> None:
    limit, order = BindLimit(1), list[int]()
    await limit.enter()
    first, second = (asyncio.create_task(enter(limit, number, order)) for number in (1, 2))
    await settle()
    limit.leave()  # the place is the first waiter's now
    first.cancel()
    await settle()
    assert order == [2]
    assert limit.in_flight == 1
    third = asyncio.create_task(enter(limit, 3, order))
    await settle()
    third.cancel()
    limit.leave()
    await settle()
    assert limit.in_flight == 0
    await asyncio.gather(first, second, third, return_exceptions=True)


async def test_successful_binds_raise_the_limit_and_admit_waiters() -> None:
    limit, order = BindLimit(100), list[int]()
    tasks = [asyncio.create_task(enter(limit, number, order)) for number in range(40)]
    await settle()
    assert limit.in_flight == int(limit.width) == 16
    for _ in range(17):
        limit.observe(BindAnswer.CREATED)
    await settle()
    assert limit.in_flight == int(limit.width) == 17
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("width_max", [1, 5, 64])
def test_bind_limit_stays_within_its_bounds(width_max: int) -> None:
    limit = BindLimit(width_max)
    for _ in range(10_000):
        limit.observe(BindAnswer.CREATED)
    assert limit.width == width_max
    limit.observe(BindAnswer.THROTTLED)
    assert limit.width == max(min(LIMIT_MIN, width_max), width_max / 2)
    for _ in range(100):
        limit.observe(BindAnswer.THROTTLED)
    assert limit.width == min(LIMIT_MIN, width_max)


async def test_throttled_responses_of_one_round_trip_halve_the_limit_once() -> None:
    limit = BindLimit(64)
    for _ in range(16):
        await limit.enter()
    for _ in range(16):
        limit.observe(BindAnswer.THROTTLED)
        limit.leave()
    assert limit.width == 8
    for _ in range(8):
        await limit.enter()
    limit.observe(BindAnswer.THROTTLED)
    assert limit.width == 4


@pytest.mark.parametrize("answer", [a for a in BindAnswer if a not in (BindAnswer.CREATED, BindAnswer.THROTTLED)])
def test_other_responses_leave_the_bind_limit_unchanged(answer: BindAnswer) -> None:
    limit = BindLimit(64)
    before = limit.width
    limit.observe(answer)
    assert limit.width == before


answers = st.sampled_from((BindAnswer.CREATED, BindAnswer.CREATED, BindAnswer.THROTTLED))


@given(st.integers(0, 1000), st.integers(1, 6), st.lists(st.tuples(st.floats(0.01, 1), answers), max_size=20))
def test_bind_limit_is_never_exceeded_and_every_waiter_is_admitted(
    seed: int, width_max: int, binds: list[tuple[float, BindAnswer]]
) -> None:
    loop = SimLoop(seed)
    limit = BindLimit(width_max)
    done: list[BindAnswer] = []

    async def bind(seconds: float, answer: BindAnswer) -> None:
        await limit.enter()
        assert limit.in_flight <= width_max
        await asyncio.sleep(seconds)
        limit.observe(answer)
        done.append(answer)
        limit.leave()

    async def main() -> None:
        await asyncio.gather(*(bind(*one) for one in binds))

    simulate(main(), loop)
    assert len(done) == len(binds)
    assert limit.in_flight == 0
