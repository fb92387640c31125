"""The scores of a class: evaluated when it is first scored, then renewed only for what changed.

Owns only what it derives from the plugins; the columns belong to the class. Called by `ClassCache` only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

import numpy as np

from multisched.cycle.classes.changes import Changes
from multisched.cycle.classes.columns import ScoreColumn, Totals, totals_type
from multisched.cycle.classes.equivalence_class import EquivalenceClass
from multisched.cycle.classes.shared_results import SharedAnswers
from multisched.cycle.classes.shared_scores import Finals
from multisched.cycle.classes.topology_groups import RowGroups
from multisched.framework.caching import CacheKeyPlugin
from multisched.framework.dependency import Dependency, dependency_of
from multisched.framework.node_view import Bools, Rows, Scores, all_true, any_true
from multisched.framework.normalize import MAX_SCORE
from multisched.framework.points import PreScorePlugin, ScorePlugin
from multisched.framework.registry import PluginSet
from multisched.framework.runner import Runner
from multisched.framework.status import Code
from multisched.framework.traits import traits_of

NOWHERE: Final = -1
"""The total of a row that is not feasible."""

_ONE = np.array(1, np.int8)
_NO_PLUGINS: frozenset[str] = frozenset()


class ClassScores:
    """Computes the scores of classes, and renews them for what changed."""

    def __init__(
        self, plugins: PluginSet, runner: Runner, shared: SharedAnswers, keyed: Mapping[str, CacheKeyPlugin]
    ) -> None:
        """`keyed`: the plugins that have a cache key."""
        self._totals = totals_type(map(plugins.weight, plugins.score))
        self._plugins = plugins
        self._runner = runner
        self._shared = shared
        self._feasible_readers = frozenset(name for name, p in keyed.items() if traits_of(p).reads_feasible)
        """Plugins with a cache key whose scores depend on which rows are feasible."""
        self._remote = frozenset(p.name for p in plugins.remote)
        self._for_one_attempt = frozenset(p.name for p in (*plugins.pre_score, *plugins.score) if is_for_one_attempt(p))
        self._reads_rows = self._for_one_attempt | self._feasible_readers
        """Plugins whose PreScore gets the feasible rows; the others depend on the pod only."""
        self._pre_scores_anew = [p for p in plugins.pre_score if p.name in self._for_one_attempt]
        self._pre_scores_again = [p for p in plugins.pre_score if p.name in self._for_one_attempt or p.name in keyed]
        """PreScore plugins that may run more than once for a class."""

    def score(self, pod_class: EquivalenceClass) -> None:
        """Scores the class for the first time; `ClassCache.find` keeps the scores up to date later. Raises PluginFailure."""
        if pod_class.is_scored:
            return
        if not any_true(pod_class.feasible):  # no row to score: plugins need not handle an empty list
            pod_class.total = np.full(len(pod_class.rows), NOWHERE, self._totals)
            return
        pod_class.scores, pod_class.moving_scores = [], []  # an earlier call that failed may have left some
        speaking = [p for p in self._plugins.pre_score if p.name not in pod_class.silent]
        skipped = self._pre_score(pod_class, speaking)  # Skip by PreFilter applies to Filter only
        for scorer in self._plugins.score:
            may_speak_later = scorer.name in self._for_one_attempt or scorer.name in pod_class.keyed_scores
            is_left_out = scorer.name in pod_class.silent or (scorer.name in skipped and not may_speak_later)
            if not is_left_out and scorer.name not in self._remote:
                custom, weight = self._plugins.normalize.get(scorer.name), self._plugins.weight(scorer)
                column = ScoreColumn(scorer, custom, weight)
                column.groups = self._shared.groups_of(pod_class, scorer)
                self._score_all(pod_class, column, is_skipped=scorer.name in skipped)
                pod_class.add_score(column)
        pod_class.scores_by_row = not self._pre_scores_anew and all(
            column.depends_on is Dependency.ROW and column.is_plain and not column.is_skipped
            for column in pod_class.moving_scores
        )
        self._join_scores(pod_class)
        pod_class.is_scored = True  # last: a class with a failed scorer must not count as scored

    def _pre_score(self, pod_class: EquivalenceClass, plugins: Sequence[PreScorePlugin]) -> set[str]:
        """Runs PreScore. Returns the names of the plugins whose Score is skipped."""
        if not plugins or not any_true(pod_class.feasible):
            return set()
        rows = feasible = pod_class.rows
        if not all_true(pod_class.feasible) and any(p.name in self._reads_rows for p in plugins):
            feasible = rows.take(pod_class.feasible.nonzero()[0])
        return {
            p.name
            for p in plugins
            if self._runner.pre_score(
                p, pod_class.view, pod_class.pod, feasible if p.name in self._reads_rows else rows
            ).code
            is Code.SKIP
        }

    def _score_all(self, pod_class: EquivalenceClass, column: ScoreColumn, *, is_skipped: bool) -> None:
        """Scores every row that the plugin may be evaluated on."""
        plugin = column.plugin
        column.is_skipped = is_skipped
        if is_skipped:
            column.set_all(np.zeros(len(pod_class.rows), np.uint8))
            column.by_group = np.zeros(0 if column.groups is None else column.groups.count, np.uint8)
            return
        if column.groups is not None:
            self._score_groups(pod_class, column, column.groups, feasible_moved=True)
            return
        if plugin.name in self._for_one_attempt or plugin.name in self._feasible_readers:
            column.shared, raw = None, self._raw_of_feasible(pod_class, plugin)
        else:
            ask = partial(self._runner.score, plugin, pod_class.view, pod_class.pod, pod_class.rows)
            column.shared = self._shared.scores(plugin, pod_class, ask)
            raw = ask() if column.shared is None else column.shared.raw
        if column.is_plain:
            plain = None if column.shared is None else column.shared.plain()
            if plain is None:
                column.set_all(self._in_range(pod_class, plugin, raw, None).astype(np.uint8))
            else:
                column.set_all(plain, is_shared=True)
            return
        if column.shared is not None:
            column.raw = raw
        else:
            column.keep_raw(raw)
        self._normalize_all(pod_class, column)

    def _raw_of_feasible(self, pod_class: EquivalenceClass, plugin: ScorePlugin) -> Scores:
        """Returns int64[rows]: raw scores of a plugin that is evaluated on feasible rows only; 0 for all other rows."""
        if all_true(pod_class.feasible):
            return self._runner.score(plugin, pod_class.view, pod_class.pod, pod_class.rows)
        raw = np.zeros(len(pod_class.rows), np.int64)
        at = pod_class.feasible.nonzero()[0]
        raw[at] = self._runner.score(plugin, pod_class.view, pod_class.pod, pod_class.rows.take(at))
        return raw

    def _score_groups(
        self, pod_class: EquivalenceClass, column: ScoreColumn, groups: RowGroups, *, feasible_moved: bool
    ) -> None:
        """Renews the scores of a plugin that is evaluated by group; replaces the array `final` if one of them changed."""
        if feasible_moved:
            column.asked = groups.firsts if all_true(pod_class.feasible) else groups.firsts_among(pod_class.feasible)
        by_group = np.zeros(groups.count, np.uint8)
        if len(column.asked):
            final = self._runner.score(column.plugin, pod_class.view, pod_class.pod, pod_class.rows.take(column.asked))
            if column.custom is not None:
                final = self._runner.normalize(column.custom, pod_class.view, pod_class.pod, final)
            else:
                self._runner.check_range(column.plugin, final)
            by_group[groups.of.take(column.asked)] = final
        if len(column.final) != len(pod_class.rows) or by_group.tobytes() != column.by_group.tobytes():
            column.by_group = by_group
            column.set_all(by_group.take(groups.of))

    def _join_scores(self, pod_class: EquivalenceClass) -> None:
        """Computes all totals from the columns."""
        fixed: Totals = np.zeros(len(pod_class.rows), self._totals)
        for column in pod_class.scores:
            if not column.depends_on.reads_pods:
                fixed += self._weighed(column.final, column.weight)
        pod_class.sum = fixed.copy()
        for column in pod_class.moving_scores:
            pod_class.sum += self._weighed(column.final, column.weight)
        pod_class.total = _where(pod_class.feasible, pod_class.sum)
        if fixed.tobytes() != pod_class.fixed_total.tobytes():
            pod_class.fixed_changes += 1
        pod_class.fixed_total = fixed

    def _weighed(self, final: Finals, weight: int) -> Totals:
        """Returns Totals[rows]. Converts first: numpy adds and multiplies mixed types in chunks, at three times the cost."""
        found: Totals = final.astype(self._totals)
        if weight != 1:
            found *= weight
        return found

    def _replace_in_sum(self, pod_class: EquivalenceClass, column: ScoreColumn, before: Finals) -> None:
        """Replaces a column's final scores in the sum."""
        pod_class.sum -= self._weighed(before, column.weight)
        pod_class.sum += self._weighed(column.final, column.weight)

    def renew_row(self, pod_class: EquivalenceClass, at: int, row: Rows) -> None:
        """Does the same as `renew`, if only the pods on one row changed, the row is still feasible, and `scores_by_row` is true.

        `at`: position of the row; `row`: the row alone.
        """
        is_feasible, total = pod_class.feasible.item(at), pod_class.fixed_total.item(at)
        for column in pod_class.moving_scores:
            raw = self._runner.score(column.plugin, pod_class.view, pod_class.pod, row)
            final = raw.item()
            if not 0 <= final <= MAX_SCORE:
                if is_feasible:
                    self._runner.check_range(column.plugin, raw)
                final = 0
            column.set_final(at, final)
            total += final * column.weight
        pod_class.sum[at] = total
        pod_class.total[at] = total if is_feasible else NOWHERE

    def renew(self, pod_class: EquivalenceClass, changes: Changes, *, feasible_moved: bool) -> None:
        if not (pod_class.moving_scores or feasible_moved or changes.is_everywhere) and pod_class.scores_by_row:
            return  # the rest of the scores does not change with the pods on a row
        skipped = self._pre_score(pod_class, self._pre_scores_due(pod_class, changes, feasible_moved=feasible_moved))
        must_join = must_mask = False
        total = pod_class.fixed_total[changes.rows]
        for column in pod_class.scores if changes.is_everywhere or feasible_moved else pod_class.moving_scores:
            at = changes.concerning(column)
            if column.depends_on.reads_cache_key:
                before = column.final
                self._renew_by_cache_key(pod_class, column, changes, skipped, feasible_moved=feasible_moved)
                if before is not column.final and before.tobytes() != column.final.tobytes():
                    self._replace_in_sum(pod_class, column, before)
                    must_mask = True
                if not column.is_skipped:
                    total += self._weighed(column.final[changes.rows], column.weight)
            elif at is None:
                self._score_all(pod_class, column, is_skipped=column.plugin.name in skipped)
                must_join = True
            elif column.is_plain:
                if len(at):
                    raw = self._runner.score(
                        column.plugin, pod_class.view, pod_class.pod, changes.table_rows(pod_class, at)
                    )
                    final = self._in_range(pod_class, column.plugin, raw, at).astype(np.uint8)
                    column.set_final(at, final)
                    if column.depends_on.reads_pods:
                        total += self._weighed(final, column.weight)
                    else:
                        must_join = True
            elif len(at) or feasible_moved:
                if len(at):
                    rows = changes.table_rows(pod_class, at)
                    column.set_raw(at, self._runner.score(column.plugin, pod_class.view, pod_class.pod, rows))
                moved = self._normalize(pod_class, column, at)
                if column.depends_on.reads_pods:
                    must_join |= moved
                    total += self._weighed(column.final[changes.rows], column.weight)
                else:
                    must_join |= moved or bool(len(at))
        if must_join:
            self._join_scores(pod_class)
            return
        pod_class.sum[changes.rows] = total
        if must_mask or changes.is_far:
            pod_class.total = _where(pod_class.feasible, pod_class.sum)
        elif len(changes.rows):
            feasible = pod_class.feasible[changes.rows]
            pod_class.total[changes.rows] = total if all_true(feasible) else _where(feasible, total)

    def _renew_by_cache_key(
        self,
        pod_class: EquivalenceClass,
        column: ScoreColumn,
        changes: Changes,
        skipped: set[str],
        *,
        feasible_moved: bool,
    ) -> None:
        """Renews the scores of a plugin with a cache key. Writes to a new array of final scores."""
        at, is_skipped = changes.concerning(column), column.plugin.name in skipped
        if is_skipped and column.is_skipped and not changes.is_everywhere:
            return
        if changes.is_everywhere:
            column.groups, column.by_group = self._shared.groups_of(pod_class, column.plugin), column.by_group[:0]
        elif column.groups is not None:
            was_skipped = column.is_skipped
            if at is None and (is_skipped or was_skipped):
                if not (is_skipped and was_skipped):
                    self._score_all(pod_class, column, is_skipped=is_skipped)
            elif (at is None or feasible_moved) and not was_skipped:
                self._score_groups(pod_class, column, column.groups, feasible_moved=feasible_moved)
            return
        if at is None or (feasible_moved and column.plugin.name in self._feasible_readers):
            self._score_all(pod_class, column, is_skipped=is_skipped)
        elif not column.is_skipped and (len(at) or feasible_moved):
            self._score_some(pod_class, column, changes, at)

    def _pre_scores_due(
        self, pod_class: EquivalenceClass, changes: Changes, *, feasible_moved: bool
    ) -> Sequence[PreScorePlugin]:
        """Returns the PreScore plugins whose last result is no longer valid."""
        if not pod_class.keyed_scores or not (changes.moved_scores or feasible_moved):
            return self._pre_scores_anew
        due = changes.moved_scores | (
            self._feasible_readers & pod_class.keyed_scores if feasible_moved else _NO_PLUGINS
        )
        return [p for p in self._pre_scores_again if p.name in due or p.name in self._for_one_attempt]

    def _score_some(self, pod_class: EquivalenceClass, column: ScoreColumn, changes: Changes, at: Rows) -> None:
        """Renews scores of a plugin whose cache key is unchanged. Writes to a new array of final scores."""
        column.set_all(column.final.copy())
        if len(at):
            raw = self._runner.score(column.plugin, pod_class.view, pod_class.pod, changes.table_rows(pod_class, at))
            if column.is_plain:
                column.set_final(at, self._in_range(pod_class, column.plugin, raw, at).astype(np.uint8))
            else:
                column.set_raw(at, raw)
        if not column.is_plain:
            self._normalize(pod_class, column, at)

    def _in_range(self, pod_class: EquivalenceClass, plugin: ScorePlugin, raw: Scores, at: Rows | None) -> Scores:
        """Checks the range of plain scores on feasible rows; sets scores out of range on other rows to 0."""
        if not len(raw):
            return raw
        seen = raw.view(np.uint64)  # as uint64, negative values exceed MAX_SCORE: one pass instead of two
        if seen.item(seen.argmax()) <= MAX_SCORE:
            return raw
        self._runner.check_range(plugin, raw[pod_class.feasible if at is None else pod_class.feasible.take(at)])
        return np.where(seen <= MAX_SCORE, raw, 0)

    def _normalize(self, pod_class: EquivalenceClass, column: ScoreColumn, at: Rows) -> bool:
        """Renews the final scores after `raw` changed at `at`. Returns True if others may have changed, too."""
        if column.normalizer is None:
            self._normalize_all(pod_class, column)
            return True
        largest = _largest(pod_class, column)
        if largest != column.largest:
            self._normalize_all(pod_class, column)
            return True
        if len(at):
            column.set_final(at, column.normalizer.apply(column.raw_at(at), largest).astype(np.uint8))
        return False

    def _normalize_all(self, pod_class: EquivalenceClass, column: ScoreColumn) -> None:
        if column.normalizer is not None:
            column.largest = _largest(pod_class, column)
            if column.shared is not None:
                column.set_all(column.shared.normalized(column.normalizer, column.largest), is_shared=True)
            else:
                column.set_all(column.normalizer.apply(column.all_raw(), column.largest).astype(np.uint8))
        elif column.custom is not None:
            if len(pod_class.rows) and all_true(pod_class.feasible):
                final = self._runner.normalize(column.custom, pod_class.view, pod_class.pod, column.all_raw())
                column.set_all(final.astype(np.uint8))
                return
            at = pod_class.feasible.nonzero()[0]
            column.set_all(np.zeros(len(pod_class.rows), np.uint8))
            if len(at):
                final = self._runner.normalize(column.custom, pod_class.view, pod_class.pod, column.raw_at(at))
                column.set_final(at, final.astype(np.uint8))


def _where(feasible: Bools, total: Totals) -> Totals:
    """Returns the total where feasible, else NOWHERE, in half the time of np.where: NOWHERE is -1, which has all bits set."""
    found: Totals = total | (feasible.view(np.int8) - _ONE)
    return found


def _largest(pod_class: EquivalenceClass, column: ScoreColumn) -> int:
    if column.shared is not None:
        return column.shared.largest(pod_class.feasible)
    if not np.count_nonzero(column.raw):
        return 0
    return int((column.raw * pod_class.feasible).max(initial=0))  # three times faster than a masked maximum


def is_for_one_attempt(plugin: object) -> bool:
    """Reports whether the plugin is evaluated again in every attempt."""
    return dependency_of(plugin) is Dependency.ATTEMPT
