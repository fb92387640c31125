"""Finds victims on thousands of rows at once, and caches the results for the next pod of the same class.

Works if only plugins that depend on resources read pods. Then a row's result depends on that row alone, and stays valid until
its node, its pods or its nominations change. A `VictimCache` holds the results for one class by one plugin's rule. Each pod
in a burst of identical preemptors tests only the rows changed by those before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence

import numpy as np

from multisched.cycle.preemption.label_set_matches import LabelSetMatches
from multisched.framework.node_view import Bools, Codes, Int32, Rows, any_true
from multisched.framework.points import FilterPlugin
from multisched.framework.preemption import Costs, DisplacementRule
from multisched.framework.status import Status
from multisched.model.objects import Pod
from multisched.state.column_overlay import ColumnOverlay
from multisched.state.node_table import NodeTable
from multisched.state.nominator import Nominator
from multisched.state.pods_by_priority import PodColumns

STATUSES_MAX = 1_024
"""Distinct refusals that one cache stores before it is cleared."""

SPARED_PARTS = 4
"""Number of parts into which pods are divided if not all of them can be restored. More parts take more steps if there are few victims;
fewer parts take more steps if there are many."""

Blocks = Callable[[Rows], Sequence[PodColumns]]
"""Returns the current pods on some rows."""
RunFilter = Callable[[FilterPlugin, ColumnOverlay, Rows], Codes]
"""Runs one plugin's Filter on an overlay."""


class VictimCache:
    """Results per row of the table: whether the pod fits, which pods it displaces, at what cost."""

    def __init__(self, depth: int, capacity: int) -> None:
        self.depth = depth
        self.capacity = capacity
        self.mark: Hashable = None
        """The inputs of the rule's results in addition to the pods."""
        self.known: Bools = np.zeros(capacity, np.bool_)
        self.has_displaceable: Bools = np.zeros(capacity, np.bool_)
        """Rows with a pod that may be displaced."""
        self.refusal: Int32 = np.full(capacity, -1, np.int32)
        """Index into `statuses`; -1 where the pod fits."""
        self.statuses: list[Status] = []
        self._numbers: dict[Status, int] = {}
        self.displaceable: Bools = np.zeros((depth, capacity), np.bool_)
        """bool[k, rows]: pods that may be displaced."""
        self.first: Bools = np.zeros((depth, capacity), np.bool_)
        self.victims: Bools = np.zeros((depth, capacity), np.bool_)
        self.has_victims: Bools = np.zeros(capacity, np.bool_)
        self.costs: Costs = np.zeros((0, capacity))
        """float64[criteria, rows], allocated at the first update."""
        self.label_set_matches = LabelSetMatches()
        self._sequences = (-1, -1, -1)

    def renew(self, table: NodeTable, nominator: Nominator) -> None:
        """Drops the results of rows that changed."""
        row, start, nomination = self._sequences
        self._sequences = table.row_log.sequence, table.start_log.sequence, nominator.sequence
        if row < 0:
            return
        rows, starts = table.row_log.since(row), table.start_log.since(start)
        nodes = nominator.changed_since(nomination)
        if rows is None or starts is None or nodes is None or len(self.statuses) > STATUSES_MAX:
            self.known[:] = False
            self.statuses.clear()
            self._numbers.clear()
            return
        self.known[rows] = False
        self.known[starts] = False
        for node in nodes:
            self.forget(table.row_of(node))

    def forget(self, row: int | None) -> None:
        if row is not None:
            self.known[row] = False

    def number(self, status: Status) -> int:
        number = self._numbers.setdefault(status, len(self.statuses))
        if number == len(self.statuses):
            self.statuses.append(status)
        return number

    def report(self, rows: Rows) -> Counter[Status]:
        """Counts, for these rows, why the pod does not fit although some pods may be displaced."""
        refusals = self.refusal[rows[self.has_displaceable[rows]]]
        counts = np.bincount(refusals[refusals >= 0], minlength=len(self.statuses))
        return Counter({status: int(count) for status, count in zip(self.statuses, counts, strict=True) if count})


class Displacement:
    """Computes results for one class of pods on the rows of a table."""

    def __init__(self, blocks: Blocks, filters: Sequence[FilterPlugin], ask: RunFilter) -> None:
        """`filters`: those of the attempt, in order, that read no pods or depend on resources only."""
        self._blocks = blocks
        self._filters = filters
        self._moving = [p for p in filters if p.depends_on.reads_pods]
        self._ask = ask

    def update(
        self, cache: VictimCache, rows: Rows, rule: DisplacementRule, overlay: Callable[[], ColumnOverlay]
    ) -> None:
        """Fills the cache for all these (narrow) rows."""
        mark = (rule.below, rule.mark)
        if cache.mark != mark:
            self._keep_same(cache, rows, rule)
            cache.mark = mark
        todo = rows[~cache.known[rows]]
        for pods in self._blocks(todo):
            self._update_block(cache, pods, rule, overlay())

    def find_victims(
        self, pods: PodColumns, displaceable: Bools, first: Bools, overlay: ColumnOverlay
    ) -> tuple[Int32, list[Status], Bools]:
        """Returns, per row, the refusal (index into the list; -1 if the pod fits) and the victims if it fits."""
        overlay.remove(pods, displaceable)
        refusal, statuses = self.screen(pods.rows, has_any(displaceable), overlay)
        return refusal, statuses, self._spare(pods, displaceable & (refusal < 0), first, overlay)

    def screen(self, rows: Rows, asked_about: Bools, overlay: ColumnOverlay) -> tuple[Int32, list[Status]]:
        """Returns the first refusal of each row in `asked_about`, with the overlay's pods removed."""
        return first_refusals(self._filters, asked_about, lambda plugin: self._ask(plugin, overlay, rows))

    def _update_block(
        self, cache: VictimCache, pods: PodColumns, rule: DisplacementRule, overlay: ColumnOverlay
    ) -> None:
        displaceable = rule.displaceable(pods)
        first = rule.first(pods, displaceable)
        refusal, statuses, victims = self.find_victims(pods, displaceable, first, overlay)
        rows, depth = pods.rows, len(displaceable)
        cache.has_displaceable[rows] = has_any(displaceable)
        numbers = np.array([*(cache.number(status) for status in statuses), -1], np.int32)
        cache.refusal[rows] = numbers[refusal]
        for kept, computed in ((cache.displaceable, displaceable), (cache.first, first), (cache.victims, victims)):
            kept[:, rows] = False
            kept[:depth, rows] = computed
        has_victims = has_any(victims)
        cache.has_victims[rows] = has_victims
        self._update_costs(cache, rows[has_victims], rule)
        cache.known[rows] = True

    def _update_costs(self, cache: VictimCache, rows: Rows, rule: DisplacementRule) -> None:
        """Computes the costs of rows with victims."""
        for some in self._blocks(rows):
            k = len(some.priority)
            no_whole_gangs = np.zeros(len(some.rows), np.int64)
            costs = rule.costs(some, cache.victims[:k, some.rows], cache.first[:k, some.rows], no_whole_gangs)
            if len(cache.costs) != len(costs):
                cache.costs = np.zeros((len(costs), cache.capacity))
            cache.costs[:, some.rows] = costs

    def _keep_same(self, cache: VictimCache, rows: Rows, rule: DisplacementRule) -> None:
        """Called if the rule may have changed: drops rows where it differs, and recomputes the costs of the others."""
        known = rows[cache.known[rows]]
        cache.known[:] = False
        for pods in self._blocks(known):
            displaceable = rule.displaceable(pods)
            first, k = rule.first(pods, displaceable), len(displaceable)
            same = (displaceable == cache.displaceable[:k, pods.rows]) & (first == cache.first[:k, pods.rows])
            cache.known[pods.rows[same.all(axis=0)]] = True
        kept = known[cache.known[known]]
        self._update_costs(cache, kept[cache.has_victims[kept]], rule)

    def _spare(self, pods: PodColumns, displaceable: Bools, first: Bools, overlay: ColumnOverlay) -> Bools:
        """Returns which pods stay victims. The others are restored: those in `first` before the rest, in their order.

        Adding a pod never makes a refused row pass, so all are restored together where they fit together. Where they do not, they
        are divided and restored part by part.
        """
        victims = displaceable.copy()
        for turn in (displaceable & first, displaceable & ~first):
            self._spare_of(pods.rows, turn, range(len(turn)), np.flatnonzero(has_any(turn)), overlay, victims)
        return victims

    def _spare_of(self, rows: Rows, turn: Bools, ks: range, at: Rows, overlay: ColumnOverlay, victims: Bools) -> None:
        """Restores pods of `turn` that are among the k-th, on the rows at these positions, and takes them out of `victims`."""
        restored = turn[ks.start : ks.stop].take(at, axis=1)
        is_concerned = has_any(restored)
        if not is_concerned.all():
            at, restored = at[is_concerned], restored[:, is_concerned]
        if not len(at):
            return
        overlay.restore(ks.start, at, restored)
        refused = self._refused(overlay, rows[at])
        if not any_true(refused):
            victims[ks.start : ks.stop, at] &= ~restored
            return
        victims[ks.start : ks.stop, at[~refused]] &= ~restored[:, ~refused]
        at, restored = at[refused], restored[:, refused]
        overlay.remove_again(ks.start, at, restored)
        at = at[np.count_nonzero(restored, axis=0) > 1]
        step = -(-len(ks) // SPARED_PARTS)
        for start in ks[::step] if len(at) else ():
            self._spare_of(rows, turn, range(start, min(start + step, ks.stop)), at, overlay, victims)

    def _refused(self, overlay: ColumnOverlay, rows: Rows) -> Bools:
        refused = np.zeros(len(rows), np.bool_)
        for plugin in self._moving:
            refused |= self._ask(plugin, overlay, rows) != 0
        return refused


def first_refusals(
    plugins: Sequence[FilterPlugin], asked_about: Bools, ask: Callable[[FilterPlugin], Codes]
) -> tuple[Int32, list[Status]]:
    """Returns, for each row in `asked_about`, the first refusal as an index into the list; -1 if there is none.

    `ask`: returns a plugin's codes for all these rows.
    """
    refusal, statuses = np.full(len(asked_about), -1, np.int32), list[Status]()
    for plugin in plugins:
        codes = ask(plugin)
        refused = asked_about & (codes != 0) & (refusal < 0)
        for code in np.flatnonzero(np.bincount(codes[refused])).tolist():
            refusal[refused & (codes == code)] = len(statuses)
            statuses.append(plugin.reasons.status(code))
    return refusal, statuses


def has_any(mask: Bools) -> Bools:
    """Reduces bool[k, rows] to bool[rows]."""
    return np.asarray(mask.any(axis=0), np.bool_)


def victims_on(pods: PodColumns, i: int, victims: Bools) -> tuple[Pod, ...]:
    """Returns the victims of the i-th row. `victims`: bool[k] of that row."""
    return tuple(pods.pod(k, i) for k in np.flatnonzero(victims).tolist())
