"""Isolated plugins in virtual time: the same requests are handled by the same code, and answered after a random delay.

There are no real threads or processes, because they would answer in real time, for which virtual time does not wait. A plugin that
really hangs would block the simulation. To simulate that, list pods in `stuck`: no plugin answers for them. Background tasks of plugins
get `VirtualThreads` (`ProgramPorts.background_threads`) and no processes; the judge of the cluster gets a `VirtualProcess`.
"""

from __future__ import annotations

import asyncio
import pickle
import random
from collections.abc import Callable, Collection
from importlib import import_module
from typing import Any, TypeVar

import anyio

from multisched.framework.background import Assistant, BackgroundProcessError, ProcessPorts
from multisched.framework.isolation import IsolatedError, IsolatedRequest, IsolatedResponse, Worker, run_isolated
from multisched.framework.measures import Meter, MeterSettings
from multisched.framework.points import Plugin
from multisched.framework.registry import PluginUse

DELAY_MAX_S = 0.02
DEATHS = 0.004
"""Probability that a process dies at a request."""


T = TypeVar("T")


class VirtualThreads:
    """Implements `framework.background.InThread`: runs the work of a background task on the loop, in zero virtual time."""

    async def __call__(self, work: Callable[[], T]) -> T:
        return work()


class VirtualProcess:
    """Implements `OwnedProcess` on the loop: messages are pickled as for a real process, which dies at random."""

    def __init__(self, factory: str, settings: object, seed: int) -> None:
        self._factory = factory
        self._settings = pickle.dumps(settings)
        self._rng = random.Random(seed)  # noqa: S311 - a simulation
        self._assistant: Assistant | None = None

    async def ask(self, question: object) -> Any:
        """See `BackgroundProcess`."""
        if self._assistant is None:
            module, _, name = self._factory.partition(":")
            make = getattr(import_module(module), name)
            self._assistant = make(pickle.loads(self._settings), ProcessPorts(_NoMeters(), VirtualThreads()))  # noqa: S301
        await asyncio.sleep(self._rng.uniform(0.0, DELAY_MAX_S))
        if self._rng.random() < DEATHS:
            await self.close()
            raise BackgroundProcessError("its process died: exit code -9")
        try:
            answer = await self._assistant.answer(pickle.loads(pickle.dumps(question)))  # noqa: S301
        except Exception as error:
            await self.close()
            raise BackgroundProcessError(f"{type(error).__name__}: {error}") from error
        return pickle.loads(pickle.dumps(answer))  # noqa: S301

    async def close(self) -> None:
        """See `OwnedProcess`."""
        self._assistant = None


class _NoMeters:
    """Implements `measures.Meters`: no meter is available."""

    def meter(self, settings: MeterSettings) -> Meter:
        raise BackgroundProcessError(f"nothing listens at {settings.url}")

    async def close(self) -> None:
        """Does nothing: nothing is open."""


class VirtualWorkers:
    """Implements `isolation.WorkerFactory`."""

    def __init__(self, rng: random.Random, stuck: Collection[str] = ()) -> None:
        """`stuck`: names of pods for which no plugin ever answers."""
        self._rng = rng
        self._stuck = stuck

    def worker(self, plugin: Plugin, use: PluginUse) -> Worker:
        return _VirtualWorker(plugin, use.timeout_s, self._rng, self._stuck)

    async def close(self) -> None:
        """Does nothing: there are no threads or processes."""


class _VirtualWorker:
    def __init__(self, plugin: Plugin, timeout_s: float, rng: random.Random, stuck: Collection[str]) -> None:
        self._plugin = plugin
        self._timeout_s = timeout_s
        self._rng = rng
        self._stuck = stuck

    async def run(self, question: IsolatedRequest) -> IsolatedResponse:
        try:
            with anyio.fail_after(self._timeout_s):
                if question.pod.name in self._stuck:
                    await asyncio.Event().wait()
                await asyncio.sleep(self._rng.uniform(0.0, DELAY_MAX_S))
        except TimeoutError:
            raise IsolatedError("Filter", f"no answer within {self._timeout_s:g} s") from None
        return run_isolated(self._plugin, question)
