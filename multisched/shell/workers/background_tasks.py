"""The background tasks of plugins, and the implementation of `framework.measures.Measures`.

Owns the tasks of `BackgroundPlugin`s and their processes. A background task that raises or returns is counted and restarted with
backoff, and an exception is logged; it never stops the scheduler. Called by `Program`.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

import anyio
import anyio.abc
import msgspec

from multisched.client.backoff import Backoff
from multisched.client.extender_client import HttpExtenderClient
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
from multisched.framework.ports import Clock, ExtenderClient, ExtenderSettings
from multisched.framework.registry import PluginSet, implements
from multisched.model.wire import Transport
from multisched.shell.workers.background_processes import ChildProcess
from multisched.shell.workers.background_threads import BackgroundThreads

logger = logging.getLogger(__name__)

RESTART_BASE_S: Final = 1.0
RESTART_CAP_S: Final = 300.0
STEADY_S: Final = 600.0
"""If a background task ran for at least this long, its restart backoff is reset."""
ERROR_CHARS_MAX: Final = 1_000
PROCESSES_MAX: Final = 4
"""Maximum number of processes that one run of a background task may open."""


class BackgroundState(msgspec.Struct):
    """The state of one background task."""

    domain: str
    plugin: str
    is_running: bool = False
    failures: int = 0
    last_error: str = ""
    last_error_s: float = 0.0
    """Epoch seconds."""


class _Task(msgspec.Struct):
    """One plugin's background task."""

    scope: anyio.CancelScope
    ended: anyio.Event


class _Running(msgspec.Struct):
    """The background tasks of one domain."""

    tasks: anyio.abc.TaskGroup
    mover: Mover | None
    of_plugin: dict[int, tuple[BackgroundPlugin, _Task]] = msgspec.field(default_factory=dict)
    """id() of the plugin -> plugin and task. Names are not unique: another profile may rebuild a plugin."""


class BackgroundTasks:
    """The background tasks of all domains."""

    def __init__(
        self,
        clock: Clock,
        rng: random.Random,
        threads: Callable[[], InThread] | None = None,
        open_extender: Callable[[ExtenderSettings], ExtenderClient] | None = None,
    ) -> None:
        """`rng`: seeds each background task. `threads`: replaces threads in simulations, which have no processes either.

        `open_extender`: see `BackgroundPorts`; None: over HTTP.
        """
        self._clock = clock
        self._rng = rng
        self._threads = threads or BackgroundThreads
        self._has_processes = threads is None
        self._open_extender = open_extender or HttpExtenderClient
        self._states: dict[tuple[str, str], BackgroundState] = {}
        self._running: dict[str, _Running] = {}

    def states(self) -> list[BackgroundState]:
        """Returns copies of the states, in the order in which the tasks were first started."""
        return [msgspec.structs.replace(state) for state in self._states.values()]

    async def run(self, domain: str, plugins: PluginSet, mover: Mover | None = None) -> None:
        """Runs the background tasks of a domain's plugins until cancelled; returns at once if they have none."""
        try:
            async with anyio.create_task_group() as tasks:
                self._running[domain] = _Running(tasks, mover)
                self.use(domain, plugins)
        finally:
            del self._running[domain]

    def use(self, domain: str, plugins: PluginSet) -> None:
        """Switches to another profile: ends the tasks of removed plugins and starts those of new ones. No effect before `run`.

        The task of a rebuilt plugin starts after its predecessor's has ended, because both would move pods or write the same
        objects.
        """
        running = self._running.get(domain)
        if running is None:
            return
        wanted = {id(b.plugin): b.plugin for b in plugins.built if implements(b.plugin, BackgroundPlugin)}
        left = {key: one for key, one in running.of_plugin.items() if key not in wanted}
        for key, (_, task) in left.items():
            task.scope.cancel()
            del running.of_plugin[key]
        ended = {plugin.name: task.ended for plugin, task in left.values()}
        for key, plugin in wanted.items():
            if key not in running.of_plugin:
                task = _Task(anyio.CancelScope(), anyio.Event())
                running.of_plugin[key] = plugin, task
                running.tasks.start_soon(self._follow, domain, plugin, running.mover, task, ended.get(plugin.name))

    async def _follow(
        self, domain: str, plugin: BackgroundPlugin, mover: Mover | None, task: _Task, before: anyio.Event | None
    ) -> None:
        """Runs one task until it is ended. `before`: set once the predecessor's task has ended."""
        try:
            with task.scope:
                if before is not None:
                    await before.wait()
                await self._keep(domain, plugin, mover)
        finally:
            task.ended.set()

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
                    ports = BackgroundPorts(self._clock, rng, self._threads(), process, mover, self._open_extender)
                    await plugin.run(ports)
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
    """Opens processes for one run of a background task. They are killed when the run ends."""
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


def has_tasks(plugins: PluginSet) -> bool:
    """Reports whether a plugin has a background task."""
    return any(implements(built.plugin, BackgroundPlugin) for built in plugins.built)


class NetworkMeasures:
    """The `framework.measures.Measures` over the network. Each call of `meter` opens a new meter."""

    def __init__(self, transport: Transport, rng: random.Random) -> None:
        self._transport = transport
        self._rng = rng

    def meter(self, settings: MeterSettings) -> Meter:
        rng = random.Random(self._rng.random())  # noqa: S311 - jitter, not a secret
        return PrometheusMeter(settings, rng)

    def load(self) -> LoadReader:
        return MetricsApi(self._transport)
