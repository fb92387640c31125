"""`make bench`: multisched against kube-scheduler on one real API server, and the ceiling that server sets.

    python -m tests.perf.kube_bench [--scenario plain mixed ...] [--only multisched kube-scheduler ceiling]
                                    [--nodes 5000] [--pods N] [--scale 1] [--rounds 3] [--check] [--json FILE] [--against REV]

A shape (`shapes.py`: plain, mixed, anti-affinity ...): pods wait, a scheduler starts, the client's watch times every bind.
The contenders alternate, round by round, on the same server, nodes and pods; between rounds pods, events and leases are
deleted and etcd compacted. The ceiling, a client that only posts bindings, goes with `plain`.
job-burst, cron, turnover
           Bursts of jobs beside an echo, a client that only binds (`burst_bench.py`); `--scale 0.1`: a tenth of the pods and nodes.
steady     forecast pods come at 50/s while the job domain takes a burst of 5,000.
large      100,000 pods stand on the nodes: multisched's memory, and its time from start to first bind.
large-gang One gang of 5,000 pods, and as many pods without a gang.
pages      Plain pods with PAGES open web pages that read a view every few seconds, and without.
gpu-fractions
           5,000 parts of GPUs on 1,000 nodes of 8, half of them in gpushare's dialect, and as many plain pods on as many nodes.

Gangs come with Workloads and PodGroups of `scheduling.k8s.io`, whose gates are on then in API server and kube-scheduler;
one more gang has room for all but one of its pods, and must stay without a node.

`--against REV`: multisched at that commit alternates with this tree, in the shapes; other contenders only if `--only` names
them. The bars are ratios then. The reference commit is named in docs/figures.md.

Events are on in both schedulers and their CPU counts: a round ends when every pod's Scheduled event is stored, or
`EVENTS_WAIT_S` after the last bind. `--check` makes a missed bar exit 1. Both schedulers run as cluster admin.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import pstdev
from typing import Any, Final

import anyio
import orjson

from multisched.config import loading
from multisched.config.domains import judged_domains
from multisched.verify import judge
from tests.perf import burst_bench, gangs, gpu_fractions, shapes, workload
from tests.perf.bench_client import EVENTS, NODES, PODS, PRIORITY_CLASSES, BenchClient, BindWatch
from tests.perf.bench_figures import (
    MEBIBYTE,
    Bar,
    CeilingRound,
    GangRound,
    Round,
    SteadyRound,
    against_bars,
    fraction_bars,
    large_bars,
    large_gang_bars,
    page_bars,
    quantile_ms,
    shape_bars,
    steady_bars,
    table,
    verdict,
)
from tests.perf.burst_bench import BurstBench
from tests.perf.contenders import CEILING, DEFAULTS, KUBE_SCHEDULER, MULTISCHED, Contender, kube_scheduler, multisched
from tests.perf.other_tree import HERE, checked_out, copied
from tests.perf.page_readers import open_pages
from tests.perf.shapes import Shape
from tests.real.control_plane import ControlPlane
from tests.real.program import Program
from tests.real.prometheus_server import free_port

SCENARIOS: Final = (*shapes.BY_NAME, *burst_bench.SCENARIOS, "steady", "large", "large-gang", "gpu-fractions", "pages")
COMPARED: Final = ("plain", "services", "anti-affinity")
"""The scenarios of `--against`, unless `--scenario` names others."""
CONTENDERS: Final = (MULTISCHED, KUBE_SCHEDULER, CEILING)
KUBE_QPS: Final = 5_000

STEADY_VIRTUAL_NODES: Final = 1_000
STEADY_PODS_PER_S: Final = 50
STEADY_S: Final = 30
STEADY_BURST_AT_S: Final = 5
STEADY_BURST_PODS: Final = 5_000
STEADY_BURST_IN_FLIGHT: Final = 8
LARGE_BOUND_PODS: Final = 100_000
LARGE_WAITING_PODS: Final = 200
ONE_GANG: Final = "one gang"
PLAIN: Final = "plain"
FRACTIONS: Final = "fractions"
PAGES: Final = 10
WITHOUT, PAGES_OPEN = "no page", f"{PAGES} pages"
FORECAST: Final = "forecast-scheduler"
JOB: Final = "job-scheduler"

SETTLE_S: Final = 3.0
STALL_S: Final = 60.0
LONG_STALL_S: Final = 300.0
"""kube-scheduler goes through all preemptors, at 40 ms each, before the first is bound; and 100,000 pods have to be listed."""
EVENTS_WAIT_S: Final = 60.0
EVENTS_POLL_S: Final = 0.5
CONDITIONS_WAIT_S: Final = 60.0
"""For the conditions of PodGroups, once all events are stored: multisched writes at most 50 of them a second."""
STOP_GRACE_S: Final = 15.0
WRONG_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class Options:
    nodes: int
    pods: int | None
    rounds: int
    scenarios: Sequence[str]
    only: Sequence[str]
    config: Path | None
    kube_qps: int
    logs: Path | None
    scale: float = 1.0
    against: str = ""
    """A commit; its sources are in `other_tree`."""
    tree: Path = HERE
    other_tree: Path | None = None


async def run_scenario(name: str, options: Options, folder: Path) -> tuple[Mapping[str, Sequence[Any]], list[Bar]]:
    """One scenario on a control plane of its own: results per contender, and the bars that apply."""
    has_gangs = name == "large-gang" or (name in shapes.BY_NAME and shapes.BY_NAME[name].gang_size > 0)
    start = ControlPlane.start(folder, controller_manager=False, gangs=has_gangs)
    async with start as plane, BenchClient.open(plane) as client:
        bench = Bench(plane, client, options, has_gangs=has_gangs)
        if name in shapes.BY_NAME:
            shape = shapes.BY_NAME[name]
            results = await bench.shape(shape)
            if options.against:
                return results, against_bars(results[MULTISCHED], results[options.against])
            rounds = {contender: each for contender, each in results.items() if contender != CEILING}
            return results, shape_bars(shape, rounds)
        if name in burst_bench.SCENARIOS:
            return await bench.bursts(name)
        if name == "large":
            large = await bench.large()
            return {MULTISCHED: large}, large_bars(large)
        if name == "large-gang":
            plain, whole = await bench.large_gang()
            return {PLAIN: plain, ONE_GANG: whole}, large_gang_bars(plain, whole)
        if name == "gpu-fractions":
            plain, fractions = await bench.gpu_fractions()
            return {PLAIN: plain, FRACTIONS: fractions}, fraction_bars(plain, fractions)
        if name == "pages":
            without, pages = await bench.pages()
            return {WITHOUT: without, PAGES_OPEN: pages}, page_bars(without, pages)
        steady = await bench.steady()
        return {MULTISCHED: steady}, steady_bars(steady)


@dataclass(frozen=True, slots=True)
class Run:
    """A round, the times of its binds by pod, and how many PodGroups say that they are scheduled."""

    measured: Round
    bound_at: Mapping[str, float]
    conditions: int


class Bench:
    """The rounds on one control plane. Nodes stay from round to round; everything else is removed after each."""

    def __init__(self, plane: ControlPlane, client: BenchClient, options: Options, *, has_gangs: bool) -> None:
        self._plane = plane
        self._client = client
        self._options = options
        self._has_gangs = has_gangs

    async def shape(self, shape: Shape) -> dict[str, list[Any]]:
        """Alternates over the contenders, so that a machine that slows down slows all of them."""
        nodes = list(workload.work_nodes(self._options.nodes))
        await self._client.create_all(NODES, nodes)
        names = [node["metadata"]["name"] for node in nodes]
        if shape.victims_per_node:
            await self._client.create(PRIORITY_CLASSES, _priority_class())
        contenders = [multisched(self._options.config, self._options.tree), kube_scheduler(self._options.kube_qps)]
        if self._options.other_tree is not None:
            contenders.append(multisched(self._options.config, self._options.other_tree, self._options.against))
        only = [name for name in self._options.only if name != CEILING or shape.name == "plain"]
        results: dict[str, list[Any]] = {
            name: [] for name in (*CONTENDERS, self._options.against) if name in (*only, self._options.against) and name
        }
        for number in range(self._options.rounds):
            for contender in contenders if number % 2 == 0 else reversed(contenders):
                if contender.name in results:
                    measured = await self._measure_shape(shape, contender, names)
                    _say(f"{shape.name} {number + 1}: {contender.name} {measured}")
                    results[contender.name].append(measured)
            if CEILING in results:
                ceiling = await self._ceiling(names)
                _say(f"{shape.name} {number + 1}: {ceiling}")
                results[CEILING].append(ceiling)
        return results

    async def _measure_shape(self, shape: Shape, contender: Contender, nodes: Sequence[str]) -> Round:
        await self._fill(list(shapes.victims(len(nodes), shape.victims_per_node)), nodes)
        count = self._options.pods or shape.count
        waiting = list(shape.pods(count, contender.plain_name))
        if shape.gang_size:
            return await self._measure_gangs(contender, waiting, gangs.names(count, shape.gang_size), shape.gang_size)

        async def send_impossible() -> None:
            number = 0
            while shape.impossible_every_s:
                await self._client.create(PODS, shapes.impossible(number, contender.plain_name))
                number += 1
                await anyio.sleep(shape.impossible_every_s)

        stall_s = LONG_STALL_S if shape.victims_per_node else STALL_S
        return await self._measure(contender, waiting, send_impossible, stall_s)

    async def _measure_gangs(
        self, contender: Contender, pods: list[dict[str, Any]], names: Sequence[str], size: int
    ) -> GangRound:
        """The gangs of these names, whose pods come with them, and one without room."""
        sizes = {gangs.ROOMLESS: gangs.ROOMLESS_SIZE, **dict.fromkeys(names, size)}
        await self._client.create_all(gangs.WORKLOADS, (gangs.workload_of(*each) for each in sizes.items()))
        await self._client.create_all(gangs.POD_GROUPS, (gangs.pod_group_of(*each) for each in sizes.items()))
        await self._client.create_all(PODS, gangs.roomless(contender.plain_name))
        run = await self._run(contender, pods, stall_s=LONG_STALL_S, gang_count=len(names))
        return GangRound.of(run.measured, size, run.bound_at, run.conditions)

    async def large_gang(self) -> tuple[list[Round], list[GangRound]]:
        """Alternates between pods without a gang and a gang of as many."""
        await self._client.create_all(NODES, workload.work_nodes(self._options.nodes))
        count = self._options.pods or shapes.LARGE_GANG
        contender = multisched(self._options.config)
        plain, whole = [], []
        for number in range(self._options.rounds):
            plain.append(await self._measure(contender, list(workload.pods(count, FORECAST))))
            _say(f"large-gang {number + 1}: {PLAIN} {plain[-1]}")
            pods = list(gangs.pods(count, count, FORECAST))
            whole.append(await self._measure_gangs(contender, pods, gangs.names(count, count), count))
            _say(f"large-gang {number + 1}: {ONE_GANG} {whole[-1]}")
        return plain, whole

    async def gpu_fractions(self) -> tuple[list[Round], list[Round]]:
        """Alternates between plain pods and parts of GPUs, on as many nodes."""
        await self._client.create_all(NODES, workload.work_nodes(gpu_fractions.NODES))
        await self._client.create_all(NODES, gpu_fractions.nodes(gpu_fractions.NODES))
        count, contender = self._options.pods or gpu_fractions.PODS, multisched(self._options.config)
        rounds: dict[str, list[Round]] = {PLAIN: [], FRACTIONS: []}
        for number in range(self._options.rounds):
            for kind, pods in ((PLAIN, workload.pods(count, FORECAST)), (FRACTIONS, gpu_fractions.pods(count))):
                rounds[kind].append(await self._measure(contender, list(pods)))
                _say(f"gpu-fractions {number + 1}: {kind} {rounds[kind][-1]}")
        return rounds[PLAIN], rounds[FRACTIONS]

    async def pages(self) -> tuple[list[Round], list[Round]]:
        """Alternates between no page and PAGES pages, which read documents all the time."""
        await self._client.create_all(NODES, workload.work_nodes(self._options.nodes))
        port, file = free_port(), self._plane.folder / "pages.yaml"
        file.write_text(DEFAULTS.read_text().replace("port: 0", f"port: {port}"))
        contender, count = multisched(file), self._options.pods or shapes.BY_NAME["plain"].count
        rounds: dict[str, list[Round]] = {WITHOUT: [], PAGES_OPEN: []}

        async def read() -> None:
            while True:
                with suppress(OSError):
                    async with await anyio.connect_tcp("127.0.0.1", port):
                        break
                await anyio.sleep(EVENTS_POLL_S)
            async with open_pages(f"http://127.0.0.1:{port}", PAGES) as readers:
                await readers.tell("work", LONG_STALL_S)

        for number in range(self._options.rounds):
            for name in rounds if number % 2 == 0 else reversed(rounds):
                meanwhile = read if name == PAGES_OPEN else None
                rounds[name].append(await self._measure(contender, list(workload.pods(count, FORECAST)), meanwhile))
                _say(f"pages {number + 1}: {name} {rounds[name][-1]}")
        return rounds[WITHOUT], rounds[PAGES_OPEN]

    async def _fill(self, pods: Sequence[tuple[dict[str, Any], int]], nodes: Sequence[str]) -> None:
        """Creates pods and binds each to its node."""
        await self._client.create_all(PODS, (pod for pod, _ in pods))
        await self._client.bind_all((pod["metadata"]["name"], nodes[at]) for pod, at in pods)

    async def large(self) -> list[Round]:
        """Once: 100,000 pods are enough to wait for."""
        nodes = list(workload.work_nodes(self._options.nodes))
        await self._client.create_all(NODES, nodes)
        names = [node["metadata"]["name"] for node in nodes]
        placed = enumerate(workload.pods(LARGE_BOUND_PODS, "nobody", "placed"))
        await self._fill([(pod, index % len(names)) for index, pod in placed], names)
        measured = await self._measure(
            multisched(self._options.config),
            list(workload.pods(LARGE_WAITING_PODS, FORECAST)),
            stall_s=LONG_STALL_S,
        )
        _say(f"large: {measured}")
        return [measured]

    async def bursts(self, name: str) -> tuple[Mapping[str, Sequence[Any]], list[Bar]]:
        """One of `burst_bench.SCENARIOS`."""
        options = self._options
        bench = BurstBench(
            self._plane,
            self._client,
            config=options.config,
            scale=options.scale,
            rounds=options.rounds,
            is_wrong=self._wrong,
            clean=self._clean,
            say=_say,
        )
        return await bench.run(name)

    async def _wrong(self) -> tuple[int, int]:
        """Overcommitted nodes, and pods that stand against a required rule."""
        bound = [pod async for pod in self._client.items(PODS) if pod["spec"].get("nodeName")]
        return workload.overcommitted(bound), await self._against_rules(bound)

    async def steady(self) -> list[SteadyRound]:
        await self._client.create_all(NODES, workload.work_nodes(self._options.nodes))
        await self._client.create_all(NODES, workload.virtual_nodes(STEADY_VIRTUAL_NODES))
        rounds = []
        for number in range(self._options.rounds):
            measured = await self._steady_round(multisched(self._options.config))
            _say(f"steady {number + 1}: {measured}")
            rounds.append(measured)
        return rounds

    async def _measure(
        self,
        contender: Contender,
        pods: list[dict[str, Any]],
        meanwhile: Callable[[], Coroutine[Any, Any, None]] | None = None,
        stall_s: float = STALL_S,
    ) -> Round:
        """A round of pods without gangs."""
        return (await self._run(contender, pods, meanwhile, stall_s)).measured

    async def _run(
        self,
        contender: Contender,
        pods: list[dict[str, Any]],
        meanwhile: Callable[[], Coroutine[Any, Any, None]] | None = None,
        stall_s: float = STALL_S,
        gang_count: int = 0,
    ) -> Run:
        """Pods wait; the contender starts; the round ends when its events are stored; the cluster is emptied.

        `meanwhile` runs from the start to the last bind, or until none has come for `stall_s`. So many gangs are told in
        the conditions of their PodGroups that they are scheduled; the round waits for that, too.
        """
        await self._client.create_all(PODS, pods)
        await anyio.sleep(SETTLE_S)
        names = {pod["metadata"]["name"] for pod in pods}
        async with self._client.watch_binds() as watch:
            started_at = time.monotonic()
            program = await contender.start(self._plane)
            try:
                async with anyio.create_task_group() as tasks:
                    if meanwhile is not None:
                        tasks.start_soon(meanwhile)
                    await watch.wait_first(stall_s)
                    start_cpu_s = program.usage().cpu_s
                    await watch.wait(names, stall_s)
                    tasks.cancel_scope.cancel()
                events_after_s = await self._wait_for_events(watch)
                conditions = await self._wait_for_conditions(gang_count)
                usage = program.usage()
                stored = await self._pods_with_event()
            finally:
                await self._stop(program)
        bound = [pod async for pod in self._client.items(PODS) if pod["spec"].get("nodeName")]
        against_rules = await self._against_rules(bound)
        await self._clean()
        times = watch.bound_at.values()
        first, last = min(times, default=math.inf), max(times, default=math.inf)
        measured = Round(
            pods=len(pods),
            bound=len(times),
            pods_per_s=len(times) / (last - first) if last > first else 0.0,
            span_s=last - first if times else math.inf,
            first_bind_s=first - started_at,
            cpu_ms_per_pod=1_000 * usage.cpu_s / max(len(times), 1),
            start_cpu_s=start_cpu_s,
            started_cpu_ms_per_pod=1_000 * (usage.cpu_s - start_cpu_s) / max(len(times), 1),
            peak_rss_mib=usage.peak_rss_bytes / MEBIBYTE,
            overcommitted=workload.overcommitted(bound),
            against_rules=against_rules,
            node_stddev=self._node_stddev(pod for pod in bound if pod["metadata"]["name"] in names),
            events_stored=stored / len(pods),
            events_after_s=events_after_s,
            dropped=len(times) - stored,
        )
        return Run(measured, watch.bound_at, conditions)

    def _node_stddev(self, bound: Iterable[Mapping[str, Any]]) -> float:
        """Standard deviation of this round's pods per node, over all nodes."""
        held = Counter(pod["spec"]["nodeName"] for pod in bound)
        return pstdev([*held.values(), *[0] * max(0, self._options.nodes - len(held))] or [0])

    async def _ceiling(self, nodes: Sequence[str]) -> CeilingRound:
        pods = list(workload.pods(self._options.pods or shapes.BY_NAME["plain"].count, "nobody"))
        await self._client.create_all(PODS, pods)
        await anyio.sleep(SETTLE_S)
        names = [pod["metadata"]["name"] for pod in pods]
        cpu_before = time.process_time()
        times = await self._client.bind_all((name, nodes[index % len(nodes)]) for index, name in enumerate(names))
        cpu_s = time.process_time() - cpu_before
        await self._clean()
        return CeilingRound(len(times) / (max(times) - min(times)), 1_000 * cpu_s / len(times))

    async def _steady_round(self, contender: Contender) -> SteadyRound:
        """Open loop: a pod is sent every 20 ms however long the earlier ones take; the burst comes in between."""
        sent: dict[str, float] = {}
        created: dict[str, float] = {}
        burst = list(workload.pods(STEADY_BURST_PODS, JOB, "burst"))
        names = [f"steady-{index:05}" for index in range(STEADY_PODS_PER_S * STEADY_S)]

        async def send(name: str) -> None:
            sent[name] = time.monotonic()
            created[name] = await self._client.create(PODS, workload.pod(name, FORECAST))

        async def send_steadily() -> None:
            started_at = time.monotonic()
            async with anyio.create_task_group() as sending:
                for index, name in enumerate(names):
                    await anyio.sleep(max(0.0, started_at + index / STEADY_PODS_PER_S - time.monotonic()))
                    sending.start_soon(send, name)

        async with self._client.watch_binds() as watch:
            program = await contender.start(self._plane)
            try:
                await self._wait_until_serving(watch)
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(send_steadily)
                    await anyio.sleep(STEADY_BURST_AT_S)
                    await self._client.create_all(PODS, burst, STEADY_BURST_IN_FLIGHT)
                await watch.wait([*names, *(pod["metadata"]["name"] for pod in burst)], STALL_S)
            finally:
                await self._stop(program)
        wrong = await self._wrong()
        await self._clean()
        return _steady_figures(watch.bound_at, sent, created, wrong)

    async def _against_rules(self, bound: Sequence[dict[str, Any]]) -> int:
        """How many pods stand against a required rule, whichever scheduler placed them: the judge of `multisched verify`."""
        objects = [("Node", node) async for node in self._client.items(NODES)]
        objects += [("Pod", pod) for pod in bound]
        configuration = loading.default() if self._options.config is None else loading.load(self._options.config)
        found = [one for one in judge(objects, domains=judged_domains(configuration)) if one.is_sure]
        for one in found[:WRONG_SHOWN]:
            _say(f"{one.pod} on {one.node} stands against {one.rule}: {one.message}")
        return len({one.pod for one in found})

    async def _wait_until_serving(self, watch: BindWatch) -> None:
        """One pod per domain, so that the start of the process is no part of the latencies."""
        probes = {"probe-forecast": FORECAST, "probe-job": JOB}
        for name, scheduler_name in probes.items():
            await self._client.create(PODS, workload.pod(name, scheduler_name))
        await watch.wait(probes, STALL_S)
        await anyio.sleep(SETTLE_S)

    async def _wait_for_events(self, watch: BindWatch) -> float:
        """Seconds after the last bind at which every bound pod had an event stored, `EVENTS_WAIT_S` at most."""
        last = max(watch.bound_at.values(), default=time.monotonic())
        for _ in range(round(EVENTS_WAIT_S / EVENTS_POLL_S)):
            is_late = time.monotonic() - last > EVENTS_WAIT_S
            # Events of other kinds count too: only then it is worth reading them.
            if is_late or (
                await self._client.count(EVENTS) >= len(watch.bound_at)
                and await self._pods_with_event() >= len(watch.bound_at)
            ):
                break
            await anyio.sleep(EVENTS_POLL_S)
        return time.monotonic() - last

    async def _wait_for_conditions(self, count: int) -> int:
        """How many PodGroups say that they are scheduled, once `count` do or `CONDITIONS_WAIT_S` have passed."""
        found = 0
        with anyio.move_on_after(CONDITIONS_WAIT_S):
            while found < count:
                groups = [group async for group in self._client.items(gangs.POD_GROUPS)]
                found = sum(gangs.is_scheduled(group) for group in groups)
                await anyio.sleep(EVENTS_POLL_S)
        return found

    async def _pods_with_event(self) -> int:
        return len(
            {
                event["involvedObject"]["uid"]
                async for event in self._client.items(EVENTS)
                if event["reason"] == "Scheduled"
            }
        )

    async def _stop(self, program: Program) -> None:
        code = await program.stop(STOP_GRACE_S)
        if code != 0:
            _say(f"{program.name} ended with {code} on SIGTERM; its log is {program.log}")

    async def _clean(self) -> None:
        for path in (PODS, EVENTS, *((gangs.POD_GROUPS, gangs.WORKLOADS) if self._has_gangs else ())):
            await self._client.empty(path)
        await self._client.delete_leases(MULTISCHED)
        await self._client.compact()


def _steady_figures(
    bound_at: Mapping[str, float], sent: Mapping[str, float], created: Mapping[str, float], wrong: tuple[int, int]
) -> SteadyRound:
    """`wrong`: overcommitted nodes, and pods against rules."""
    bound = [name for name in sent if name in bound_at]
    # A bind can be seen before the answer to the create is: then nothing was waited for.
    latencies = sorted(max(0.0, bound_at[name] - created[name]) for name in bound)
    burst = [at for name, at in bound_at.items() if name.startswith("burst-")]
    return SteadyRound(
        pods=len(sent),
        bound=len(bound),
        p50_ms=quantile_ms(latencies, 0.5),
        p99_ms=quantile_ms(latencies, 0.99),
        max_ms=quantile_ms(latencies, 1.0),
        p99_from_sent_ms=quantile_ms(sorted(bound_at[name] - sent[name] for name in bound), 0.99),
        burst_bound=len(burst),
        burst_span_s=max(burst, default=math.inf) - min(burst, default=0.0),
        overcommitted=wrong[0],
        against_rules=wrong[1],
    )


def _priority_class() -> dict[str, Any]:
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": shapes.PRIORITY_CLASS},
        "value": 1_000,
    }


def _say(line: str) -> None:
    """Progress; the table alone goes to stdout."""
    print(line, file=sys.stderr, flush=True)


def parse(arguments: Sequence[str] | None = None) -> tuple[Options, argparse.Namespace]:
    parser = argparse.ArgumentParser(prog="kube_bench", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--scenario", nargs="+", choices=SCENARIOS)
    parser.add_argument("--only", nargs="+", choices=CONTENDERS)
    parser.add_argument("--nodes", type=int, default=5_000, help="nodes of the shapes, `steady` and `large`")
    parser.add_argument("--pods", type=int, help="pods of a shape; without it, as many as the shape says")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="size of job-burst, cron and turnover")
    parser.add_argument("--config", type=Path, help="configuration of multisched; without it, its defaults")
    parser.add_argument("--kube-qps", type=int, default=KUBE_QPS, help="client limit of kube-scheduler (50 as shipped)")
    parser.add_argument("--logs", type=Path, help="keep the control planes' folders (logs, data) here")
    parser.add_argument("--json", type=Path, help="write every round's figures to this file")
    parser.add_argument("--check", action="store_true", help="exit 1 when a bar is missed")
    parser.add_argument("--against", metavar="REV", default="", help="alternate with multisched at this commit")
    known = parser.parse_args(arguments)
    scenarios = known.scenario or (COMPARED if known.against else SCENARIOS)
    others = sorted(set(scenarios) - set(shapes.BY_NAME))
    if known.against and (others or (known.only and MULTISCHED not in known.only)):
        parser.error(f"--against compares multisched in shapes; got --scenario {others} --only {known.only}")
    options = Options(
        nodes=known.nodes,
        pods=known.pods,
        rounds=known.rounds,
        scenarios=scenarios,
        only=known.only or ((MULTISCHED,) if known.against else CONTENDERS),
        config=known.config,
        kube_qps=known.kube_qps,
        logs=known.logs,
        scale=known.scale,
        against=known.against,
    )
    return options, known


def _folders(options: Options) -> Iterator[tuple[str, Path]]:
    """A folder per scenario, thrown away unless `--logs` names one."""
    for scenario in options.scenarios:
        if scenario not in shapes.BY_NAME and MULTISCHED not in options.only:
            continue
        if options.logs is not None:
            yield scenario, options.logs / scenario
        else:
            with tempfile.TemporaryDirectory(prefix="kube-bench-") as folder:
                yield scenario, Path(folder)


def main() -> int:
    options, known = parse()
    if not options.against:
        return run(options, known)
    with copied() as tree, checked_out(options.against) as other_tree:
        return run(replace(options, tree=tree, other_tree=other_tree), known)


def run(options: Options, known: argparse.Namespace) -> int:
    """Runs the scenarios and prints their tables; returns the exit code."""
    bars: list[Bar] = []
    figures: dict[str, Any] = {}
    for scenario, folder in _folders(options):
        results, met = anyio.run(run_scenario, scenario, options, folder, backend_options={"use_uvloop": True})
        print(f"\n{scenario}: medians of {options.rounds} (each round)\n{table(results)}\n{verdict(met)}", flush=True)
        bars += met
        figures[scenario] = {name: [asdict(each) for each in rounds] for name, rounds in results.items()}
    if known.json is not None:
        known.json.write_bytes(orjson.dumps(figures, option=orjson.OPT_INDENT_2))
    return 1 if known.check and not all(bar.met for bar in bars) else 0


if __name__ == "__main__":
    sys.exit(main())
