"""All possible victims for a group, removed unit by unit, the least important first.

There may be a hundred thousand of them, and few are removed. Until then they are numbers in columns, without objects.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

import numpy as np

from multisched.cycle.effort import PauseDue, RowResults
from multisched.cycle.preemption.dry_run_parts import DryRuns
from multisched.cycle.preemption.gang_columns import NO_GANG
from multisched.cycle.preemption.victim_units import Unit, placed_members_of
from multisched.framework.node_view import Bools, Float64, Int32, Int64, Rows
from multisched.framework.preemption import DisplacementRule
from multisched.model.objects import Pod
from multisched.state.cluster_cache import PlacedPod
from multisched.state.pods_by_priority import JoinedColumns, PodColumns


def learn(
    runs: DryRuns, rule: DisplacementRule, rows: Rows, resources: Iterable[str], results: RowResults
) -> Iterator[None]:
    """Computes what the rule reads of all pods on the rows, so that it can be read in one step. Yields for each pause.

    `resources`: those whose amounts will be read. Raises PluginFailure if that takes too long.
    """
    by_priority = runs.pods_by_priority
    while True:
        try:
            may_help = by_priority.lowest(rows, results.pause) < rule.below
            for block in by_priority.blocks(rows[may_help], results.pause, resources):
                runs.gang_columns.of(block)
                rule.first(block, rule.displaceable(block))
        except PauseDue:
            yield
        else:
            return


class VictimPool:
    """The possible victims by one rule, on some rows."""

    def __init__(self, runs: DryRuns, rule: DisplacementRule, rows: Rows, own: Collection[str]) -> None:
        """`rows`: those whose pods may be victims. `own`: gangs of the preemptors, which are never evicted whole.

        Raises PluginFailure.
        """
        self._runs = runs
        self._rule = rule
        self._own = own
        self._cores: list[tuple[str, Rows]] = []
        """Gang, and positions of its possible victims, the most important first. Those beyond the surplus are the gang's core."""
        self._pods: Sequence[Pod] = ()
        self._first: Bools = np.zeros(0, np.bool_)
        self._steps: list[int] = []
        """Units, the most important first: the position of a pod that may be evicted alone, or -1 - the index of a core."""
        blocks = runs.pods_by_priority.blocks(rows[runs.pods_by_priority.lowest(rows) < rule.below])
        if blocks:
            self._fill(JoinedColumns(blocks, [rule.displaceable(some) for some in blocks]), blocks)
        self._away: dict[str, PlacedPod] = {}
        self._singles: dict[str, Unit] = {}
        self._whole: list[Unit] = []
        self._limited: list[Unit] = []
        """Gangs that may lose at most their surplus, and have more possible victims than that."""

    @property
    def is_empty(self) -> bool:
        """True if no unit is left to remove."""
        return not self._steps and not self._limited

    def take(self, count: int) -> list[PlacedPod]:
        """Returns the pods of `count` more units; in the last step those of all gangs that must not be evicted whole."""
        taken: list[PlacedPod] = []
        for _ in range(min(count, len(self._steps))):
            step = self._steps.pop()
            taken += self._single(step) if step >= 0 else self._core(*self._cores[-1 - step])
        if not taken and not self._steps:
            for unit in self._limited:
                taken += self._taken(unit)
            self._whole += self._limited
            self._limited = []
        return taken

    def away(self) -> list[Unit]:
        """Returns the units of all removed pods."""
        gangs = {one.pod.uid for unit in self._whole for one in unit.members}
        return [*self._whole, *(unit for uid, unit in self._singles.items() if uid not in gangs)]

    # -- inside ----------------------------------------------------------------------------------------------------

    def _fill(self, every: JoinedColumns, blocks: Sequence[PodColumns]) -> None:
        pods = every.pods
        self._pods = pods.order(0)
        self._first = self._rule.first(pods, np.ones_like(pods.priority, np.bool_))[:, 0]
        alone = self._split(every.column([self._runs.gang_columns.of(some) for some in blocks]))
        self._steps = self._ordered(alone, pods.priority[:, 0], pods.started_s[:, 0])

    def _split(self, gang: Int32) -> Rows:
        """Returns positions of pods that may be evicted alone; the other members of each gang become a core."""
        gangs, columns = self._runs.cache.gangs, self._runs.gang_columns
        is_alone = gang == NO_GANG
        for number in np.unique(gang[~is_alone]).tolist():
            key, at = columns.key(number), np.flatnonzero(gang == number)
            surplus = gangs.surplus(key)
            is_alone[at[len(at) - min(surplus, len(at)) :]] = True
            if len(at) > surplus:
                self._cores.append((key, at))
        return np.flatnonzero(is_alone)

    def _ordered(self, alone: Rows, priority: Int64, started_s: Float64) -> list[int]:
        """Sorts as `Unit.importance` does."""
        cores = [at[: len(at) - self._runs.cache.gangs.surplus(key)] for key, at in self._cores]
        none = np.zeros(len(alone), np.int64)
        keys: Sequence[tuple[Int64 | Float64 | Bools, Sequence[float]]] = (
            (started_s[alone], [started_s[at].min() for at in cores]),
            (none, [-len(at) for at in cores]),
            (none + 1, [0 for _ in cores]),
            (-priority[alone], [-priority[at].max() for at in cores]),
            (~self._first[alone], [not self._first[at].any() for at in cores]),
        )
        order = np.lexsort([np.concatenate((of_pods, np.array(of_cores))) for of_pods, of_cores in keys])
        codes = np.concatenate((alone, -1 - np.arange(len(cores))))
        steps: list[int] = codes[order].tolist()
        return steps

    def _single(self, at: int) -> list[PlacedPod]:
        entry = self._runs.cache.placed(self._pods[at].uid)
        if entry is None:
            return []  # deleted during a pause
        unit = self._singles[entry.pod.uid] = Unit((entry,), is_first=bool(self._first[at]))
        return self._taken(unit)

    def _core(self, gang: str, at: Rows) -> list[PlacedPod]:
        """Returns the rest of a gang if all of it may be evicted; its surplus may be removed already."""
        cache, by_priority = self._runs.cache, self._runs.pods_by_priority
        members = placed_members_of(gang, cache.gangs, cache)
        if not members:
            return []  # deleted during a pause
        unit = Unit(members, gang, cache.gangs.surplus(gang), is_first=bool(self._first[at].any()))
        may_go_whole = gang not in self._own
        if may_go_whole and self._rule.displaceable(by_priority.column_of(one.pod for one in members)).all():
            self._whole.append(unit)
            return self._taken(unit)
        uids = {self._pods[i].uid for i in at.tolist()}
        here = tuple(one for one in members if one.pod.uid in uids)
        if unit.surplus and here:
            self._limited.append(Unit(here, gang, unit.surplus, can_evict_whole=False, is_first=unit.is_first))
        return []

    def _taken(self, unit: Unit) -> list[PlacedPod]:
        """Marks the unit's pods as removed; returns those that were not removed before."""
        added = {one.pod.uid: one for one in unit.members if one.pod.uid not in self._away}
        self._away |= added
        return list(added.values())
