"""Isolated plugins under virtual time: the same questions, run by the same code, answered after a drawn delay.

What it leaves out is the thread or process itself: those answer in real time, which virtual time does not wait for. A
plugin that really hangs would hang the simulation; name it in `hangs` instead, and it never answers. Duties of plugins are given
`VirtualThreads` (`Surroundings.duty_threads`), and then have no processes either.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection
from typing import TypeVar

import anyio

from multisched.framework.isolation import Answer, IsolatedError, Question, Worker, consider
from multisched.framework.plugin import Plugin
from multisched.framework.registry import PluginUse

DELAY_MAX_S = 0.02


T = TypeVar("T")


class VirtualThreads:
    """Implements `framework.plugin.InThread`: what a duty would compute beside the loop is computed on it, in no time."""

    async def __call__(self, work: Callable[[], T]) -> T:
        return work()


class VirtualWorkers:
    """Implements `isolation.Workshop`."""

    def __init__(self, rng: random.Random, hangs: Collection[str] = ()) -> None:
        """`hangs`: names of pods about which no plugin ever answers."""
        self._rng = rng
        self._hangs = hangs

    def worker(self, plugin: Plugin, use: PluginUse) -> Worker:
        return _VirtualWorker(plugin, use.timeout_s, self._rng, self._hangs)

    async def close(self) -> None:
        """Nothing runs beside the loop."""


class _VirtualWorker:
    def __init__(self, plugin: Plugin, timeout_s: float, rng: random.Random, hangs: Collection[str]) -> None:
        self._plugin = plugin
        self._timeout_s = timeout_s
        self._rng = rng
        self._hangs = hangs

    async def run(self, question: Question) -> Answer:
        try:
            with anyio.fail_after(self._timeout_s):
                if question.pod.name in self._hangs:
                    await asyncio.Event().wait()
                await asyncio.sleep(self._rng.uniform(0.0, DELAY_MAX_S))
        except TimeoutError:
            raise IsolatedError("Filter", f"no answer within {self._timeout_s:g} s") from None
        return consider(self._plugin, question)
