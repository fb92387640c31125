"""Masks and scores per class of identical pods, renewed only where something changed.

Pods whose signatures are equal get the same answers from every plugin that depends on no more than nodes, rows and the
cluster; those answers are kept here, by position in the domain's rows, and renewed for rows that were written since.
What comes out is exactly what asking every plugin about every row would give; only the work differs.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from copy import copy
from functools import partial

import numpy as np
from msgspec.structs import replace

from multisched.cycle.classes.changes import Changes
from multisched.cycle.classes.columns import NO_TOTALS, FilterColumn
from multisched.cycle.classes.equivalence_class import EquivalenceClass
from multisched.cycle.classes.score_snapshot import ClassSnapshots
from multisched.cycle.classes.scores import ClassScores, is_for_one_attempt
from multisched.cycle.classes.shared_results import SharedAnswers
from multisched.framework.caching import CacheKeyPlugin, MovedRowsPlugin, SignPlugin, SplitCacheKey
from multisched.framework.cycle_state import CycleState
from multisched.framework.dependency import Dependency
from multisched.framework.node_view import NO_ROWS, PASSES, Bools, Rows, any_true
from multisched.framework.points import CycleView, Plugin
from multisched.framework.registry import PluginSet, those
from multisched.framework.runner import PluginFailure, Runner
from multisched.framework.status import Code, Status
from multisched.framework.traits import traits_of
from multisched.model.objects import Pod, PodSpec
from multisched.state.domain_rows import DomainRows
from multisched.state.node_table import NodeTable

CLASS_BYTES_MAX = 128 * 1024 * 1024
"""Memory for cached classes of one domain; the class unused for longest goes first. A tenant whose pods all differ fills it in
every domain, and all of it has to fit into a gibibyte."""

BYTES_PER_ROW = 24
"""What one class keeps per row, roughly, until its scores tell: codes and scores of each plugin, and the totals."""

BYTES_PER_CLASS = 10_000
"""What it keeps besides: columns, states of plugins, and its pod, which may be gone, with spec and labels."""

CLASSES_MIN = 8
SPECS_MAX = 65_536
"""Specs whose number is remembered, by identity."""
SPECS_BYTES_MAX = 32 * 1024 * 1024
"""Of their documents: the pods may be gone."""

_NOBODY: frozenset[str] = frozenset()


class ClassCache:
    """The classes of one domain."""

    def __init__(self, plugins: PluginSet, runner: Runner, table: NodeTable, rows: DomainRows) -> None:
        self._plugins = plugins
        self._runner = runner
        self._table = table
        self._rows = rows
        # A PreFilter plugin's answer is kept for the class only if its pods are told apart by what the plugin signs.
        kept_pre_filters = [p for p in those(plugins.pre_filter, SignPlugin) if not is_for_one_attempt(p)]
        reading: dict[str, Plugin] = {p.name: p for p in (*plugins.filter, *plugins.score, *kept_pre_filters)}
        signers = those(reading.values(), SignPlugin)
        self._spec_signers = [p for p in signers if traits_of(p).signs_spec_only]
        self._pod_signers = [p for p in signers if not traits_of(p).signs_spec_only]
        signed = frozenset(p.name for p in signers)
        self._unsigned = [name for name in reading if name not in signed]
        self._remote = frozenset(p.name for p in plugins.remote)
        self._pre_filters_anew = frozenset(
            p.name for p in plugins.pre_filter if is_for_one_attempt(p) or p.name not in reading
        )
        # Filters and scores that ask outside run on the answers, outside the class; what they depend on is not kept here.
        kept = [p for p in reading.values() if p.name not in self._remote]
        cache_keys: dict[str, CacheKeyPlugin] = {
            p.name: p
            for p in those((*plugins.pre_filter, *plugins.filter, *plugins.pre_score, *plugins.score), CacheKeyPlugin)
        }
        self._keyed_plugins = tuple(cache_keys.values())
        self._tracing = {
            p.name: p
            for p in those((p for p in plugins.filter if p.depends_on is Dependency.CACHE_KEY), MovedRowsPlugin)
        }
        self._keyed_filters = frozenset(p.name for p in plugins.filter if p.depends_on.reads_cache_key)
        self._scoring = frozenset(p.name for p in plugins.score)
        self._shared = SharedAnswers(runner, table, rows, signers, self._keyed_plugins)
        self._scores = ClassScores(plugins, runner, self._shared, cache_keys)
        self._keyed_pre_filters = {p.name: p for p in plugins.pre_filter if p.name in cache_keys}
        self._asks_anew = bool(self._pre_filters_anew) or any(
            is_for_one_attempt(p) for p in (*plugins.pre_score, *kept)
        )
        self._classes: dict[Hashable, EquivalenceClass] = {}
        self._class_bytes = self._spec_bytes = 0
        self._specs: dict[int, tuple[int, PodSpec]] = {}
        self._spec_numbers: dict[Hashable, int] = {}
        self._spec_numbers_given = 0
        self.hits = 0
        self.misses = 0
        self.unsigned: dict[str, int] = dict.fromkeys(self._unsigned, 0)
        """Plugin -> pods it made a class of their own."""

    # -- classes ---------------------------------------------------------------------------------------------------

    def signature(self, pod: Pod) -> Hashable | None:
        """Equal for pods that every plugin treats alike; None for a pod that is a class of its own.

        Holds for this moment: services, namespaces and the terms of placed pods stand in it too, so the same pod may be of
        another class in its next attempt.
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
        if len(self._specs) >= SPECS_MAX or self._spec_bytes > SPECS_BYTES_MAX:
            self._specs.clear()
            self._spec_numbers.clear()
            self._spec_bytes = 0
        self._spec_bytes += pod.spec.size_bytes
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

    def find(self, pod: Pod, attempt: int) -> EquivalenceClass:
        """The pod's class, with its filters renewed. Raises PluginFailure."""
        signature = self.signature(pod)
        # Taken out until it is renewed: a class that a failing plugin left half renewed must not be found again.
        pod_class = self._classes.pop(signature, None) if signature is not None else None
        if pod_class is not None:
            self._class_bytes -= pod_class.size_bytes
        if pod_class is None or pod_class.generation != self._rows.generation:
            self.misses += 1
            pod_class = EquivalenceClass(pod, self._view(CycleState(), attempt))
            self._begin(pod_class)
        else:
            self.hits += 1
            if self._asks_anew:
                pod_class.pod = pod
                # A state of its own: another cycle of this class may be waiting outside with the one before.
                pod_class.view = self._view(pod_class.view.state.copy(), attempt)
            elif pod_class.cache_keys:
                pod_class.pod = pod  # the one whose signature was just made: another's may have changed since
            self._renew(pod_class)
        _check_failure(pod_class)
        pod_class.signature = signature
        if signature is not None and not pod_class.is_of_one_row:
            self._keep(pod_class, signature)
        return pod_class

    def _keep(self, pod_class: EquivalenceClass, signature: Hashable) -> None:
        """As the one used last; those unused for longest make room."""
        pod = pod_class.pod
        if pod_class.sized_with != (pod, pod_class.is_scored):
            columns = pod_class.array_bytes if pod_class.is_scored else BYTES_PER_ROW * len(pod_class.rows)
            pod_class.size_bytes = BYTES_PER_CLASS + columns + pod.kept_bytes
            pod_class.sized_with = pod, pod_class.is_scored
        self._class_bytes += pod_class.size_bytes
        while self._class_bytes > CLASS_BYTES_MAX and len(self._classes) >= CLASSES_MIN:
            self._class_bytes -= self._classes.pop(next(iter(self._classes))).size_bytes
        self._classes[signature] = pod_class

    def dependency_versions(self, pod_class: EquivalenceClass, pod: Pod) -> Hashable:
        """What the class's answers about a row hang on besides the row, as it is now: equal as long as nothing of that moved.

        A node that comes, goes or changes its zone counts for the rows of others too, wherever pods there count.
        """
        cache_keys = [
            self._runner.call(plugin, "CacheKey", plugin.cache_key, pod_class.view, pod)
            for plugin in self._keyed_plugins
            if plugin.name in pod_class.cache_keys
        ]
        nodes = (self._rows.generation, self._table.nodes_version) if cache_keys else ()
        return self.signature(pod), nodes, *cache_keys

    def alone(self, pod: Pod, attempt: int, row: int, *, is_sole: bool = False) -> EquivalenceClass | None:
        """A class of one pod and one row, asked about anew and not kept; None where PreFilter leaves the row out.

        For a pod that was promised a node: no other row has to be looked at. `is_sole`: None, too, where PreFilter leaves
        other rows besides. Raises PluginFailure.
        """
        pod_class = EquivalenceClass(pod, self._view(CycleState(), attempt))
        self._mark(pod_class)
        pod_class.domain_size = len(self._rows.rows)
        self._pre_filter(pod_class)
        only, left = frozenset({self._table.node(row).name}), pod_class.narrowed
        if pod_class.refusal is not None or (left != only if is_sole else left is not None and not only <= left):
            return None
        pod_class.narrowed = only
        pod_class.rows = np.array([row], np.intp)
        self._ask_filters(pod_class)
        _check_failure(pod_class)
        pod_class.total = np.zeros(1, np.int16)
        return pod_class

    def _view(self, state: CycleState, attempt: int) -> CycleView:
        return CycleView(self._table, state, attempt, places=self._rows.places)

    def reduced(self, pod_class: EquivalenceClass, feasible: Bools) -> EquivalenceClass:
        """The class with fewer feasible rows, to be scored among those, and not kept: some are promised to other pods."""
        fewer = copy(pod_class)
        fewer.view = replace(pod_class.view, state=pod_class.view.state.copy())
        fewer.feasible = feasible
        fewer.scores, fewer.moving_scores = [], []
        fewer.total = NO_TOTALS
        fewer.is_scored = False
        fewer.snapshots = ClassSnapshots()
        return fewer

    def forget_all(self) -> None:
        """Drops every class: the next attempts start cold."""
        self._classes.clear()
        self._class_bytes = self._spec_bytes = 0
        self._specs.clear()
        self._spec_numbers.clear()
        self._shared.forget_all()

    # -- filtering -------------------------------------------------------------------------------------------------

    def _begin(self, pod_class: EquivalenceClass) -> None:
        self._mark(pod_class)
        pod_class.domain_size = len(self._rows.rows)
        self._pre_filter(pod_class)
        if pod_class.refusal is not None:
            return
        pod_class.rows = self._rows.rows if pod_class.narrowed is None else self._rows_named(pod_class.narrowed)
        self._ask_filters(pod_class)

    def _ask_filters(self, pod_class: EquivalenceClass) -> None:
        for plugin in self._plugins.filter:
            if plugin.name in pod_class.skipped or plugin.name in self._remote:
                continue
            if pod_class.narrowed is not None:  # its codes are of no use to other classes
                codes = self._runner.filter(plugin, pod_class.view, pod_class.pod, pod_class.rows)
                pod_class.add_filter(FilterColumn(plugin, codes))
            else:
                groups = self._shared.groups_of(pod_class, plugin)
                rows = pod_class.rows if groups is None else pod_class.rows.take(groups.firsts)
                ask = partial(self._runner.filter, plugin, pod_class.view, pod_class.pod, rows)
                shared = self._shared.codes(plugin, pod_class, ask)
                codes = ask() if shared is None else shared
                pod_class.add_filter(FilterColumn(plugin, codes, groups, is_shared=shared is not None))
        self._join_filters(pod_class)

    def _mark(self, pod_class: EquivalenceClass) -> None:
        pod_class.generation = self._rows.generation
        pod_class.nodes_version = self._table.nodes_version
        pod_class.node_sequence = self._table.node_log.sequence
        pod_class.row_sequence = self._table.row_log.sequence

    def _pre_filter(self, pod_class: EquivalenceClass) -> None:
        """Asks every PreFilter plugin; an Unschedulable one does not spare the others, as preemption needs them all."""
        self._take_cache_keys(pod_class)
        skipped = set(pod_class.silent)
        for plugin in self._plugins.pre_filter:
            if plugin.name in pod_class.silent:
                continue
            result = self._runner.pre_filter(plugin, pod_class.view, pod_class.pod)
            if plugin.name in self._pre_filters_anew:
                pod_class.told += (result,)
            elif plugin.name in pod_class.cache_keys:
                pod_class.pre_filtered_by_key[plugin.name] = result
            if result.status.code is Code.SKIP:
                skipped.add(plugin.name)
            elif not result.status.is_success:
                pod_class.refusal = result.status.by(plugin.name)
                if result.status.code is not Code.UNSCHEDULABLE:
                    return
            elif result.nodes is not None:
                pod_class.narrowed_by += (plugin.name,)
                pod_class.narrowed = result.nodes if pod_class.narrowed is None else pod_class.narrowed & result.nodes
                if not pod_class.narrowed:
                    pod_class.refusal = Status.unresolvable(_nowhere_left(pod_class.narrowed_by))
                    return
        pod_class.skipped = frozenset(skipped)
        # A plugin that scores and skips the filter has preferences only; one that has no score skips for what is there now.
        pod_class.relates = not self._keyed_filters <= pod_class.silent | (pod_class.skipped & self._scoring)

    def _take_cache_keys(self, pod_class: EquivalenceClass) -> None:
        """Learns what the answers hang on, before they are given; and who has nothing to say of such pods."""
        if not self._keyed_plugins:
            return
        found = [
            (p.name, self._runner.call(p, "CacheKey", p.cache_key, pod_class.view, pod_class.pod))
            for p in self._keyed_plugins
        ]
        pod_class.cache_keys = {name: cache_key for name, cache_key in found if cache_key is not None}
        pod_class.silent = frozenset(name for name, cache_key in found if cache_key is None)
        pod_class.keyed_scores = frozenset(
            n for n, cache_key in pod_class.cache_keys.items() if _sides(cache_key).scores is not None
        )

    def _moved_cache_keys(
        self, pod_class: EquivalenceClass, *, is_everywhere: bool
    ) -> tuple[frozenset[str], frozenset[str], bool]:
        """The plugins whose filters, and those whose scores may be others now, and whether one fell silent on a side, or speaks.

        Their new cache keys are the class's from now on.
        """
        if not pod_class.cache_keys:
            return _NOBODY, _NOBODY, False
        found = {
            p.name: self._runner.call(p, "CacheKey", p.cache_key, pod_class.view, pod_class.pod)
            for p in self._keyed_plugins
            if p.name in pod_class.cache_keys
        }
        before, pod_class.cache_keys = pod_class.cache_keys, found
        filters, scores, is_other = set(), set(), False
        for name, cache_key in found.items():
            if is_everywhere or cache_key != before[name]:
                now, then = _sides(cache_key), _sides(before[name])
                is_other |= (now.filters is None) != (then.filters is None)
                is_other |= (now.scores is None) != (then.scores is None)
                if now.filters is not None and (is_everywhere or now.filters != then.filters):
                    filters.add(name)
                if now.scores is not None and (is_everywhere or now.scores != then.scores):
                    scores.add(name)
        return frozenset(filters), frozenset(scores), is_other

    def _is_still_told(self, pod_class: EquivalenceClass, moved: frozenset[str]) -> bool:
        """Asks PreFilter of those plugins again, which brings their state up to date; False if one answers otherwise."""
        return all(
            self._runner.pre_filter(plugin, pod_class.view, pod_class.pod) == pod_class.pre_filtered_by_key.get(name)
            for name, plugin in self._keyed_pre_filters.items()
            if name in moved
        )

    def _rows_named(self, names: frozenset[str]) -> Rows:
        found = (self._table.row_of(name) for name in names)
        return np.array(sorted(row for row in found if row is not None and self._rows.has(row)), np.intp)

    def _join_filters(self, pod_class: EquivalenceClass) -> None:
        """Computes both masks from the columns."""
        every = np.ones(len(pod_class.rows), np.bool_)
        pod_class.fixed_pass = _passing(every, pod_class.fixed_filters)
        pod_class.feasible = _passing(pod_class.fixed_pass, pod_class.moving_filters)

    def _renew(self, pod_class: EquivalenceClass) -> None:
        """Brings the codes, and the scores if there are any, up to date."""
        changed_nodes = self._table.node_log.since(pod_class.node_sequence)
        changed_rows = self._table.row_log.since(pod_class.row_sequence)
        cluster_moved = pod_class.nodes_version != self._table.nodes_version
        is_too_old = changed_nodes is None or changed_rows is None
        moved, moved_scores, is_other = self._moved_cache_keys(pod_class, is_everywhere=cluster_moved)
        if (
            is_too_old
            or is_other
            or (pod_class.refusal is not None and (cluster_moved or moved))
            or (self._pre_filters_anew and not self._is_told_the_same(pod_class))
            or (moved and not self._is_still_told(pod_class, moved))
        ):
            fresh = EquivalenceClass(pod_class.pod, self._view(CycleState(), pod_class.view.attempt))
            self._begin(fresh)
            pod_class.__dict__.update(fresh.__dict__)
            return
        assert changed_nodes is not None
        assert changed_rows is not None
        self._mark(pod_class)
        if pod_class.refusal is not None:
            return
        at_nodes, at_rows = self._positions(pod_class, changed_nodes), self._positions(pod_class, changed_rows)
        rows = at_rows if pod_class.narrowed is None and self._rows.are_first else pod_class.rows.take(at_rows)
        changes = Changes(at_nodes, at_rows, rows, moved, moved_scores, is_everywhere=cluster_moved)
        feasible_moved = self._renew_filters(pod_class, changes)
        if pod_class.is_scored and pod_class.cache_keys and not any_true(pod_class.feasible):
            pod_class.is_scored = False  # PreScore cannot be asked about no rows: the next score begins anew
        if pod_class.is_scored:
            self._scores.renew(pod_class, changes, feasible_moved=feasible_moved)

    def _is_told_the_same(self, pod_class: EquivalenceClass) -> bool:
        """Asks the PreFilter plugins again whose answers hold for one attempt; True if none has another answer now."""
        again = (p for p in self._plugins.pre_filter if p.name in self._pre_filters_anew)
        told = tuple(self._runner.pre_filter(p, pod_class.view, pod_class.pod) for p in again)
        return told[: len(pod_class.told)] == pod_class.told

    def _positions(self, pod_class: EquivalenceClass, rows: Rows) -> Rows:
        """Where table rows (ascending) stand in the class's rows, ascending; rows that are not the class's fall out."""
        if not len(rows) or not len(pod_class.rows):
            return NO_ROWS
        if pod_class.narrowed is None:
            if self._rows.are_first:
                return rows if rows.item(-1) < len(pod_class.rows) else rows[rows < len(pod_class.rows)]
            position = self._rows.position
            if rows.item(-1) >= len(position):
                rows = rows[rows < len(position)]
            found = position.take(rows)
            return found if found.min(initial=0) >= 0 else found[found >= 0]
        at = np.searchsorted(pod_class.rows, rows)
        at[at == len(pod_class.rows)] = 0
        return np.asarray(at[pod_class.rows[at] == rows], np.intp)

    def _renew_filters(self, pod_class: EquivalenceClass, changes: Changes) -> bool:
        """True if some row became feasible, or ceased to be."""
        must_join, far = False, NO_ROWS
        passing = pod_class.fixed_pass.take(changes.rows)
        for column in pod_class.filters if changes.is_everywhere else pod_class.moving_filters:
            at = changes.concerning(column)
            if at is None:
                moved = self._ask_again(pod_class, column, changes)
                must_join |= bool(len(moved)) and not column.depends_on.reads_pods
                moved = _left_out(moved, changes.rows)
                if len(moved):
                    far = np.union1d(far, moved) if len(far) else moved
                passing &= column.codes.take(changes.rows) == PASSES
            elif not len(at):
                if column.depends_on.reads_cache_key:
                    passing &= column.codes.take(changes.rows) == PASSES
            else:
                codes = self._runner.filter(
                    column.plugin, pod_class.view, pod_class.pod, changes.table_rows(pod_class, at)
                )
                column.set_codes(at, codes)
                if not column.depends_on.reads_pods:
                    must_join = True
                elif codes.item(codes.argmax()):
                    passing &= codes == PASSES
        before = pod_class.feasible
        if must_join:
            self._join_filters(pod_class)
            changes.is_far = before.tobytes() != pod_class.feasible.tobytes()
            return changes.is_far
        has_moved = passing.tobytes() != before.take(changes.rows).tobytes()
        if has_moved:
            before[changes.rows] = passing
        changes.is_far = bool(len(far)) and _join_filters_at(pod_class, far)
        return has_moved or changes.is_far

    def _ask_again(self, pod_class: EquivalenceClass, column: FilterColumn, changes: Changes) -> Rows:
        """Renews a filter's codes, of all rows unless it can tell which may have changed; the positions of those that did."""
        tracing = self._tracing.get(column.plugin.name)
        if tracing is not None and column.groups is None and not changes.is_everywhere:
            rows = self._runner.moved_rows(tracing, pod_class.view, pod_class.pod)
            if rows is not None:
                return self._ask_about(pod_class, column, self._positions(pod_class, rows))
        return self._ask_all_again(pod_class, column, changes)

    def _ask_about(self, pod_class: EquivalenceClass, column: FilterColumn, at: Rows) -> Rows:
        if not len(at):
            return at
        codes = self._runner.filter(column.plugin, pod_class.view, pod_class.pod, pod_class.rows.take(at))
        moved: Rows = at[codes != column.codes.take(at)]
        column.set_codes(at, codes)
        return moved

    def _ask_all_again(self, pod_class: EquivalenceClass, column: FilterColumn, changes: Changes) -> Rows:
        groups = self._shared.groups_of(pod_class, column.plugin) if changes.is_everywhere else column.groups
        rows = pod_class.rows if groups is None else pod_class.rows.take(groups.firsts)
        codes = self._runner.filter(column.plugin, pod_class.view, pod_class.pod, rows)
        if groups is not None and groups is column.groups:
            differs = codes != column.by_group
            if not any_true(differs):
                return NO_ROWS
            moved = groups.rows_in(differs)
            column.by_group[:] = codes
            column.set_codes(moved, codes.take(groups.of.take(moved)))
            return moved
        before = column.codes
        column.answer(codes, groups)
        is_other: Bools = column.codes != before
        return is_other.nonzero()[0]

    def score(self, pod_class: EquivalenceClass) -> None:
        """Scores the class for the first time; later `find` keeps the scores true. Raises PluginFailure."""
        self._scores.score(pod_class)


def _sides(cache_key: Hashable) -> SplitCacheKey:
    return cache_key if isinstance(cache_key, SplitCacheKey) else SplitCacheKey(cache_key, cache_key)


def _left_out(some: Rows, others: Rows) -> Rows:
    """Those that are not among the others; both ascend."""
    if not len(some) or not len(others):
        return some
    if some.tobytes() == others.tobytes():  # most often the row that the latest pod went to
        return NO_ROWS
    at = others.searchsorted(some)
    at[at == len(others)] = 0
    found: Rows = some[others.take(at) != some]
    return found


def _passing(before: Bools, columns: Sequence[FilterColumn]) -> Bools:
    """A mask of its own: rows of the one before that pass these filters, too."""
    if len(before) == 1:  # a number in Python takes a tenth of what an array of one takes
        return np.array([before.item() and not any(column.codes.item() for column in columns)])
    passing = before.copy()
    for column in columns:
        passing &= column.codes == PASSES
    return passing


def _join_filters_at(pod_class: EquivalenceClass, at: Rows) -> bool:
    """Renews the mask at these positions; True if it changed."""
    passing = pod_class.fixed_pass.take(at)
    for column in pod_class.moving_filters:
        passing &= column.codes.take(at) == PASSES
    if passing.tobytes() == pod_class.feasible.take(at).tobytes():
        return False
    pod_class.feasible[at] = passing
    return True


def _check_failure(pod_class: EquivalenceClass) -> None:
    """Raises PluginFailure, in upstream's words, where a Filter plugin's code about a row stands for an error."""
    status = pod_class.failure() if pod_class.fallible_filters else None
    if status is not None:
        text = f'running "{status.plugin}" filter plugin: {status.message}'
        raise PluginFailure(Status.error(text).by(status.plugin))


def _nowhere_left(plugins: tuple[str, ...]) -> str:
    """Upstream's sentence for PreFilter plugins that leave no node."""
    if len(plugins) == 1:
        return f"node(s) didn't satisfy plugin {plugins[0]}"
    return f"node(s) didn't satisfy plugin(s) [{' '.join(sorted(plugins))}] simultaneously"
