"""What refits cost placement: `python -m tests.perf.forecast_refit_bench [--seconds 40] [--kinds good down ...]`.

The real program binds pods without an end on an embedded API server in the same process and loop, so that whatever takes the
interpreter or the loop away shows. Beside it, from its start, a refit of 2,000 pods x 5 dimensions x 14 days at 5 min (`good`), each
way in which a source fails, and, for comparison, a stranger that computes on the other core (`busy`: what caches and clock rate
cost by themselves). The history server and the refit are processes of their own, and are stopped and let go again every WINDOW_S: both
halves of a run have the same pods, the same moment and the same neighbours on the machine.

One line for each kind: pods bound per second in which the program's thread had a core (others may share the machine; waiting for the
interpreter counts, waiting for a core does not) while the others run and while they are stopped, what is lost (median of
neighbouring windows, and its standard error), CPU of the process
per pod, how much of that other threads than the loop's took, how late the loop came around, and what the refit says of itself.
`--alone` measures one refit and the next in the process of a background task, and nothing else: seconds, the process's memory.
`--threads` has refits in threads, as where there are no processes, and measures `none` before them. `--check` exits 1 where more than
LOSS_MAX is lost beyond `busy`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import orjson
import uvloop

from domains.forecast.curves.profiles_file import dumps
from domains.forecast.forecast import Forecast
from domains.forecast.learning.learned import learning_task_of
from domains.forecast.learning.learning_run import LearningRequest, LearningResult
from domains.forecast.settings.args import PeakSettings
from multisched.cluster.api.direct import DirectTransport
from multisched.cluster.api.server import ApiServer
from multisched.config import loading
from multisched.forecasting.profiles import Origin, Profiles
from multisched.framework.measures import Grid
from multisched.observe.metrics import Metrics
from multisched.shell.garbage import disable_gc, set_gc_thresholds
from multisched.shell.program import Program, ProgramPorts
from multisched.shell.workers.background_processes import ChildProcess
from multisched.shell.workers.background_tasks import NetworkMeasures
from multisched.shell.workers.background_threads import BackgroundThreads
from tests.perf import workload
from tests.perf.history_server import KINDS, service_name

NONE: Final = "none"
DOWN: Final = "down"
BUSY: Final = "busy"
STRANGER: Final = """
import json, os
os.nice(10)
while True:
    json.loads(json.dumps([[n, str(n)] for n in range(100_000)]))
"""
FACTORY: Final = "domains.forecast.learning.process:learning_assistant"
DIMENSIONS: Final = ("cpu", "memory", "disk", "net", "log")
NODES: Final = 500
PODS: Final = 2_000
SERVICES: Final = 50
"""Of those with profiles, whose pods come."""
POINTS: Final = 168
"""Steps of a query: answers of eight megabytes, so that most of a refit is decoding from its first second on."""
WAITING: Final = 200
STANDING: Final = 4_000
"""The oldest pods go as new ones come."""
MEDIAN_ERROR: Final = 1.2533
"""Standard errors of a median in those of a mean."""
WARM_UP_S: Final = 5.0
WINDOW_S: Final = 2.0
SETTLE_S: Final = 0.2
"""Of each window, in which nothing is counted."""
LOSS_MAX: Final = 0.03
HEAD: Final = "apiVersion: multisched.io/v1\nkind: MultischedConfiguration\nlease: {enabled: false}\n"


class SystemClock:
    """The machine's own time."""

    monotonic = staticmethod(time.monotonic)

    def now(self) -> datetime:
        return datetime.now(UTC)


class Tally(msgspec.Struct):
    """Of the windows of one sort."""

    bound: int = 0
    cpu_s: float = 0.0
    """Of the process, with all its threads."""
    others_s: float = 0.0
    """Of that, by other threads than the loop's."""
    late_s: list[float] = []
    """How much later than asked the loop came around."""
    rates: list[float] = []
    """Bound per such second, window by window."""

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)

    @property
    def cpu_us(self) -> float:
        return 1e6 * self.cpu_s / self.bound

    @property
    def late_ms(self) -> float:
        return 1e3 * sorted(self.late_s)[int(0.99 * len(self.late_s))]


class Moment(NamedTuple):
    """What counters said."""

    bound: int
    wall_s: float
    cpu_s: float
    thread_s: float
    queued_s: float


class Cluster:
    """The program over an embedded API server, and pods that come and go."""

    def __init__(self, configuration: str, *, in_threads: bool) -> None:
        clock = SystemClock()
        self._api = DirectTransport(ApiServer(clock, seed=0, rbac=False))
        self._made: deque[str] = deque()
        self._late_s: list[float] = []
        self.metrics = Metrics()
        ports = ProgramPorts(
            self._api,
            clock,
            random.Random(0),
            "bench",
            "kube-system",
            observer=self.metrics.domain,
            on_ready=disable_gc,
            measures=NetworkMeasures(self._api, random.Random(0)),
            background_threads=BackgroundThreads if in_threads else None,
        )
        self.program = Program(loading.parse(configuration, "bench"), ports)

    @property
    def bound(self) -> int:
        return sum(worker.counters.bound for worker in self.program.router.workers())

    @property
    def forecast(self) -> Forecast:
        [worker] = self.program.router.workers()
        [found] = [built.plugin for built in worker.plugins.built if isinstance(built.plugin, Forecast)]
        return found

    async def measure(self, seconds: float, *, is_stopping: bool) -> tuple[Tally, Tally, str]:
        """While the other processes run, while they are stopped, and what the refit says at the end."""
        await self._post_all("/api/v1/nodes", workload.work_nodes(NODES))
        running = asyncio.create_task(self.program.run())
        tasks = [asyncio.create_task(self._feed()), asyncio.create_task(self._watch_loop())]
        await asyncio.sleep(WARM_UP_S)
        tallies = Tally(), Tally()
        try:
            for number in range(max(2, round(seconds / WINDOW_S))):
                is_stopped = is_stopping and number % 4 in (1, 2)  # so that what drifts hits both alike
                _signal_children(signal.SIGSTOP if is_stopped else signal.SIGCONT)
                await asyncio.sleep(SETTLE_S)
                await self._window(tallies[is_stopped])
        finally:
            _signal_children(signal.SIGCONT)
        for task in tasks:
            task.cancel()
        state = self.forecast.refit_state()
        self.program.stop()
        await running
        told = "" if state is None else f"{state.refits} refits; {state.detail(time.time())}"
        return *tallies, told

    async def _window(self, tally: Tally) -> None:
        self._late_s.clear()
        before = self._moment()
        await asyncio.sleep(WINDOW_S - SETTLE_S)
        after = self._moment()
        bound, core_s = after.bound - before.bound, after.wall_s - before.wall_s - (after.queued_s - before.queued_s)
        tally.rates.append(bound / core_s)
        tally.bound += bound
        tally.cpu_s += after.cpu_s - before.cpu_s
        tally.others_s += after.cpu_s - before.cpu_s - (after.thread_s - before.thread_s)
        tally.late_s += self._late_s

    def _moment(self) -> Moment:
        return Moment(self.bound, time.perf_counter(), time.process_time(), time.thread_time(), _queued_s())

    async def _feed(self) -> None:
        """Keeps WAITING pods waiting, and STANDING at the most on the nodes."""
        number = 0
        while True:
            while number - self.bound < WAITING:
                service = service_name(number % SERVICES)
                pod = workload.pod(f"pod-{number}", "forecast-scheduler")
                pod["metadata"]["labels"] = {"multisched.io/service": service}
                pod["metadata"]["namespace"] = "bench"
                await self._post("/api/v1/namespaces/bench/pods", pod)
                self._made.append(pod["metadata"]["name"])
                number += 1
            while len(self._made) > STANDING:
                path = f"/api/v1/namespaces/bench/pods/{self._made.popleft()}?gracePeriodSeconds=0"
                await self._api.request("DELETE", path)
            await asyncio.sleep(0.002)

    async def _watch_loop(self) -> None:
        while True:
            began_s = time.perf_counter()
            await asyncio.sleep(0.005)
            self._late_s.append(time.perf_counter() - began_s - 0.005)

    async def _post_all(self, path: str, objects: Iterator[dict[str, Any]]) -> None:
        await self._post("/api/v1/namespaces", {"metadata": {"name": "bench"}})
        for one in objects:
            await self._post(path, one)

    async def _post(self, path: str, document: dict[str, Any]) -> None:
        answer = await self._api.request("POST", path, body=orjson.dumps(document))
        assert answer.status == 201, answer.body


def _signal_children(number: signal.Signals) -> None:
    """To all processes that this one has started."""
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            for pid in (task / "children").read_text().split():
                os.kill(int(pid), number)


def _queued_s() -> float:
    """How long this thread has waited for a core (proc_pid_schedstat(5))."""
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9


def configuration(url: str, file: Path) -> str:
    """With history where there is a url; the profiles of the file are in force at once either way."""
    plugin = {"name": "PeakForecast", "weight": 5, "args": _args(url, file)}
    domain = {"name": "forecast", "profile": {"plugins": {"enabled": [plugin]}}}
    return HEAD + "domains: " + orjson.dumps([domain]).decode()


def _args(url: str, file: Path) -> dict[str, Any]:
    args: dict[str, Any] = {"profilesFile": str(file) if file.name else ""}
    if not url:
        args |= {"dimensions": DIMENSIONS, "capacities": dict.fromkeys(DIMENSIONS[2:], 100)}
    else:
        args["history"] = {
            "stepSeconds": 300,
            "windowDays": 14,
            "refreshSeconds": 10,
            "sources": [{"type": "prometheus", "url": url, "owners": False, "pointsMax": POINTS}],
            "dimensions": [
                {
                    "name": name,
                    "query": f"sum by (namespace, pod) (rate(use_{name}[$window]))",
                    "capacity": "allocatable" if name in ("cpu", "memory") else "100",
                }
                for name in DIMENSIONS
            ],
        }
    return args


def known_profiles(file: Path) -> None:
    """Writes profiles of all services, as an earlier life would have left them."""
    rng, services = np.random.default_rng(0), PODS // 2
    shape = (services, len(DIMENSIONS))
    curve = rng.uniform(0.05, 0.4, (*shape, 168)).astype(np.float32)
    names = tuple(f"bench/{service_name(number)}" for number in range(services))
    now_s = time.time()
    origin, error = np.full(shape, Origin.SEASONAL, np.uint8), np.full(shape, 0.1, np.float32)
    file.write_bytes(dumps(Profiles(1, now_s, now_s, names, DIMENSIONS, curve, curve, curve, origin, error)))


@contextlib.contextmanager
def history_of(kind: str) -> Iterator[str]:
    """The address of a source of that kind; empty: there is none."""
    if kind == NONE:
        yield ""
        return
    if kind == BUSY:
        command = [sys.executable, "-c", STRANGER]
        with subprocess.Popen(command) as stranger:
            try:
                yield ""
            finally:
                stranger.kill()
        return
    if kind == DOWN:
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            yield f"http://127.0.0.1:{closed.getsockname()[1]}"
        return
    command = [sys.executable, "-m", "tests.perf.history_server", kind, "--pods", str(PODS)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stdin is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.stdin.close()


def run(kind: str, seconds: float, *, in_threads: bool = False) -> tuple[Tally, Tally, str]:
    with tempfile.TemporaryDirectory() as folder, history_of(kind) as url:
        file = Path(folder) / "profiles"
        known_profiles(file)
        cluster = Cluster(configuration(url, file), in_threads=in_threads)
        return uvloop.run(cluster.measure(seconds, is_stopping=not in_threads))


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--kinds", nargs="+", choices=(BUSY, DOWN, *KINDS), default=(BUSY, DOWN, *KINDS))
    parser.add_argument("--threads", action="store_true", help="refits in threads, as where there are no processes")
    parser.add_argument("--alone", action="store_true", help="a refit by itself: seconds and memory")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    if options.alone:
        asyncio.run(_alone())
        return
    set_gc_thresholds()
    lost = {kind: _compare(kind, options) for kind in options.kinds}
    if options.check and max(lost.values()) > LOSS_MAX + max(0.0, lost.get(BUSY, 0.0)):
        sys.exit(1)


async def _alone() -> None:
    with history_of("good") as url:
        settings = PeakSettings.from_config(_args(url, Path())).learning
        assert settings is not None
        assert settings.history is not None
        history = settings.history
        child = ChildProcess(FACTORY, learning_task_of(settings, history.sources), 0)
        try:
            for version in (1, 2):
                end = time.time() // history.step_s * history.step_s
                grid = Grid(end - history.steps * history.step_s, history.step_s, history.steps)
                began_s = time.perf_counter()
                found = await child.ask(LearningRequest(grid, version, time.time(), 1_800.0))
                assert isinstance(found, LearningResult), found
                took_s = time.perf_counter() - began_s
                shape = "x".join(map(str, found.profiles.peak.shape))
                print(
                    f"refit {version}: {took_s:.1f} s, process {_most_kib(child.pid) / 2**20:.2f} GiB, profiles {shape}"
                )
        finally:
            await child.close()


def _most_kib(pid: int | None) -> int:
    """The most memory that the process has had."""
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1])


def _compare(kind: str, options: argparse.Namespace) -> float:
    """The part of the throughput that is lost: the median over pairs of windows that follow one another."""
    beside, without, told = run(kind, options.seconds, in_threads=options.threads)
    if options.threads:
        without, _, _ = run(NONE, options.seconds, in_threads=True)
    pairs = [1 - one / other for one, other in zip(beside.rates, without.rates, strict=False)]
    lost, error = statistics.median(pairs), MEDIAN_ERROR * statistics.stdev(pairs) / math.sqrt(len(pairs))
    print(
        f"{kind:9} {beside.rate:5.0f}/s, without {without.rate:5.0f}/s, lost {100 * lost:5.1f} +- {100 * error:.1f} %;"
        f" CPU per pod {beside.cpu_us:.0f} us ({without.cpu_us:.0f}),"
        f" of other threads {100 * beside.others_s / beside.cpu_s:.1f} % ({100 * without.others_s / without.cpu_s:.1f});"
        f" loop late p99 {beside.late_ms:.0f} ms ({without.late_ms:.0f}); {told[:160]}",
        flush=True,
    )
    return lost


if __name__ == "__main__":
    main()
