"""Elastic quotas on the core alone: `python -m tests.perf.quota_bench [--leaves 1000] [--nodes 5000] [--check]`.

A tree of 20 groups, full of pods: every second leaf holds half more than its min, the others half of theirs. One row per figure:
what a quota costs a pod in PreFilter and at commit, how long an edit of the tree takes from its document on and its longest step,
what a leaf and a pod take of memory, and how long an attempt takes that ends in a reclaim: where the nodes are full, where the
quota is, and where nobody may go; and one for a gang. Then the longest step of a reclaim that pauses, and of choosing the objects
in force when half of a thousand linked ElasticQuotas contradict their parent. All times are CPU times.
`--check` holds the figures against the bars and exits 1 when one is missed.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import msgspec
import orjson

from multisched.config.plugins import base_profile, plugin_registry
from multisched.cycle.results import GangResult, Result, Unplaced
from multisched.cycle.scheduling_cycle import SchedulingCycle
from multisched.cycle.waiting_pods import WaitingPodTable
from multisched.framework.context import PluginContext
from multisched.framework.cycle_state import CycleState
from multisched.framework.points import CycleView, QueuedGang, QueuedPod
from multisched.framework.registry import build_profile
from multisched.framework.runner import Runner
from multisched.model.cluster_objects import ClusterObject
from multisched.model.decode import Decoder
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Pod
from multisched.plugins.quota.elastic_quota import ElasticQuota
from multisched.plugins.quota.many_quotas import ManyQuotas
from multisched.plugins.quota.quota_ledger import QUOTA, QuotaLedger
from multisched.shell.garbage import disable_gc
from multisched.shell.step_clock import StepClock
from multisched.state.cluster_cache import ClusterCache
from multisched.state.domain_rows import DomainRows
from multisched.state.nominator import Nominator
from tests.perf.core_bench import NobodyWatches

GROUPS: Final = 20
PODS_PER_NODE: Final = 20
CHECKS: Final = 20_000
ATTEMPTS: Final = 40
GANG: Final = 40
"""Members of a gang that is entitled to room for all of them."""
BARS: Final = {
    "quota check per pod, us": 20.0,
    "quota at commit per pod, us": 20.0,
    "edit of the tree, s": 1.0,
    "longest step of an edit, ms": 50.0,
    "bytes per leaf": 1024.0,
    "reclaim where nodes are full, ms": 50.0,
    "reclaim where the quota is full, ms": 50.0,
    "reclaim that finds nobody, ms": 50.0,
    "reclaim for a gang, ms per member": 20.0,
    "longest step of a reclaim that pauses, ms": 50.0,
    "choice among contradicting quotas, ms": 50.0,
}
"""Figure -> the most that it may be."""


def tree_document(leaves: int, cpu_per_leaf: int, *, spare: int) -> bytes:
    """`spare`: CPUs of the root beyond what its leaves are sure of."""

    def amounts(count: int) -> dict[str, Any]:
        return {"cpu": count, "memory": f"{4 * count}Gi"}

    def level(name: str, least: int, most: int, **more: Any) -> dict[str, Any]:
        return {"name": name, "min": amounts(least), "max": amounts(most), **more}

    whole, of_group = leaves * cpu_per_leaf, leaves // GROUPS
    groups = [
        level(
            f"group-{g}",
            of_group * cpu_per_leaf,
            whole,
            children=[
                level(f"leaf-{at}", cpu_per_leaf, whole, namespaces=[f"team-{at}"])
                for at in range(g * of_group, (g + 1) * of_group)
            ],
        )
        for g in range(GROUPS)
    ]
    return orjson.dumps({
        "metadata": {"name": "tree", "namespace": "kube-system", "uid": "tree", "resourceVersion": str(spare)},
        "spec": {"root": level("root", whole + spare, whole + spare, children=groups)},
    })  # fmt: skip


def pod_document(name: str, team: int, node: str = "") -> bytes:
    requests = {"cpu": "1", "memory": "4Gi"}
    placed = {"nodeName": node} if node else {}
    return orjson.dumps({
        "metadata": {"name": name, "namespace": f"team-{team}", "uid": f"uid-{name}", "labels": {"app": f"app-{team}"}},
        "spec": {"containers": [{"name": "main", "image": "app:v1", "resources": {"requests": requests}}], **placed},
        "status": {"phase": "Running" if node else "Pending"},
    })  # fmt: skip


class Scene:
    """A full cluster under one tree."""

    def __init__(self, leaves: int, nodes: int) -> None:
        self.leaves, self.decoder = leaves, Decoder()
        self.cpu_per_leaf = nodes * PODS_PER_NODE // leaves
        self.cache, rows, self.nominator = ClusterCache(), DomainRows("bench", lambda node: True), Nominator()
        self.cache.add_domain(rows)
        context = PluginContext(
            "bench",
            self.cache.nodes,
            WaitingPodTable(),
            self.cache.ledgers,
            self.cache.objects,
            nominations=self.nominator,
        )
        plugins = build_profile(base_profile("default"), plugin_registry(), context)
        self.plugin = next(one.plugin for one in plugins.built if isinstance(one.plugin, ElasticQuota))
        runner = Runner(NobodyWatches(), time.process_time)
        self.cycle = SchedulingCycle(plugins, runner, self.cache, rows, self.nominator)
        self.clock = StepClock(time.process_time)
        self.pausing = SchedulingCycle(plugins, runner, self.cache, rows, self.nominator, budget=self.clock)
        for index in range(nodes):
            self.cache.set_node(self.decoder.node(self._node(index)))
        self.nodes = nodes

    @staticmethod
    def _node(index: int) -> bytes:
        room = {"cpu": str(PODS_PER_NODE), "memory": f"{4 * PODS_PER_NODE}Gi", "pods": "110"}
        metadata = {"name": f"node-{index:05}", "uid": f"n-{index}"}
        return orjson.dumps({"metadata": metadata, "spec": {}, "status": {"allocatable": room, "capacity": room}})

    def set_tree(self, spare: int = 0) -> None:
        kind = ObjectKind.ELASTIC_QUOTA_TREE
        document = tree_document(self.leaves, self.cpu_per_leaf, spare=spare)
        self.cache.objects.set(kind, kind.definition.decode(msgspec.Raw(document)))

    def edit(self, spare: int) -> list[float]:
        """Another tree comes and is put in force. Returns the CPU seconds of each step."""
        steps, began, generation = list[float](), time.process_time(), self.ledger.generation
        self.set_tree(spare)
        self.ledger.renew()
        has_more = True
        while has_more:
            steps.append(time.process_time() - began)
            began = time.process_time()
            has_more = self.ledger.catch_up()
        assert self.ledger.generation == generation + 1
        return [*steps, time.process_time() - began]

    def catch_up(self) -> None:
        """Has all pods counted."""
        while self.ledger.catch_up():
            pass

    @property
    def ledger(self) -> QuotaLedger:
        ledger = next(one for one in self.cache.ledgers if one.name == QUOTA)
        found = getattr(ledger, "cluster", None)
        assert isinstance(found, QuotaLedger)
        found.renew()
        return found

    def teams(self) -> Iterator[int]:
        """The team of each pod: of an even one half more than its min, of an odd one half of it, spread over the nodes."""
        half = self.cpu_per_leaf // 2
        counts = [half * (3 if team % 2 == 0 else 1) for team in range(self.leaves)]
        left = sum(counts)
        while left:
            for team, count in enumerate(counts):
                if count:
                    counts[team] -= 1
                    left -= 1
                    yield team

    def fill(self) -> None:
        for number, team in enumerate(self.teams()):
            node = f"node-{number % self.nodes:05}"
            self.cache.place(self.decoder.pod(pod_document(f"p{number}", team, node)))

    def pending(self, name: str, team: int) -> Pod:
        return self.decoder.pod(pod_document(name, team))

    def attempt(self, pod: Pod) -> Result:
        running = self.cycle.attempt(QueuedPod(pod, 0.0, 1))
        try:
            next(running)
        except StopIteration as ended:
            result: Result = ended.value
            return result
        raise AssertionError("nobody asks outside")


def median(seconds: Sequence[float]) -> float:
    return sorted(seconds)[len(seconds) // 2]


def timed(work: Callable[[int], object], times: int) -> list[float]:
    found = []
    for number in range(times):
        began = time.process_time()
        work(number)
        found.append(time.process_time() - began)
    return found


def bytes_of(work: Callable[[], object]) -> int:
    gc.collect()
    tracemalloc.start()
    work()
    gc.collect()
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return size


def check_costs(scene: Scene) -> dict[str, float]:
    """PreFilter, and what a commit asks and writes; of pods of all teams by turns."""
    pods = [scene.pending(f"check-{number}", number % scene.leaves) for number in range(CHECKS)]
    view, ledger = CycleView(scene.cache.nodes, CycleState()), scene.ledger
    began = time.process_time()
    for pod in pods:
        scene.plugin.pre_filter(view, pod)
    checked = time.process_time()
    for pod in pods:
        ledger.fits(pod)
        ledger.take(pod)
        ledger.release(pod.uid)
    ended = time.process_time()
    return {
        "quota check per pod, us": (checked - began) / CHECKS * 1e6,
        "quota at commit per pod, us": (ended - checked) / CHECKS * 1e6,
    }


def reclaim_costs(scene: Scene, name: str, *, finds: bool, team: int = 1) -> dict[str, float]:
    """Attempts of pods of one class; between two of them a pod of the node that gave changes, as after a reclaim."""

    def attempt(number: int) -> None:
        result = scene.attempt(scene.pending(f"{team}-{number}", team + 2 * number))
        assert isinstance(result, Unplaced)
        assert bool(result.victims) == finds, result.message
        for victim in result.victims[:1]:
            scene.cache.remove(victim.uid)
            scene.cache.place(victim)

    return {name: median(timed(attempt, ATTEMPTS)) * 1e3}


def gang_reclaim_cost(scene: Scene, team: int = 1) -> dict[str, float]:
    """One attempt of a gang on full nodes: each member's room is cleared on its own."""
    entries = tuple(QueuedPod(scene.pending(f"gang-{number}", team), 0.0, 1) for number in range(GANG))
    gang = QueuedGang(entries, {"gang": GANG}, {entry.pod.uid: "gang" for entry in entries})
    began = time.process_time()
    try:
        next(scene.cycle.attempt(gang))
    except StopIteration as ended:
        result: GangResult = ended.value
    seconds = time.process_time() - began
    victims = {victim.uid for one in result.unplaced for victim in one.victims}
    assert len(victims) == GANG, result.unplaced[0].message
    return {"reclaim for a gang, ms per member": seconds / GANG * 1e3}


def longest_step_ms(scene: Scene, team: int = 1) -> float:
    """The longest step of the first reclaim for a pod that wants no other pod of its app on its node, with pauses."""
    document = orjson.loads(pod_document("apart", team))
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": f"app-{team}"}}}
    anti_affinity = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    document["spec"]["affinity"] = {"podAntiAffinity": anti_affinity}
    running = scene.pausing.attempt(QueuedPod(scene.decoder.pod(orjson.dumps(document)), 0.0, 1))
    steps, result = list[float](), None
    while result is None:
        scene.clock.begin()
        began = time.process_time()
        try:
            next(running)
        except StopIteration as ended:
            result = ended.value
        steps.append(time.process_time() - began)
    assert isinstance(result, Unplaced)
    assert result.victims, result.message
    return max(steps) * 1e3


def contradiction_ms(count: int = 1_000) -> float:
    """One choice of the objects in force after every second child has raised its min above what its parent leaves."""
    kind = ObjectKind.KOORDINATOR_QUOTA

    def quota(name: str, least: int, version: int, *, is_parent: bool = False) -> ClusterObject:
        prefix = "quota.scheduling.koordinator.sh"
        labels = {f"{prefix}/is-parent": str(is_parent).lower()} | ({} if is_parent else {f"{prefix}/parent": "all"})
        metadata = {"name": name, "namespace": "kube-system", "uid": name, "resourceVersion": str(version)}
        spec = {"min": {"cpu": least}, "max": {"cpu": 10 * count}}
        document = {"metadata": metadata | {"labels": labels}, "spec": spec}
        return kind.definition.decode(msgspec.Raw(orjson.dumps(document)))

    many, parent = ManyQuotas(kind), quota("all", count, 1, is_parent=True)
    before = [quota(f"q{number}", 1, 1) for number in range(count)]
    assert not many.choose([parent, *before]).left_out
    after = [one if number % 2 else quota(f"q{number}", 2, 2 + number) for number, one in enumerate(before)]
    began = time.process_time()
    chosen = many.choose([parent, *after])
    seconds = time.process_time() - began
    assert chosen.left_out
    return seconds * 1e3


def measure(leaves: int, nodes: int) -> dict[str, float]:
    figures: dict[str, float] = {}
    empty = Scene(leaves, 1)
    empty.cpu_per_leaf = 100
    figures["bytes per leaf"] = bytes_of(lambda: empty.edit(0)) / leaves
    scene = Scene(leaves, nodes)
    without = bytes_of(scene.fill)
    scene.set_tree()
    pods = nodes * PODS_PER_NODE
    counted = bytes_of(scene.catch_up)
    disable_gc()  # as in a process that has listed the cluster
    figures["bytes per pod"] = counted / pods
    figures["of those of a placed pod, percent"] = 100 * counted / without
    edits = [scene.edit(number + 1) for number in range(5)]
    figures["edit of the tree, s"] = median(list(map(sum, edits)))
    figures["longest step of an edit, ms"] = max(map(max, edits)) * 1e3
    figures |= check_costs(scene)
    figures |= reclaim_costs(scene, "reclaim where nodes are full, ms", finds=True)
    figures |= gang_reclaim_cost(scene)
    figures["longest step of a reclaim that pauses, ms"] = longest_step_ms(scene)
    figures["choice among contradicting quotas, ms"] = contradiction_ms()
    scene.set_tree()
    scene.catch_up()
    for index in range(nodes, nodes + nodes // 50):
        scene.cache.set_node(scene.decoder.node(Scene._node(index)))
    figures |= reclaim_costs(scene, "reclaim where the quota is full, ms", finds=True)
    figures |= reclaim_costs(scene, "reclaim that finds nobody, ms", finds=False, team=0)
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--leaves", type=int, default=1_000, help="leaves of the tree")
    parser.add_argument("--nodes", type=int, default=5_000, help="nodes, with 20 pods on each")
    parser.add_argument("--check", action="store_true", help="exit 1 when a bar is missed")
    asked = parser.parse_args()
    missed = 0
    for name, figure in measure(asked.leaves, asked.nodes).items():
        bar = BARS.get(name)
        is_missed = bar is not None and figure > bar
        missed += is_missed
        print(f"{name:40} {figure:12.2f}" + (f"   at most {bar:g}" if bar else "") + ("   MISSED" if is_missed else ""))
    return 1 if missed and asked.check else 0


if __name__ == "__main__":
    sys.exit(main())
