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
from multisched.cycle.classes.equivalence_class import PodClass
from multisched.cycle.classes.score_snapshot import ClassPictures
from multisched.cycle.classes.scores import ClassScores, is_for_one_attempt
from multisched.cycle.classes.shared_answers import SharedAnswers
from multisched.framework.caching import SignPlugin, StampPlugin, TracingPlugin, TwoStamps
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
        self._asking = frozenset(p.name for p in plugins.asking)
        self._pre_filters_anew = frozenset(
            p.name for p in plugins.pre_filter if is_for_one_attempt(p) or p.name not in reading
        )
        # Filters and scores that ask outside run on the answers, outside the class; what they depend on is not kept here.
        kept = [p for p in reading.values() if p.name not in self._asking]
        stamps: dict[str, StampPlugin] = {
            p.name: p
            for p in those((*plugins.pre_filter, *plugins.filter, *plugins.pre_score, *plugins.score), StampPlugin)
        }
        self._stamp_plugins = tuple(stamps.values())
        self._tracing = {
            p.name: p for p in those((p for p in plugins.filter if p.depends_on is Dependency.STAMP), TracingPlugin)
        }
        self._stamp_filters = frozenset(p.name for p in plugins.filter if p.depends_on.reads_stamp)
        self._scoring = frozenset(p.name for p in plugins.score)
        self._shared = SharedAnswers(runner, table, rows, signers, self._stamp_plugins)
        self._scores = ClassScores(plugins, runner, self._shared, stamps)
        self._stamp_pre_filters = {p.name: p for p in plugins.pre_filter if p.name in stamps}
        self._asks_anew = bool(self._pre_filters_anew) or any(
            is_for_one_attempt(p) for p in (*plugins.pre_score, *kept)
        )
        self._classes: dict[Hashable, PodClass] = {}
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

    def find(self, pod: Pod, attempt: int) -> PodClass:
        """The pod's class, with its filters renewed. Raises PluginFailure."""
        signature = self.signature(pod)
        # Taken out until it is renewed: a class that a failing plugin left half renewed must not be found again.
        entry = self._classes.pop(signature, None) if signature is not None else None
        if entry is not None:
            self._class_bytes -= entry.size_bytes
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
        entry.signature = signature
        if signature is not None and not entry.is_of_one_row:
            self._keep(entry, signature)
        return entry

    def _keep(self, entry: PodClass, signature: Hashable) -> None:
        """As the one used last; those unused for longest make room."""
        pod = entry.pod
        if entry.sized_with != (pod, entry.is_scored):
            columns = entry.array_bytes if entry.is_scored else BYTES_PER_ROW * len(entry.rows)
            entry.size_bytes = BYTES_PER_CLASS + columns + pod.kept_bytes
            entry.sized_with = pod, entry.is_scored
        self._class_bytes += entry.size_bytes
        while self._class_bytes > CLASS_BYTES_MAX and len(self._classes) >= CLASSES_MIN:
            self._class_bytes -= self._classes.pop(next(iter(self._classes))).size_bytes
        self._classes[signature] = entry

    def hangs_on(self, entry: PodClass, pod: Pod) -> Hashable:
        """What the class's answers about a row hang on besides the row, as it is now: equal as long as nothing of that moved.

        A node that comes, goes or changes its zone counts for the rows of others too, wherever pods there count.
        """
        stamps = [
            self._runner.call(plugin, "Stamp", plugin.stamp, entry.view, pod)
            for plugin in self._stamp_plugins
            if plugin.name in entry.stamps
        ]
        nodes = (self._rows.generation, self._table.nodes_version) if stamps else ()
        return self.signature(pod), nodes, *stamps

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
        entry.total = np.zeros(1, np.int16)
        return entry

    def _view(self, state: CycleState, attempt: int) -> CycleView:
        return CycleView(self._table, state, attempt, places=self._rows.places)

    def reduced(self, entry: PodClass, feasible: Bools) -> PodClass:
        """The class with fewer feasible rows, to be scored among those, and not kept: some are promised to other pods."""
        fewer = copy(entry)
        fewer.view = replace(entry.view, state=entry.view.state.copy())
        fewer.feasible = feasible
        fewer.scores, fewer.moving_scores = [], []
        fewer.total = NO_TOTALS
        fewer.is_scored = False
        fewer.pictures = ClassPictures()
        return fewer

    def forget_all(self) -> None:
        """Drops every class: the next attempts start cold."""
        self._classes.clear()
        self._class_bytes = self._spec_bytes = 0
        self._specs.clear()
        self._spec_numbers.clear()
        self._shared.forget_all()

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
                groups = self._shared.groups_of(entry, plugin)
                rows = entry.rows if groups is None else entry.rows.take(groups.firsts)
                ask = partial(self._runner.filter, plugin, entry.view, entry.pod, rows)
                shared = self._shared.codes(plugin, entry, ask)
                codes = ask() if shared is None else shared
                entry.add_filter(FilterColumn(plugin, codes, groups, is_shared=shared is not None))
        self._join_filters(entry)

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
        # A plugin that scores and skips the filter has preferences only; one that has no score skips for what is there now.
        entry.relates = not self._stamp_filters <= entry.silent | (entry.skipped & self._scoring)

    def _take_stamps(self, entry: PodClass) -> None:
        """Learns what the answers hang on, before they are given; and who has nothing to say of such pods."""
        if not self._stamp_plugins:
            return
        found = [(p.name, self._runner.call(p, "Stamp", p.stamp, entry.view, entry.pod)) for p in self._stamp_plugins]
        entry.stamps = {name: stamp for name, stamp in found if stamp is not None}
        entry.silent = frozenset(name for name, stamp in found if stamp is None)
        entry.stamped_scores = frozenset(n for n, stamp in entry.stamps.items() if _sides(stamp).scores is not None)

    def _moved_stamps(self, entry: PodClass, *, is_everywhere: bool) -> tuple[frozenset[str], frozenset[str], bool]:
        """The plugins whose filters, and those whose scores may be others now, and whether one fell silent on a side, or speaks.

        Their new stamps are the class's from now on.
        """
        if not entry.stamps:
            return _NOBODY, _NOBODY, False
        found = {
            p.name: self._runner.call(p, "Stamp", p.stamp, entry.view, entry.pod)
            for p in self._stamp_plugins
            if p.name in entry.stamps
        }
        before, entry.stamps = entry.stamps, found
        filters, scores, is_other = set(), set(), False
        for name, stamp in found.items():
            if is_everywhere or stamp != before[name]:
                now, then = _sides(stamp), _sides(before[name])
                is_other |= (now.filters is None) != (then.filters is None)
                is_other |= (now.scores is None) != (then.scores is None)
                if now.filters is not None and (is_everywhere or now.filters != then.filters):
                    filters.add(name)
                if now.scores is not None and (is_everywhere or now.scores != then.scores):
                    scores.add(name)
        return frozenset(filters), frozenset(scores), is_other

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
                fixed &= column.codes == PASSES
        feasible = fixed.copy()
        for column in entry.moving_filters:
            feasible &= column.codes == PASSES
        entry.fixed_pass, entry.feasible = fixed, feasible

    def _renew(self, entry: PodClass) -> None:
        """Brings the codes, and the scores if there are any, up to date."""
        changed_nodes = self._table.node_log.since(entry.node_sequence)
        changed_rows = self._table.row_log.since(entry.row_sequence)
        cluster_moved = entry.nodes_version != self._table.nodes_version
        is_too_old = changed_nodes is None or changed_rows is None
        moved, moved_scores, is_other = self._moved_stamps(entry, is_everywhere=cluster_moved)
        if (
            is_too_old
            or is_other
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
        rows = at_rows if entry.narrowed is None and self._rows.are_first else entry.rows.take(at_rows)
        changes = Changes(at_nodes, at_rows, rows, moved, moved_scores, is_everywhere=cluster_moved)
        feasible_moved = self._renew_filters(entry, changes)
        if entry.is_scored and entry.stamps and not any_true(entry.feasible):
            entry.is_scored = False  # PreScore cannot be asked about no rows: the next score begins anew
        if entry.is_scored:
            self._scores.renew(entry, changes, feasible_moved=feasible_moved)

    def _is_told_the_same(self, entry: PodClass) -> bool:
        """Asks the PreFilter plugins again whose answers hold for one attempt; True if none has another answer now."""
        again = (p for p in self._plugins.pre_filter if p.name in self._pre_filters_anew)
        told = tuple(self._runner.pre_filter(p, entry.view, entry.pod) for p in again)
        return told[: len(entry.told)] == entry.told

    def _positions(self, entry: PodClass, rows: Rows) -> Rows:
        """Where table rows (ascending) stand in the class's rows, ascending; rows that are not the class's fall out."""
        if not len(rows) or not len(entry.rows):
            return NO_ROWS
        if entry.narrowed is None:
            if self._rows.are_first:
                return rows if rows.item(-1) < len(entry.rows) else rows[rows < len(entry.rows)]
            position = self._rows.position
            if rows.item(-1) >= len(position):
                rows = rows[rows < len(position)]
            found = position.take(rows)
            return found if found.min(initial=0) >= 0 else found[found >= 0]
        at = np.searchsorted(entry.rows, rows)
        at[at == len(entry.rows)] = 0
        return np.asarray(at[entry.rows[at] == rows], np.intp)

    def _renew_filters(self, entry: PodClass, changes: Changes) -> bool:
        """True if some row became feasible, or ceased to be."""
        must_join, far = False, NO_ROWS
        passing = entry.fixed_pass.take(changes.rows)
        for column in entry.filters if changes.is_everywhere else entry.moving_filters:
            at = changes.concerning(column)
            if at is None:
                moved = self._ask_again(entry, column, changes)
                must_join |= bool(len(moved)) and not column.depends_on.reads_pods
                moved = _left_out(moved, changes.rows)
                if len(moved):
                    far = np.union1d(far, moved) if len(far) else moved
                passing &= column.codes.take(changes.rows) == PASSES
            elif not len(at):
                if column.depends_on.reads_stamp:
                    passing &= column.codes.take(changes.rows) == PASSES
            else:
                codes = self._runner.filter(column.plugin, entry.view, entry.pod, changes.table_rows(entry, at))
                column.set_codes(at, codes)
                if not column.depends_on.reads_pods:
                    must_join = True
                elif codes.item(codes.argmax()):
                    passing &= codes == PASSES
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

    def _ask_again(self, entry: PodClass, column: FilterColumn, changes: Changes) -> Rows:
        """Renews a filter's codes, of all rows unless it can tell which may have changed; the positions of those that did."""
        tracing = self._tracing.get(column.plugin.name)
        if tracing is not None and column.groups is None and not changes.is_everywhere:
            rows = self._runner.moved_rows(tracing, entry.view, entry.pod)
            if rows is not None:
                return self._ask_about(entry, column, self._positions(entry, rows))
        return self._ask_all_again(entry, column, changes)

    def _ask_about(self, entry: PodClass, column: FilterColumn, at: Rows) -> Rows:
        if not len(at):
            return at
        codes = self._runner.filter(column.plugin, entry.view, entry.pod, entry.rows.take(at))
        moved: Rows = at[codes != column.codes.take(at)]
        column.set_codes(at, codes)
        return moved

    def _ask_all_again(self, entry: PodClass, column: FilterColumn, changes: Changes) -> Rows:
        groups = self._shared.groups_of(entry, column.plugin) if changes.is_everywhere else column.groups
        rows = entry.rows if groups is None else entry.rows.take(groups.firsts)
        codes = self._runner.filter(column.plugin, entry.view, entry.pod, rows)
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

    def score(self, entry: PodClass) -> None:
        """Scores the class for the first time; later `find` keeps the scores true. Raises PluginFailure."""
        self._scores.score(entry)


def _sides(stamp: Hashable) -> TwoStamps:
    return stamp if isinstance(stamp, TwoStamps) else TwoStamps(stamp, stamp)


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


def _join_filters_at(entry: PodClass, at: Rows) -> bool:
    """Renews the mask at these positions; True if it changed."""
    passing = entry.fixed_pass.take(at)
    for column in entry.moving_filters:
        passing &= column.codes.take(at) == PASSES
    if passing.tobytes() == entry.feasible.take(at).tobytes():
        return False
    entry.feasible[at] = passing
    return True


def _check_failure(entry: PodClass) -> None:
    """Raises PluginFailure, in upstream's words, where a Filter plugin's code about a row stands for an error."""
    status = entry.failure() if entry.fallible_filters else None
    if status is not None:
        text = f'running "{status.plugin}" filter plugin: {status.message}'
        raise PluginFailure(Status.error(text).by(status.plugin))


def _nowhere_left(plugins: tuple[str, ...]) -> str:
    """Upstream's sentence for PreFilter plugins that leave no node."""
    if len(plugins) == 1:
        return f"node(s) didn't satisfy plugin {plugins[0]}"
    return f"node(s) didn't satisfy plugin(s) [{' '.join(sorted(plugins))}] simultaneously"
