"""Virtual time, seeded order, and processes that stand still."""

from __future__ import annotations

import asyncio
import contextvars

import pytest

from multisched.testing.sim_loop import PROCESS, SimClock, SimLoop, StuckError, simulate


def test_an_hour_costs_nothing() -> None:
    loop = SimLoop(seed=1)

    async def main() -> float:
        await asyncio.sleep(3600.0)
        return loop.time()

    assert simulate(main(), loop) == 3600.0
    assert SimClock(loop).now().hour == 1


def _order(seed: int) -> list[int]:
    order: list[int] = []

    async def one(number: int) -> None:
        await asyncio.sleep(0)
        order.append(number)

    async def main() -> None:
        await asyncio.gather(*(one(number) for number in range(8)))

    simulate(main(), SimLoop(seed))
    return order


def test_the_seed_decides_the_order() -> None:
    assert _order(1) == _order(1)
    assert len({tuple(_order(seed)) for seed in range(10)}) > 5


def test_cancelled_set_of_tasks_ends_in_the_same_order_each_time() -> None:
    """A task group walks a set, whose order is that of addresses."""

    def run() -> list[int]:
        ended: list[int] = []

        async def one(number: int) -> None:
            try:
                await asyncio.sleep(10.0)
            finally:
                ended.append(number)

        async def main() -> None:
            tasks = {asyncio.ensure_future(one(number)) for number in range(16)}
            await asyncio.sleep(1.0)
            for task in tasks:
                task.cancel()
            await asyncio.sleep(1.0)

        simulate(main(), SimLoop(seed=3))
        return ended

    kept_alive = []
    first = run()
    for _ in range(5):
        kept_alive.append([object() for _ in range(1000)])
        assert run() == first


def test_paused_process_does_not_run_while_others_do() -> None:
    loop = SimLoop(seed=1)
    ticks: dict[str, list[float]] = {"a": [], "b": []}

    async def tick(name: str) -> None:
        while True:
            await asyncio.sleep(1.0)
            ticks[name].append(loop.time())

    async def main() -> None:
        for name in ticks:
            context = contextvars.copy_context()
            context.run(PROCESS.set, name)
            loop.create_task(tick(name), context=context)
        await asyncio.sleep(2.5)
        loop.pause("a")
        await asyncio.sleep(5.0)
        loop.resume("a")
        await asyncio.sleep(1.6)

    simulate(main(), loop)

    assert ticks["a"] == [1.0, 2.0, 7.5, 8.5]
    assert ticks["b"] == [float(second) for second in range(1, 10)]


def test_waiting_for_what_cannot_come_is_an_error() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(StuckError):
        simulate(main(), SimLoop(seed=1))
