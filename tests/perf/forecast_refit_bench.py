"""What refits cost placement: `python -m tests.perf.forecast_refit_bench [--rounds 3] [--seconds 30] [--kinds good down ...]`.

The real program binds pods without an end on an embedded API server in the same process and loop, so that whatever takes the
interpreter or the loop away shows; the history server is a process of its own. Rounds without any source (`none`, profiles of a
file in force) alternate with rounds in which a refit of 2,000 pods x 5 dimensions x 14 days at 5 min begins with the program
(`good`), with each way in which a source fails, and, for comparison, with a stranger that computes on the other core (`busy`:
what caches and clock rate cost by themselves).

One line for each kind, medians: pods bound per second in which the program's thread had a core (others may share the machine; waiting
for the interpreter counts, waiting for a core does not), how much less that is than in the rounds `none` around it, CPU of the
process per pod, how late the loop came around, and what the refit says of itself. `--check` exits 1 where more than LOSS_MAX is
lost.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import orjson
import uvloop

from domains.forecast.forecast import Forecast
from domains.forecast.profiles import Origin, Profiles
from domains.forecast.profiles_file import dumps
from multisched import config
from multisched.cluster.direct import DirectTransport
from multisched.cluster.server import ApiServer
from multisched.garbage import collect_seldom, leave_to_reference_counts
from multisched.observe.metrics import Metrics
from multisched.shell.duties import NetworkMeasures
from multisched.shell.duty_threads import DutyThreads
from multisched.shell.program import Program, Surroundings
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
DIMENSIONS: Final = ("cpu", "memory", "disk", "net", "log")
NODES: Final = 500
PODS: Final = 2_000
SERVICES: Final = 50
"""Of those with profiles, whose pods come."""
WAITING: Final = 200
STANDING: Final = 4_000
"""The oldest pods go as new ones come."""
WARM_UP_S: Final = 5.0
LOSS_MAX: Final = 0.05
HEAD: Final = "apiVersion: multisched.io/v1\nkind: MultischedConfiguration\nlease: {enabled: false}\n"


class SystemClock:
    """The machine's own time."""

    monotonic = staticmethod(time.monotonic)

    def now(self) -> datetime:
        return datetime.now(UTC)


class Round(msgspec.Struct, frozen=True):
    """What one showed."""

    bound_per_s: float
    """Of the seconds in which a core was there."""
    wall_per_s: float
    cpu_us: float
    """Of the process, with all its threads, per pod."""
    late_ms: float
    """99th percentile of how much later than asked the loop came around."""
    queued: float
    """Part of the time that the thread waited for a core."""
    detail: str = ""


class Cluster:
    """The program over an embedded API server, and pods that come and go."""

    def __init__(self, configuration: str, *, in_threads: bool) -> None:
        clock = SystemClock()
        self._api = DirectTransport(ApiServer(clock, seed=0, rbac=False))
        self._made: deque[str] = deque()
        self._late_s: list[float] = []
        self.metrics = Metrics()
        outside = Surroundings(
            self._api,
            clock,
            random.Random(0),
            "bench",
            "kube-system",
            observer=self.metrics.domain,
            on_ready=leave_to_reference_counts,
            measures=NetworkMeasures(self._api, random.Random(0)),
            duty_threads=DutyThreads if in_threads else None,
        )
        self.program = Program(config.parse(configuration, "bench"), outside)

    @property
    def bound(self) -> int:
        return sum(worker.counters.bound for worker in self.program.router.workers())

    @property
    def forecast(self) -> Forecast:
        [worker] = self.program.router.workers()
        [found] = [built.plugin for built in worker.plugins.built if isinstance(built.plugin, Forecast)]
        return found

    async def measure(self, seconds: float) -> Round:
        await self._post_all("/api/v1/nodes", workload.work_nodes(NODES))
        running = asyncio.create_task(self.program.run())
        tasks = [asyncio.create_task(self._feed()), asyncio.create_task(self._watch_loop())]
        await asyncio.sleep(WARM_UP_S)
        self._late_s.clear()
        bound, began_s, cpu_s, queued_s = self.bound, time.perf_counter(), time.process_time(), _queued_s()
        await asyncio.sleep(seconds)
        took_s, cpu_s, bound = time.perf_counter() - began_s, time.process_time() - cpu_s, self.bound - bound
        queued_s = _queued_s() - queued_s
        late = sorted(self._late_s)
        for task in tasks:
            task.cancel()
        state = self.forecast.refit_state()
        self.program.stop()
        await running
        told = "" if state is None else f"{state.refits} refits; {state.detail(time.time())}"
        return Round(
            bound / (took_s - queued_s),
            bound / took_s,
            1e6 * cpu_s / bound,
            1_000 * late[int(0.99 * len(late))],
            queued_s / took_s,
            told,
        )

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


def _queued_s() -> float:
    """How long this thread has waited for a core (proc_pid_schedstat(5))."""
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9


def configuration(url: str, file: Path) -> str:
    """With history where there is a url; the profiles of the file are in force at once either way."""
    args: dict[str, Any] = {"profilesFile": str(file)}
    if url:
        args["history"] = {
            "stepSeconds": 300,
            "windowDays": 14,
            "refreshSeconds": 10,
            "sources": [{"type": "prometheus", "url": url, "owners": False}],
            "dimensions": [
                {
                    "name": name,
                    "query": f"sum by (namespace, pod) (rate(use_{name}[$window]))",
                    "capacity": "allocatable" if name in ("cpu", "memory") else "100",
                }
                for name in DIMENSIONS
            ],
        }
    plugin = {"name": "PeakForecast", "weight": 5, "args": args}
    domain = {"name": "forecast", "profile": {"plugins": {"enabled": [plugin]}}}
    return HEAD + "domains: " + orjson.dumps([domain]).decode()


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


def run(kind: str, seconds: float, *, in_threads: bool) -> Round:
    with tempfile.TemporaryDirectory() as folder, history_of(kind) as url:
        file = Path(folder) / "profiles"
        known_profiles(file)
        return uvloop.run(Cluster(configuration(url, file), in_threads=in_threads).measure(seconds))


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--kinds", nargs="+", choices=(BUSY, DOWN, *KINDS), default=(BUSY, DOWN, *KINDS))
    parser.add_argument("--threads", action="store_true", help="refits in threads, as where there are no processes")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    collect_seldom()
    lost = {kind: _compare(kind, options) for kind in options.kinds}
    if options.check and max(lost.values()) > LOSS_MAX:
        sys.exit(1)


def _compare(kind: str, options: argparse.Namespace) -> float:
    """The part of the throughput that is lost, by the medians of rounds that alternate."""

    def once(kind: str) -> Round:
        return run(kind, options.seconds, in_threads=options.threads)

    without, found = [once(NONE)], list[Round]()
    for _ in range(options.rounds):
        found.append(once(kind))
        without.append(once(NONE))
    rates = [_median(each, "bound_per_s") for each in (without, found)]
    lost = 1 - rates[1] / rates[0]
    print(
        f"{kind:9} {rates[1]:5.0f}/s, none {rates[0]:5.0f}/s, lost {100 * lost:5.1f} %;"
        f" CPU per pod {_median(found, 'cpu_us'):.0f} us ({_median(without, 'cpu_us'):.0f});"
        f" loop late p99 {_median(found, 'late_ms'):.0f} ms ({_median(without, 'late_ms'):.0f});"
        f" waited for a core {100 * _median(found, 'queued'):.0f} % ({100 * _median(without, 'queued'):.0f});"
        f" {found[-1].detail[:160]}",
        flush=True,
    )
    return lost


def _median(rounds: Sequence[Round], name: str) -> float:
    found: float = statistics.median(getattr(one, name) for one in rounds)
    return found


if __name__ == "__main__":
    main()
