"""An asyncio loop with virtual time and a task order drawn from a seed.

When nothing is ready, time jumps to the next timer: an hour of backoff costs microseconds. Ready tasks run in a random
order drawn from the seed: different seeds give different interleavings, and the same seed gives the same run (I12). It runs
unchanged asyncio and anyio code; it uses the private `_run_once`, `_ready` and `_scheduled` of CPython's base loop.

Each task belongs to the simulated process that its context names (`PROCESS`). A process can be paused, as by SIGSTOP or on a stalled
machine: none of its tasks run, while time, the network and all other processes continue.
"""

from __future__ import annotations

import asyncio
import heapq
import random
import selectors
from collections.abc import Coroutine
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
STEPS_MAX = 20_000_000
"""Loop iterations after which a run counts as stuck."""

CANCELLED_TIMERS_MAX = 100
"""Cancelled timers are removed from the heap if it has more than this number of timers and more than half of them are cancelled."""

PROCESS: ContextVar[str] = ContextVar("PROCESS", default="")
"""The simulated process of the running task; empty for tasks of no process."""

T = TypeVar("T")


class StuckError(Exception):
    """The simulated program ran for STEPS_MAX iterations, or waits for an event that cannot happen."""


class _NoFiles(selectors.SelectSelector):
    """Never polls: the simulation has no real I/O, and polling would cost more than the rest of an iteration."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return []


class _Task(asyncio.Task[T]):
    """A task with its creation number."""

    number = 0


class SimLoop(asyncio.SelectorEventLoop):
    """An event loop with virtual time and a seeded order of tasks. `time()` starts at 0."""

    def __init__(self, seed: int) -> None:
        super().__init__(_NoFiles())
        self._virtual_s = 0.0
        self._order = random.Random(seed)  # noqa: S311 - an interleaving, not a secret
        self._steps = 0
        self._paused: dict[str, list[Any]] = {}
        self._created = 0
        self.set_task_factory(self._numbered)

    def _numbered(self, loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
        """Numbers tasks by creation, to sort them: a set of tasks, such as that of a cancelled task group, has no stable order."""
        task: _Task[Any] = _Task(coro, loop=loop, **options)
        self._created += 1
        task.number = self._created
        return task

    def time(self) -> float:
        return self._virtual_s

    @property
    def iteration(self) -> int:
        """Returns how often the loop has run its ready tasks."""
        return self._steps

    def pause(self, process: str) -> None:
        """Stops all tasks of the process at their current await."""
        self._paused.setdefault(process, [])

    def is_paused(self, process: str) -> bool:
        return process in self._paused

    def resume(self, process: str) -> None:
        """Resumes the process; all tasks and timers that became ready meanwhile are ready now."""
        ready: Any = self._ready  # type: ignore[attr-defined]
        ready.extend(self._paused.pop(process, ()))

    def _run_once(self) -> None:
        """Does one iteration like the base loop, but in seeded order, without I/O and debugging."""
        self._steps += 1
        if self._steps > STEPS_MAX:
            raise StuckError(f"{STEPS_MAX} loop iterations")
        ready: Any = self._ready  # type: ignore[attr-defined]
        self._collect_ready(ready)
        if len(ready) > 1:
            # The order must depend only on the seed, not on the order in which a set of tasks was iterated.
            shuffled = sorted(ready, key=_number)
            self._order.shuffle(shuffled)
            ready.clear()
            ready.extend(shuffled)
        self._collect_at_once(ready)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:  # noqa: SLF001
                handle._run()  # noqa: SLF001

    def _collect_at_once(self, ready: Any) -> None:
        """Appends timers due within the clock's resolution, after all others; drops cancelled timers."""
        scheduled: Any = self._scheduled  # type: ignore[attr-defined]
        cancelled: int = self._timer_cancelled_count  # type: ignore[has-type]
        if len(scheduled) > CANCELLED_TIMERS_MAX and cancelled > len(scheduled) / 2:
            scheduled[:] = [timer for timer in scheduled if not timer._cancelled]  # noqa: SLF001
            heapq.heapify(scheduled)
            self._timer_cancelled_count = 0
        end_s = self._virtual_s + self._clock_resolution  # type: ignore[attr-defined]
        while scheduled and (scheduled[0]._cancelled or scheduled[0]._when < end_s):  # noqa: SLF001
            timer = heapq.heappop(scheduled)
            timer._scheduled = False  # noqa: SLF001 - as the base loop does
            if not timer._cancelled:  # noqa: SLF001
                ready.append(timer)

    def _collect_ready(self, ready: Any) -> None:
        """Advances time until a task of a process that is not paused is ready."""
        scheduled: Any = self._scheduled  # type: ignore[attr-defined]
        while True:
            while scheduled and (scheduled[0]._cancelled or scheduled[0]._when <= self._virtual_s):  # noqa: SLF001
                timer = heapq.heappop(scheduled)
                timer._scheduled = False  # noqa: SLF001 - as the base loop does
                if not timer._cancelled:  # noqa: SLF001
                    ready.append(timer)
            if self._paused:
                self._hold_paused(ready)
            if ready:
                return
            if not scheduled:
                raise StuckError("nothing is ready and no timer is set")
            self._virtual_s = max(self._virtual_s, scheduled[0]._when)  # noqa: SLF001

    def _hold_paused(self, ready: Any) -> None:
        free = []
        for handle in ready:
            held = self._paused.get(handle._context.get(PROCESS, ""))  # noqa: SLF001
            if held is None:
                free.append(handle)
            else:
                held.append(handle)
        ready.clear()
        ready.extend(free)


def _number(handle: Any) -> int:
    """Returns the number of the task that the handle runs; 0 if it runs no task."""
    owner = getattr(handle._callback, "__self__", None)  # noqa: SLF001
    return owner.number if isinstance(owner, _Task) else 0


class SimClock:
    """The loop's virtual time as a Clock."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop

    def monotonic(self) -> float:
        return self._loop.time()

    def now(self) -> datetime:
        return EPOCH + timedelta(seconds=self._loop.time())


def simulate(main: Coroutine[Any, Any, T], loop: SimLoop) -> T:
    """Runs a coroutine to its end in virtual time and closes the loop."""
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(main)
