"""The background tasks of plugins, and what they measure with.

Owns the tasks of `BackgroundPlugin`s, their processes, and the connections that plugins opened by
`PluginContext.measures`. A background task that raises or returns is logged, counted and started again after a while.
It never takes the scheduler down. Called by `program`.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

import anyio
import msgspec

from multisched.client.backoff import Backoff
from multisched.client.pod_metrics import MetricsApi
from multisched.client.prometheus import PrometheusMeter
from multisched.framework.background import (
    BackgroundPlugin,
    BackgroundPorts,
    BackgroundProcess,
    BackgroundProcessError,
    InThread,
)
from multisched.framework.measures import LoadReader, Meter, MeterSettings
from multisched.framework.moving import Mover
from multisched.framework.ports import Clock
from multisched.framework.registry import PluginSet, implements
from multisched.model.wire import Transport
from multisched.shell.workers.background_processes import ChildProcess
from multisched.shell.workers.background_threads import BackgroundThreads

logger = logging.getLogger(__name__)

RESTART_BASE_S: Final = 1.0
RESTART_CAP_S: Final = 300.0
STEADY_S: Final = 600.0
"""A background task that ran so long before it ended is begun again soon."""
ERROR_CHARS_MAX: Final = 1_000
PROCESSES_MAX: Final = 4
"""Of one background task, from its beginning to its end."""


class BackgroundState(msgspec.Struct):
    """How one background task fares."""

    domain: str
    plugin: str
    is_running: bool = False
    failures: int = 0
    last_error: str = ""
    last_error_s: float = 0.0
    """Epoch seconds."""


class BackgroundTasks:
    """Those of all domains."""

    def __init__(self, clock: Clock, rng: random.Random, threads: Callable[[], InThread] | None = None) -> None:
        """`rng`: drawn from for each background task. `threads`: another way to compute, for simulations, which have no processes."""
        self._clock = clock
        self._rng = rng
        self._threads = threads or BackgroundThreads
        self._has_processes = threads is None
        self._states: dict[tuple[str, str], BackgroundState] = {}

    def states(self) -> list[BackgroundState]:
        """Copies, in the order in which they were begun."""
        return [msgspec.structs.replace(state) for state in self._states.values()]

    async def run(self, domain: str, plugins: PluginSet, mover: Mover | None = None) -> None:
        """Carries out the background tasks of a domain's plugins until cancelled; returns at once if they have none."""
        async with anyio.create_task_group() as tasks:
            for built in plugins.built:
                if implements(built.plugin, BackgroundPlugin):
                    tasks.start_soon(self._keep, domain, built.plugin, mover)

    async def _keep(self, domain: str, plugin: BackgroundPlugin, mover: Mover | None) -> None:
        state = self._states.setdefault((domain, plugin.name), BackgroundState(domain, plugin.name))
        rng = random.Random(self._rng.random())  # noqa: S311 - jitter, not a secret
        backoff = Backoff(rng, base_s=RESTART_BASE_S, cap_s=RESTART_CAP_S)
        while True:
            began_s = self._clock.monotonic()
            state.is_running = True
            try:
                async with _processes(rng) as open_process:
                    process = open_process if self._has_processes else None
                    await plugin.run(BackgroundPorts(self._clock, rng, self._threads(), process, mover))
                error = "it returned"
            except Exception as raised:
                error = f"{type(raised).__name__}: {raised}"[:ERROR_CHARS_MAX]
                logger.warning(
                    "a background task failed", exc_info=raised, extra={"domain": domain, "plugin": plugin.name}
                )
            finally:
                state.is_running = False
            state.failures += 1
            state.last_error, state.last_error_s = error, self._clock.now().timestamp()
            if self._clock.monotonic() - began_s >= STEADY_S:
                backoff.reset()
            await asyncio.sleep(backoff.next_s())


@asynccontextmanager
async def _processes(rng: random.Random) -> AsyncIterator[Callable[[str, object], BackgroundProcess]]:
    """Opens processes for one life of a background task, and ends them with it."""
    children: list[ChildProcess] = []

    def opened(factory: str, settings: object) -> BackgroundProcess:
        if len(children) >= PROCESSES_MAX:
            raise BackgroundProcessError(f"more than {PROCESSES_MAX} processes for one background task")
        children.append(ChildProcess(factory, settings, rng.getrandbits(64)))
        return children[-1]

    try:
        yield opened
    finally:
        with anyio.CancelScope(shield=True):
            for child in children:
                await child.close()


class NetworkMeasures:
    """Implements `framework.measures.Measures`. One that opens a meter twice for the same settings gets two."""

    def __init__(self, transport: Transport, rng: random.Random) -> None:
        self._transport = transport
        self._rng = rng
        self._meters: list[PrometheusMeter] = []

    def meter(self, settings: MeterSettings) -> Meter:
        rng = random.Random(self._rng.random())  # noqa: S311 - jitter, not a secret
        self._meters.append(PrometheusMeter(settings, rng))
        return self._meters[-1]

    def load(self) -> LoadReader:
        return MetricsApi(self._transport)

    async def close(self) -> None:
        for meter in self._meters:
            await meter.close()
