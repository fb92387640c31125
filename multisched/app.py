"""Composition root of `multisched run`: gives the program the real clock, network, random numbers and signals.

Contains only wiring. Code that needs the scheduler without a network uses `shell.program.Program` directly.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import re
import shlex
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import anyio.abc
import anyio.to_thread
import numpy.ma  # noqa: F401 - np.unique imports it at its first call: 15 ms, which must not be part of an attempt
from msgspec.structs import replace

from multisched.client.dry_run import DryRunTransport
from multisched.client.recurring_trouble import RecurringTrouble
from multisched.client.request_counts import RequestCounts
from multisched.client.transport import HttpTransport, connect
from multisched.config.options import ExitCode, RunOptions
from multisched.config.schema import Configuration, LoggingConfig, ServerConfig
from multisched.config.watched_file import WatchedFile
from multisched.model.wire import Transport, TransportError
from multisched.observe.access import REVIEWS_AT_ONCE, DelegatedAuthenticator
from multisched.observe.admission_view import AdmissionSource
from multisched.observe.certificates import ServerCertificate, self_signed
from multisched.observe.health import Health, Heartbeat
from multisched.observe.logging import LineWriter, LogFormat, logging_to
from multisched.observe.loopback import token_folder
from multisched.observe.metrics import Metrics
from multisched.observe.page_routes import PageSources
from multisched.observe.probes import serve_probes
from multisched.observe.readings import Readings
from multisched.observe.server import ServerSettings, Sources, serve
from multisched.shell.configuration_watch import ConfigurationWatch, reading_of
from multisched.shell.forced_end import ForcedEnd
from multisched.shell.garbage import GC_YOUNG_STARTING_MAX, disable_gc, set_gc_thresholds
from multisched.shell.leadership.leaders import Leaders
from multisched.shell.leadership.lease_runner import LeasesInThread
from multisched.shell.page.nodes import ProgramNodes
from multisched.shell.page.overview import ProgramOverview
from multisched.shell.page.pending import ProgramPending
from multisched.shell.page.preemptions import ProgramPreemptions
from multisched.shell.plugin_views import ProgramViews
from multisched.shell.program import LeaseLostError, Program, ProgramPorts
from multisched.shell.telemetry import ProgramQueues, health_of, read, requests_of
from multisched.shell.workers.background_tasks import NetworkMeasures
from multisched.whatif.explain_source import ProgramExplanations
from multisched.whatif.repair_source import RepairPlans, plans_of

logger = logging.getLogger(__name__)

REACHABLE_CHECK_S = 5.0
REACHABLE_PAUSE_MAX_S = 10.0
UNREACHABLE_FIX = "check that it runs, and the address in the kubeconfig; Ctrl-C or SIGTERM ends the wait"
GATHER_FROM = 4
"""Minimum number of requests in flight for which responses are gathered. With fewer, each response is handled at once."""
GATHER_S = 0.003
_POD_OF_DEPLOYMENT = re.compile(r"(.+)-[a-z0-9]{1,10}-[a-z0-9]{5}")
"""Matches the name of a pod of a Deployment: its name, the hash of its template, and five letters."""
THREAD_TURN_S = 0.0005
"""Switch interval of threads. With the default of 5 ms, a thread that reads a configuration or learns a forecast would delay the event
loop by 5 ms several times per pod.
"""
GATHER_TURNS = 2
"""Iterations of the event loop between two pauses: responses are read in the first, and their tasks continue in the second."""


class SystemClock:
    """The machine's clocks."""

    monotonic = staticmethod(time.monotonic)
    """Not wrapped in a method, because it is called ten times per pod."""

    def now(self) -> datetime:
        return datetime.now(UTC)


def build_program(
    configuration: Configuration,
    transport: Transport,
    identity: str,
    namespace: str,
    metrics: Metrics,
    rng: random.Random,
    connect_again: Callable[[], contextlib.AbstractAsyncContextManager[Transport]],
) -> Program:
    """Builds the program with the machine's clock. `metrics`: observes its domains. `connect_again`: opens connections for another
    event loop.
    """
    return Program(
        configuration,
        ProgramPorts(
            transport,
            SystemClock(),
            rng,
            identity,
            namespace,
            observer=metrics.domain,
            on_ready=disable_gc,
            measures=NetworkMeasures(transport, rng),
            lease_runner=LeasesInThread(connect_again, SystemClock()),
            plan_repairs=plans_of,
        ),
    )


@contextlib.asynccontextmanager
async def served(
    configuration: Configuration,
    program: Program,
    metrics: Metrics,
    transport: HttpTransport,
    identity: str,
    certificate: ServerCertificate | None,
    watch: ConfigurationWatch,
    *,
    is_read_only: bool = False,
) -> AsyncIterator[str]:
    """Serves HTTP for a running program, with the heartbeat of the event loop for /livez. Yields the base URL; empty if it is disabled.

    `is_read_only`: no token for changes is written on this machine. Raises ServerError.
    """
    settings = configuration.server
    if not settings.enabled:
        yield ""
        return
    clock = SystemClock()
    health = Health()
    heartbeat = Heartbeat(clock, health)
    health.add_liveness("loop", heartbeat.check)
    health.add_readiness(
        "caches", lambda: "" if program.is_ready else "the cache does not have all objects of the API server yet"
    )
    health.add_readiness("objects", program.objects.unreadable)
    health.add_remark("plugins", lambda: health_of(program))
    health.add_remark("handover", program.handover.waiting)
    find_leader = Leaders(program.leases, identity, program.router.workers).elsewhere
    queues = ProgramQueues(program, identity, find_leader)
    sources = Sources(
        health,
        metrics,
        queues,
        ProgramExplanations(program, find_leader=find_leader),
        repair=RepairPlans(program, find_leader=find_leader),
        views=ProgramViews(program, find_leader=find_leader),
        configuration=watch,
        admission=_admission(program, configuration),
        page=PageSources(
            ProgramOverview(program, queues, identity, find_leader),
            ProgramPending(program, queues, find_leader),
            ProgramNodes(program, queues),
            ProgramPreemptions(program),
        ),
    )
    port = settings.probe_port
    probes = contextlib.nullcontext("") if port is None else serve_probes(settings.bind_address, port, heartbeat)
    async with contextlib.AsyncExitStack() as stack:
        authenticator = await stack.enter_async_context(_authenticator(configuration, transport, clock))
        tokens = None if is_read_only else token_folder(os.environ)
        address = settings.bind_address, settings.port
        server = ServerSettings(*address, certificate, authenticator, token_folder=tokens)
        url = await stack.enter_async_context(serve(server, sources))
        program.leases.answers_at(advertised(settings, url))
        logger.info("serving", extra={"url": url, "probes": stack.enter_context(probes)})
        tasks = await stack.enter_async_context(anyio.create_task_group())
        tasks.start_soon(heartbeat.run)
        yield url
        health.stop()
        tasks.cancel_scope.cancel()


def advertised(settings: ServerConfig, url: str) -> str:
    """Returns the URL at which other machines reach the server that listens at `url`. If it listens on all interfaces, it has the pod's
    IP.
    """
    if settings.advertised_url is not None:
        return settings.advertised_url
    if not ip_address(settings.bind_address).is_unspecified:
        return url
    host = os.environ.get("POD_IP") or os.uname().nodename
    parts = urlsplit(url)
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}:{parts.port}"


def metrics_of(configuration: Configuration) -> Metrics:
    """Returns empty metrics with the families that the configuration enables."""
    if not configuration.metrics.kube_scheduler_names:
        return Metrics()
    return Metrics({domain.name: domain.scheduler_names[0] for domain in configuration.domains})


def _admission(program: Program, configuration: Configuration) -> AdmissionSource | None:
    if not configuration.server.quota_webhook:
        return None
    from multisched.whatif.quota_admission import QuotaAdmission

    return QuotaAdmission(program)


@contextlib.asynccontextmanager
async def _authenticator(
    configuration: Configuration, transport: HttpTransport, clock: SystemClock
) -> AsyncIterator[DelegatedAuthenticator | None]:
    """Yields the authenticator; None if all users of this machine may read. It has separate connections, so that reviews of many tokens
    do not delay binds.
    """
    if not configuration.server.is_authenticating:
        yield None
        return
    async with transport.separate_connections(REVIEWS_AT_ONCE) as apart:
        yield DelegatedAuthenticator(apart, clock)


def _certificate(configuration: Configuration) -> ServerCertificate | None:
    if not configuration.server.enabled:
        return None
    tls = configuration.server.tls
    if tls.self_signed:
        return self_signed(os.uname().nodename, SystemClock().now())
    if tls.cert_file is None or tls.key_file is None:
        return None
    return ServerCertificate(Path(tls.cert_file), Path(tls.key_file))


async def gather_answers(transport: HttpTransport, sleep: Callable[[float], None] = time.sleep) -> None:
    """Pauses the whole process briefly while many requests are in flight, so that it reads several responses at once.

    Network cards do the same with interrupts. A process that wakes up for a single response has cold caches and takes the
    CPU from another process. On two cores shared with the API server, the pauses save a tenth of the CPU per pod.
    """
    while True:
        await transport.wait_in_flight(GATHER_FROM)
        sleep(GATHER_S)
        for _ in range(GATHER_TURNS):
            await asyncio.sleep(0)


async def wait_reachable(transport: Transport) -> None:
    """Waits until the API server responds, and logs why it does not: a wrong address is visible, and a server may start later."""
    pause_s = 0.5
    trouble = RecurringTrouble(SystemClock())
    while True:
        try:
            await transport.request("GET", "/version", timeout_s=REACHABLE_CHECK_S)
        except TransportError as error:
            if trouble.is_due(str(error)):
                fields = {"error": str(error), "fix": UNREACHABLE_FIX, "waited_s": trouble.lasts_s}
                logger.warning("API server does not respond; retrying until it does", extra=fields)
            await anyio.sleep(pause_s)
            pause_s = min(REACHABLE_PAUSE_MAX_S, pause_s * 2)
        else:
            return


async def _stop_on_signal(
    program: Program, waiting: anyio.CancelScope, forced: ForcedEnd, *, task_status: anyio.abc.TaskStatus[None]
) -> None:
    """Starts the graceful stop at SIGTERM or Ctrl-C, or ends the wait for an API server; a second signal ends the process at once."""
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        forced.listen_to(signal.SIGTERM, signal.SIGINT)
        task_status.started()
        async for _ in signals:
            logger.info("stopping")
            program.stop()
            waiting.cancel()
            break


async def _look_on_signal(watch: ConfigurationWatch, *, task_status: anyio.abc.TaskStatus[None]) -> None:
    """Checks the configuration file at SIGHUP."""
    with anyio.open_signal_receiver(signal.SIGHUP) as signals:
        task_status.started()
        async for _ in signals:
            watch.look_now()


def _configuration_watch(program: Program, options: RunOptions) -> ConfigurationWatch:
    """Returns the watch of the configuration file, if there is one. A thread reads the file, because that takes tens of milliseconds."""
    command = restart_command(os.environ, os.getpid(), sys.argv)
    if options.config is None:
        return ConfigurationWatch(program, restart_command=command)
    path, file = options.config.path, WatchedFile(options.config.path, options.config.text)

    def set_level(configuration: Configuration) -> None:
        logging.getLogger().setLevel(configuration.logging.level.upper())

    async def look() -> Configuration | None:
        found = await anyio.to_thread.run_sync(file.changed)
        return None if found is None else options.overrides.over(found)

    return ConfigurationWatch(program, look, file=str(path), restart_command=command, on_applied=set_level)


def restart_command(environment: Mapping[str, str], process: int, arguments: Sequence[str]) -> str:
    """Returns the command that restarts the process; for a pod of a Deployment, all its replicas. Empty for other pods."""
    name, namespace = environment.get("POD_NAME", ""), environment.get("POD_NAMESPACE", "")
    pod = _POD_OF_DEPLOYMENT.fullmatch(name)
    if pod is not None and namespace:
        return f"kubectl -n {namespace} rollout restart deployment/{pod[1]}"
    return "" if name else f"kill {process}, and when it has ended: {shlex.join(arguments)}"


@contextlib.contextmanager
def logging_of(written: LoggingConfig) -> Iterator[LineWriter]:
    """Writes all log lines of the process to standard error until the context ends."""
    is_terminal = sys.stderr.isatty()
    automatic: LogFormat = "text" if is_terminal else "json"
    form = automatic if written.format == "auto" else written.format
    errors = sys.stderr.buffer
    with logging_to(errors, level=written.level, form=form, clock=SystemClock(), is_terminal=is_terminal) as log:
        yield log


async def run(options: RunOptions, log: LineWriter) -> ExitCode:
    """Runs `multisched run` until SIGTERM. Returns PROBLEM if the lease was lost: another process has taken over."""
    set_gc_thresholds(GC_YOUNG_STARTING_MAX)
    sys.setswitchinterval(THREAD_TURN_S)
    configuration = options.configuration
    async with connect(options.kubeconfig, options.context) as transport:
        metrics, certificate, of_leases = metrics_of(configuration), _certificate(configuration), RequestCounts()
        rng = random.Random()  # noqa: S311 - jitter and ties, not secrets
        program = build_program(
            configuration,
            DryRunTransport(transport) if options.overrides.is_dry_run else transport,
            options.identity,
            options.lease_namespace,
            metrics,
            rng,
            partial(connect, options.kubeconfig, options.context, counts=of_leases),
        )

        watch = _configuration_watch(program, options)

        def readings() -> Readings:
            return replace(
                read(program),
                requests=requests_of(transport.host, (transport.counts, of_leases)),
                log_lines_dropped=log.dropped,
                certificate_expiry_s=None if certificate is None else certificate.expires_at.timestamp(),
                reload=None if options.config is None else reading_of(watch.statistics),
            )

        metrics.read_from(readings)
        forced = ForcedEnd(partial(_end_at_once, log))
        with forced.watching():
            async with (
                served(configuration, program, metrics, transport, options.identity, certificate, watch),
                anyio.create_task_group() as tasks,
            ):
                tasks.start_soon(gather_answers, transport)
                tasks.start_soon(watch.run)
                await tasks.start(_look_on_signal, watch)
                waiting = anyio.CancelScope()
                await tasks.start(_stop_on_signal, program, waiting, forced)
                with waiting:
                    await wait_reachable(transport)
                code = await until_ended(program) if not program.is_closing else ExitCode.OK
                tasks.cancel_scope.cancel()
    return code


def _end_at_once(log: LineWriter) -> None:
    """Closes the log and exits without the graceful stop."""
    log.close()
    os._exit(ExitCode.PROBLEM)


async def until_ended(program: Program) -> ExitCode:
    """Runs the program to its end. Logs a lost lease, and returns PROBLEM for it."""
    code = ExitCode.OK
    try:
        await program.run()
    except* LeaseLostError as lost:
        reasons = sorted({str(error) for error in _leaves(lost)})
        logger.error("ending, so that no two processes bind for one domain", extra={"reasons": reasons})  # noqa: TRY400
        code = ExitCode.PROBLEM
    return code


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


def default_identity() -> str:
    """Returns a unique name of this process: the pod's name in a cluster, else host and process ID; both with a random suffix.

    A restarted container keeps the name of its pod, and must not mistake the lease of its predecessor for its own.
    """
    pod_name = os.environ.get("POD_NAME") or f"{os.uname().nodename}-{os.getpid()}"
    return f"{pod_name}-{random.getrandbits(32):08x}"
