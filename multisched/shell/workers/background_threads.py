"""Threads of background tasks, for computations that take seconds."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Final, TypeVar, cast

logger = logging.getLogger(__name__)

THREADS_MAX: Final = 2
"""Maximum number of threads per background task, including abandoned ones that still run; further calls wait."""

T = TypeVar("T")


async def in_worker_thread(work: Callable[[], T]) -> T:
    """Runs `work` in a worker thread, for answers to requests. A cancelled call takes effect only after `work` has ended."""
    from anyio import to_thread  # imported here, because most programs never need it

    return await to_thread.run_sync(work)


class BackgroundThreads:
    """A `framework.background.InThread` with daemon threads: one that hangs does not delay the exit (I11)."""

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(THREADS_MAX)

    async def __call__(self, work: Callable[[], T]) -> T:
        """Waits for a slot, then runs `work`. Callers need a deadline, because a thread that hangs never frees its slot."""
        await self._places.acquire()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def run() -> None:
            result: T | None = None
            error: BaseException | None = None
            try:
                result = work()
            except BaseException as raised:  # noqa: BLE001 - raised in the caller
                error = raised
            try:
                loop.call_soon_threadsafe(self._ended, future, result, error)
            except RuntimeError:
                logger.debug("a thread of a background task ended after the loop")

        threading.Thread(target=run, name="background", daemon=True).start()
        return await future

    def _ended(self, future: asyncio.Future[T], result: T | None, error: BaseException | None) -> None:
        self._places.release()
        if future.done():  # the caller was cancelled
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(cast(T, result))
