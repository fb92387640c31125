"""What nodes score, in plain arithmetic by the documentation of each plugin.

A wrong score puts pods where they may well be, and nobody would notice.

It covers NodeResourcesFit (LeastAllocated and MostAllocated) and NodeResourcesBalancedAllocation over CPU and memory,
NodeAffinity, TaintToleration and ImageLocality. `rules.inter_pod_scores` covers InterPodAffinity and PodTopologySpread.
All go by what the process has observed. GpuShare goes by what is free of each device, as the ledger has it (which
`mirror` checks). Sizes of an image that nodes do not agree on are left out. A plugin that has nothing to say leaves all
nodes alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from multisched.cycle.classes.equivalence_class import EquivalenceClass
from multisched.framework.registry import PluginSet
from multisched.model.objects import CPU, MEMORY, Node, Pod
from multisched.model.selectors import PREFER_NO_SCHEDULE
from multisched.state.node_table import NodeTable
from tests.kit.checkers.delivered_state import DeliveredState
from tests.kit.rules.devices import WHOLE_MILLI, fraction_wanted
from tests.kit.rules.inter_pod_scores import MOST, by_affinity, by_spread
from tests.kit.rules.node_affinity import wants
from tests.kit.world.labels import GPU, GPU_MILLI

IMAGE_MIN, IMAGE_MAX = 23 << 20, 1000 << 20
"""Bytes of the images of a pod that count for nothing, and of each container that count for all."""


@dataclass(slots=True)
class ScoreChecker:
    """As one process gives them."""

    delivered: DeliveredState
    table: NodeTable
    complain: Callable[[str], None]
    domain: str
    plugins: PluginSet
    """Those in force in the domain."""
    free_devices: Callable[[str], Sequence[int]]
    """Name of a node -> thousandths that are free of each of its GPUs."""

    def check(self, entry: EquivalenceClass, pod: Pod) -> None:
        """Every feasible row of a class that was scored just now."""
        rows = entry.rows[entry.feasible].tolist()
        nodes = [self.delivered.nodes[name] for name in map(self._name, rows) if name in self.delivered.nodes]
        if not rows or len(nodes) != len(rows):
            return
        judges = {
            "NodeResourcesFit": self._of_resources,
            "NodeResourcesBalancedAllocation": self._of_balance,
            "NodeAffinity": self._of_affinity,
            "TaintToleration": self._of_taints,
            "ImageLocality": self._of_images,
            "InterPodAffinity": self._of_relations,
            "PodTopologySpread": self._of_spread,
            "GpuShare": self._of_devices,
        }
        for column in entry.scores:
            judge = judges.pop(column.plugin.name, None)
            wanted = judge(pod, nodes) if judge is not None else None
            given = column.final[entry.feasible].tolist()
            if wanted is not None and given != wanted:
                at = next(at for at, score in enumerate(wanted) if score != given[at])
                points = f"{given[at]} by {column.plugin.name}, not {wanted[at]}"
                self.complain(f"I3: {nodes[at].name} scores {points} for {pod.key}")
                return
        for name in sorted(judges.keys() & {one.name for one in self.plugins.score}) if entry.scores else ():
            if len(set(judges[name](pod, nodes) or ())) > 1:
                self.complain(f"I3: {name} has not scored {pod.key}, to which nodes differ")
                return

    def _name(self, row: int) -> str:
        return self.table.node(row).name

    def _of_resources(self, pod: Pod, nodes: Sequence[Node]) -> list[int]:
        def counted(one: Pod) -> Mapping[str, int]:
            return dict(zip((CPU, MEMORY), one.scoring_requests, strict=True))

        wanted = {CPU: pod.spec.scoring_cpu_milli, MEMORY: pod.spec.scoring_memory_bytes}
        return [self._of_room(node.allocatable, self._used(node, counted) + Counter(wanted)) for node in nodes]

    def _used(self, node: Node, counted: Callable[[Pod], Mapping[str, int]]) -> Counter[str]:
        """What the pods of a node take, each of them counted so."""
        used: Counter[str] = Counter()
        for one in self.delivered.standing_on(node.name):
            used.update(counted(one))
        return used

    def _of_room(self, offered: Mapping[str, int], used: Mapping[str, int]) -> int:
        scores = []
        for resource in (CPU, MEMORY):
            most = offered.get(resource, 0)
            if most:
                counted = min(used[resource], most)
                scores.append(MOST * (counted if self._is_packing else most - counted) // most)
        return sum(scores) // len(scores) if scores else 0

    @property
    def _is_packing(self) -> bool:
        """NodeResourcesFit prefers full nodes, as the default configuration has it for GPUs."""
        strategy = self.plugins.uses["NodeResourcesFit"].args.get("scoringStrategy", {})
        return bool(strategy.get("type") == "MostAllocated")

    def _of_balance(self, pod: Pod, nodes: Sequence[Node]) -> list[int] | None:
        """By what is asked for, without the defaults of those who ask for nothing."""

        def counted(one: Pod) -> Mapping[str, int]:
            return {of: one.requests.get(of, 0) for of in (CPU, MEMORY)}

        more = Counter({of: pod.spec.requests.get(of, 0) for of in (CPU, MEMORY)})
        if not any(more.values()):
            return None
        found = []
        for node in nodes:
            used = self._used(node, counted)
            change = _evenness(node.allocatable, used + more) - _evenness(node.allocatable, used)
            found.append(MOST // 2 + (MOST // 2 + change) // 2)
        return found

    def _of_devices(self, pod: Pod, nodes: Sequence[Node]) -> list[int] | None:
        whole, count = pod.requests.get(GPU, 0), fraction_wanted(pod.annotations)
        if bool(whole) == bool(count):
            return None
        milli = int(pod.annotations.get(GPU_MILLI, "0"))
        rows = [sorted(self.free_devices(node.name)) for node in nodes]
        return [_of_whole(free, whole) if whole else _of_fraction(free, milli, count) for free in rows]

    def _of_relations(self, pod: Pod, nodes: Sequence[Node]) -> list[int]:
        return by_affinity(pod, nodes, self.delivered.standing())

    def _of_spread(self, pod: Pod, nodes: Sequence[Node]) -> list[int] | None:
        is_usable = self.delivered.is_usable(self.domain)
        reach = [node for node in self.delivered.nodes.values() if is_usable(node) and wants(pod, node)]
        return by_spread(pod, nodes, reach, self.delivered.standing())

    def _of_affinity(self, pod: Pod, nodes: Sequence[Node]) -> list[int]:
        preferred = pod.spec.affinity.preferred
        raw = [sum(one.weight for one in preferred if one.term.matches(n.labels, n.name)) for n in nodes]
        largest = max(raw)
        return [MOST * one // largest if largest else 0 for one in raw]

    def _of_taints(self, pod: Pod, nodes: Sequence[Node]) -> list[int]:
        raw = [
            sum(
                taint.effect == PREFER_NO_SCHEDULE and not any(t.tolerates(taint) for t in pod.spec.tolerations)
                for taint in node.taints
            )
            for node in nodes
        ]
        largest = max(raw)
        return [MOST - MOST * one // largest if largest else MOST for one in raw]

    def _of_images(self, pod: Pod, nodes: Sequence[Node]) -> list[int] | None:
        everywhere, spec = self.delivered.nodes.values(), pod.spec
        held = dict.fromkeys((node.name for node in nodes), 0)
        for image in spec.images:
            sizes = {n.name: one.size_bytes for n in everywhere for one in n.images if image in one.names}
            if len(set(sizes.values())) > 1:
                return None
            share = len(sizes) / len(everywhere)
            for name in sizes.keys() & held.keys():
                held[name] += int(float(sizes[name]) * share)
        most = IMAGE_MAX * len(spec.images)
        return [MOST * (min(max(one, IMAGE_MIN), most) - IMAGE_MIN) // (most - IMAGE_MIN) for one in held.values()]


def _of_whole(free: Sequence[int], whole: int) -> int:
    """The fewer untouched devices would be left the better."""
    left = free.count(WHOLE_MILLI) - whole
    return MOST // (1 + left) if left >= 0 else 0


def _of_fraction(free: Sequence[int], milli: int, count: int) -> int:
    """Half by how many of the fullest devices with room are shared already, 40 by how little of them is left, 10 by the node."""
    chosen = [one for one in free if one >= milli][:count]
    if len(chosen) < count:
        return 0
    shared = sum(one < WHOLE_MILLI for one in chosen)
    left = sum(one - milli for one in chosen)
    full = 100 - 100 * sum(free) // (len(free) * WHOLE_MILLI)
    whole = count * WHOLE_MILLI
    return 50 * shared // count + 10 * full // 100 + 40 * (whole - left) // whole


def _evenness(offered: Mapping[str, int], used: Mapping[str, int]) -> int:
    """50..100, by how near to each other the used parts of CPU and memory are."""
    parts = [min(used[of] / offered[of], 1.0) for of in (CPU, MEMORY) if offered.get(of, 0)]
    return int((1 - abs(parts[0] - parts[-1]) / 2) * MOST) if parts else MOST
