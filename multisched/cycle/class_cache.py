"""Masks and scores per class of identical pods, renewed only where something changed.

Pods whose signatures are equal get the same answers from every plugin that depends on no more than nodes, rows and the
cluster; those answers are kept here, by position in the domain's rows, and renewed for rows that were written since.
What comes out is exactly what asking every plugin about every row would give; only the work differs.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from multisched.cycle.pod_class import FilterColumn, Finals, PodClass, ScoreColumn, Totals
from multisched.cycle.pod_run import is_rowwise
from multisched.cycle.row_groups import RowGroupBook, RowGroups
from multisched.framework.cycle_state import CycleState
from multisched.framework.node_view import Bools, Rows, Scores, all_true, any_true
from multisched.framework.plugin import (
    MAX_SCORE,
    CycleView,
    Dependency,
    FilterPlugin,
    GroupingPlugin,
    Plugin,
    PreScorePlugin,
    ScorePlugin,
    SignPlugin,
    StampPlugin,
)
from multisched.framework.registry import PluginSet
from multisched.framework.runner import PluginFailure, Runner
from multisched.framework.status import Code, Status
from multisched.model.objects import Pod, PodSpec
from multisched.state.domain_rows import DomainRows
from multisched.state.node_table import NodeTable

CLASS_BYTES_MAX = 512 * 1024 * 1024
"""Memory for cached classes of one domain; the class unused for longest goes first."""

BYTES_PER_ROW = 48
"""What one class keeps per row, roughly: codes and scores of each plugin, and the totals."""

CLASSES_MIN = 8
SPECS_MAX = 65_536
"""Specs whose number is remembered, by identity."""

SHARED_MAX = 64
"""Answers that classes share; 8 bytes a row each at most."""

A = TypeVar("A", bound=NDArray[Any])

NOWHERE = np.int32(-1)
"""The total of a row that is not feasible."""

_NO_ROWS: Rows = np.zeros(0, np.intp)
_ROW = Dependency.ROW
_NOBODY: frozenset[str] = frozenset()


class _Changes:
    """What was written since a class was renewed, as positions in the class's rows, ascending."""

    __slots__ = ("_rows_in_table", "is_everywhere", "is_far", "moved", "nodes", "rows")

    def __init__(
        self, nodes: Rows, rows: Rows, rows_in_table: Rows, moved: frozenset[str], *, is_everywhere: bool
    ) -> None:
        self.nodes = nodes
        """Rows whose node object changed."""
        self.rows = rows
        """Rows whose node object or pods changed."""
        self._rows_in_table = rows_in_table
        self.moved = moved
        """Plugins whose stamp moved; all that have one if a node object did."""
        self.is_everywhere = is_everywhere
        """Some node object of the cluster changed, came or went."""
        self.is_far = False
        """Set once the filters are renewed: a row that may not be among the changed ones became feasible, or ceased to be."""

    def concerning(self, column: FilterColumn | ScoreColumn) -> Rows | None:
        """The positions where a plugin's answers are out of date; None: all of them."""
        depends_on = column.depends_on
        if depends_on is _ROW:
            return self.rows
        if depends_on.reads_stamp:
            if column.plugin.name in self.moved:
                return None
            return self.rows if depends_on is Dependency.ROW_AND_STAMP else _NO_ROWS
        if depends_on is Dependency.NODE:
            return self.nodes
        if depends_on is Dependency.ATTEMPT or self.is_everywhere:
            return None
        return self.rows if depends_on is Dependency.CLUSTER else _NO_ROWS

    def table_rows(self, entry: PodClass, at: Rows) -> Rows:
        """The rows at these positions."""
        return self._rows_in_table if at is self.rows else entry.rows.take(at)


class ClassCache:
    """The classes of one domain."""

    def __init__(self, plugins: PluginSet, runner: Runner, table: NodeTable, rows: DomainRows) -> None:
        self._plugins = plugins
        self._runner = runner
        self._table = table
        self._rows = rows
        # A PreFilter plugin's answer is kept for the class only if its pods are told apart by what the plugin signs.
        kept_pre_filters = [p for p in plugins.pre_filter if isinstance(p, SignPlugin) and not _is_for_one_attempt(p)]
        reading: dict[str, Plugin] = {p.name: p for p in (*plugins.filter, *plugins.score, *kept_pre_filters)}
        signers = [p for p in reading.values() if isinstance(p, SignPlugin)]
        self._signers = {p.name: p for p in signers}
        self._spec_signers = [p for p in signers if _signs_spec_only(p)]
        self._pod_signers = [p for p in signers if not _signs_spec_only(p)]
        self._unsigned = [name for name, p in reading.items() if not isinstance(p, SignPlugin)]
        self._asking = frozenset(p.name for p in plugins.asking)
        self._pre_filters_anew = frozenset(
            p.name for p in plugins.pre_filter if _is_for_one_attempt(p) or p.name not in reading
        )
        self._pre_scores_anew = [p for p in plugins.pre_score if _is_for_one_attempt(p)]
        # Filters and scores that ask outside run on the answers, outside the class; what they depend on is not kept here.
        kept = [p for p in reading.values() if p.name not in self._asking]
        stamps: dict[str, StampPlugin] = {
            p.name: p
            for p in (*plugins.pre_filter, *plugins.filter, *plugins.pre_score, *plugins.score)
            if isinstance(p, StampPlugin)
        }
        self._stamp_plugins = tuple(stamps.values())
        self._grouping = {name: p for name, p in stamps.items() if isinstance(p, GroupingPlugin)}
        self._groups = RowGroupBook(table, rows)
        self._stamp_pre_filters = {p.name: p for p in plugins.pre_filter if p.name in stamps}
        self._for_one_attempt = frozenset(
            p.name for p in (*plugins.pre_score, *plugins.score) if _is_for_one_attempt(p)
        )
        self._feasible_readers = frozenset(name for name, p in stamps.items() if getattr(p, "reads_feasible", False))
        self._asks_anew = bool(self._pre_filters_anew or self._pre_scores_anew) or any(
            _is_for_one_attempt(p) for p in kept
        )
        self._classes: dict[Hashable, PodClass] = {}
        self._specs: dict[int, tuple[int, PodSpec]] = {}
        self._spec_numbers: dict[Hashable, int] = {}
        self._spec_numbers_given = 0
        self._head: tuple[Pod | None, int, Hashable | None] = (None, 0, None)
        """The pod that was asked about last, when, and its signature: a decision asks for it several times."""
        self._shared: dict[Hashable, tuple[tuple[int, int], NDArray[Any]]] = {}
        self.hits = 0
        self.misses = 0
        self.unsigned: dict[str, int] = dict.fromkeys(self._unsigned, 0)
        """Plugin -> pods it made a class of their own."""

    # -- classes ---------------------------------------------------------------------------------------------------

    def signature(self, pod: Pod) -> Hashable | None:
        """Equal for pods that every plugin treats alike; None for a pod that is a class of its own.

        Holds for this moment: services, namespaces and the terms of placed pods stand in it too, so the same pod may be of
        another class in its next attempt, and the next pod in a run that placed one.
        """
        if self._unsigned:
            self.unsigned[self._unsigned[0]] += 1
            return None
        number = self._spec_number(pod)
        if number is None:
            return None
        fragments = self._fragments(self._pod_signers, pod)
        return None if fragments is None else (number, pod.namespace, *fragments)

    def _spec_number(self, pod: Pod) -> int | None:
        """One number per set of specs that the plugins which read no more than the spec treat alike.

        Hashing a spec's signature costs more than a decision can spare; specs are shared by all pods of a workload.
        """
        known = self._specs.get(id(pod.spec))
        if known is not None:
            return known[0]
        fragments = self._fragments(self._spec_signers, pod)
        if fragments is None:
            return None
        signature = (pod.spec.priority, *fragments)
        if len(self._specs) >= SPECS_MAX:
            self._specs.clear()
            self._spec_numbers.clear()
        number = self._spec_numbers.get(signature)
        if number is None:
            # Never given twice: the classes of forgotten numbers live on until they are unused for longest.
            self._spec_numbers_given += 1
            number = self._spec_numbers[signature] = self._spec_numbers_given
        self._specs[id(pod.spec)] = (number, pod.spec)  # the spec is kept so that its id stays its own
        return number

    def _fragments(self, plugins: Sequence[SignPlugin], pod: Pod) -> list[Hashable] | None:
        found = self._runner.sign(plugins, pod)
        if None in found:
            name = plugins[found.index(None)].name
            self.unsigned[name] = self.unsigned.get(name, 0) + 1
            return None
        return found

    def find(self, pod: Pod, attempt: int) -> PodClass:
        """The pod's class, with its filters renewed. Raises PluginFailure."""
        signature = self._signature_now(pod)
        self._head = (None, 0, None)
        # Taken out until it is renewed: a class that a failing plugin left half renewed must not be found again.
        entry = self._classes.pop(signature, None) if signature is not None else None
        if entry is None or entry.generation != self._rows.generation:
            self.misses += 1
            entry = PodClass(pod, self._view(CycleState(), attempt))
            self._begin(entry)
        else:
            self.hits += 1
            if self._asks_anew:
                entry.pod = pod
                # A state of its own: another cycle of this class may be waiting outside with the one before.
                entry.view = self._view(entry.view.state.copy(), attempt)
            elif entry.stamps:
                entry.pod = pod  # the one whose signature was just made: another's may have changed since
            self._renew(entry)
        _check_failure(entry)
        if signature is not None:
            if len(self._classes) >= max(CLASSES_MIN, CLASS_BYTES_MAX // (BYTES_PER_ROW * max(1, len(entry.rows)))):
                del self._classes[next(iter(self._classes))]
            self._classes[signature] = entry
            entry.signature = signature
        return entry

    def hangs_on(self, entry: PodClass, pod: Pod) -> Hashable:
        """What the class's answers hang on besides nodes and rows, as it is now: equal as long as nothing of that moved."""
        stamps = [
            self._runner.call(plugin, "Stamp", plugin.stamp, entry.view, pod)
            for plugin in self._stamp_plugins
            if plugin.name in entry.stamps
        ]
        return self.signature(pod), *stamps

    def alone(self, pod: Pod, attempt: int, row: int) -> PodClass | None:
        """A class of one pod and one row, asked about anew and not kept; None where PreFilter leaves the row out.

        For a pod that was promised a node: no other row has to be looked at. Raises PluginFailure.
        """
        entry = PodClass(pod, self._view(CycleState(), attempt))
        self._mark(entry)
        entry.domain_size = len(self._rows.rows)
        self._pre_filter(entry)
        name = self._table.node(row).name
        if entry.refusal is not None or (entry.narrowed is not None and name not in entry.narrowed):
            return None
        entry.narrowed = frozenset({name})
        entry.rows = np.array([row], np.intp)
        self._ask_filters(entry)
        _check_failure(entry)
        entry.total = np.zeros(1, np.int32)
        return entry

    def _view(self, state: CycleState, attempt: int) -> CycleView:
        return CycleView(self._table, state, attempt, rows=self._rows.rows)

    def reduced(self, entry: PodClass, feasible: Bools) -> PodClass:
        """The class with fewer feasible rows, to be scored among those, and not kept: some are promised to other pods."""
        fewer = copy(entry)
        fewer.view = replace(entry.view, state=entry.view.state.copy())
        fewer.feasible = feasible
        fewer.scores, fewer.moving_scores = [], []
        fewer.total = np.zeros(0, np.int32)
        fewer.is_scored = False
        fewer.picture = None
        fewer.unrecorded = 0
        return fewer

    def are_alike(self, pod: Pod, other: Pod) -> bool:
        """True if both are of one class."""
        signature = self._signature_now(pod)
        return signature is not None and signature == self.signature(other)

    def _signature_now(self, pod: Pod) -> Hashable | None:
        """As `signature`, which may change with the pods that stand on nodes; made once as long as nobody came or went."""
        known, at, signature = self._head
        now = self._table.row_log.sequence
        if known is not pod or at != now:
            signature = self.signature(pod)
            self._head = (pod, now, signature)
        return signature

    def run_length(self, pod: Pod) -> int:
        """How many pods like this one to decide together now; 1 for a class that is new, or asks for each pod anew."""
        if self._asks_anew:
            return 1
        signature = self._signature_now(pod)
        entry = self._classes.get(signature) if signature is not None else None
        if entry is None or not entry.is_scored:
            return 1
        length = entry.pace.next_length()
        if length > 1 and not is_rowwise(entry):
            entry.pace.rest()
            return 1
        return length

    def forget_all(self) -> None:
        """Drops every class: the next attempts start cold."""
        self._classes.clear()
        self._specs.clear()
        self._spec_numbers.clear()
        self._head = (None, 0, None)
        self._shared.clear()

    # -- filtering -------------------------------------------------------------------------------------------------

    def _begin(self, entry: PodClass) -> None:
        self._mark(entry)
        entry.domain_size = len(self._rows.rows)
        self._pre_filter(entry)
        if entry.refusal is not None:
            return
        entry.rows = self._rows.rows if entry.narrowed is None else self._rows_named(entry.narrowed)
        self._ask_filters(entry)

    def _ask_filters(self, entry: PodClass) -> None:
        for plugin in self._plugins.filter:
            if plugin.name not in entry.skipped and plugin.name not in self._asking:
                groups = self._groups_of(entry, plugin)
                rows = entry.rows if groups is None else entry.rows.take(groups.firsts)
                ask = partial(self._runner.filter, plugin, entry.view, entry.pod, rows)
                entry.add_filter(FilterColumn(plugin, self._shared_answer("Filter", plugin, entry, ask), groups))
        self._join_filters(entry)

    def _groups_of(self, entry: PodClass, plugin: Plugin) -> RowGroups | None:
        """The groups of rows that are alike to the plugin; None: it is to be asked about every row."""
        grouping = self._grouping.get(plugin.name)
        if grouping is None or entry.narrowed is not None:
            return None
        keys = self._runner.call(grouping, "Stamp", grouping.groups_by, entry.view, entry.pod)
        return None if keys is None else self._groups.by_labels(keys)

    def _shared_answer(
        self, point: str, plugin: FilterPlugin | ScorePlugin, entry: PodClass, ask: Callable[[], A]
    ) -> A:
        """What the plugin says of all the domain's rows. Classes that are alike to a plugin which reads node objects only
        share the answer until a node object changes: most workloads differ in what they request and in nothing else."""
        signer = self._signers.get(plugin.name)
        if signer is None or plugin.depends_on.reads_pods or entry.narrowed is not None:
            return ask()
        pod = entry.pod
        [fragment] = self._runner.sign([signer], pod)
        if fragment is None:
            return ask()
        key = (point, plugin.name, pod.namespace, pod.spec.priority, fragment)
        mark = (entry.generation, entry.nodes_version)
        known = self._shared.get(key)
        if known is None or known[0] != mark:
            if len(self._shared) >= SHARED_MAX:
                del self._shared[next(iter(self._shared))]
            known = self._shared[key] = (mark, ask().copy())  # the plugin may use its own array again
        return cast(A, known[1])

    def _mark(self, entry: PodClass) -> None:
        entry.generation = self._rows.generation
        entry.nodes_version = self._table.nodes_version
        entry.node_sequence = self._table.node_log.sequence
        entry.row_sequence = self._table.row_log.sequence

    def _pre_filter(self, entry: PodClass) -> None:
        """Asks every PreFilter plugin; an Unschedulable one does not spare the others, as preemption needs them all."""
        self._take_stamps(entry)
        skipped = set(entry.silent)
        for plugin in self._plugins.pre_filter:
            if plugin.name in entry.silent:
                continue
            result = self._runner.pre_filter(plugin, entry.view, entry.pod)
            if plugin.name in self._pre_filters_anew:
                entry.told += (result,)
            elif plugin.name in entry.stamps:
                entry.told_by_stamp[plugin.name] = result
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

    def _take_stamps(self, entry: PodClass) -> None:
        """Learns what the answers hang on, before they are given; and who has nothing to say of such pods."""
        if not self._stamp_plugins:
            return
        found = [(p.name, self._runner.call(p, "Stamp", p.stamp, entry.view, entry.pod)) for p in self._stamp_plugins]
        entry.stamps = {name: stamp for name, stamp in found if stamp is not None}
        entry.silent = frozenset(name for name, stamp in found if stamp is None)

    def _moved_stamps(self, entry: PodClass, *, is_everywhere: bool) -> frozenset[str]:
        """The plugins whose answers may be others now; their new stamps are the class's from now on."""
        if not entry.stamps:
            return _NOBODY
        found = {
            p.name: self._runner.call(p, "Stamp", p.stamp, entry.view, entry.pod)
            for p in self._stamp_plugins
            if p.name in entry.stamps
        }
        before, entry.stamps = entry.stamps, found
        return frozenset(found if is_everywhere else (name for name in found if found[name] != before[name]))

    def _is_still_told(self, entry: PodClass, moved: frozenset[str]) -> bool:
        """Asks PreFilter of those plugins again, which brings their state up to date; False if one answers otherwise."""
        return all(
            self._runner.pre_filter(plugin, entry.view, entry.pod) == entry.told_by_stamp.get(name)
            for name, plugin in self._stamp_pre_filters.items()
            if name in moved
        )

    def _rows_named(self, names: frozenset[str]) -> Rows:
        found = (self._table.row_of(name) for name in names)
        return np.array(sorted(row for row in found if row is not None and self._rows.has(row)), np.intp)

    def _join_filters(self, entry: PodClass) -> None:
        """Computes both masks from the columns."""
        fixed = np.ones(len(entry.rows), np.bool_)
        for column in entry.filters:
            if not column.depends_on.reads_pods:
                fixed &= column.codes == 0
        feasible = fixed.copy()
        for column in entry.moving_filters:
            feasible &= column.codes == 0
        entry.fixed_pass, entry.feasible = fixed, feasible

    def _renew(self, entry: PodClass) -> None:
        """Brings the codes, and the scores if there are any, up to date."""
        changed_nodes = self._table.node_log.since(entry.node_sequence)
        changed_rows = self._table.row_log.since(entry.row_sequence)
        cluster_moved = entry.nodes_version != self._table.nodes_version
        is_too_old = changed_nodes is None or changed_rows is None
        moved = self._moved_stamps(entry, is_everywhere=cluster_moved)
        if (
            is_too_old
            or (entry.refusal is not None and (cluster_moved or moved))
            or (self._pre_filters_anew and not self._is_told_the_same(entry))
            or (moved and not self._is_still_told(entry, moved))
        ):
            fresh = PodClass(entry.pod, self._view(CycleState(), entry.view.attempt))
            self._begin(fresh)
            entry.__dict__.update(fresh.__dict__)
            return
        assert changed_nodes is not None
        assert changed_rows is not None
        self._mark(entry)
        if entry.refusal is not None:
            return
        at_nodes, at_rows = self._positions(entry, changed_nodes), self._positions(entry, changed_rows)
        changes = _Changes(at_nodes, at_rows, entry.rows.take(at_rows), moved, is_everywhere=cluster_moved)
        feasible_moved = self._renew_filters(entry, changes)
        if entry.is_scored and entry.stamps and not any_true(entry.feasible):
            entry.is_scored = False  # PreScore cannot be asked about no rows: the next score begins anew
        if entry.is_scored:
            self._renew_scores(entry, changes, feasible_moved=feasible_moved)

    def _is_told_the_same(self, entry: PodClass) -> bool:
        """Asks the PreFilter plugins again whose answers hold for one attempt; True if none has another answer now."""
        again = (p for p in self._plugins.pre_filter if p.name in self._pre_filters_anew)
        told = tuple(self._runner.pre_filter(p, entry.view, entry.pod) for p in again)
        return told[: len(entry.told)] == entry.told

    def _positions(self, entry: PodClass, rows: Rows) -> Rows:
        """Where table rows (ascending) stand in the class's rows, ascending; rows that are not the class's fall out."""
        if not len(rows) or not len(entry.rows):
            return _NO_ROWS
        if entry.narrowed is None:
            position = self._rows.position
            if rows.item(-1) >= len(position):
                rows = rows[rows < len(position)]
            found = position.take(rows)
            return found if found.min(initial=0) >= 0 else found[found >= 0]
        at = np.searchsorted(entry.rows, rows)
        at[at == len(entry.rows)] = 0
        return np.asarray(at[entry.rows[at] == rows], np.intp)

    def _renew_filters(self, entry: PodClass, changes: _Changes) -> bool:
        """True if some row became feasible, or ceased to be."""
        must_join, far = False, _NO_ROWS
        passing = entry.fixed_pass.take(changes.rows)
        for column in entry.filters if changes.is_everywhere else entry.moving_filters:
            at = changes.concerning(column)
            if at is None:
                moved = self._ask_all_again(entry, column, changes)
                if len(moved):
                    far = np.union1d(far, moved) if len(far) else moved
                    must_join |= not column.depends_on.reads_pods
                passing &= column.codes.take(changes.rows) == 0
            elif not len(at):
                if column.depends_on.reads_stamp:
                    passing &= column.codes.take(changes.rows) == 0
            else:
                codes = self._runner.filter(column.plugin, entry.view, entry.pod, changes.table_rows(entry, at))
                column.codes[at] = codes
                if not column.depends_on.reads_pods:
                    must_join = True
                elif any_true(refused := codes != 0):
                    passing &= ~refused
        before = entry.feasible
        if must_join:
            self._join_filters(entry)
            changes.is_far = before.tobytes() != entry.feasible.tobytes()
            return changes.is_far
        has_moved = passing.tobytes() != before.take(changes.rows).tobytes()
        if has_moved:
            before[changes.rows] = passing
        changes.is_far = bool(len(far)) and _join_filters_at(entry, far)
        return has_moved or changes.is_far

    def _ask_all_again(self, entry: PodClass, column: FilterColumn, changes: _Changes) -> Rows:
        """Renews a filter's codes of all rows; the positions of those that changed."""
        groups = self._groups_of(entry, column.plugin) if changes.is_everywhere else column.groups
        rows = entry.rows if groups is None else entry.rows.take(groups.firsts)
        codes = self._runner.filter(column.plugin, entry.view, entry.pod, rows)
        if groups is not None and groups is column.groups:
            differs = codes != column.by_group
            if not any_true(differs):
                return _NO_ROWS
            moved = groups.rows_in(differs)
            column.by_group[:] = codes
            column.codes[moved] = codes.take(groups.of.take(moved))
            return moved
        before = column.codes
        column.answer(codes, groups)
        return np.flatnonzero(column.codes != before)

    # -- scoring ---------------------------------------------------------------------------------------------------

    def score(self, entry: PodClass) -> None:
        """Scores the class for the first time; later `find` keeps the scores true. Raises PluginFailure."""
        if entry.is_scored:
            return
        entry.scores, entry.moving_scores = [], []  # a plugin that failed may have left some
        speaking = [p for p in self._plugins.pre_score if p.name not in entry.silent]
        skipped = self._pre_score(entry, speaking)  # PreFilter's Skip concerns Filter only
        for scorer in self._plugins.score:
            may_speak_later = _is_for_one_attempt(scorer) or scorer.name in entry.stamps
            is_left_out = scorer.name in entry.silent or (scorer.name in skipped and not may_speak_later)
            if not is_left_out and scorer.name not in self._asking:
                custom, weight = self._plugins.normalize.get(scorer.name), self._plugins.weight(scorer)
                column = ScoreColumn(scorer, custom, weight)
                column.groups = self._groups_of(entry, scorer)
                self._score_all(entry, column, is_skipped=scorer.name in skipped)
                entry.add_score(column)
        self._join_scores(entry)
        entry.is_scored = True  # last: a class whose scorer failed must not pass for scored

    def _pre_score(self, entry: PodClass, plugins: Sequence[PreScorePlugin]) -> set[str]:
        """Names of the plugins whose Score is left out."""
        if not plugins:
            return set()
        feasible = entry.rows if all_true(entry.feasible) else entry.rows.take(entry.feasible.nonzero()[0])
        if not len(feasible):
            return set()  # nobody is to be scored: plugins need not be ready for that
        return {p.name for p in plugins if self._runner.pre_score(p, entry.view, entry.pod, feasible).code is Code.SKIP}

    def _score_all(self, entry: PodClass, column: ScoreColumn, *, is_skipped: bool) -> None:
        """Scores every row the plugin may be asked about."""
        plugin = column.plugin
        column.is_skipped = is_skipped
        if is_skipped:
            column.final = np.zeros(len(entry.rows), np.uint8)
            column.by_group = np.zeros(0 if column.groups is None else column.groups.count, np.uint8)
            return
        if column.groups is not None:
            self._score_groups(entry, column, column.groups, feasible_moved=True)
            return
        if plugin.name in self._for_one_attempt or plugin.name in self._feasible_readers:
            raw = self._raw_of_feasible(entry, plugin)
        else:
            ask = partial(self._runner.score, plugin, entry.view, entry.pod, entry.rows)
            raw = self._shared_answer("Score", plugin, entry, ask)
        if column.is_plain:
            column.final = self._in_range(entry, plugin, raw, None).astype(np.uint8)
        else:
            column.raw = raw.copy()
            self._normalize_all(entry, column)

    def _raw_of_feasible(self, entry: PodClass, plugin: ScorePlugin) -> Scores:
        """int64[rows]: raw scores by a plugin that is not to be asked about other rows; 0 for those."""
        if all_true(entry.feasible):
            return self._runner.score(plugin, entry.view, entry.pod, entry.rows)
        raw = np.zeros(len(entry.rows), np.int64)
        at = entry.feasible.nonzero()[0]
        raw[at] = self._runner.score(plugin, entry.view, entry.pod, entry.rows.take(at))
        return raw

    def _score_groups(self, entry: PodClass, column: ScoreColumn, groups: RowGroups, *, feasible_moved: bool) -> None:
        """Renews the scores of a plugin that is asked about groups; `final` is another array if one of them changed."""
        if feasible_moved:
            column.asked = groups.firsts if all_true(entry.feasible) else groups.firsts_among(entry.feasible)
        by_group = np.zeros(groups.count, np.uint8)
        if len(column.asked):
            final = self._runner.score(column.plugin, entry.view, entry.pod, entry.rows.take(column.asked))
            if column.custom is not None:
                final = self._runner.normalize(column.custom, entry.view, entry.pod, final)
            else:
                self._runner.check_range(column.plugin, final)
            by_group[groups.of.take(column.asked)] = final
        if len(column.final) != len(entry.rows) or by_group.tobytes() != column.by_group.tobytes():
            column.by_group, column.final = by_group, by_group.take(groups.of)

    def _join_scores(self, entry: PodClass) -> None:
        """Computes all totals from the columns."""
        fixed = np.zeros(len(entry.rows), np.int32)
        for column in entry.scores:
            if not column.depends_on.reads_pods:
                fixed += _weighed(column.final, column.weight)
        entry.sum = fixed.copy()
        for column in entry.moving_scores:
            entry.sum += _weighed(column.final, column.weight)
        entry.total = np.where(entry.feasible, entry.sum, NOWHERE)
        if fixed.tobytes() != entry.fixed_total.tobytes():
            entry.unrecorded = 0  # the latest picture no longer tells the fixed scores
        entry.fixed_total = fixed

    def _renew_scores(self, entry: PodClass, changes: _Changes, *, feasible_moved: bool) -> None:
        skipped = self._pre_score(entry, self._pre_scores_due(entry, changes, feasible_moved=feasible_moved))
        must_join = must_mask = False
        total = entry.fixed_total.take(changes.rows)
        for column in entry.scores if changes.is_everywhere or feasible_moved else entry.moving_scores:
            at = changes.concerning(column)
            if column.depends_on.reads_stamp:
                before = column.final
                self._renew_by_stamp(entry, column, changes, skipped, feasible_moved=feasible_moved)
                if before is not column.final and before.tobytes() != column.final.tobytes():
                    _replace_in_sum(entry, column, before)
                    must_mask = True
                total += _weighed(column.final.take(changes.rows), column.weight)
            elif at is None:
                self._score_all(entry, column, is_skipped=column.plugin.name in skipped)
                must_join = True
            elif column.is_plain:
                if len(at):
                    raw = self._runner.score(column.plugin, entry.view, entry.pod, changes.table_rows(entry, at))
                    final = self._in_range(entry, column.plugin, raw, at).astype(np.uint8)
                    column.final[at] = final
                    if column.depends_on.reads_pods:
                        total += _weighed(final, column.weight)
                    else:
                        must_join = True
            elif len(at) or feasible_moved:
                if len(at):
                    rows = changes.table_rows(entry, at)
                    column.raw[at] = self._runner.score(column.plugin, entry.view, entry.pod, rows)
                moved = self._normalize(entry, column, at)
                if column.depends_on.reads_pods:
                    must_join |= moved
                    total += _weighed(column.final.take(changes.rows), column.weight)
                else:
                    must_join |= moved or bool(len(at))
        if must_join:
            self._join_scores(entry)
            return
        entry.sum[changes.rows] = total
        if must_mask or changes.is_far:
            entry.total = np.where(entry.feasible, entry.sum, NOWHERE)
        elif len(changes.rows):
            feasible = entry.feasible.take(changes.rows)
            entry.total[changes.rows] = total if all_true(feasible) else np.where(feasible, total, NOWHERE)

    def _renew_by_stamp(
        self, entry: PodClass, column: ScoreColumn, changes: _Changes, skipped: set[str], *, feasible_moved: bool
    ) -> None:
        """Renews the scores of a plugin that has a stamp, into a new array of final scores."""
        at, is_skipped = changes.concerning(column), column.plugin.name in skipped
        if changes.is_everywhere:
            column.groups, column.by_group = self._groups_of(entry, column.plugin), column.by_group[:0]
        elif column.groups is not None:
            was_skipped = column.is_skipped
            if at is None and (is_skipped or was_skipped):
                if not (is_skipped and was_skipped):
                    self._score_all(entry, column, is_skipped=is_skipped)
            elif (at is None or feasible_moved) and not was_skipped:
                self._score_groups(entry, column, column.groups, feasible_moved=feasible_moved)
            return
        if at is None or (feasible_moved and column.plugin.name in self._feasible_readers):
            self._score_all(entry, column, is_skipped=is_skipped)
        elif not column.is_skipped and (len(at) or feasible_moved):
            self._score_some(entry, column, changes, at)

    def _pre_scores_due(self, entry: PodClass, changes: _Changes, *, feasible_moved: bool) -> Sequence[PreScorePlugin]:
        """The PreScore plugins whose last answer does not hold any more."""
        if not entry.stamps or not (changes.moved or feasible_moved):
            return self._pre_scores_anew
        due = changes.moved | (self._feasible_readers & entry.stamps.keys() if feasible_moved else _NOBODY)
        return [p for p in self._plugins.pre_score if p.name in due or p.name in self._for_one_attempt]

    def _score_some(self, entry: PodClass, column: ScoreColumn, changes: _Changes, at: Rows) -> None:
        """Renews the scores of a plugin whose stamp stands, into a new array of final scores."""
        column.final = column.final.copy()
        if len(at):
            raw = self._runner.score(column.plugin, entry.view, entry.pod, changes.table_rows(entry, at))
            if column.is_plain:
                column.final[at] = self._in_range(entry, column.plugin, raw, at).astype(np.uint8)
            else:
                column.raw[at] = raw
        if not column.is_plain:
            self._normalize(entry, column, at)

    def _in_range(self, entry: PodClass, plugin: ScorePlugin, raw: Scores, at: Rows | None) -> Scores:
        """Scores that count as they are must be in range, but for those of rows that no pod can go to."""
        seen = raw.view(np.uint64)  # what is below zero is large so: one pass in place of two
        if not any_true(seen > MAX_SCORE):
            return raw
        self._runner.check_range(plugin, raw[entry.feasible if at is None else entry.feasible.take(at)])
        return np.where(seen <= MAX_SCORE, raw, 0)

    def _normalize(self, entry: PodClass, column: ScoreColumn, at: Rows) -> bool:
        """Renews the final scores after `raw` changed at `at`; True if they may have changed elsewhere too."""
        if column.normalizer is None:
            self._normalize_all(entry, column)
            return True
        largest = _largest(entry, column)
        if largest != column.largest:
            self._normalize_all(entry, column)
            return True
        if len(at):
            column.final[at] = column.normalizer.apply(column.raw.take(at), largest)
        return False

    def _normalize_all(self, entry: PodClass, column: ScoreColumn) -> None:
        if column.normalizer is not None:
            column.largest = _largest(entry, column)
            column.final = column.normalizer.apply(column.raw, column.largest).astype(np.uint8)
        elif column.custom is not None:
            if len(entry.rows) and all_true(entry.feasible):
                final = self._runner.normalize(column.custom, entry.view, entry.pod, column.raw)
                column.final = final.astype(np.uint8)
                return
            at = entry.feasible.nonzero()[0]
            column.final = np.zeros(len(entry.rows), np.uint8)
            if len(at):
                final = self._runner.normalize(column.custom, entry.view, entry.pod, column.raw.take(at))
                column.final[at] = final.astype(np.uint8)


def _weighed(final: Finals, weight: int) -> Totals:
    """int32[rows]. Converted first: numpy multiplies and adds mixed types in chunks, at three times the cost."""
    found = final.astype(np.int32)
    if weight != 1:
        found *= weight
    return found


def _replace_in_sum(entry: PodClass, column: ScoreColumn, before: Finals) -> None:
    """Puts a column's final scores into the sum in place of those it had."""
    entry.sum += _weighed(column.final, column.weight)
    entry.sum -= _weighed(before, column.weight)


def _join_filters_at(entry: PodClass, at: Rows) -> bool:
    """Renews the mask at these positions; True if it changed."""
    passing = entry.fixed_pass.take(at)
    for column in entry.moving_filters:
        passing &= column.codes.take(at) == 0
    if passing.tobytes() == entry.feasible.take(at).tobytes():
        return False
    entry.feasible[at] = passing
    return True


def _largest(entry: PodClass, column: ScoreColumn) -> int:
    if not np.count_nonzero(column.raw):
        return 0
    return int((column.raw * entry.feasible).max(initial=0))  # three times faster than a masked maximum


def _check_failure(entry: PodClass) -> None:
    """Raises PluginFailure, in upstream's words, where a Filter plugin's code about a row stands for an error."""
    status = entry.failure() if entry.fallible_filters else None
    if status is not None:
        text = f'running "{status.plugin}" filter plugin: {status.message}'
        raise PluginFailure(Status.error(text).by(status.plugin))


def _signs_spec_only(plugin: SignPlugin) -> bool:
    return bool(getattr(plugin, "signs_spec_only", False))


def _is_for_one_attempt(plugin: object) -> bool:
    """A plugin that does not say what it depends on may depend on anything."""
    return getattr(plugin, "depends_on", Dependency.ATTEMPT) is Dependency.ATTEMPT


def _nowhere_left(plugins: tuple[str, ...]) -> str:
    """Upstream's sentence for PreFilter plugins that leave no node."""
    if len(plugins) == 1:
        return f"node(s) didn't satisfy plugin {plugins[0]}"
    return f"node(s) didn't satisfy plugin(s) [{' '.join(sorted(plugins))}] simultaneously"
