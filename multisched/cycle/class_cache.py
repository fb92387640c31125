"""Masks and scores per class of identical pods, renewed only where something changed.

Pods whose signatures are equal get the same answers from every plugin that depends on no more than nodes, rows and the
cluster; those answers are kept here, by position in the domain's rows, and renewed for rows that were written since.
What comes out is exactly what asking every plugin about every row would give; only the work differs.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from multisched.framework.cycle_state import CycleState
from multisched.framework.node_view import Bools, Codes, Rows, Scores
from multisched.framework.normalize import ByLargest
from multisched.framework.plugin import (
    CycleView,
    Dependency,
    FilterPlugin,
    NormalizeScorePlugin,
    PreFilterResult,
    ScorePlugin,
    SignPlugin,
)
from multisched.framework.registry import PluginSet
from multisched.framework.runner import Runner
from multisched.framework.status import Code, Status
from multisched.model.objects import Pod
from multisched.state.domain_rows import DomainRows
from multisched.state.node_table import NodeTable

CLASS_BYTES_MAX = 512 * 1024 * 1024
"""Memory for cached classes of one domain; the class unused for longest goes first."""

BYTES_PER_ROW = 48
"""What one class keeps per row, roughly: codes and scores of each plugin, and the totals."""

CLASSES_MIN = 8
MEMO_MAX = 65_536
"""Pods whose class was looked up lately, by identity of what they share."""

_NOWHERE = np.int64(-1)


class FilterColumn:
    """One Filter plugin's codes over the class's rows."""

    __slots__ = ("codes", "depends_on", "plugin")

    def __init__(self, plugin: FilterPlugin, codes: Codes) -> None:
        self.plugin = plugin
        self.depends_on = plugin.depends_on
        self.codes = codes.copy()  # the plugin may keep its array, or have made it read-only; this one is renewed in place


class ScoreColumn:
    """One Score plugin's raw and normalised scores over the class's rows."""

    __slots__ = ("custom", "depends_on", "final", "largest", "normalizer", "plugin", "raw", "weight")

    def __init__(self, plugin: ScorePlugin, weight: int, raw: Scores) -> None:
        self.plugin = plugin
        self.custom: NormalizeScorePlugin | None = plugin if isinstance(plugin, NormalizeScorePlugin) else None
        self.weight = weight
        self.depends_on = plugin.depends_on
        normalizer = getattr(plugin, "normalizer", None)
        self.normalizer: ByLargest | None = normalizer if isinstance(normalizer, ByLargest) else None
        self.raw = raw
        self.final = raw
        self.largest = -1


class PodClass:
    """Pods that every plugin treats alike, with what the plugins said of each row."""

    def __init__(self, pod: Pod, view: CycleView) -> None:
        self.pod = pod
        self.view = view
        self.refusal: Status | None = None
        """Set when a PreFilter plugin refused the pod everywhere."""
        self.narrowed: frozenset[str] | None = None
        """Node names that PreFilter narrowed the search to."""
        self.narrowed_by: tuple[str, ...] = ()
        self.domain_size = 0
        """Rows of the domain, narrowed or not."""
        self.rows: Rows = np.zeros(0, np.intp)
        self.skipped: frozenset[str] = frozenset()
        self.told: tuple[PreFilterResult, ...] = ()
        """What the PreFilter plugins said whose answers hold for one attempt."""
        self.must_ask_again = False
        """True if some plugin's answers hold for one attempt only."""
        self.filters: list[FilterColumn] = []
        self.scores: list[ScoreColumn] = []
        self.feasible: Bools = np.zeros(0, np.bool_)
        self.total: Scores = np.zeros(0, np.int64)
        self.generation = -1
        self.nodes_version = -1
        self.node_sequence = 0
        self.row_sequence = 0
        self.is_scored = False


class ClassCache:
    """The classes of one domain."""

    def __init__(self, plugins: PluginSet, runner: Runner, table: NodeTable, rows: DomainRows) -> None:
        self._plugins = plugins
        self._runner = runner
        self._table = table
        self._rows = rows
        self._signers = [p for p in (*plugins.filter, *plugins.score) if isinstance(p, SignPlugin)]
        named = {p.name for p in self._signers}
        self._unsigned = [p.name for p in (*plugins.filter, *plugins.score) if p.name not in named]
        self._signers = list({p.name: p for p in self._signers}.values())
        self._asking = frozenset(p.name for p in plugins.asking)
        self._pre_filters_anew = frozenset(p.name for p in plugins.pre_filter if _is_for_one_attempt(p))
        # Filters and scores that ask outside run on the answers, outside the class; what they depend on is not kept here.
        kept = [p for p in (*plugins.filter, *plugins.score) if p.name not in self._asking]
        self._asks_anew = bool(self._pre_filters_anew) or any(_is_for_one_attempt(p) for p in kept)
        self._classes: dict[Hashable, PodClass] = {}
        self._memo: dict[tuple[int, ...], tuple[Hashable, Pod]] = {}
        self.hits = 0
        self.misses = 0
        self.unsigned: dict[str, int] = dict.fromkeys(self._unsigned, 0)
        """Plugin -> pods it made a class of their own."""

    # -- classes ---------------------------------------------------------------------------------------------------

    def signature(self, pod: Pod) -> Hashable | None:
        """Equal for pods that every plugin treats alike; None for a pod that is a class of its own."""
        if self._unsigned:
            self.unsigned[self._unsigned[0]] += 1
            return None
        memo_key = (id(pod.spec), id(pod.labels), id(pod.annotations), id(pod.owner), id(pod.namespace))
        known = self._memo.get(memo_key)
        if known is not None and not pod.nominated_node:
            return known[0]
        parts: list[Hashable] = [pod.namespace, pod.spec.priority, pod.nominated_node]
        for plugin in self._signers:
            part = self._runner.call(plugin, "Sign", _signed, plugin, pod)
            if part is None:
                self.unsigned[plugin.name] = self.unsigned.get(plugin.name, 0) + 1
                return None
            parts.append(part)
        signature = tuple(parts)
        if not pod.nominated_node:
            if len(self._memo) >= MEMO_MAX:
                self._memo.clear()
            self._memo[memo_key] = (signature, pod)  # the pod keeps the objects alive whose ids are the key
        return signature

    def find(self, pod: Pod, attempt: int) -> PodClass:
        """The pod's class, with its filters renewed. Raises PluginFailure."""
        signature = self.signature(pod)
        entry = self._classes.pop(signature, None) if signature is not None else None
        if entry is None or entry.generation != self._rows.generation:
            self.misses += 1
            entry = PodClass(pod, CycleView(self._table, CycleState(), attempt))
            self._begin(entry)
        else:
            self.hits += 1
            if entry.must_ask_again:
                entry.pod = pod
                # A state of its own: another cycle of this class may be waiting outside with the one before.
                entry.view = CycleView(self._table, entry.view.state.copy(), attempt)
            self._renew(entry)
        if signature is not None:
            if len(self._classes) >= max(CLASSES_MIN, CLASS_BYTES_MAX // (BYTES_PER_ROW * max(1, len(entry.rows)))):
                del self._classes[next(iter(self._classes))]
            self._classes[signature] = entry
        return entry

    def forget_all(self) -> None:
        """Drops every class: the next attempts start cold."""
        self._classes.clear()
        self._memo.clear()

    # -- filtering -------------------------------------------------------------------------------------------------

    def _begin(self, entry: PodClass) -> None:
        self._mark(entry)
        entry.must_ask_again = self._asks_anew
        entry.domain_size = len(self._rows.rows)
        self._pre_filter(entry)
        if entry.refusal is not None:
            return
        entry.rows = self._rows.rows if entry.narrowed is None else self._rows_named(entry.narrowed)
        entry.feasible = np.ones(len(entry.rows), np.bool_)
        for plugin in self._plugins.filter:
            if plugin.name in entry.skipped or self._is_asking(plugin):
                continue
            codes = self._runner.filter(plugin, entry.view, entry.pod, entry.rows)
            entry.filters.append(FilterColumn(plugin, codes))
            entry.feasible &= codes == 0

    def _is_asking(self, plugin: FilterPlugin | ScorePlugin) -> bool:
        return plugin.name in self._asking

    def _mark(self, entry: PodClass) -> None:
        entry.generation = self._rows.generation
        entry.nodes_version = self._table.nodes_version
        entry.node_sequence = self._table.node_log.sequence
        entry.row_sequence = self._table.row_log.sequence

    def _pre_filter(self, entry: PodClass) -> None:
        """Asks every PreFilter plugin; an Unschedulable one does not spare the others, as preemption needs them all."""
        skipped: set[str] = set()
        for plugin in self._plugins.pre_filter:
            result = self._runner.pre_filter(plugin, entry.view, entry.pod)
            if plugin.name in self._pre_filters_anew:
                entry.told += (result,)
            if result.status.code is Code.SKIP:
                skipped.add(plugin.name)
            elif not result.status.is_success:
                entry.refusal = result.status.by(plugin.name)
                if result.status.code is not Code.UNSCHEDULABLE:
                    return
            elif result.nodes is not None:
                entry.narrowed_by += (plugin.name,)
                entry.narrowed = result.nodes if entry.narrowed is None else entry.narrowed & result.nodes
                if not entry.narrowed:
                    entry.refusal = Status.unresolvable(_nowhere_left(entry.narrowed_by))
                    return
        entry.skipped = frozenset(skipped)

    def _rows_named(self, names: frozenset[str]) -> Rows:
        found = (self._table.row_of(name) for name in names)
        return np.array(sorted(row for row in found if row is not None and self._rows.has(row)), np.intp)

    def _renew(self, entry: PodClass) -> None:
        """Brings the codes, and the scores if there are any, up to date."""
        changed_nodes = self._table.node_log.since(entry.node_sequence)
        changed_rows = self._table.row_log.since(entry.row_sequence)
        cluster_moved = entry.nodes_version != self._table.nodes_version
        is_too_old = changed_nodes is None or changed_rows is None or (entry.refusal is not None and cluster_moved)
        if is_too_old or (self._pre_filters_anew and not self._is_told_the_same(entry)):
            fresh = PodClass(entry.pod, CycleView(self._table, CycleState(), entry.view.attempt))
            self._begin(fresh)
            entry.__dict__.update(fresh.__dict__)
            return
        assert changed_nodes is not None
        assert changed_rows is not None
        self._mark(entry)
        if entry.refusal is not None:
            return
        at_nodes = self._positions(entry, changed_nodes)
        at_rows = self._positions(entry, changed_rows)
        everywhere = slice(None)
        moved_all = False
        for column in entry.filters:
            at: Rows | slice
            if column.depends_on is Dependency.ATTEMPT or (column.depends_on is Dependency.CLUSTER and cluster_moved):
                at, moved_all = everywhere, True
            else:
                at = at_nodes if column.depends_on is Dependency.NODE else at_rows
            if isinstance(at, slice) or len(at):
                column.codes[at] = self._runner.filter(column.plugin, entry.view, entry.pod, entry.rows[at])
        if moved_all:
            entry.feasible = self._passing(entry.filters, everywhere, len(entry.rows))
        elif len(at_rows):
            entry.feasible[at_rows] = self._passing(entry.filters, at_rows, len(at_rows))
        if entry.is_scored:
            self._renew_scores(entry, at_nodes, at_rows, cluster_moved=cluster_moved, moved_all=moved_all)

    def _is_told_the_same(self, entry: PodClass) -> bool:
        """Asks the PreFilter plugins again whose answers hold for one attempt; True if none has another answer now."""
        again = (p for p in self._plugins.pre_filter if p.name in self._pre_filters_anew)
        told = tuple(self._runner.pre_filter(p, entry.view, entry.pod) for p in again)
        return told[: len(entry.told)] == entry.told

    @staticmethod
    def _passing(columns: Sequence[FilterColumn], at: Rows | slice, count: int) -> Bools:
        passing = np.ones(count, np.bool_)
        for column in columns:
            passing &= column.codes[at] == 0
        return passing

    def _positions(self, entry: PodClass, rows: Rows) -> Rows:
        """Where table rows stand in the class's rows; rows that are not the class's fall out."""
        if not len(rows) or not len(entry.rows):
            return rows[:0]
        if entry.narrowed is None:
            position = self._rows.position
            found = position[rows[rows < len(position)]]
            return found[found >= 0].astype(np.intp)
        at = np.searchsorted(entry.rows, rows)
        at[at == len(entry.rows)] = 0
        return np.asarray(at[entry.rows[at] == rows], np.intp)

    # -- scoring ---------------------------------------------------------------------------------------------------

    def score(self, entry: PodClass) -> None:
        """Scores the class for the first time; later `find` keeps the scores true. Raises PluginFailure."""
        if entry.is_scored:
            return
        skipped: set[str] = set()  # PreFilter's Skip concerns Filter only
        feasible_rows = entry.rows[entry.feasible]
        entry.scores.clear()  # a plugin that failed may have left some
        for plugin in self._plugins.pre_score:
            if self._runner.pre_score(plugin, entry.view, entry.pod, feasible_rows).code is Code.SKIP:
                skipped.add(plugin.name)
        for scorer in self._plugins.score:
            if scorer.name in skipped or self._is_asking(scorer):
                continue
            raw = np.zeros(len(entry.rows), np.int64)
            entry.scores.append(ScoreColumn(scorer, self._plugins.weight(scorer), raw))
        entry.total = np.full(len(entry.rows), _NOWHERE, np.int64)
        none = entry.rows[:0]
        self._renew_scores(entry, none, none, cluster_moved=False, moved_all=True, is_first=True)
        entry.is_scored = True  # last: a class whose scorer failed must not pass for scored

    def _renew_scores(
        self,
        entry: PodClass,
        at_nodes: Rows,
        at_rows: Rows,
        *,
        cluster_moved: bool,
        moved_all: bool,
        is_first: bool = False,
    ) -> None:
        everywhere = np.arange(len(entry.rows), dtype=np.intp) if is_first else None
        for column in entry.scores:
            if column.depends_on is Dependency.ATTEMPT:
                at = np.flatnonzero(entry.feasible)
                moved_all = True
            elif everywhere is not None:
                at = everywhere
            elif column.depends_on is Dependency.CLUSTER and cluster_moved:
                at = np.arange(len(entry.rows), dtype=np.intp)
            else:
                at = at_nodes if column.depends_on is Dependency.NODE else at_rows
            if len(at):
                column.raw[at] = self._runner.score(column.plugin, entry.view, entry.pod, entry.rows[at])
                self._check_raw(entry, column, at)
            moved_all |= self._normalize(entry, column, at_rows)
        if moved_all or cluster_moved:
            total = np.zeros(len(entry.rows), np.int64)
            for column in entry.scores:
                total += column.weight * column.final
            total[~entry.feasible] = _NOWHERE
            entry.total = total
        elif len(at_rows):
            part = np.zeros(len(at_rows), np.int64)
            for column in entry.scores:
                part += column.weight * column.final[at_rows]
            part[~entry.feasible[at_rows]] = _NOWHERE
            entry.total[at_rows] = part

    def _check_raw(self, entry: PodClass, column: ScoreColumn, at: Rows) -> None:
        """Rows that no pod can go to may have any score; the others must be in range where nothing normalises them."""
        if column.normalizer is None and column.custom is None:
            raw = column.raw[at]
            if raw.min() < 0 or raw.max() > 100:
                self._runner.check_range(column.plugin, raw[entry.feasible[at]])

    def _normalize(self, entry: PodClass, column: ScoreColumn, at_rows: Rows) -> bool:
        """Renews the final scores; True if they may have changed anywhere, not only at `at_rows`."""
        if column.normalizer is not None:
            largest = int(np.max(column.raw, where=entry.feasible, initial=0)) if column.raw.any() else 0
            if largest == column.largest and column.depends_on <= Dependency.ROW:
                if len(at_rows):
                    column.final[at_rows] = column.normalizer.apply(column.raw[at_rows], largest)
                return False
            column.largest = largest
            column.final = column.normalizer.apply(column.raw, largest)
            return True
        if column.custom is not None:
            where = np.flatnonzero(entry.feasible)
            column.final = np.zeros(len(entry.rows), np.int64)
            column.final[where] = self._runner.normalize(column.custom, entry.view, entry.pod, column.raw[where])
            return True
        return False


def _is_for_one_attempt(plugin: object) -> bool:
    """A plugin that does not say what it depends on may depend on anything."""
    return getattr(plugin, "depends_on", Dependency.ATTEMPT) is Dependency.ATTEMPT


def _signed(plugin: SignPlugin, pod: Pod) -> Hashable | None:
    part = plugin.sign(pod)
    hash(part)  # raises here, as the plugin's own failure, for one that is no key
    return part


def _nowhere_left(plugins: tuple[str, ...]) -> str:
    """Upstream's sentence for PreFilter plugins that leave no node."""
    if len(plugins) == 1:
        return f"node(s) didn't satisfy plugin {plugins[0]}"
    return f"node(s) didn't satisfy plugin(s) [{' '.join(sorted(plugins))}] simultaneously"
