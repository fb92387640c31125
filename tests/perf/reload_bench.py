"""What hot reloads cost the pods that are scheduled meanwhile: `python -m tests.perf.reload_bench [--reloads 1000] [--pairs 50]`.

The embedded cluster and `multisched run` are processes of their own. Pods of three domains come at a steady rate all the
time. Phases with a reload every `--every` seconds alternate with phases without any: a pair has one of each, and every
second pair has them the other way round. Each reload changes one of four things in turn, and the file of the next pair of
turns changes it back: weights, arguments, concurrency, the window of repairs. A pod counts to the phase in which it was
created, from the answer to its creation to its bind. `--check` exits 1 where a pod is lost or bound twice, a node is
overcommitted, a reload is not in force, or the p99 with reloads is more than 5 % longer, as the median of all pairs.
Two peers are never alike on a machine that others share: the spread of the pairs' ratios is printed beside it.
Reloads so close together are no use: with `--every 2.5 --reloads 40 --pairs 10` they are as far apart as somebody could save a file.
"""

from __future__ import annotations

import argparse
import os
import signal
import ssl
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final

import anyio
import orjson
import uvloop
import yaml

from multisched.config import loading
from multisched.config.print import configuration_text
from multisched.model.quantity import parse_milli, parse_value
from tests.perf import workload
from tests.perf.bench_client import NODES, PODS, BenchClient, BindWatch
from tests.perf.served_cluster import client_context
from tests.real.program import Program

SCHEDULERS: Final = ("forecast-scheduler", "job-scheduler", "forecast-scheduler", "gpu-scheduler")
"""Who the pods are for, in turn."""
GPU: Final = "nvidia.com/gpu"
GPUS_PER_NODE: Final = 32
NODE_SHARES: Final = {"work": 0.4, "virtual": 0.3}
"""Of all nodes; the rest has GPUs."""
PODS_PER_NODE_MAX: Final = 24
"""Of all nodes together: then each domain has room left, also where the phases last longer than they should."""
IN_FLIGHT: Final = 16
STALL_S: Final = 60.0
SERVING_S: Final = 60.0
APPLIED_S: Final = 30.0
APPLIED_POLL_S: Final = 0.005
STOP_GRACE_S: Final = 20.0
P99_SHARE_MAX: Final = 1.05
APPLIED: Final = b'"configuration in force"'
EXAMPLE_WINDOW: Final = {"days": ["sun"], "from": "02:00", "to": "03:00", "zone": "UTC"}


@dataclass(frozen=True, slots=True)
class Options:
    """As the command line says."""

    nodes: int
    pods_per_s: float
    reloads: int
    pairs: int
    every_s: float


@dataclass(frozen=True, slots=True)
class EmbeddedPlane:
    """Where the embedded cluster is, as `BenchClient` wants it. There is no etcd."""

    url: str
    token: str
    tls: ssl.SSLContext
    etcd_url: str = ""


@dataclass(slots=True)
class Phase:
    """Some seconds, with reloads or without: the pods created in it, and when each was there."""

    has_reloads: bool
    created_at: dict[str, float] = field(default_factory=dict)

    def waits_ms(self, watch: BindWatch) -> list[float]:
        """Of the pods that were bound, from created to bound."""
        bound = watch.bound_at
        return [1_000 * max(0.0, bound[name] - at) for name, at in self.created_at.items() if name in bound]


class Configurations:
    """The shipped configuration, changed a little more with each turn."""

    def __init__(self) -> None:
        self._document: dict[str, Any] = yaml.safe_load(configuration_text(loading.default()))
        self._document["server"] = {"port": 0}
        self._turn = 0
        self._domains = {one["name"]: one for one in self._document["domains"]}
        self._set_window("03:00")

    def text(self) -> str:
        """As it is now. JSON is YAML."""
        return orjson.dumps(self._document).decode()

    def change(self) -> None:
        """One setting otherwise than before, each of four kinds in turn."""
        turn, self._turn = self._turn, self._turn + 1
        is_odd = turn // 4 % 2 == 0
        if turn % 4 == 0:
            self._plugin("forecast", "TaintToleration")["weight"] = 5 if is_odd else 3
        elif turn % 4 == 1:
            kind = "MostAllocated" if is_odd else "LeastAllocated"
            resources = [{"name": "cpu", "weight": 1}, {"name": "memory", "weight": 1}]
            self._plugin("job", "NodeResourcesFit")["args"] = {
                "scoringStrategy": {"type": kind, "resources": resources}
            }
        elif turn % 4 == 2:
            for domain in self._domains.values():
                domain["concurrency"] = {"cycles": 12, "bindWorkers": 48 if is_odd else 64}
        else:
            self._set_window("04:00" if is_odd else "03:00")

    def _set_window(self, until: str) -> None:
        args = {"repair": {"windows": [{**EXAMPLE_WINDOW, "to": until}]}}
        self._plugin("forecast", "PeakForecast")["args"] = args

    def _plugin(self, domain: str, name: str) -> dict[str, Any]:
        enabled = self._domains[domain]["profile"]["plugins"]["enabled"]
        found: dict[str, Any] = next(one for one in enabled if one["name"] == name)
        return found


class Reloader:
    """Writes the file, and waits until the program says that it is in force."""

    def __init__(self, file: Path, program: Program) -> None:
        self._file = file
        self._program = program
        self._configurations = Configurations()
        self._read_bytes = program.log.stat().st_size
        self.applied = 0
        self.took_ms: list[float] = []

    async def run(self, count: int, every_s: float) -> None:
        """One reload after the other, `every_s` apart or as fast as they come into force."""
        began, before = time.monotonic(), self.applied
        for number in range(count):
            await anyio.sleep(max(0.0, began + number * every_s - time.monotonic()))
            await self._reload()
        assert self.applied - before <= count, "a reload was said to be in force twice"

    async def _reload(self) -> None:
        self._configurations.change()
        written = self._file.with_suffix(".new")
        written.write_text(self._configurations.text())
        written.replace(self._file)
        began, before = time.monotonic(), self.applied
        os.kill(self._program.pid, signal.SIGHUP)
        with anyio.move_on_after(APPLIED_S):
            while self.applied == before:
                await anyio.sleep(APPLIED_POLL_S)
                self._read_log()
        self._program.check_running()
        self.took_ms.append(1_000 * (time.monotonic() - began))

    def _read_log(self) -> None:
        with self._program.log.open("rb") as log:
            log.seek(self._read_bytes)
            whole, _, _ = log.read().rpartition(b"\n")
        self._read_bytes += len(whole)
        self.applied += whole.count(APPLIED)


class Bench:
    """One program under load."""

    def __init__(self, options: Options, client: BenchClient, watch: BindWatch, reloader: Reloader) -> None:
        self._options, self._client, self._watch, self._reloader = options, client, watch, reloader
        self._number = 0
        self.phases: list[Phase] = []

    async def run(self) -> None:
        """All pairs, one phase after the other, until every pod is bound or none has been for a minute."""
        each = self._options.reloads // self._options.pairs
        for pair in range(self._options.pairs):
            for has_reloads in (True, False) if pair % 2 else (False, True):
                await self._phase(Phase(has_reloads), each if has_reloads else 0, each * self._options.every_s)
        await self._watch.wait([name for phase in self.phases for name in phase.created_at], STALL_S)

    async def _phase(self, phase: Phase, reloads: int, seconds: float) -> None:
        """As long as it takes the reloads: a slow machine makes no phase without pods."""
        self.phases.append(phase)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._load, phase)
            began = time.monotonic()
            await self._reloader.run(reloads, self._options.every_s)
            await anyio.sleep(max(0.0, began + seconds - time.monotonic()))
            tasks.cancel_scope.cancel()

    async def _load(self, phase: Phase) -> None:
        """Open loop: one after the other however long the earlier ones take."""
        began, sent = time.monotonic(), 0
        async with anyio.create_task_group() as sending:
            while True:
                sending.start_soon(self._send, phase, self._number)
                self._number, sent = self._number + 1, sent + 1
                await anyio.sleep(max(0.0, began + sent / self._options.pods_per_s - time.monotonic()))

    async def _send(self, phase: Phase, number: int) -> None:
        pod = _pod(number)
        with anyio.CancelScope(shield=True):  # what is sent is counted
            phase.created_at[pod["metadata"]["name"]] = await self._client.create(PODS, pod)


def _pod(number: int) -> dict[str, Any]:
    scheduler = SCHEDULERS[number % len(SCHEDULERS)]
    pod = workload.pod(f"pod-{number:06}", scheduler)
    requests = pod["spec"]["containers"][0]["resources"]
    if scheduler == "gpu-scheduler":
        requests["requests"][GPU] = requests["limits"][GPU] = "1"
    return pod


def _nodes(count: int) -> Iterator[dict[str, Any]]:
    work, virtual = (round(count * share) for share in NODE_SHARES.values())
    yield from workload.work_nodes(work)
    yield from workload.virtual_nodes(virtual)
    for node in workload.work_nodes(count - work - virtual):
        name = node["metadata"]["name"].replace("work", "gpu")
        node["metadata"] |= {"name": name, "labels": {"kubernetes.io/hostname": name}}
        node["status"]["capacity"][GPU] = str(GPUS_PER_NODE)  # allocatable is the same object
        yield node


# -- the figures -------------------------------------------------------------------------------------------------------


def percentile(values: Sequence[float], share: float) -> float:
    """Of what there is; 0 of nothing."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def overcommitted(nodes: Sequence[dict[str, Any]], pods: Sequence[dict[str, Any]]) -> int:
    """How many nodes hold more than they have, by what their pods ask for."""
    used: dict[str, Counter[str]] = {}
    for pod in pods:
        on = used.setdefault(pod["spec"].get("nodeName", ""), Counter())
        on["pods"] += 1
        for resource, amount in pod["spec"]["containers"][0]["resources"]["requests"].items():
            on[resource] += parse_milli(amount) if resource == "cpu" else parse_value(amount)
    room = {node["metadata"]["name"]: node["status"]["allocatable"] for node in nodes}
    return sum(
        any(
            amount > (parse_milli if resource == "cpu" else parse_value)(room[name].get(resource, "0"))
            for resource, amount in asked.items()
        )
        for name, asked in used.items()
        if name
    )


@dataclass(slots=True)
class Figures:
    """What one run showed."""

    submitted: int
    bound: int
    bound_twice: int
    """Pods of which the API server has taken more than one binding."""
    overcommitted: int
    reloads: int
    reloads_applied: int
    reload_p50_ms: float
    reload_p99_ms: float
    p50_ms: float
    p99_ms: float
    peer_p50_ms: float
    peer_p99_ms: float
    ratios: Sequence[float]
    """Of each pair's p99."""
    cpu_s: float

    def lines(self) -> Iterator[str]:
        """As they are printed."""
        yield f"pods submitted                {self.submitted}"
        yield f"pods bound                    {self.bound}"
        yield f"pods lost                     {self.submitted - self.bound}"
        yield f"pods bound twice              {self.bound_twice}"
        yield f"overcommitted nodes           {self.overcommitted}"
        yield f"reloads in force              {self.reloads_applied} of {self.reloads}"
        yield f"signal to in force, p50, p99  {self.reload_p50_ms:.0f} ms, {self.reload_p99_ms:.0f} ms"
        yield f"created to bound, p50         {self.p50_ms:.1f} ms; without reloads {self.peer_p50_ms:.1f} ms"
        yield f"created to bound, p99         {self.p99_ms:.1f} ms; without reloads {self.peer_p99_ms:.1f} ms"
        yield f"p99, times that without       {self.p99_ms / self.peer_p99_ms:.3f}"
        spread = f"median {median(self.ratios):.3f} (at most {P99_SHARE_MAX})"
        yield f"the same pair by pair         {spread}, from {min(self.ratios):.3f} to {max(self.ratios):.3f}"
        yield f"CPU of the scheduler          {self.cpu_s:.1f} s"

    def is_met(self) -> bool:
        """All bars."""
        is_whole = self.submitted == self.bound and not self.bound_twice and not self.overcommitted
        is_fast = median(self.ratios) <= P99_SHARE_MAX  # a stall of the machine decides about all phases together
        return is_whole and is_fast and self.reloads_applied == self.reloads


def _ratios(phases: Sequence[Phase], watch: BindWatch) -> list[float]:
    found = []
    for first, second in zip(phases[::2], phases[1::2], strict=True):
        with_reloads, peer = (first, second) if first.has_reloads else (second, first)
        found.append(percentile(with_reloads.waits_ms(watch), 0.99) / percentile(peer.waits_ms(watch), 0.99))
    return found


def _token(kubeconfig: Path) -> str:
    users = {one["name"]: one["user"] for one in orjson.loads(kubeconfig.read_bytes())["users"]}
    return str(users["embedded-token"]["token"])


async def measure(options: Options, kubeconfig: Path, folder: Path) -> Figures:
    """All but `bound_twice`, which the API server tells when it ends."""
    url, tls = client_context(kubeconfig)
    plane = EmbeddedPlane(url, _token(kubeconfig), tls)
    async with BenchClient.open(plane) as client:
        await client.create_all(NODES, _nodes(options.nodes), IN_FLIGHT)
        file = folder / "configuration.yaml"
        file.write_text(Configurations().text())
        command = [sys.executable, "-m", "multisched", "run", "--kubeconfig", str(kubeconfig), "--config", str(file)]
        program = await Program.start("multisched", command, folder / "multisched.log")
        try:
            async with client.watch_binds() as watch:
                await client.create_all(PODS, (_pod(999_000 + number) for number in range(4)))
                first = [f"pod-{999_000 + number:06}" for number in range(4)]
                if not await watch.wait(first, SERVING_S):
                    program.check_running()
                    raise TimeoutError(f"the first pods are not bound; see {program.log}")
                bench = Bench(options, client, watch, reloader := Reloader(file, program))
                await bench.run()
                cpu_s = program.usage().cpu_s
        finally:
            await program.stop(STOP_GRACE_S)
        nodes, pods = [one async for one in client.items(NODES)], [one async for one in client.items(PODS)]
    with_reloads = [ms for phase in bench.phases if phase.has_reloads for ms in phase.waits_ms(watch)]
    peers = [ms for phase in bench.phases if not phase.has_reloads for ms in phase.waits_ms(watch)]
    submitted = {name for phase in bench.phases for name in phase.created_at}
    return Figures(
        submitted=len(submitted),
        bound=sum(bool(pod["spec"].get("nodeName")) for pod in pods if pod["metadata"]["name"] in submitted),
        bound_twice=0,
        overcommitted=overcommitted(nodes, pods),
        reloads=len(reloader.took_ms),
        reloads_applied=reloader.applied,
        reload_p50_ms=percentile(reloader.took_ms, 0.5),
        reload_p99_ms=percentile(reloader.took_ms, 0.99),
        p50_ms=percentile(with_reloads, 0.5),
        p99_ms=percentile(with_reloads, 0.99),
        peer_p50_ms=percentile(peers, 0.5),
        peer_p99_ms=percentile(peers, 0.99),
        ratios=_ratios(bench.phases, watch),
        cpu_s=cpu_s,
    )


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1_000)
    parser.add_argument("--pods-per-s", type=float, default=40.0)
    parser.add_argument("--reloads", type=int, default=1_000, help="in all")
    parser.add_argument("--pairs", type=int, default=50, help="of phases with reloads and without")
    parser.add_argument("--every", type=float, default=0.2, help="seconds between two reloads")
    parser.add_argument("--logs", type=Path, help="keep the program's log in this folder")
    parser.add_argument("--check", action="store_true", help="exit 1 past a bar")
    given = parser.parse_args()
    expected = 2 * given.reloads * given.every * given.pods_per_s
    if expected > PODS_PER_NODE_MAX * given.nodes:
        parser.error(f"{expected:.0f} pods need {expected / PODS_PER_NODE_MAX:.0f} --nodes at least")
    options = Options(given.nodes, given.pods_per_s, given.reloads, given.pairs, given.every)
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.logs if given.logs is not None else Path(temporary)
        folder.mkdir(exist_ok=True)
        kubeconfig, bindings = folder / "kubeconfig", folder / "bindings.json"
        command = [sys.executable, "-m", "tests.perf.served_cluster", str(kubeconfig), "--bindings", str(bindings)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout is not None
                server.stdout.readline()
                figures = uvloop.run(measure(options, kubeconfig, folder))
            finally:
                server.terminate()
        figures.bound_twice = sum(count > 1 for count in orjson.loads(bindings.read_bytes()).values())
    print("\n".join(figures.lines()))
    return 1 if given.check and not figures.is_met() else 0


if __name__ == "__main__":
    sys.exit(main())
