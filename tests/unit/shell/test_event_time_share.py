"""Decisions leave the loop to what the watches bring: as long as that keeps coming, and half of the time at most."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count

from multisched.shell.event_time_share import READS_MAX, TURNS_PER_READ, EventTimeShare
from multisched.testing.sim_loop import SimLoop, simulate
from tests.unit.shell.shell_kit import WorkerHarness


class Watch:
    """Has so many chunks to bring, one in each turn of the loop."""

    def __init__(self, chunks: int) -> None:
        self.left = chunks
        self.handled = 0

    async def run(self) -> None:
        while self.left:
            await asyncio.sleep(0)
            self.left -= 1
            self.handled += 1


def stopwatch(step_s: float) -> Callable[[], float]:
    """Each look at it takes so long."""
    return (number * step_s for number in count(1)).__next__


async def handled_in_a_pause(chunks: int, seconds: float) -> int:
    watch = Watch(chunks)
    reading = asyncio.create_task(watch.run())
    await EventTimeShare(lambda: watch.handled, stopwatch(0.001)).pause(seconds)
    reading.cancel()
    return watch.handled


async def test_watch_with_buffered_events_is_read_to_its_end() -> None:
    assert await handled_in_a_pause(20, seconds=1.0) == 20


async def test_decisions_resume_after_waiting_as_long_as_they_ran() -> None:
    assert 5 <= await handled_in_a_pause(1_000, seconds=0.005) <= 12


async def test_stopped_clock_delays_no_decision() -> None:
    watch = Watch(10_000)
    reading = asyncio.create_task(watch.run())
    await EventTimeShare(lambda: watch.handled, stopwatch(0.0)).pause(0.005)
    reading.cancel()
    assert watch.handled <= READS_MAX * TURNS_PER_READ + 1


def test_single_cycle_runs_without_remote_plugins() -> None:
    """A decision then waits for nothing: eight cycles would take the loop eight times between two reads of a watch."""
    loop = SimLoop(seed=1)

    async def main() -> int:
        harness = WorkerHarness(loop, "n0", profile="default")
        working = asyncio.create_task(harness.worker.run())
        await asyncio.sleep(0.1)
        cycles = harness.worker.intake.sleepers
        working.cancel()
        return cycles

    assert simulate(main(), loop) == 1
