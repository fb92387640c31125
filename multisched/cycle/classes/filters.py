"""The filters of a class: evaluated when it is built, then renewed only for what changed.

Owns only what it derives from the plugins. Writes the columns of codes of a class and the masks computed from them:
`fixed_refused` and `feasible`. Called by `ClassCache` only.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial, reduce
from operator import or_

import numpy as np

from multisched.cycle.classes.changes import Changes, positions
from multisched.cycle.classes.columns import FilterColumn
from multisched.cycle.classes.equivalence_class import EquivalenceClass
from multisched.cycle.classes.shared_results import SharedAnswers
from multisched.framework.caching import MovedRowsPlugin, SplitCacheKey
from multisched.framework.dependency import Dependency
from multisched.framework.node_view import NO_ROWS, PASSES, Bools, Codes, NodeView, Rows, any_true
from multisched.framework.registry import PluginSet, implementing
from multisched.framework.runner import PluginFailure, Runner
from multisched.framework.status import Status
from multisched.state.domain_rows import DomainRows


class ClassFilters:
    """Evaluates the filters of a class, and renews their columns for what changed."""

    def __init__(self, plugins: PluginSet, runner: Runner, shared: SharedAnswers, rows: DomainRows) -> None:
        self._runner = runner
        self._shared = shared
        self._rows = rows
        remote = frozenset(p.name for p in plugins.remote)
        self._plugins = tuple(p for p in plugins.filter if p.name not in remote)
        """Filters with remote requests are left out: they run on the responses, outside the class."""
        self._tracing = {
            p.name: p
            for p in implementing((p for p in plugins.filter if p.depends_on is Dependency.CACHE_KEY), MovedRowsPlugin)
        }
        """Plugins that can report which rows have changed codes since their cache key changed."""

    def ask(self, pod_class: EquivalenceClass) -> None:
        """Filters all rows of a class that has no columns yet."""
        for plugin in self._plugins:
            if plugin.name in pod_class.skipped:
                continue
            if pod_class.narrowed is not None:  # its codes cannot be shared with other classes
                codes = self._runner.filter(plugin, pod_class.view, pod_class.pod, pod_class.rows)
                pod_class.add_filter(FilterColumn(plugin, codes))
            else:
                groups = self._shared.groups_of(pod_class, plugin)
                rows = pod_class.rows if groups is None else pod_class.rows.take(groups.firsts)
                ask = partial(self._runner.filter, plugin, pod_class.view, pod_class.pod, rows)
                shared = self._shared.codes(plugin, pod_class, ask)
                codes = ask() if shared is None else shared
                pod_class.add_filter(FilterColumn(plugin, codes, groups, is_shared=shared is not None))
        _note_dependencies(pod_class)
        _join(pod_class)

    def renew_row(self, pod_class: EquivalenceClass, at: int, row: Rows) -> bool:
        """Like `renew`, if nothing changed but the pods on one row and the class is `filters_by_row`.

        That is the case for most attempts: the row of the pod before. `at`: position of the row; `row`: the row alone.
        """
        passes = not pod_class.fixed_refused.item(at)
        for column in pod_class.moving_filters:
            code = self._runner.filter(column.plugin, pod_class.view, pod_class.pod, row).item()
            column.set_codes(at, code)
            passes = passes and code == 0
        if passes == pod_class.feasible.item(at):
            return False
        pod_class.feasible[at] = passes
        return True

    def renew(self, pod_class: EquivalenceClass, changes: Changes) -> bool:
        """Renews the filters. Returns True if the feasibility of some row changed."""
        if changes.is_everywhere:
            _note_dependencies(pod_class)
        must_join, far = False, NO_ROWS
        refused = pod_class.fixed_refused[changes.rows]
        for column in pod_class.filters if changes.is_everywhere else pod_class.moving_filters:
            at = changes.concerning(column)
            if at is None:
                moved = self._ask_again(pod_class, column, changes)
                must_join |= bool(len(moved)) and not column.depends_on.reads_pods
                moved = _left_out(moved, changes.rows)
                if len(moved):
                    far = np.union1d(far, moved) if len(far) else moved
                refused |= column.codes[changes.rows]
            elif not len(at):
                if column.depends_on.reads_cache_key:
                    refused |= column.codes[changes.rows]
            else:
                codes = self._runner.filter(
                    column.plugin, pod_class.view, pod_class.pod, changes.table_rows(pod_class, at)
                )
                column.set_codes(at, codes)
                if column.depends_on.reads_pods:
                    refused |= codes
                else:
                    must_join = True
        before = pod_class.feasible
        if must_join:
            _join(pod_class)
            changes.is_far = before.tobytes() != pod_class.feasible.tobytes()
            return changes.is_far
        passing = refused == PASSES
        has_moved = passing.tobytes() != before[changes.rows].tobytes()
        if has_moved:
            before[changes.rows] = passing
        changes.is_far = bool(len(far)) and _join_at(pod_class, far)
        return has_moved or changes.is_far

    def _ask_again(self, pod_class: EquivalenceClass, column: FilterColumn, changes: Changes) -> Rows:
        """Renews a filter's codes: of all rows unless the plugin can report which may have changed. Returns changed positions."""
        tracing = self._tracing.get(column.plugin.name)
        if tracing is not None and column.groups is None and not changes.is_everywhere:
            rows = self._runner.moved_rows(tracing, pod_class.view, pod_class.pod)
            if rows is not None:
                return self._ask_about(pod_class, column, positions(pod_class, self._rows, rows))
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


def check_failure(pod_class: EquivalenceClass, nodes: NodeView) -> None:
    """Raises PluginFailure if a Filter plugin's code for a row means an error.

    The message is upstream's, plus the node's name, which upstream leaves out.
    """
    found = pod_class.failure() if pod_class.fallible_filters else None
    if found is not None:
        status, rows = found
        more = f" and {len(rows) - 1} more" if len(rows) > 1 else ""
        where = f"on node {nodes.node(int(rows[0])).name}{more}"
        text = f'running "{status.plugin}" filter plugin {where}: {status.message}'
        raise PluginFailure(Status.error(text).by(status.plugin))


def _note_dependencies(pod_class: EquivalenceClass) -> None:
    keys = pod_class.cache_keys
    pod_class.filters_by_row = all(
        column.depends_on is Dependency.ROW or _is_by_row(keys.get(column.plugin.name))
        for column in pod_class.moving_filters
    )


def _is_by_row(cache_key: Hashable) -> bool:
    return isinstance(cache_key, SplitCacheKey) and cache_key.is_by_row


def _join(pod_class: EquivalenceClass) -> None:
    """Computes both masks from the columns."""
    none = np.zeros(len(pod_class.rows), np.uint8)
    pod_class.fixed_refused = _joined(none, pod_class.fixed_filters)
    pod_class.feasible = _joined(pod_class.fixed_refused, pod_class.moving_filters) == PASSES


def _joined(before: Codes, columns: Sequence[FilterColumn]) -> Codes:
    """Returns a new array: codes joined bit by bit, 0 where all pass."""
    if len(before) == 1:  # for a single row, Python numbers take a tenth of the time of arrays
        return np.array([reduce(or_, (column.codes.item() for column in columns), before.item())], np.uint8)
    joined = before.copy()
    for column in columns:
        joined |= column.codes
    return joined


def _join_at(pod_class: EquivalenceClass, at: Rows) -> bool:
    """Renews the mask at these positions. Returns True if it changed."""
    refused = pod_class.fixed_refused.take(at)
    for column in pod_class.moving_filters:
        refused |= column.codes.take(at)
    passing = refused == PASSES
    if passing.tobytes() == pod_class.feasible.take(at).tobytes():
        return False
    pod_class.feasible[at] = passing
    return True


def _left_out(some: Rows, others: Rows) -> Rows:
    """Returns the elements of `some` that are not in `others`; both ascend."""
    if not len(some) or not len(others):
        return some
    if some.tobytes() == others.tobytes():  # the most common case: the row of the latest placed pod
        return NO_ROWS
    at = others.searchsorted(some)
    at[at == len(others)] = 0
    found: Rows = some[others.take(at) != some]
    return found
