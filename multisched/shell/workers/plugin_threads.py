"""Isolated plugins in threads: a few daemon threads per plugin, abandoned one by one if they hang.

A thread cannot be killed. A thread that does not answer in time, or whose caller is cancelled, counts as abandoned until its call
returns. While ABANDONED_THREADS_MAX threads are abandoned, calls of the plugin fail. Threads of anyio and concurrent.futures are not
used, because the interpreter waits for them at exit, and one that hangs would block the exit forever (I11).
"""

from __future__ import annotations

import asyncio
import queue
import threading

import anyio

from multisched.framework.isolation import IsolatedError, IsolatedRequest, IsolatedResponse, run_isolated
from multisched.framework.points import FilterPlugin, Plugin

THREADS_MAX = 8
"""Maximum number of threads per plugin that work concurrently."""

ABANDONED_THREADS_MAX = 4
"""Number of abandoned threads per plugin from which on its calls fail."""

_Job = tuple[IsolatedRequest, asyncio.AbstractEventLoop, "asyncio.Future[IsolatedResponse]"]


class ThreadWorker:
    """An `isolation.Worker` with threads. The plugin must be thread-safe."""

    def __init__(self, plugin: Plugin, timeout_s: float) -> None:
        self._plugin = plugin
        self._timeout_s = timeout_s
        self._point = "Filter" if isinstance(plugin, FilterPlugin) else "Score"
        self._places = anyio.CapacityLimiter(THREADS_MAX)
        self._idle: list[_Thread] = []
        self.abandoned = 0
        """Number of threads that are currently abandoned."""

    async def run(self, request: IsolatedRequest) -> IsolatedResponse:
        async with self._places:
            if self.abandoned >= ABANDONED_THREADS_MAX:
                raise IsolatedError(
                    self._point, f"{self.abandoned} of its threads hang; it is not called until one of them ends"
                )
            thread = self._idle.pop() if self._idle else _Thread(self._plugin)
            try:
                with anyio.fail_after(self._timeout_s):
                    return await self._answer(thread, request)
            except TimeoutError:
                text = f"no answer within {self._timeout_s:g} s; its thread is abandoned"
                raise IsolatedError(self._point, text) from None

    async def _answer(self, thread: _Thread, request: IsolatedRequest) -> IsolatedResponse:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[IsolatedResponse] = loop.create_future()
        thread.jobs.put((request, loop, future))
        try:
            return await future
        finally:
            if future.cancelled() or not future.done():
                self.abandoned += 1
                future.cancel()
                thread.on_late_end = self._ended
            else:
                self._idle.append(thread)

    def _ended(self, thread: _Thread) -> None:
        """Handles an abandoned thread whose call returned late; its answer is dropped."""
        self.abandoned -= 1
        thread.end()

    def close(self) -> None:
        """Ends idle threads. Threads that hang end with the process."""
        while self._idle:
            self._idle.pop().end()


class _Thread:
    """One daemon thread and its jobs. Only `jobs` is used by both threads."""

    def __init__(self, plugin: Plugin) -> None:
        self.jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self.on_late_end = _ignore
        self._plugin = plugin
        threading.Thread(target=self._work, name=f"plugin {plugin.name}", daemon=True).start()

    def end(self) -> None:
        self.jobs.put(None)

    def _work(self) -> None:
        while (job := self.jobs.get()) is not None:
            request, loop, future = job
            try:
                answer = run_isolated(self._plugin, request)
            except BaseException as error:  # noqa: BLE001 - contains plugin errors, including sys.exit
                answer = IsolatedResponse.failed("Filter", f"{type(error).__name__}: {error}")
            try:
                loop.call_soon_threadsafe(self._settle, future, answer)
            except RuntimeError:
                return  # the event loop is closed

    def _settle(self, future: asyncio.Future[IsolatedResponse], answer: IsolatedResponse) -> None:
        """Delivers the answer; runs on the event loop."""
        if future.cancelled():
            self.on_late_end(self)
        else:
            future.set_result(answer)


def _ignore(thread: _Thread) -> None:
    """Default callback: does nothing."""
