"""The core alone: `python -m tests.perf.core_bench [--nodes 5000 100000] [--profile default forecast job] [--check]`.

Pops pods from the queue, decides and commits them on the cache with a domain's whole profile, without an API server and
without an event loop. The pods are of 50 classes, interleaved, so that no two that follow one another are alike: they
differ in requests, tolerations, node selectors, affinity and host ports, and the nodes in zones, taints, sizes and what runs
on them already. `default` is kube-scheduler's set of plugins; forecast adds PeakForecast, job leaves out scores. One row per
profile and number of nodes, the best of the rounds: decisions per second of CPU time, a fresh class,
bytes per bound pod. `--check` holds them against the bars and exits 1 when one is missed.

`--against REV [--shape classes plain services anti-affinity]` compares CPU per pod with another commit instead
(`core_against.py`). `classes` are the pods above; the other shapes are those of `kube_bench`. `--shape gpu-fractions`
needs `--profile gpu`.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
import tracemalloc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import orjson

from multisched.config.plugins import base_profile, plugin_registry
from multisched.cycle.results import Placed, Result
from multisched.cycle.scheduling_cycle import SchedulingCycle
from multisched.cycle.waiting_pods import WaitingPodTable
from multisched.framework.context import PluginContext
from multisched.framework.points import QueuedPod
from multisched.framework.registry import PluginSet, build_profile
from multisched.framework.runner import Runner
from multisched.framework.step_budget import UNLIMITED, StepBudget
from multisched.model.decode import Decoder
from multisched.queueing.pod_queue import PodQueue
from multisched.shell.garbage import disable_gc
from multisched.state.cluster_cache import ClusterCache
from multisched.state.domain_rows import DomainRows
from multisched.state.nominator import Nominator
from multisched.testing.builders import pop_pod
from tests.perf import core_against, shapes
from tests.perf.workload import POD_CPU_MILLI, pod

CLASSES: Final = 50
ZONES: Final = 10
PODS_BEFORE: Final = 5
"""Pods on every node before the first decision."""

CLASSES_SHAPE: Final = "classes"
FRACTIONS_SHAPE: Final = "gpu-fractions"
COMPARED: Final = (CLASSES_SHAPE, "plain", "services", "anti-affinity")

CHUNK: Final = 1_000
"""Decisions timed in one piece. The best piece counts: what else the machine does only ever adds."""

FRESH_ROUNDS: Final = 100
"""How often each class is made anew."""

BARS: Final = {5_000: 8_000.0, 100_000: 1_000.0}
"""Nodes -> decisions per second at least."""

FRESH_CLASS_MAX_US: Final = {5_000: 400.0}
BOUND_POD_MAX_BYTES: Final = 2_000.0


@dataclass(frozen=True, slots=True)
class Figures:
    """What one cluster size showed."""

    profile: str
    nodes: int
    decisions_per_s: float
    fresh_class_us: float
    bytes_per_pod: float


class NobodyWatches:
    """A PluginObserver that only insists that nothing fails."""

    def plugin_ran(self, plugin: str, point: str, seconds: float) -> None:
        pass

    def plugin_failed(self, plugin: str, point: str, error: BaseException | str) -> None:
        raise AssertionError(f"{plugin} failed at {point}: {error}")


def node(index: int) -> bytes:
    """A Work node: one of three sizes, ten zones; one in ten is tainted softly, one in forty hard."""
    cpu = (16, 32, 64)[index % 3]
    room = {"cpu": str(cpu), "memory": f"{4 * cpu}Gi", "ephemeral-storage": "200Gi", "pods": "110"}
    taints = []
    if index % 10 == 0:
        taints.append({"key": "busy", "value": "yes", "effect": "PreferNoSchedule"})
    if index % 40 == 0:
        taints.append({"key": "team", "value": "search", "effect": "NoSchedule"})
    labels = {"topology.kubernetes.io/zone": f"zone-{index % ZONES}", "disk": ("ssd", "hdd")[index % 2]}
    return orjson.dumps({
        "metadata": {"name": f"node-{index:06}", "uid": f"n-{index}", "labels": labels},
        "spec": {"taints": taints},
        "status": {"allocatable": room, "capacity": room, "images": _images(index)},
    })  # fmt: skip


def _images(index: int) -> list[dict[str, Any]]:
    return [{"names": [f"registry.example/app:{index % 20}"], "sizeBytes": 80_000_000}]


def pending(index: int) -> bytes:
    """A pod of class `index % CLASSES`, with labels of its own."""
    kind = index % CLASSES
    found = pod(f"pod-{index:06}", "forecast-scheduler")
    found["metadata"] |= {"namespace": "bench", "uid": f"p-{index}", "labels": {"app": f"app-{kind}", "n": str(index)}}
    spec = found["spec"]
    container = spec["containers"][0]
    container["image"] = f"registry.example/app:{kind % 25}"
    requests = {"cpu": f"{POD_CPU_MILLI + 10 * kind}m", "memory": f"{128 + 8 * kind}Mi"}
    container["resources"] = {"requests": requests}
    if kind % 5 == 1:
        spec["nodeSelector"] = {"disk": "ssd"}
    if kind % 5 == 2:
        spec["tolerations"] = [{"key": "team", "operator": "Exists"}]
    if kind % 5 == 3:
        zone = {"key": "topology.kubernetes.io/zone", "operator": "In", "values": [f"zone-{kind % ZONES}"]}
        preferred = [{"weight": 10, "preference": {"matchExpressions": [zone]}}]
        spec["affinity"] = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}
    if kind % 10 == 4:
        container["ports"] = [{"containerPort": 80, "hostPort": 8_000 + kind}]
    return orjson.dumps(found)


class Core:
    """One domain's queue, cycles and state over a cluster that is in use already, with so many pods on each node."""

    def __init__(
        self,
        profile: str,
        nodes: int,
        decoder: Decoder,
        pods_before: int = PODS_BEFORE,
        budget: StepBudget = UNLIMITED,
    ) -> None:
        self.cache = ClusterCache()
        rows = DomainRows("forecast", lambda node: True)
        self.cache.add_domain(rows)
        registry = plugin_registry()
        context = PluginContext(
            "forecast",
            self.cache.nodes,
            WaitingPodTable(),
            self.cache.ledgers,
            self.cache.objects,
            gangs=self.cache.gangs,
        )
        self.plugins: PluginSet = build_profile(base_profile(profile), registry, context)
        runner = Runner(NobodyWatches(), lambda: 0.0)
        self.cycle = SchedulingCycle(self.plugins, runner, self.cache, rows, Nominator(), budget=budget)
        self.queue = PodQueue(
            self.plugins.queue_sort,
            self.plugins.pre_enqueue,
            [built.plugin for built in self.plugins.built],
            on_error=lambda plugin, point, error: None,
            gangs=self.cache.gangs,
        )
        self.cache.gangs.on_change = self.queue.gang_changed
        for index in range(nodes):
            self.cache.set_node(decoder.node(node(index)))
        for index in range(nodes * pods_before):
            name = f"node-{index % nodes:06}"
            self.cache.place(decoder.pod(running(index, name)))

    def decide(self, count: int) -> int:
        """Pops and places `count` pods, identical ones in runs as the scheduling loop does; how many were placed."""
        placed = 0
        while count:
            first = pop_pod(self.queue, 1.0)
            if first is None:
                raise AssertionError("the queue is empty before its pods are all decided")
            run, length = [first], min(self.cycle.run_length(first.pod), count)
            while len(run) < length and isinstance(following := self.queue.pop(1.0, first.pod.spec), QueuedPod):
                run.append(following)
            results = list(self.cycle.attempt_run(run)) if len(run) > 1 else []
            results += map(self._decide_alone, run[len(results) :])
            for one in results:
                placed += isinstance(one, Placed)
                self.queue.done(one.pod.uid)
            count -= len(run)
        return placed

    def _decide_alone(self, entry: QueuedPod) -> Result:
        try:
            next(self.cycle.attempt(entry))
        except StopIteration as ended:
            result: Result = ended.value
            return result
        raise AssertionError("the attempt asks")


def running(index: int, node_name: str) -> bytes:
    """A pod that stands on a node already."""
    found = orjson.loads(pending(index))
    found["metadata"]["uid"] = f"r-{index}"
    found["spec"]["nodeName"] = node_name
    found["spec"]["containers"][0]["ports"] = []
    found["status"] = {"phase": "Running"}
    return orjson.dumps(found)


def measure(profile: str, nodes: int, pods: int, rounds: int) -> Figures:
    """Fills one cluster with `rounds` lots of pods; the classes are made before the clock starts."""
    decoder = Decoder()
    core = Core(profile, nodes, decoder)
    best = 0.0
    waiting = iter(range(1 << 30))
    _enqueue(core, decoder, waiting, CLASSES)
    core.decide(CLASSES)
    disable_gc()  # as the program does once its caches are filled
    for _ in range(rounds):
        _enqueue(core, decoder, waiting, pods)
        for _ in range(pods // CHUNK):
            began = time.process_time()
            placed = core.decide(CHUNK)
            best = max(best, CHUNK / (time.process_time() - began))
            if placed != CHUNK:
                raise AssertionError(f"{CHUNK - placed} of {CHUNK} pods found no node: the cluster is too small")
    gc.unfreeze()
    core.cache.validate()
    return Figures(profile, nodes, best, _fresh_class_us(core, decoder), _bytes_per_pod(profile))


def _enqueue(core: Core, decoder: Decoder, indices: Iterator[int], count: int) -> None:
    for index, _ in zip(indices, range(count), strict=False):
        core.queue.add(decoder.pod(pending(index)), 0.0)


def _fresh_class_us(core: Core, decoder: Decoder) -> float:
    """Filters and scores of every row for a class nobody has seen: the mean over all 50, each at its best."""
    best = [float("inf")] * CLASSES
    groups = [decoder.pod(pending(index)) for index in range(CLASSES)]
    for _ in range(FRESH_ROUNDS):
        core.cycle.classes.forget_all()
        for index, one in enumerate(groups):
            began = time.process_time()
            group = core.cycle.classes.find(one, 1)
            core.cycle.classes.score(group)
            best[index] = min(best[index], time.process_time() - began)
    return sum(best) / CLASSES * 1e6


def _bytes_per_pod(profile: str, pods: int = 20_000, hosts: int = 1_000) -> float:
    """What cache and ledgers grow by per confirmed pod, as the watch delivers it: 50 specs, labels of its own for each."""
    decoder = Decoder()
    cache = Core(profile, hosts, decoder, pods_before=0).cache
    lines = [running(index, f"node-{index % hosts:06}") for index in range(pods)]
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for line in lines:
        cache.place(decoder.pod(line))
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return (after - before) / pods


def missed(figures: Sequence[Figures]) -> list[str]:
    """The bars that were not reached, each as a sentence."""
    found = []
    for one in figures:
        bar = BARS.get(one.nodes)
        if bar is not None and one.decisions_per_s < bar:
            found.append(
                f"{one.profile}, {one.nodes} nodes: {one.decisions_per_s:.0f} decisions/s, the bar is {bar:.0f}"
            )
        limit = FRESH_CLASS_MAX_US.get(one.nodes)
        if limit is not None and one.fresh_class_us > limit:
            found.append(
                f"{one.profile}, {one.nodes} nodes: a fresh class takes {one.fresh_class_us:.0f} µs, the bar is {limit:.0f}"
            )
        if one.bytes_per_pod > BOUND_POD_MAX_BYTES:
            found.append(
                f"{one.profile}: {one.bytes_per_pod:.0f} bytes per bound pod, the bar is {BOUND_POD_MAX_BYTES:.0f}"
            )
    return found


def _compare(options: argparse.Namespace) -> int:
    others = {CLASSES_SHAPE: _class_inputs, FRACTIONS_SHAPE: core_against.fraction_inputs}
    made = {name: others.get(name) or partial(core_against.shape_inputs, name) for name in options.shape}
    for profile in options.profile:
        core_against.main(options.against, made, profile, options.nodes[0], options.rounds, options.lot)
    return 0


def _class_inputs(nodes: int, count: int) -> tuple[Iterator[bytes], Iterator[bytes], Iterator[bytes]]:
    """Nodes, running pods and pending pods of `measure`."""
    return (
        map(node, range(nodes)),
        (running(index, f"node-{index % nodes:06}") for index in range(nodes * PODS_BEFORE)),
        map(pending, range(count)),
    )


def main() -> int:
    """Prints the table; 1 if a bar is missed and --check was given."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[5_000, 100_000], help="cluster sizes")
    parser.add_argument("--profile", nargs="+", default=["default", "forecast", "job"], help="whose plugins")
    parser.add_argument("--pods", type=int, default=10_000, help="decisions per round")
    parser.add_argument("--rounds", type=int, default=5, help="the best counts")
    parser.add_argument("--check", action="store_true", help="exit 1 when a bar is missed")
    parser.add_argument(
        "--against", metavar="REV", help="compare CPU per pod with this commit, on the first of --nodes"
    )
    shape_names = [CLASSES_SHAPE, FRACTIONS_SHAPE, *shapes.BY_NAME]
    parser.add_argument("--shape", nargs="+", choices=shape_names, default=COMPARED)
    parser.add_argument("--lot", type=int, default=250, help="pods per round of --against")
    options = parser.parse_args()
    if options.against:
        return _compare(options)
    print(f"{'profile':>8} {'nodes':>8} {'decisions/s':>12} {'fresh class µs':>15} {'bytes/bound pod':>16}")
    found = []
    for profile in options.profile:
        for nodes in options.nodes:
            figures = measure(profile, nodes, options.pods, options.rounds)
            found.append(figures)
            row = f"{profile:>8} {nodes:>8} {figures.decisions_per_s:>12.0f} {figures.fresh_class_us:>15.0f}"
            print(f"{row} {figures.bytes_per_pod:>16.0f}", flush=True)
    problems = missed(found)
    for problem in problems:
        print(f"MISSED {problem}")
    return 1 if problems and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
