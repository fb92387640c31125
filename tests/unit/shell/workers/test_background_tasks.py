"""Background tasks: begun with the domain, begun again when they fail, and never in anybody's way."""

from __future__ import annotations

import asyncio
import random
import threading
from itertools import pairwise

import anyio
import pytest

from multisched.app import SystemClock
from multisched.client.prometheus import PrometheusMeter
from multisched.cluster.api.direct import DirectTransport
from multisched.cluster.api.server import ApiServer
from multisched.config import loading
from multisched.framework.background import BackgroundPlugin, BackgroundPorts
from multisched.framework.context import PluginContext
from multisched.framework.measures import MeterError, MeterSettings
from multisched.framework.points import CycleView, Plugin
from multisched.framework.ports import ExtenderTrust
from multisched.framework.registry import BuiltPlugin, PluginSet, PluginUse, implements
from multisched.model.objects import Pod
from multisched.plugins.default_binder import DefaultBinder
from multisched.plugins.priority_sort import PrioritySort
from multisched.shell.program import Program, ProgramPorts
from multisched.shell.telemetry import health_of, read
from multisched.shell.workers.background_tasks import RESTART_CAP_S, STEADY_S, BackgroundTasks, NetworkMeasures
from multisched.shell.workers.background_threads import THREADS_MAX, BackgroundThreads
from multisched.testing.quiet_observer import QuietObserver
from multisched.testing.sim_loop import SimClock, SimLoop, simulate
from multisched.testing.virtual_workers import VirtualThreads
from tests.unit.shell.program_kit import Site
from tests.unit.shell.workers.test_background_processes import is_alive


class Learner:
    """Works for so long, and then ends in one way or another."""

    name = "Learner"

    def __init__(self, *lives: float | Exception) -> None:
        self._lives = list(lives)
        self.begun_s: list[float] = []

    async def run(self, ports: BackgroundPorts) -> None:
        self.begun_s.append(ports.clock.monotonic())
        life = self._lives.pop(0) if self._lives else float("inf")
        if isinstance(life, Exception):
            raise life
        await asyncio.sleep(life)


def plugins_with(*background_tasks: BackgroundPlugin) -> PluginSet:
    every: tuple[Plugin, ...] = (PrioritySort(), DefaultBinder(), *background_tasks)
    return PluginSet([BuiltPlugin(plugin, PluginUse(plugin.name)) for plugin in every])


def lived(learner: Learner, seconds: float) -> tuple[BackgroundTasks, list[float]]:
    loop = SimLoop(1)
    background_tasks = BackgroundTasks(SimClock(loop), random.Random(1))

    async def live() -> None:
        with anyio.move_on_after(seconds):
            await background_tasks.run("forecast", plugins_with(learner))

    simulate(live(), loop)
    return background_tasks, learner.begun_s


def test_background_task_runs_while_its_domain_does() -> None:
    learner = Learner()
    assert implements(learner, BackgroundPlugin)
    assert not implements(PrioritySort(), BackgroundPlugin)
    background_tasks, begun_s = lived(learner, 10_000)
    assert begun_s == [0.0]
    assert [(state.domain, state.plugin, state.failures) for state in background_tasks.states()] == [
        ("forecast", "Learner", 0)
    ]


def test_failed_background_task_is_logged_and_restarted_with_backoff() -> None:
    background_tasks, begun_s = lived(Learner(*[RuntimeError("no more")] * 12, 0.0), 5_000)
    waits = [later - sooner for sooner, later in pairwise(begun_s)]
    assert len(begun_s) == 14
    assert 1 <= waits[0] <= 2
    assert all(RESTART_CAP_S / 2 <= wait <= RESTART_CAP_S for wait in waits[9:])
    (state,) = background_tasks.states()
    assert (state.failures, state.last_error) == (13, "it returned")


def test_steady_background_task_is_restarted_soon() -> None:
    _, begun_s = lived(Learner(*[RuntimeError("no")] * 8, STEADY_S + 1.0), 6_000)
    assert len(begun_s) == 10
    assert begun_s[9] - begun_s[8] - STEADY_S - 1 <= 2


def test_a_domain_without_background_tasks_has_nothing_to_run() -> None:
    loop = SimLoop(1)
    background_tasks = BackgroundTasks(SimClock(loop), random.Random(1))

    async def live() -> None:
        with anyio.move_on_after(1.0):
            await background_tasks.run("gpu", plugins_with())

    simulate(live(), loop)
    assert background_tasks.states() == []


class Employer:
    """Has a process answer, and falls in its first life."""

    name = "Employer"

    def __init__(self) -> None:
        self.pids: list[int] = []
        self.has_processes = True
        self.in_second_life = asyncio.Event()

    async def run(self, ports: BackgroundPorts) -> None:
        self.has_processes = ports.process is not None
        if ports.process is not None:
            pid, _, settings = await ports.process(
                "tests.unit.shell.workers.test_background_processes:Clerk", "paid"
            ).ask("who")
            assert settings == "paid"
            self.pids.append(pid)
            if len(self.pids) == 1:
                raise RuntimeError("fell")
        self.in_second_life.set()
        await asyncio.Event().wait()


async def test_the_processes_of_a_background_task_end_with_it() -> None:
    employer = Employer()
    running = asyncio.create_task(
        BackgroundTasks(SystemClock(), random.Random(1)).run("forecast", plugins_with(employer))
    )
    async with asyncio.timeout(30):
        await employer.in_second_life.wait()
    first, second = employer.pids
    assert (is_alive(first), is_alive(second)) == (False, True)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not is_alive(second)


def test_virtual_time_uses_no_processes_and_computes_at_once() -> None:
    loop, employer = SimLoop(1), Employer()
    background_tasks = BackgroundTasks(SimClock(loop), random.Random(1), VirtualThreads)

    async def live() -> int:
        with anyio.move_on_after(10.0):
            await background_tasks.run("forecast", plugins_with(employer))
        return await VirtualThreads()(lambda: 7)

    assert simulate(live(), loop) == 7
    assert not employer.has_processes


async def test_worker_thread_returns_its_result_or_exception() -> None:
    threads = BackgroundThreads()
    assert await threads(threading.current_thread) is not threading.main_thread()
    with pytest.raises(ZeroDivisionError):
        await threads(lambda: 1 / 0)


async def test_hung_worker_thread_is_abandoned_and_keeps_its_slot() -> None:
    threads, ending = BackgroundThreads(), threading.Event()
    for _ in range(THREADS_MAX):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await threads(lambda: ending.wait(20))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await threads(lambda: True)
    ending.set()
    assert await threads(lambda: "again") == "again"


async def test_meters_are_refused_with_bad_certificates() -> None:
    measures = NetworkMeasures(DirectTransport(ApiServer(SystemClock())), random.Random(1))
    meter = measures.meter(MeterSettings("http://127.0.0.1:1"))
    assert isinstance(meter, PrometheusMeter)
    with pytest.raises(MeterError, match="tls cannot be used"):
        measures.meter(MeterSettings("https://127.0.0.1:1", trust=ExtenderTrust(ca_file="/nowhere/ca.pem")))
    with pytest.raises(MeterError, match=r"metrics\.k8s\.io"):
        await measures.load().pods()


CONFIGURATION = """
apiVersion: multisched.io/v1
kind: MultischedConfiguration
domains:
- name: forecast
  profile:
    plugins:
      enabled:
      - name: tests.unit.shell.workers.test_background_tasks:Watchman
- name: gpu
lease: {enabled: false}
"""


class Watchman:
    """A plugin that scores nothing, and walks about once a minute, until it falls for the first time."""

    name = "Watchman"

    def __init__(self, context: PluginContext) -> None:
        self.walks: list[float] = []
        self.rows_known: list[int] = []
        self._rows = context.rows
        self._has_measures = context.measures is not None

    def post_bind(self, cycle: CycleView, pod: Pod, node: str) -> None:
        """Nothing to do."""

    async def run(self, ports: BackgroundPorts) -> None:
        while True:
            self.walks.append(ports.clock.monotonic())
            self.rows_known.append(len(self._rows()) if self._rows is not None else -1)
            if len(self.walks) == 3:
                raise RuntimeError(f"fell, {self._has_measures}")
            await asyncio.sleep(60.0)


def test_program_runs_and_outlives_background_tasks_of_plugins() -> None:
    loop = SimLoop(3)

    async def live() -> tuple[Program, str]:
        site = Site(loop)
        await site.add_node("n1")
        measures = NetworkMeasures(site.api, random.Random(1))
        ports = ProgramPorts(
            site.api, site.clock, random.Random(1), "me", "kube-system", lambda name: QuietObserver(), measures=measures
        )
        program = Program(loading.parse(CONFIGURATION, "test"), ports)
        running = loop.create_task(program.run())
        await asyncio.sleep(300.0)
        assert program.is_ready
        told = health_of(program)
        program.stop()
        await running
        return program, told

    program, told_at_work = simulate(live(), loop)
    worker = next(worker for worker in program.router.workers() if worker.name == "forecast")
    (watchman,) = (built.plugin for built in worker.plugins.built if built.plugin.name == "Watchman")
    walks = watchman.walks  # type: ignore[attr-defined] # the class is imported a second time, by its path
    assert len(walks) == 6
    assert walks[3] - walks[2] < 3.0
    known = watchman.rows_known  # type: ignore[attr-defined]
    assert known == [1] * 6, "nothing is learned of a cluster that has not been listed yet"
    (state,) = program.background.states()
    assert (state.domain, state.plugin, state.failures) == ("forecast", "Watchman", 1)
    assert (state.last_error, state.is_running) == ("RuntimeError: fell, True", False)
    told = "forecast/Watchman: its background task has ended 1x, last "
    assert told_at_work.startswith(told)
    assert told_at_work.endswith(" s ago, and runs again: RuntimeError: fell, True")
    assert health_of(program).startswith(told)
    assert health_of(program).endswith(" s ago, and will be restarted soon: RuntimeError: fell, True")
    assert read(program).background_tasks[("Watchman", "forecast")].failures == 1
