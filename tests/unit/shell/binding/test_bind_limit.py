"""The gate before the binds: never too many at once, first come first served; answers change how many."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multisched.framework.ports import BindAnswer
from multisched.shell.adaptive_width import Bounds
from multisched.shell.binding.bind_limit import BindLimit
from multisched.testing.sim_loop import SimLoop, simulate


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def enter(limit: BindLimit, name: int, order: list[int]) -> None:
    await limit.enter()
    order.append(name)


async def test_bind_slots_are_given_in_request_order() -> None:
    limit, order = BindLimit(Bounds(2, 2)), list[int]()
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
    limit, order = BindLimit(Bounds(1, 1)), list[int]()
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
    limit, order = BindLimit(Bounds(2, 400)), list[int]()
    tasks = [asyncio.create_task(enter(limit, number, order)) for number in range(400)]
    await settle()
    first = limit.width
    assert limit.in_flight == first < 400
    for _ in range(first):
        limit.observe(BindAnswer.CREATED, 0.0, 1.0)
    await settle()
    assert limit.in_flight == limit.width > first
    limit.set_bounds(Bounds(2, 400))
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_throttled_responses_of_one_round_trip_lower_the_limit_once() -> None:
    limit = BindLimit(Bounds(1, 64))
    first = limit.width
    for _ in range(first):
        await limit.enter()
    for at_s in (1.0, 1.1, 1.2):
        limit.observe(BindAnswer.THROTTLED, 0.0, at_s)
    once = limit.width
    assert 1 < once < first
    limit.observe(BindAnswer.THROTTLED, 1.3, 1.4)
    assert limit.width < once


@pytest.mark.parametrize("answer", [BindAnswer.DENIED, BindAnswer.REJECTED, BindAnswer.NOT_SENT, BindAnswer.DELEGATED])
def test_answers_that_no_server_load_explains_leave_the_limit_unchanged(answer: BindAnswer) -> None:
    limit = BindLimit(Bounds(1, 64))
    limit.in_flight = 64
    for number in range(200):
        limit.observe(BindAnswer.CREATED, number * 0.1, number * 0.1 + 0.1)
    before = limit.width, limit.unloaded_s
    for number in range(200):
        limit.observe(answer, 100.0 + number, 109.0 + number)
    assert (limit.width, limit.unloaded_s) == before


def test_binds_without_an_answer_in_time_lower_the_limit() -> None:
    limit = BindLimit(Bounds(1, 512))
    for began_s, answer, seconds in ((0, BindAnswer.CREATED, 0.1), (10_000, BindAnswer.UNKNOWN, 5.0)):
        for number in range(2_000):
            limit.in_flight = limit.width
            limit.observe(answer, began_s + number, began_s + number + seconds)
        if answer is BindAnswer.CREATED:
            assert limit.width == 512
    assert limit.width < 64


answers = st.sampled_from((BindAnswer.CREATED, BindAnswer.CREATED, BindAnswer.THROTTLED))


@given(st.integers(0, 1000), st.integers(1, 6), st.lists(st.tuples(st.floats(0.01, 1), answers), max_size=20))
def test_bind_limit_is_never_exceeded_and_every_waiter_is_admitted(
    seed: int, width_max: int, binds: list[tuple[float, BindAnswer]]
) -> None:
    loop = SimLoop(seed)
    limit = BindLimit(Bounds(1, width_max))
    done: list[BindAnswer] = []

    async def bind(seconds: float, answer: BindAnswer) -> None:
        await limit.enter()
        assert limit.in_flight <= width_max
        await asyncio.sleep(seconds)
        limit.observe(answer, loop.time() - seconds, loop.time())
        done.append(answer)
        limit.leave()

    async def main() -> None:
        await asyncio.gather(*(bind(*one) for one in binds))

    simulate(main(), loop)
    assert len(done) == len(binds)
    assert limit.in_flight == 0
