"""Workers that sleep find every piece of work, whatever wakes them in which order."""

from __future__ import annotations

import asyncio
import random

import pytest

from multisched.shell.idle_workers import IdleWorkers


async def test_one_work_item_wakes_one_idle_worker() -> None:
    idle_workers, awake = IdleWorkers(), []

    async def wait(name: str) -> None:
        await idle_workers.sleep()
        awake.append(name)

    tasks = [asyncio.ensure_future(wait(name)) for name in "abc"]
    await asyncio.sleep(0)
    idle_workers.wake_one()
    await asyncio.sleep(0)
    assert (awake, len(idle_workers)) == (["a"], 2)
    tasks[1].cancel()
    await asyncio.sleep(0)
    idle_workers.wake_one()
    await asyncio.sleep(0)
    assert (awake, len(idle_workers)) == (["a", "c"], 0)
    idle_workers.wake_one()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("seed", range(20))
async def test_no_work_item_is_left_unprocessed(seed: int) -> None:
    rng = random.Random(seed)
    idle_workers, work, done = IdleWorkers(), list[int](), list[int]()

    async def worker() -> None:
        while True:
            if not work:
                await idle_workers.sleep()
                continue
            done.append(work.pop())
            for _ in range(rng.randrange(3)):
                await asyncio.sleep(0)

    workers = [asyncio.ensure_future(worker()) for _ in range(5)]
    for number in range(200):
        work.append(number)
        idle_workers.wake_one()
        for _ in range(rng.randrange(3)):
            await asyncio.sleep(0)
    for _ in range(200):
        await asyncio.sleep(0)
    assert sorted(done) == list(range(200))
    assert len(idle_workers) == 5
    for task in workers:
        task.cancel()
    await asyncio.gather(*workers, return_exceptions=True)
