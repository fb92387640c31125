"""Composition root: the real clock, network, randomness and signals around the program.

Everything here is wiring. Whoever wants the scheduler without a network uses `shell.program.Program` directly.
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
import numpy.ma  # noqa: F401 - np.unique imports it at its first call: 15 ms, which an attempt of a pod should not take
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
"""Number of requests in flight from which answers are gathered. With fewer, each answer is handled at once."""
GATHER_S = 0.003
_POD_OF_DEPLOYMENT = re.compile(r"(.+)-[a-z0-9]{1,10}-[a-z0-9]{5}")
"""Deployment, hash of its template, and five letters."""
THREAD_TURN_S = 0.0005
"""How long a thread computes on while the loop wants to go on; 5 ms as shipped, which a pod would wait for several times.

Such threads read another configuration, or learn a forecast.
"""
GATHER_TURNS = 2
"""Turns of the loop until what has been gathered is worked off: answers are read in one, their tasks go on in the next."""


class SystemClock:
    """The machine's clocks."""

    monotonic = staticmethod(time.monotonic)
    """Bare: it is asked ten times for every pod."""

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
    """The program on the machine's clock; `metrics` hears what happens in its domains. `connect_again` opens connections
    that another loop may use."""
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
    """The HTTP server of a running program, with the loop's heartbeat for /livez; its base URL, empty where none is wanted.

    `is_read_only`: nobody on this machine gets a token to change something with. Raises ServerError.
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
    """Where other machines reach the server that listens at `url`. Of all interfaces the pod's is the one that others know."""
    if settings.advertised_url is not None:
        return settings.advertised_url
    if not ip_address(settings.bind_address).is_unspecified:
        return url
    host = os.environ.get("POD_IP") or os.uname().nodename
    parts = urlsplit(url)
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}:{parts.port}"


def metrics_of(configuration: Configuration) -> Metrics:
    """Empty, with the families that the configuration wants."""
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
    """None where everybody on this machine may read. It has connections of its own: a flood of tokens holds up no bind."""
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
    """Pauses the whole process briefly while many requests are in flight, so that it reads several answers at once.

    Network cards do the same with interrupts. A process that wakes for a single answer finds cold caches and takes the
    CPU from another process. On two cores shared with the API server, the pauses save a tenth of the CPU per pod.
    """
    while True:
        await transport.wait_in_flight(GATHER_FROM)
        sleep(GATHER_S)
        for _ in range(GATHER_TURNS):
            await asyncio.sleep(0)


async def wait_reachable(transport: Transport) -> None:
    """Asks until an API server answers. A wrong address is seen on the screen, and a server that starts later is found."""
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
    """SIGTERM and Ctrl-C begin the orderly end, or end the wait for an API server; a second one ends at once."""
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        forced.listen_to(signal.SIGTERM, signal.SIGINT)
        task_status.started()
        async for _ in signals:
            logger.info("stopping")
            program.stop()
            waiting.cancel()
            break


async def _look_on_signal(watch: ConfigurationWatch, *, task_status: anyio.abc.TaskStatus[None]) -> None:
    """SIGHUP asks for a look at the configuration file."""
    with anyio.open_signal_receiver(signal.SIGHUP) as signals:
        task_status.started()
        async for _ in signals:
            watch.look_now()


def _configuration_watch(program: Program, options: RunOptions) -> ConfigurationWatch:
    """Follows the file, if there is one. Reading takes tens of milliseconds: it is done in a thread."""
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
    """Returns what restarts the process: all replicas if it is a pod of a Deployment, which has the Deployment's name.

    Empty for a pod of something else.
    """
    name, namespace = environment.get("POD_NAME", ""), environment.get("POD_NAMESPACE", "")
    pod = _POD_OF_DEPLOYMENT.fullmatch(name)
    if pod is not None and namespace:
        return f"kubectl -n {namespace} rollout restart deployment/{pod[1]}"
    return "" if name else f"kill {process}, and when it has ended: {shlex.join(arguments)}"


@contextlib.contextmanager
def logging_of(written: LoggingConfig) -> Iterator[LineWriter]:
    """All lines of the process go to its standard error until the context ends."""
    is_terminal = sys.stderr.isatty()
    automatic: LogFormat = "text" if is_terminal else "json"
    form = automatic if written.format == "auto" else written.format
    errors = sys.stderr.buffer
    with logging_to(errors, level=written.level, form=form, clock=SystemClock(), is_terminal=is_terminal) as log:
        yield log


async def run(options: RunOptions, log: LineWriter) -> ExitCode:
    """`multisched run`: schedules until SIGTERM. A lost lease is a problem: another process has taken over."""
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
    """Without a word to anybody but the log."""
    log.close()
    os._exit(ExitCode.PROBLEM)


async def until_ended(program: Program) -> ExitCode:
    """Runs the program to its end; a lost lease is a problem, and said."""
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
    """Unique among processes: the pod's name in a cluster, else host and process, and a random end in either case.

    A container that is restarted keeps its pod's name, and must not take its predecessor's lease for its own.
    """
    pod_name = os.environ.get("POD_NAME") or f"{os.uname().nodename}-{os.getpid()}"
    return f"{pod_name}-{random.getrandbits(32):08x}"
