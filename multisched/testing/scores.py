"""What nodes score, in plain arithmetic by the documentation of each plugin: a wrong score puts pods where they may well be, and
nobody would notice.

Of NodeResourcesFit (LeastAllocated and MostAllocated over CPU and memory), NodeAffinity, TaintToleration and ImageLocality, from
what the process was told. Sizes of an image that nodes do not agree on are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from multisched.cycle.pod_class import PodClass
from multisched.model.objects import CPU, MEMORY, Node, Pod
from multisched.model.selectors import PREFER_NO_SCHEDULE
from multisched.state.node_table import NodeTable
from multisched.testing.knowledge import Told

MOST: Final = 100
IMAGE_MIN, IMAGE_MAX = 23 << 20, 1000 << 20
"""Bytes of the images of a pod that count for nothing, and of each container that count for all."""


@dataclass(slots=True)
class Scores:
    """As one process gives them."""

    told: Told
    table: NodeTable
    complain: Callable[[str], None]
    is_packing: bool
    """The domain's NodeResourcesFit prefers full nodes, as that of the default configuration does for GPUs."""

    def check(self, entry: PodClass, pod: Pod) -> None:
        """Every feasible row of a class that was scored just now."""
        rows = entry.rows[entry.feasible].tolist()
        nodes = [self.told.nodes[name] for name in map(self._name, rows) if name in self.told.nodes]
        if not rows or len(nodes) != len(rows):
            return
        judges = {
            "NodeResourcesFit": self._of_resources,
            "NodeAffinity": self._of_affinity,
            "TaintToleration": self._of_taints,
            "ImageLocality": self._of_images,
        }
        for column in entry.scores:
            judge = judges.get(column.plugin.name)
            wanted = judge(pod, nodes) if judge is not None else None
            given = column.final[entry.feasible].tolist()
            if wanted is not None and given != wanted:
                at = next(at for at, score in enumerate(wanted) if score != given[at])
                told = f"{given[at]} by {column.plugin.name}, not {wanted[at]}"
                self.complain(f"I3: {nodes[at].name} scores {told} for {pod.key}")
                return

    def _name(self, row: int) -> str:
        return self.table.node(row).name

    def _of_resources(self, pod: Pod, nodes: Sequence[Node]) -> list[int]:
        used: dict[str, Counter[str]] = {node.name: Counter() for node in self.told.nodes.values()}
        for one, there in self.told.standing():
            cpu, memory = one.scoring_requests
            used[there.name].update({CPU: cpu, MEMORY: memory})
        wanted = {CPU: pod.spec.scoring_cpu_milli, MEMORY: pod.spec.scoring_memory_bytes}
        return [self._of_room(node.allocatable, used[node.name] + Counter(wanted)) for node in nodes]

    def _of_room(self, offered: Mapping[str, int], used: Mapping[str, int]) -> int:
        scores = []
        for resource in (CPU, MEMORY):
            most = offered.get(resource, 0)
            if most:
                counted = min(used[resource], most)
                scores.append(MOST * (counted if self.is_packing else most - counted) // most)
        return sum(scores) // len(scores) if scores else 0

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
        everywhere, spec = self.told.nodes.values(), pod.spec
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
