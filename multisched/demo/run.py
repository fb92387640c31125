"""`multisched demo`: starts the cluster, the scheduler and its HTTP server, creates the workload, shows it, and stops everything.

Owns a temporary folder and the cluster's process. However the demo ends, it deletes the folder and ends the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Final

import anyio
import anyio.abc
import orjson

from multisched.app import SystemClock, build_program, metrics_of, served, until_ended
from multisched.client.transport import HttpTransport, connect
from multisched.config.domains import judged_domains
from multisched.config.options import DEFAULT_SERVER, DemoOptions, ExitCode, RefusedError
from multisched.config.schema import Configuration
from multisched.demo.cluster_process import cluster_process
from multisched.demo.configuration import with_port
from multisched.demo.demo_kubeconfig import found_by_commands
from multisched.demo.fact_reader import FactReader
from multisched.demo.facts import Facts
from multisched.demo.scenario import CHECK_INTERVAL_S, DemoScenario
from multisched.demo.screen import Header, Screen, open_screen
from multisched.demo.world import ground, world_of
from multisched.embedded_app import create_all, refuse_kubeconfig
from multisched.observe.logging import logging_to
from multisched.observe.metrics import Metrics
from multisched.observe.server import ServerError
from multisched.shell.audit.cluster_judge import judge_cluster
from multisched.shell.configuration_watch import ConfigurationWatch
from multisched.shell.program import Program
from multisched.shell.telemetry import read
from multisched.verify import Report

logger = logging.getLogger(__name__)

CLUSTER_START_S: Final = 30.0
DRAW_INTERVAL_S: Final = 0.5
REFRESH_INTERVAL_S: Final = 2.0
FIX_EVERY: Final = 8
"""Forecast refreshes per refresh of the fix, which needs a trial on a copy of the cluster."""
ONCE_LIMIT_S: Final = 300.0
INTERRUPTED: Final = 128 + signal.SIGINT
_LOGGED: Final = ("pod", "node", "rule")


async def demo(options: DemoOptions) -> int:
    """Runs until Ctrl-C (exit 0), or with `--once` until every feasible pod is bound (130 if interrupted)."""
    stopped = asyncio.Event()
    with tempfile.TemporaryDirectory(prefix="multisched-demo-") as folder:
        kubeconfig = options.kubeconfig or Path(folder) / "kubeconfig"
        refuse_kubeconfig(kubeconfig)
        kubeconfig.unlink(missing_ok=True)
        with logging_to(_StderrStream(), level="warning", form="text", clock=SystemClock()):
            async with anyio.create_task_group() as tasks:
                await tasks.start(_note_signals, stopped)
                async with cluster_process(kubeconfig, options.nodes) as process:
                    with found_by_commands(kubeconfig, os.environ):
                        code = await _Demo(options, kubeconfig, process, stopped).run()
                kubeconfig.unlink(missing_ok=True)
                tasks.cancel_scope.cancel()
    return code


async def _note_signals(stopped: asyncio.Event, *, task_status: anyio.abc.TaskStatus[None]) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
        task_status.started()
        async for _ in signals:
            stopped.set()


class _StderrStream:
    """Writes log lines to the current standard error: the live view prints them above itself."""

    def write(self, lines: bytes) -> int:
        return sys.stderr.write(lines.decode("utf-8", "replace"))

    def flush(self) -> None:
        sys.stderr.flush()


class _Demo:
    """One run, from starting the cluster to the result."""

    def __init__(
        self, options: DemoOptions, kubeconfig: Path, cluster: asyncio.subprocess.Process, stopped: asyncio.Event
    ) -> None:
        self._options = options
        self._kubeconfig = kubeconfig
        self._cluster = cluster
        self._stopped = stopped
        has_loan = any(domain.loans for domain in options.configuration.domains)
        self._world = world_of(options.nodes, has_loan=has_loan)

    async def run(self) -> int:
        if not await self._cluster_started():
            return INTERRUPTED
        options, configuration = self._options, self._options.configuration
        async with connect(self._kubeconfig, None) as transport, anyio.create_task_group() as tasks:
            await create_all(transport, ground(self._world))
            metrics = metrics_of(configuration)
            rng = random.Random(options.seed)  # noqa: S311 - jitter and ties, not secrets
            again = partial(connect, self._kubeconfig, None)
            program = build_program(configuration, transport, options.identity, "kube-system", metrics, rng, again)
            metrics.read_from(partial(read, program))
            reader = FactReader(program, self._world)
            backoff_max_s = max(domain.queue.max_backoff_s for domain in configuration.domains)
            scenario = DemoScenario(program, reader, self._world, options.job_pods, backoff_max_s)
            async with _serving(configuration, program, metrics, transport, options.identity) as url:
                tasks.start_soon(self._schedule, program)
                tasks.start_soon(partial(scenario.play, transport, is_watched=not options.is_once))
                code = await self._follow(scenario, reader, self._header(url))
                if self._cluster.returncode is None and (options.is_once or options.output == "json"):
                    code = await self._judged(transport, scenario, reader, code)
                tasks.cancel_scope.cancel()
        return code

    async def _cluster_started(self) -> bool:
        """Returns False if a signal arrived first. Raises RefusedError if the cluster does not start; its process prints the reason."""
        give_up = time.monotonic() + CLUSTER_START_S
        while not self._kubeconfig.exists():
            if self._stopped.is_set():
                return False
            if self._cluster.returncode is not None or time.monotonic() > give_up:
                raise RefusedError("the embedded cluster did not start", ExitCode.PROBLEM)
            await anyio.sleep(CHECK_INTERVAL_S)
        return True

    async def _schedule(self, program: Program) -> None:
        if await until_ended(program) is not ExitCode.OK:
            self._stopped.set()

    def _header(self, url: str) -> Header:
        exports = [f"export KUBECONFIG={self._kubeconfig}"]
        notes = []
        port = self._options.configuration.server.port
        if port and not url.endswith(f":{port}"):
            notes.append(
                f"Port {port} is in use by another program, which commands would call without MULTISCHED_SERVER."
            )
        if url != DEFAULT_SERVER:
            exports.append(f"export MULTISCHED_SERVER={url}")
        return Header(_program_name(), url, tuple(notes), tuple(exports))

    async def _follow(self, scenario: DemoScenario, reader: FactReader, header: Header) -> int:
        """Shows the facts until the demo is over; returns the exit code."""
        started_s = time.monotonic()
        view = open_screen(header) if self._options.output == "table" else contextlib.nullcontext()
        with view as screen:
            async with anyio.create_task_group() as tasks:
                if screen is not None:
                    tasks.start_soon(_refresh, reader)
                    tasks.start_soon(_draw, screen, reader, started_s)
                code = await self._end(scenario, started_s)
                tasks.cancel_scope.cancel()
            if screen is not None:
                _show(screen, reader, started_s)
            return code

    async def _end(self, scenario: DemoScenario, started_s: float) -> int:
        while True:
            code = self._ended(scenario, time.monotonic() - started_s)
            if code is not None:
                return code
            await anyio.sleep(CHECK_INTERVAL_S)

    def _ended(self, scenario: DemoScenario, elapsed_s: float) -> int | None:
        """Returns the exit code once the demo is over."""
        if self._stopped.is_set():
            return INTERRUPTED if self._options.is_once else ExitCode.OK
        if self._cluster.returncode is not None:
            logger.error("the embedded cluster has ended", extra={"code": self._cluster.returncode})
            return ExitCode.PROBLEM
        if self._options.is_once and scenario.is_over():
            return ExitCode.OK
        if self._options.is_once and elapsed_s > ONCE_LIMIT_S:
            logger.error("the demo has not settled within its time limit", extra={"limit_s": ONCE_LIMIT_S})
            return ExitCode.PROBLEM
        return None

    async def _judged(self, transport: HttpTransport, scenario: DemoScenario, reader: FactReader, code: int) -> int:
        """Prints the result if requested. Returns PROBLEM if a pod violates a required rule, else `code`."""
        judged = await judge_cluster(transport, judged_domains(self._options.configuration))
        for finding in judged.violations:  # a violation is a bug of the scheduler
            said = {key: value for key, value in finding._asdict().items() if key in _LOGGED}
            logger.error("a pod violates a required rule", extra=said)
        if self._options.output == "json":
            await reader.refresh_fix()
            await reader.refresh_forecast()
            reader.look()
            print(_result(reader.facts(0.0, 0.0), scenario.expected(), judged))  # noqa: T201
        return ExitCode.PROBLEM if judged.violations and code == ExitCode.OK else code


async def _draw(screen: Screen, reader: FactReader, started_s: float) -> None:
    while True:
        _show(screen, reader, started_s)
        await anyio.sleep(DRAW_INTERVAL_S)


def _show(screen: Screen, reader: FactReader, started_s: float) -> None:
    now_s = time.monotonic()
    reader.look()
    screen.update(reader.facts(now_s, now_s - started_s))


async def _refresh(reader: FactReader) -> None:
    """Refreshes the slow facts periodically while the screen is shown."""
    for number in itertools.count():
        await reader.refresh_forecast()
        if number % FIX_EVERY == 1:
            await reader.refresh_fix()
        await anyio.sleep(REFRESH_INTERVAL_S)


@contextlib.asynccontextmanager
async def _serving(
    configuration: Configuration, program: Program, metrics: Metrics, transport: HttpTransport, identity: str
) -> AsyncIterator[str]:
    """Serves HTTP on loopback at the configured port, or at a free one if it is in use; yields the base URL."""
    async with contextlib.AsyncExitStack() as stack:

        def at(port: int) -> contextlib.AbstractAsyncContextManager[str]:
            own = with_port(configuration, port)
            watch = ConfigurationWatch(program)
            return served(own, program, metrics, transport, identity, None, watch, is_read_only=True)

        try:
            url = await stack.enter_async_context(at(configuration.server.port))
        except ServerError:
            url = await stack.enter_async_context(at(0))
        yield url


def _program_name() -> str:
    """Returns the command of this program: its name if it is on PATH, else the path with which it was called."""
    if shutil.which("multisched"):
        return "multisched"
    called = Path(sys.argv[0])
    return os.path.relpath(called) if called.name == "multisched" else f"{sys.executable} -m multisched"


def _result(facts: Facts, expected: dict[str, int], judged: Report) -> str:
    """Returns the document of `-o json`."""
    domains = {}
    for row in facts.domains:
        domains[row.domain] = {
            "pods": expected[row.domain],
            "bound": row.bound,
            "p50_ms": round(row.p50_ms, 3),
            "p99_ms": round(row.p99_ms, 3),
            "conflicts_true": row.conflicts_true,
            "conflicts_false": row.conflicts_false,
        }
    full = {finding.node for finding in judged.violations if finding.rule in ("resources", "devices")}
    violations = judged.document()["violations"]
    document = {"domains": domains, "overcommitted": len(full), "violations": violations, **facts.document()}
    return orjson.dumps(document, option=orjson.OPT_INDENT_2).decode()
