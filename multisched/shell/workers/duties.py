"""The background duties of plugins, and what they measure with.

Owns the tasks of `DutyPlugin`s, their processes, and the connections that plugins opened by `PluginContext.measures`. Promises
that a duty that raises or returns is told, counted and begun again after a while, and never takes the scheduler down. Called by
`program`.
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
from multisched.framework.background import DutyPlugin, DutyPorts, DutyProcess, DutyProcessError, InThread
from multisched.framework.measures import LoadReader, Meter, MeterSettings
from multisched.framework.moving import Mover
from multisched.framework.ports import Clock
from multisched.framework.registry import PluginSet, implements
from multisched.model.wire import Transport
from multisched.shell.workers.duty_processes import ChildProcess
from multisched.shell.workers.duty_threads import DutyThreads

logger = logging.getLogger(__name__)

RESTART_BASE_S: Final = 1.0
RESTART_CAP_S: Final = 300.0
STEADY_S: Final = 600.0
"""A duty that ran so long before it ended is begun again soon."""
ERROR_CHARS_MAX: Final = 1_000
PROCESSES_MAX: Final = 4
"""Of one duty, from its beginning to its end."""


class DutyState(msgspec.Struct):
    """How one duty fares."""

    domain: str
    plugin: str
    is_running: bool = False
    failures: int = 0
    last_error: str = ""
    last_error_s: float = 0.0
    """Epoch seconds."""


class Duties:
    """Those of all domains."""

    def __init__(self, clock: Clock, rng: random.Random, threads: Callable[[], InThread] | None = None) -> None:
        """`rng`: drawn from for each duty. `threads`: another way to compute, for simulations, which have no processes."""
        self._clock = clock
        self._rng = rng
        self._threads = threads or DutyThreads
        self._has_processes = threads is None
        self._states: dict[tuple[str, str], DutyState] = {}

    def states(self) -> list[DutyState]:
        """Copies, in the order in which they were begun."""
        return [msgspec.structs.replace(state) for state in self._states.values()]

    async def run(self, domain: str, plugins: PluginSet, mover: Mover | None = None) -> None:
        """Carries out the duties of a domain's plugins until cancelled; returns at once if they have none."""
        async with anyio.create_task_group() as tasks:
            for built in plugins.built:
                if implements(built.plugin, DutyPlugin):
                    tasks.start_soon(self._keep, domain, built.plugin, mover)

    async def _keep(self, domain: str, plugin: DutyPlugin, mover: Mover | None) -> None:
        state = self._states.setdefault((domain, plugin.name), DutyState(domain, plugin.name))
        rng = random.Random(self._rng.random())  # noqa: S311 - jitter, not a secret
        backoff = Backoff(rng, base_s=RESTART_BASE_S, cap_s=RESTART_CAP_S)
        while True:
            began_s = self._clock.monotonic()
            state.is_running = True
            try:
                async with _processes(rng) as open_process:
                    process = open_process if self._has_processes else None
                    await plugin.carry_out(DutyPorts(self._clock, rng, self._threads(), process, mover))
                error = "it returned"
            except Exception as raised:
                error = f"{type(raised).__name__}: {raised}"[:ERROR_CHARS_MAX]
                logger.warning("a duty failed", exc_info=raised, extra={"domain": domain, "plugin": plugin.name})
            finally:
                state.is_running = False
            state.failures += 1
            state.last_error, state.last_error_s = error, self._clock.now().timestamp()
            if self._clock.monotonic() - began_s >= STEADY_S:
                backoff.reset()
            await asyncio.sleep(backoff.next_s())


@asynccontextmanager
async def _processes(rng: random.Random) -> AsyncIterator[Callable[[str, object], DutyProcess]]:
    """Opens processes for one life of a duty, and ends them with it."""
    children: list[ChildProcess] = []

    def opened(factory: str, settings: object) -> DutyProcess:
        if len(children) >= PROCESSES_MAX:
            raise DutyProcessError(f"more than {PROCESSES_MAX} processes for one duty")
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
