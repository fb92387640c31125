"""The demo: an embedded cluster in a process of its own, the scheduler in this one, a workload, and what becomes of it.

Owns the cluster's process and a temporary folder; leaves neither behind, however it ends. The cluster ends by itself when
this process dies without a word, since its standard input then closes. Called by `cli`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.abc
import orjson

from multisched.app import SystemClock, build_program, until_ended
from multisched.client.transport import connect
from multisched.cluster.seed import demo_workload, pods_by_scheduler
from multisched.config.domains import judged_domains
from multisched.config.options import DemoOptions, ExitCode, RefusedError
from multisched.embedded_app import create_all, refuse_kubeconfig
from multisched.observe.logging import logging_to
from multisched.observe.metrics import Metrics
from multisched.observe.progress import DomainProgress, progress_view, quantile
from multisched.shell.audit.cluster_judge import judge_cluster
from multisched.shell.program import Program
from multisched.shell.telemetry import statistics_of
from multisched.verify import Report

logger = logging.getLogger(__name__)

CLUSTER_START_S: Final = 30.0
CLUSTER_END_S: Final = 5.0
"""After SIGTERM; then it is killed."""
DRAW_INTERVAL_S: Final = 0.5
CHECK_INTERVAL_S: Final = 0.05
SETTLED_S: Final = 2.0
"""Refused pods are infeasible once nothing was bound for so long, and for the longest backoff where pods back off."""
ONCE_LIMIT_S: Final = 300.0
RATE_WINDOW_S: Final = 2.0
INTERRUPTED: Final = 128 + signal.SIGINT
_LOGGED: Final = ("pod", "node", "rule")


async def demo(options: DemoOptions) -> int:
    """`multisched demo`: until Ctrl-C (exit 0), or with `--once` until every feasible pod is bound (130 if cut short)."""
    stopped = asyncio.Event()
    with tempfile.TemporaryDirectory(prefix="multisched-demo-") as folder:
        kubeconfig = options.kubeconfig or Path(folder) / "kubeconfig"
        refuse_kubeconfig(kubeconfig)
        kubeconfig.unlink(missing_ok=True)
        with logging_to(_Aside(), level="warning", form="text", clock=SystemClock()):
            async with anyio.create_task_group() as tasks:
                await tasks.start(_note_signals, stopped)
                async with _cluster_process(kubeconfig, options.nodes) as process:
                    code = await _Demo(options, kubeconfig, process, stopped).run()
                kubeconfig.unlink(missing_ok=True)
                tasks.cancel_scope.cancel()
    return code


async def _note_signals(stopped: asyncio.Event, *, task_status: anyio.abc.TaskStatus[None]) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
        task_status.started()
        async for _ in signals:
            stopped.set()


@contextlib.asynccontextmanager
async def _cluster_process(kubeconfig: Path, nodes: int) -> AsyncIterator[asyncio.subprocess.Process]:
    """`multisched cluster` in a session of its own: Ctrl-C is for us, and we end it when we are done with it."""
    command = [sys.executable, "-m", "multisched", "cluster", "--kubeconfig", str(kubeconfig), "--nodes", str(nodes)]
    process = await asyncio.create_subprocess_exec(
        *command,
        "--until-input-ends",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        with anyio.CancelScope(shield=True):
            with anyio.move_on_after(CLUSTER_END_S):
                await process.wait()
            if process.returncode is None:
                process.kill()
                await process.wait()


class _Aside:
    """Log lines to standard error as it is now: the live view puts them above itself."""

    def write(self, lines: bytes) -> int:
        return sys.stderr.write(lines.decode("utf-8", "replace"))

    def flush(self) -> None:
        sys.stderr.flush()


class _Demo:
    """One run, from a cluster that starts to its result."""

    def __init__(
        self, options: DemoOptions, kubeconfig: Path, cluster: asyncio.subprocess.Process, stopped: asyncio.Event
    ) -> None:
        self._options = options
        self._kubeconfig = kubeconfig
        self._cluster = cluster
        self._stopped = stopped
        self._workload = demo_workload(options.job_pods, options.nodes)
        self._settled_since = time.monotonic()
        self._backoff_max_s = max(domain.queue.max_backoff_s for domain in options.configuration.domains)
        self._seen: tuple[int, ...] = ()

    async def run(self) -> int:
        if not await self._cluster_started():
            return INTERRUPTED
        async with connect(self._kubeconfig, None) as transport, anyio.create_task_group() as tasks:
            rng = random.Random(self._options.seed)  # noqa: S311 - jitter and ties, not secrets
            program = build_program(
                self._options.configuration,
                transport,
                self._options.identity,
                "kube-system",
                Metrics(),
                rng,
                partial(connect, self._kubeconfig, None),
            )
            expected = self._expected(program)
            tasks.start_soon(self._schedule, program)
            tasks.start_soon(create_all, transport, self._workload)
            code = await self._follow(program, expected)
            if self._cluster.returncode is None and (self._options.is_once or self._options.output == "json"):
                judged = await judge_cluster(transport, judged_domains(self._options.configuration))
                _log(judged)
                code = ExitCode.PROBLEM if judged.violations and code == ExitCode.OK else code
                if self._options.output == "json":
                    print(_result(program, expected, judged))  # noqa: T201
            tasks.cancel_scope.cancel()
        return code

    async def _cluster_started(self) -> bool:
        """False when a signal came first. Raises RefusedError when it does not start; it has printed the reason itself."""
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

    def _expected(self, program: Program) -> dict[str, int]:
        """Domain -> pods that the workload sends to it."""
        counts = pods_by_scheduler(self._workload)
        return {domain: sum(counts.get(name, 0) for name in names) for domain, names in program.scheduler_names.items()}

    async def _follow(self, program: Program, expected: Mapping[str, int]) -> int:
        started = time.monotonic()
        rates = _Rates()
        view = progress_view(self._kubeconfig) if self._options.output == "table" else contextlib.nullcontext()
        with view as shown:
            drawn = -math.inf
            while True:
                now = time.monotonic()
                code = self._ended(program, expected, now - started)
                if shown is not None and (code is not None or now - drawn >= DRAW_INTERVAL_S):
                    drawn = now
                    shown.update(_rows(program, rates, now), now - started)
                if code is not None:
                    return code
                await anyio.sleep(CHECK_INTERVAL_S)

    def _ended(self, program: Program, expected: Mapping[str, int], elapsed_s: float) -> int | None:
        """The exit code once it is over."""
        if self._stopped.is_set():
            return INTERRUPTED if self._options.is_once else ExitCode.OK
        if self._cluster.returncode is not None:
            logger.error("the embedded cluster has ended", extra={"code": self._cluster.returncode})
            return ExitCode.PROBLEM
        if self._options.is_once and self._is_settled(program, expected):
            return ExitCode.OK
        if self._options.is_once and elapsed_s > ONCE_LIMIT_S:
            logger.error("pods still move after the demo's time", extra={"limit_s": ONCE_LIMIT_S})
            return ExitCode.PROBLEM
        return None

    def _is_settled(self, program: Program, expected: Mapping[str, int]) -> bool:
        """All pods are bound, or those that are not have been refused and nothing has been bound for a while."""
        statistics = statistics_of(program)
        seen = tuple(int(str(statistics[name]["bound"])) for name in expected)
        if all(bound >= pods for bound, pods in zip(seen, expected.values(), strict=True)):
            return True
        now = time.monotonic()
        if seen != self._seen or not all(_has_come(statistics[name], pods) for name, pods in expected.items()):
            self._seen, self._settled_since = seen, now
        is_backing_off = any(_waiting(statistics[name], "backoff") for name in expected)
        is_busy = any(_waiting(statistics[name], "active") for name in expected)
        return not is_busy and now - self._settled_since >= SETTLED_S + is_backing_off * self._backoff_max_s


def _has_come(statistics: Mapping[str, Any], pods: int) -> bool:
    return bool(statistics["bound"] + statistics["in_flight"] + sum(statistics["pending"].values()) >= pods)


def _waiting(statistics: Mapping[str, Any], queue: str) -> int:
    return int(statistics["pending"][queue])


class _Rates:
    """Binds per second and domain over the latest RATE_WINDOW_S."""

    def __init__(self) -> None:
        self._counts: dict[str, list[tuple[float, int]]] = {}

    def rate(self, domain: str, now: float, bound: int) -> float:
        counts = self._counts.setdefault(domain, [])
        counts.append((now, bound))
        while len(counts) > 2 and now - counts[1][0] >= RATE_WINDOW_S:
            del counts[0]
        since, before = counts[0]
        return (bound - before) / (now - since) if now > since else 0.0


def _rows(program: Program, rates: _Rates, now: float) -> list[DomainProgress]:
    rows = []
    for name, statistics in statistics_of(program).items():
        values: Any = statistics
        p50_ms, p99_ms = _quantiles_ms(values["latencies_s"])
        rows.append(
            DomainProgress(
                name,
                queued=sum(values["pending"].values()),
                bound=values["bound"],
                binds_per_s=rates.rate(name, now, values["bound"]),
                p50_ms=p50_ms,
                p99_ms=p99_ms,
                conflicts_true=values["conflicts_true"],
                conflicts_false=values["conflicts_false"],
            )
        )
    return rows


def _quantiles_ms(latencies_s: Any) -> tuple[float, float]:
    """p50 and p99; zeros while nothing was bound."""
    ordered = sorted(latencies_s)
    return 1000 * quantile(ordered, 0.5), 1000 * quantile(ordered, 0.99)


def _log(judged: Report) -> None:
    """Pods that stand against a required rule: there are none, or it is a fault of ours."""
    for finding in judged.violations:
        logger.error(
            "a pod stands against a required rule", extra={k: v for k, v in finding._asdict().items() if k in _LOGGED}
        )


def _result(program: Program, expected: Mapping[str, int], judged: Report) -> str:
    """The document of `-o json`."""
    domains = {}
    for row in _rows(program, _Rates(), 0.0):
        domains[row.domain] = {
            "pods": max(expected[row.domain], row.bound + row.queued),
            "bound": row.bound,
            "p50_ms": round(row.p50_ms, 3),
            "p99_ms": round(row.p99_ms, 3),
            "conflicts_true": row.conflicts_true,
            "conflicts_false": row.conflicts_false,
        }
    full = {finding.node for finding in judged.violations if finding.rule in ("resources", "devices")}
    violations = judged.document()["violations"]
    document = {"domains": domains, "overcommitted": len(full), "violations": violations}
    return orjson.dumps(document, option=orjson.OPT_INDENT_2).decode()
