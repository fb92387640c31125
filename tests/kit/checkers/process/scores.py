"""Checks scores with the plugins of `tests/reference` and what the process has observed.

A wrong score places pods on possible nodes, which no other check would detect. The reference has no GpuShare; its scores are
checked by the documentation of the domain, with the free amounts of each device in the ledger (`cache_comparison` checks the
ledger). Not checked: images whose sizes differ between nodes, and spreading by constraints that honour taints or by default
constraints of the cluster. A plugin without a column must score all nodes equally.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from domains.gpu.fragmentation import Fragmentation
from domains.gpu.gpu_share import GpuShare
from domains.gpu.typical_pods import PodShape, Typical
from multisched.cycle.classes.equivalence_class import EquivalenceClass
from multisched.framework.registry import PluginSet
from multisched.model.objects import CPU, Node, Pod
from multisched.state.node_table import NodeTable
from tests.kit.checkers import plain_fragments
from tests.kit.checkers.delivered_state import DeliveredState
from tests.kit.checkers.device_rules import WHOLE_MILLI, fraction_wanted
from tests.kit.checkers.reference_rules import pod_state, restricted_to, scoring_state, world_of
from tests.kit.world.labels import CARDS, GPU, GPU_MILLI
from tests.reference.scheduler import PLUGINS
from tests.reference.world import Skip

MOST = 100
DEVICES: Final = "GpuShare"
BY_REFERENCE: Final = frozenset(name for name, (make, _) in PLUGINS.items() if make({}).scores)


@dataclass(slots=True)
class ScoreChecker:
    """The scores of one process."""

    delivered: DeliveredState
    table: NodeTable
    report_violation: Callable[[str], None]
    domain: str
    plugins: PluginSet
    """The plugins in force in the domain."""
    free_devices: Callable[[str], Sequence[int]]
    """Node name -> free thousandths of each of its GPUs."""

    def check(self, entry: EquivalenceClass, pod: Pod) -> None:
        """Checks every feasible row of a class that was just scored."""
        rows = entry.rows[entry.feasible].tolist()
        nodes = [self.delivered.nodes[name] for name in map(self._name, rows) if name in self.delivered.nodes]
        if not rows or len(nodes) != len(rows):
            return
        left = {DEVICES, *BY_REFERENCE}
        for column in entry.scores:
            if column.plugin.name not in left:
                continue
            left.remove(column.plugin.name)
            wanted = self._scores_of(column.plugin.name, pod, nodes)
            given = column.final[entry.feasible].tolist()
            if wanted is not None and given != wanted:
                at = next(at for at, score in enumerate(wanted) if score != given[at])
                points = f"{given[at]} by {column.plugin.name}, not {wanted[at]}"
                self.report_violation(f"I3: {nodes[at].name} scores {points} for {pod.key}")
                return
        for name in sorted(left & {one.name for one in self.plugins.score}) if entry.scores else ():
            if len(set(self._scores_of(name, pod, nodes) or ())) > 1:
                self.report_violation(f"I3: {name} has not scored {pod.key}, to which nodes differ")
                return

    def _name(self, row: int) -> str:
        return self.table.node(row).name

    def _scores_of(self, name: str, pod: Pod, nodes: Sequence[Node]) -> list[int] | None:
        """Returns the expected score per node; None if it is unknown."""
        if name == DEVICES:
            return self._of_devices(pod, nodes)
        if not self._is_judged(name, pod):
            return None
        make, _ = PLUGINS[name]
        world = world_of(self.delivered.nodes.values(), self.delivered.pods_on_nodes(), pod.namespace)
        if name == "PodTopologySpread":
            world = restricted_to(world, self.delivered.nodes.values(), self.delivered.is_usable(self.domain))
        state = scoring_state(pod) if name == "NodeResourcesFit" else pod_state(pod)
        found = make(self.plugins.uses[name].args).scored(world, state, [node.name for node in nodes])
        return None if isinstance(found, Skip) else [found[node.name] for node in nodes]

    def _is_judged(self, name: str, pod: Pod) -> bool:
        if name == "PodTopologySpread":
            soft = [rule for rule in pod.spec.spread if not rule.is_hard]
            return bool(soft) and not any(rule.honors_taints for rule in soft)
        if name == "ImageLocality":
            return all(self._agree_on(image) for image in pod.spec.images)
        return True

    def _agree_on(self, image: str) -> bool:
        """Reports whether the image has one size on all nodes that have it."""
        held = (one for node in self.delivered.nodes.values() for one in node.images)
        return len({one.size_bytes for one in held if image in one.names}) <= 1

    def _of_devices(self, pod: Pod, nodes: Sequence[Node]) -> list[int] | None:
        whole, count = pod.requests.get(GPU, 0), fraction_wanted(pod.annotations)
        if bool(whole) == bool(count) or CARDS in pod.labels:
            return None
        milli = int(pod.annotations.get(GPU_MILLI, "0"))
        plugin = next(one for one in self.plugins.score if isinstance(one, GpuShare))
        if plugin.policy.name == Fragmentation.name:
            shape = PodShape(pod.requests.get(CPU, 0), WHOLE_MILLI if whole else milli, whole or count)
            return [self._by_fragments(node, plugin.mix.typical, shape) for node in nodes]
        rows = [sorted(self.free_devices(node.name)) for node in nodes]
        return [_of_whole(free, whole) if whole else _of_fraction(free, milli, count) for free in rows]

    def _by_fragments(self, node: Node, typical: Typical, shape: PodShape) -> int:
        row = self.table.row_of(node.name)
        assert row is not None, "it has a row"
        idle = max(0, int(self.table.allocatable(CPU)[row]) - int(self.table.requested(CPU)[row]))
        points, _ = plain_fragments.score(self.free_devices(node.name), idle, "", typical, shape)
        return points


def _of_whole(free: Sequence[int], whole: int) -> int:
    """Returns a higher score if fewer unused devices would remain."""
    left = free.count(WHOLE_MILLI) - whole
    return MOST // (1 + left) if left >= 0 else 0


def _of_fraction(free: Sequence[int], milli: int, count: int) -> int:
    """Returns the score of a fraction: 50 points for chosen devices that are already shared, 40 for little remaining room on them,
    10 for the usage of the node.
    """
    chosen = [one for one in free if one >= milli][:count]
    if len(chosen) < count:
        return 0
    shared = sum(one < WHOLE_MILLI for one in chosen)
    left = sum(one - milli for one in chosen)
    full = 100 - 100 * sum(free) // (len(free) * WHOLE_MILLI)
    whole = count * WHOLE_MILLI
    return 50 * shared // count + 10 * full // 100 + 40 * (whole - left) // whole
