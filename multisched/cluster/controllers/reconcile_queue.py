"""A work queue of keys: level-triggered, one worker per key at a time, backoff on errors.

A key added while it is reconciled is reconciled again afterwards. A key whose reconcile failed is retried after a growing
delay. A reconcile function reads caches and returns the seconds after which it must be called again (None: at the next
change). Used by the controllers of the embedded cluster.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import math
import random
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from multisched.cluster.client.object_client import RefusedError
from multisched.model.wire import TransportError

logger = logging.getLogger(__name__)

BACKOFF_FIRST_S, BACKOFF_MAX_S = 0.05, 60.0
DELAY_MAX_S = 24 * 3600.0
RESOLUTION_S = 0.001
"""A timer counts as due this much early. Loops fire timers slightly early, and a key must not be retried in a tight loop until then."""
_CONFLICT = 409

Reconcile = Callable[[str], Awaitable[float | None]]


@dataclass(frozen=True, slots=True)
class QueueStatistics:
    """Counts since the start, and current queue lengths."""

    waiting: int
    running: int
    delayed: int
    reconciled: int
    failed: int


class ReconcileQueue:
    """Calls one reconcile function for queued keys, at most `workers` concurrently."""

    def __init__(self, name: str, reconcile: Reconcile, *, rng: random.Random, workers: int = 4) -> None:
        self.name = name
        self._reconcile = reconcile
        self._rng = rng
        self._workers = workers
        self._ready: deque[str] = deque()
        self._waiting: set[str] = set()
        self._running: set[str] = set()
        self._again: set[str] = set()
        self._failures: dict[str, int] = {}
        self._due: dict[str, float] = {}
        self._timers: list[tuple[float, str]] = []
        self._has_ready = asyncio.Event()
        self._has_timer = asyncio.Event()
        self._reconciled = self._failed = 0

    def add(self, key: str) -> None:
        """Queues the key; adding it again before it runs has no effect."""
        if key in self._running:
            self._again.add(key)
        elif key not in self._waiting:
            self._waiting.add(key)
            self._ready.append(key)
            self._has_ready.set()

    def add_after(self, key: str, delay_s: float) -> None:
        """Queues the key after a delay; the earliest of several delays applies."""
        due = asyncio.get_running_loop().time() + min(max(delay_s, 0.0), DELAY_MAX_S)
        if due < self._due.get(key, math.inf):
            self._due[key] = due
            heapq.heappush(self._timers, (due, key))
            self._has_timer.set()

    def statistics(self) -> QueueStatistics:
        return QueueStatistics(len(self._waiting), len(self._running), len(self._due), self._reconciled, self._failed)

    async def run(self) -> None:
        """Runs until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._run_timers(), name=f"{self.name} timers")
            for number in range(self._workers):
                group.create_task(self._work(), name=f"{self.name} {number}")

    async def _run_timers(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._has_timer.clear()
            now = loop.time() + RESOLUTION_S
            while self._timers and self._timers[0][0] <= now:
                due, key = heapq.heappop(self._timers)
                if self._due.get(key) == due:
                    del self._due[key]
                    self.add(key)
            try:
                async with asyncio.timeout_at(self._timers[0][0] if self._timers else None):
                    await self._has_timer.wait()
            except TimeoutError:
                continue

    async def _work(self) -> None:
        while True:
            while not self._ready:
                self._has_ready.clear()
                await self._has_ready.wait()
            key = self._ready.popleft()
            self._waiting.discard(key)
            self._running.add(key)
            try:
                await self._run_one(key)
            finally:
                self._running.discard(key)
            if key in self._again:
                self._again.discard(key)
                self.add(key)

    async def _run_one(self, key: str) -> None:
        """Reconciles one key. Retries the key after any exception, so that an error affects no other key; logs all errors except 409."""
        self._reconciled += 1
        try:
            requeue_after_s = await self._reconcile(key)
        except RefusedError as refused:
            if refused.answer.status != _CONFLICT:
                logger.warning("reconcile refused", extra={"queue": self.name, "key": key, "error": str(refused)})
            self._retry(key, refused.answer.retry_after_s)
        except TransportError as error:
            logger.info("reconcile lost its connection", extra={"queue": self.name, "key": key, "error": str(error)})
            self._retry(key, 0.0)
        except Exception:
            logger.exception("reconcile failed", extra={"queue": self.name, "key": key})
            self._retry(key, 0.0)
        else:
            self._failures.pop(key, None)
            if requeue_after_s is not None:
                self.add_after(key, requeue_after_s)

    def _retry(self, key: str, retry_after_s: float) -> None:
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        self._failed += 1
        delay_s = min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2 ** min(failures - 1, 20))
        self.add_after(key, max(retry_after_s, delay_s * (0.75 + self._rng.random() / 2)))
