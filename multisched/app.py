"""Composition root: the real clock, network, randomness and signals around the program, and the parts of the demo.

Everything here is wiring. Whoever wants the scheduler without a network uses `shell.program.Program` directly.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import orjson

from multisched.client.transport import connect
from multisched.config_schema import Configuration
from multisched.model.wire import Transport, TransportError
from multisched.observe.access import DelegatedAuthenticator
from multisched.observe.certificates import ServerCertificate, self_signed
from multisched.observe.health import Health, Heartbeat
from multisched.observe.logging import logging_to
from multisched.observe.metrics import Metrics
from multisched.observe.server import ServerSettings, Sources, serve
from multisched.options import ClusterOptions, DemoOptions, ExitCode, KubeletsOptions, RunOptions
from multisched.shell.program import LeaseLostError, Program, Surroundings
from multisched.shell.telemetry import ProgramQueues, read

logger = logging.getLogger(__name__)

CLUSTER_START_S = 30.0
"""How long the demo waits for its embedded cluster."""

ONCE_LIMIT_S = 300.0
CREATES_IN_FLIGHT = 32
_COLLECTIONS = {
    "Pod": "/api/v1/namespaces/default/pods",
    "Job": "/apis/batch/v1/namespaces/default/jobs",
    "Deployment": "/apis/apps/v1/namespaces/default/deployments",
    "Node": "/api/v1/nodes",
}


class SystemClock:
    """The machine's clocks."""

    def monotonic(self) -> float:
        return time.monotonic()

    def now(self) -> datetime:
        return datetime.now(UTC)


def _build(
    configuration: Configuration, transport: Transport, identity: str, namespace: str, metrics: Metrics
) -> Program:
    program = Program(
        configuration,
        Surroundings(
            transport,
            SystemClock(),
            random.Random(),  # noqa: S311 - jitter and ties, not secrets
            identity,
            namespace,
            observer=metrics.domain,
        ),
    )
    metrics.read_from(lambda: read(program))
    return program


@contextlib.asynccontextmanager
async def _served(
    configuration: Configuration, program: Program, metrics: Metrics, transport: Transport, identity: str
) -> AsyncIterator[None]:
    """The HTTP server beside a running program, with the loop's heartbeat for /livez."""
    settings = configuration.server
    if not settings.enabled:
        yield
        return
    clock = SystemClock()
    health, heartbeat = Health(), Heartbeat(clock)
    health.add_liveness("loop", heartbeat.check)
    health.add_readiness("caches", lambda: "" if program.is_ready else "not in step with the API server")
    authenticator = DelegatedAuthenticator(transport, clock) if settings.is_authenticating else None
    served = ServerSettings(settings.bind_address, settings.port, _certificate(configuration), authenticator)
    sources = Sources(health, metrics, ProgramQueues(program, identity))
    async with serve(served, sources) as url, anyio.create_task_group() as tasks:
        logger.info("serving", extra={"url": url})
        tasks.start_soon(heartbeat.run)
        yield
        health.stop()
        tasks.cancel_scope.cancel()


def _certificate(configuration: Configuration) -> ServerCertificate | None:
    tls = configuration.server.tls
    if tls.self_signed:
        return self_signed(os.uname().nodename, SystemClock().now())
    if tls.cert_file is None or tls.key_file is None:
        return None
    return ServerCertificate(Path(tls.cert_file), Path(tls.key_file))


async def _wait_reachable(transport: Transport) -> None:
    """Retries until an API server answers; says so meanwhile."""
    pause_s = 0.5
    while True:
        try:
            await transport.request("GET", "/version", timeout_s=5.0)
        except TransportError as error:
            logger.warning("API server does not answer; trying again", extra={"error": str(error), "in_s": pause_s})
            await anyio.sleep(pause_s)
            pause_s = min(10.0, pause_s * 2)
        else:
            return


async def _stop_on_signal(program: Program) -> None:
    """SIGTERM and Ctrl-C begin the orderly end; a second one ends at once."""
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for _ in signals:
            logger.info("stopping")
            program.stop()
            break


async def run(options: RunOptions) -> ExitCode:
    """`multisched run`: schedules until SIGTERM. A lost lease is a problem: another process has taken over."""
    configuration = options.configuration
    written = configuration.logging
    with logging_to(sys.stderr.buffer, level=written.level, form=written.format, clock=SystemClock()):
        async with connect(options.kubeconfig, options.context) as transport:
            metrics = Metrics()
            program = _build(configuration, transport, options.identity, options.lease_namespace, metrics)
            async with (
                _served(configuration, program, metrics, transport, options.identity),
                anyio.create_task_group() as tasks,
            ):
                tasks.start_soon(_stop_on_signal, program)
                await _wait_reachable(transport)
                code = await _until_ended(program)
                tasks.cancel_scope.cancel()
    return code


async def _until_ended(program: Program) -> ExitCode:
    code = ExitCode.OK
    try:
        await program.run()
    except* LeaseLostError:
        logger.exception("a lease is lost")
        code = ExitCode.PROBLEM
    return code


async def cluster(options: ClusterOptions) -> ExitCode:
    """`multisched cluster`: the embedded cluster with controllers, fake kubelets and nodes, until SIGTERM."""
    from multisched.cluster.controllers import run_controllers
    from multisched.cluster.embedded import EmbeddedCluster
    from multisched.cluster.kubelets import Kubelets
    from multisched.cluster.seed import demo_nodes
    from multisched.cluster.stages_builtin import builtin_stages

    clock = SystemClock()
    rng = random.Random()  # noqa: S311 - jitter

    async def controllers(running: EmbeddedCluster) -> None:
        await run_controllers(running.transport(), clock=clock, rng=rng)

    async def kubelets(running: EmbeddedCluster) -> None:
        await Kubelets(running.transport(), clock=clock, rng=rng, stages=builtin_stages("fast")).run()

    async with EmbeddedCluster.start(clock, port=options.port, parts=[controllers, kubelets]) as running:
        await _create_all(running.transport(), demo_nodes(options.nodes))
        partial = options.kubeconfig.with_name(options.kubeconfig.name + ".partial")
        running.write_kubeconfig(partial)
        partial.replace(options.kubeconfig)
        print(f"embedded cluster: {running.url}\nexport KUBECONFIG={options.kubeconfig}", flush=True)  # noqa: T201
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async for _ in signals:
                break
    return ExitCode.OK


async def kubelets(options: KubeletsOptions) -> ExitCode:
    """`multisched kubelets`: fake kubelets for every node of any cluster, until SIGTERM."""
    from multisched.cluster.kubelets import Kubelets
    from multisched.cluster.stages import load_stages
    from multisched.cluster.stages_builtin import builtin_stages

    stages = builtin_stages("fast")
    if options.stages is not None:
        text = await anyio.Path(options.stages).read_text()
        stages = load_stages(text, source=str(options.stages))
    async with connect(options.kubeconfig, options.context) as transport, anyio.create_task_group() as tasks:
        rng = random.Random(options.seed)  # noqa: S311 - jitter
        tasks.start_soon(Kubelets(transport, clock=SystemClock(), rng=rng, stages=stages).run)
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async for _ in signals:
                break
        tasks.cancel_scope.cancel()
    return ExitCode.OK


async def demo(options: DemoOptions) -> ExitCode:
    """`multisched demo`: cluster in a process of its own, scheduler here, a mixed workload, live progress."""
    from multisched.cluster.seed import demo_workload

    with tempfile.TemporaryDirectory(prefix="multisched-demo-") as folder:
        kubeconfig = options.kubeconfig or Path(folder) / "kubeconfig"
        async with _cluster_process(kubeconfig, options.nodes), connect(kubeconfig, None) as transport:
            program = _build(options.configuration, transport, options.identity, "kube-system", Metrics())
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(program.run)
                tasks.start_soon(_stop_on_signal, program)
                tasks.start_soon(_create_all, transport, demo_workload(options.job_pods))
                watched = _Demo(program, transport, options, kubeconfig)
                code = await watched.follow()
                program.stop()
                tasks.cancel_scope.cancel()
    return code


@contextlib.asynccontextmanager
async def _cluster_process(kubeconfig: Path, nodes: int) -> AsyncIterator[None]:
    command = [sys.executable, "-m", "multisched", "cluster", "--kubeconfig", str(kubeconfig), "--nodes", str(nodes)]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.DEVNULL)
    try:
        with anyio.fail_after(CLUSTER_START_S):
            while not await anyio.Path(kubeconfig).exists():
                if process.returncode is not None:
                    raise RuntimeError(f"the embedded cluster ended with {process.returncode}")
                await anyio.sleep(0.02)
        yield
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
            with anyio.CancelScope(shield=True):
                await process.wait()


async def _create_all(transport: Transport, documents: Sequence[Mapping[str, Any]]) -> None:
    """Creates objects, several at once; a refusal is logged with the server's sentence."""
    waiting = iter(documents)

    async def create() -> None:
        for document in waiting:
            path = _COLLECTIONS[document["kind"]]
            answer = await transport.request("POST", path, body=orjson.dumps(document))
            if answer.status >= 300:
                logger.error("not created", extra={"kind": document["kind"], "answer": answer.body[:256].decode()})

    async with anyio.create_task_group() as tasks:
        for _ in range(CREATES_IN_FLIGHT):
            tasks.start_soon(create)


class _Demo:
    """What the demo shows, and when it is over."""

    def __init__(self, program: Program, transport: Transport, options: DemoOptions, kubeconfig: Path) -> None:
        self._program = program
        self._transport = transport
        self._options = options
        self._kubeconfig = kubeconfig
        self._last_bound: dict[str, int] = {}

    async def follow(self) -> ExitCode:
        """Until Ctrl-C; with `--once` until every pod that waits has been decided."""
        if self._options.output == "table":
            print(f"kubectl --kubeconfig {self._kubeconfig} get pods -A", flush=True)  # noqa: T201
        started = time.monotonic()
        quiet_since = started
        while not self._program.is_closing:
            await anyio.sleep(0.5)
            bound = sum(int(str(s["bound"])) for s in self._program.statistics().values())
            if self._show() or not bound:
                quiet_since = time.monotonic()
            if self._options.is_once and time.monotonic() - quiet_since > 2.0:
                break
            if self._options.is_once and time.monotonic() - started > ONCE_LIMIT_S:
                return ExitCode.PROBLEM
        if self._options.output == "json":
            print(orjson.dumps(await self._result(), option=orjson.OPT_INDENT_2).decode())  # noqa: T201
        return ExitCode.OK

    def _show(self) -> bool:
        """One line per domain; True while something still moves."""
        moving = False
        lines = []
        for name, statistics in self._program.statistics().items():
            pending: Any = statistics["pending"]
            bound = int(str(statistics["bound"]))
            rate = 2 * (bound - self._last_bound.get(name, 0))
            self._last_bound[name] = bound
            waiting = pending["active"] + pending["backoff"] + int(str(statistics["in_flight"]))
            moving = moving or rate > 0 or waiting > 0
            p50, p99 = _quantiles(statistics["latencies_s"])
            lines.append(
                f"{name:10} queued {sum(pending.values()):6} bound {bound:6} {rate:5}/s  p50 {p50:7.1f} ms  p99 {p99:7.1f} ms"
            )
        if self._options.output == "table" and (moving or not self._last_bound):
            print("\n".join(lines), flush=True)  # noqa: T201
        return moving

    async def _result(self) -> Mapping[str, object]:
        domains = {}
        for name, statistics in self._program.statistics().items():
            pending: Any = statistics["pending"]
            p50, p99 = _quantiles(statistics["latencies_s"])
            domains[name] = {
                "pods": int(str(statistics["bound"])) + sum(pending.values()),
                "bound": statistics["bound"],
                "p50_ms": round(p50, 3),
                "p99_ms": round(p99, 3),
                "conflicts_true": statistics["conflicts_true"],
                "conflicts_false": statistics["conflicts_false"],
            }
        return {"domains": domains, "overcommitted": await self._overcommitted()}

    async def _overcommitted(self) -> int:
        """Nodes whose running pods ask for more than the node has, counted from the API server's own lists."""
        from multisched.model.decode import Decoder
        from multisched.model.objects import PODS

        decoder = Decoder()
        nodes = [decoder.node(item) for item in await self._items("/api/v1/nodes")]
        used: dict[str, dict[str, int]] = {}
        for item in await self._items("/api/v1/pods"):
            pod = decoder.pod(item)
            if pod.node and not pod.is_terminal:
                sums = used.setdefault(pod.node, {})
                for resource, amount in {**pod.requests, PODS: 1}.items():
                    sums[resource] = sums.get(resource, 0) + amount
        return sum(
            any(amount > node.allocatable.get(resource, 0) for resource, amount in used.get(node.name, {}).items())
            for node in nodes
        )

    async def _items(self, path: str) -> list[bytes]:
        answer = await self._transport.request("GET", path)
        return [orjson.dumps(item) for item in orjson.loads(answer.body)["items"]]


def _quantiles(latencies_s: Any) -> tuple[float, float]:
    """p50 and p99 in milliseconds; zeros while nothing was bound."""
    ordered = sorted(latencies_s)
    if not ordered:
        return 0.0, 0.0
    return 1000 * ordered[len(ordered) // 2], 1000 * ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]


def default_identity() -> str:
    """Unique among processes: the pod's name in a cluster, else host and process."""
    return os.environ.get("POD_NAME") or f"{os.uname().nodename}-{os.getpid()}-{random.getrandbits(32):08x}"
