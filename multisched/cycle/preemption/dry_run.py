"""Dry runs: the filters of one attempt, run again on rows without their possible victims (`framework.preemption.DryRun`).

A possible victim is a pod that the rule calls displaceable. If the filters depend only on the resources of possible victims, a few
vector operations test thousands of rows at once, and the results are cached for the next pod of the class
(`preemption/victim_cache.py`). Rows on which another filter depends on a possible victim are tested one by one, on overlays with AddPod
and RemovePod. As upstream, every row is tested with and without the pods nominated there. A dry run changes only caches.
Source: kube-scheduler 1.36, plugins/defaultpreemption, SelectVictimsOnNode.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from functools import cached_property, partial
from typing import Final

import msgspec
import numpy as np
from msgspec.structs import replace

from multisched.cycle.effort import RowResults
from multisched.cycle.preemption.dry_run_parts import DryRuns, FailedAttempt
from multisched.cycle.preemption.gang_candidates import GangCandidates
from multisched.cycle.preemption.gang_columns import SparingGangs
from multisched.cycle.preemption.label_set_matches import LabelSetMatches
from multisched.cycle.preemption.row_trial import RerunPlugins, RowTrial, refusal_of
from multisched.cycle.preemption.victim_cache import Displacement, VictimCache, first_refusals, has_any, victims_on
from multisched.framework.node_view import NO_ROWS, Bools, Codes, Int32, Rows
from multisched.framework.points import FilterPlugin, Plugin
from multisched.framework.preemption import Candidates, Costs, DisplacementRule, Fitting
from multisched.framework.runner import PluginFailure
from multisched.framework.status import Status
from multisched.model.objects import Pod
from multisched.state.column_overlay import ColumnOverlay
from multisched.state.node_table import NodeTable
from multisched.state.pods_by_priority import PodColumns, PodsByPriority

PRE_FILTER_ROWS_MAX: Final = 512
"""Maximum number of rows for which a PreFilter that reads pods runs again, which takes about a millisecond per row."""


class _Tally(msgspec.Struct):
    """The results of one dry run, added up over blocks of rows."""

    rows: list[Rows] = msgspec.field(default_factory=list)
    """Rows on which the pod fits if the victims there are evicted."""
    costs: list[Costs] = msgspec.field(default_factory=list)
    """Costs of the victims on these rows."""
    refusals: Counter[Status] = msgspec.field(default_factory=Counter)
    """Reason -> number of rows on which the pod does not fit even without all possible victims."""
    undisplaceable: int = 0
    """Number of rows without possible victims."""
    needless: list[str] = msgspec.field(default_factory=list)
    """Names of nodes on which the pod fits without any victim."""
    victims: dict[int, tuple[Pod, ...]] = msgspec.field(default_factory=dict)
    """Row -> its victims, for rows whose victims are not in the victim cache."""


class AttemptDryRun:
    """`framework.preemption.DryRun` for one attempt."""

    def __init__(self, runs: DryRuns, failed: FailedAttempt, results: RowResults | None = None) -> None:
        """`results`: results for rows that the attempt tested before it paused. With them, a search may raise PauseDue; the caller
        then repeats the search.
        """
        self._runs = runs
        self._failed = failed
        self._results = RowResults() if results is None else results
        self._search = 0
        self.node_count, self.candidate_count = failed.node_count, failed.candidate_count

    # -- plugins to run, computed lazily: most attempts have no row with possible victims ---------------------------

    @cached_property
    def _filters(self) -> list[FilterPlugin]:
        skipped = self._failed.skipped
        return [p for p in self._runs.plugins.filter if p.name not in skipped and self._is_available(p)]

    @cached_property
    def _refusing(self) -> dict[str, Status]:
        """Plugin -> reason, for PreFilter plugins that read pods and refuse the pod now. Those that pass now also pass after evictions."""
        found: dict[str, Status] = {}
        for plugin in self._runs.pre_filters_of(self._failed.skipped):
            refusal = refusal_of(self._runs.runner, plugin, self._failed.view, self._failed.pod)
            if refusal is not None:
                found[plugin.name] = refusal
        return found

    @cached_property
    def _rerun_plugins(self) -> RerunPlugins:
        again = [p for p in self._runs.pre_filters_of(self._failed.skipped) if p.name in self._refusing]
        return RerunPlugins(again, self._filters)

    @cached_property
    def _first_by_row(self) -> int:
        """Index of the first plugin that must be evaluated row by row. The plugins before it are evaluated on all rows at once."""
        return next((i for i, p in enumerate(self._filters) if self._is_evaluated_by_row(p)), len(self._filters))

    @cached_property
    def _tail(self) -> list[FilterPlugin]:
        return self._filters[self._first_by_row :]

    @cached_property
    def _displacement(self) -> Displacement:
        filters = self._filters[: self._first_by_row]
        return Displacement(self._blocks, filters, self._run_filter)

    # -- DryRun ----------------------------------------------------------------------------------------------------

    def candidates(self) -> Rows:
        return self._failed.candidates()

    def fitting(self) -> Fitting:
        rows, runs, failed = self._failed.candidates(), self._runs, self._failed
        if not len(rows):
            return Fitting(rows, frozenset())
        refusal, statuses = first_refusals(
            self._filters,
            np.ones(len(rows), np.bool_),
            lambda plugin: runs.runner.recheck(plugin, failed.view, failed.pod, rows),
        )
        rows = rows[refusal < 0]
        nominated = runs.nominator.ahead_of(failed.pod)
        blocked = [row for node, ahead in nominated if (row := self._blocked_row(node, ahead, rows)) >= 0]
        return Fitting(np.setdiff1d(rows, blocked).astype(np.intp), frozenset(status.plugin for status in statuses))

    def _blocked_row(self, node: str, ahead: Sequence[Pod], rows: Rows) -> int:
        """Returns the node's row if it is in `rows` and the pod does not fit there with the nominated pods `ahead` added; else -1."""
        row = self._runs.table.row_of(node)
        return -1 if row is None or row not in rows or self._fits_with(row, ahead, ()) else row

    def fits_without(self, row: int, removed: Sequence[Pod]) -> bool:
        ahead = self._runs.nominator.ahead_on(self._runs.table.node(row).name, self._failed.pod)
        return (not ahead or self._fits_with(row, ahead, removed)) and self._fits_with(row, (), removed)

    def _fits_with(self, row: int, ahead: Sequence[Pod], removed: Sequence[Pod]) -> bool:
        failed = self._failed
        return self._runs.nominated.fits_with_nominated(failed.view, failed.skipped, failed.pod, row, ahead, removed)

    def displace(self, rule: DisplacementRule) -> Candidates:
        self._search = self._results.begin_search()
        while True:
            found = self._displace_sparing(rule)
            # No gang needs to be evicted whole if on some node the victims violate no disruption budget (costs[0]).
            if len(self._runs.cache.gangs) and not (len(found.rows) and not found.costs[0].all()):
                found = self._gang_candidates().added_to(found, rule, self._failed.candidates())
            if not self._forget_old_best(found):
                return found

    def _forget_old_best(self, found: Candidates) -> bool:
        """Forgets the results of the best row if they are from before the latest pause. Returns whether the search must be repeated."""
        if not len(found.rows) or not self._results.has_paused:
            return False
        row = int(found.rows[found.best()])
        old = [key for key in (self._key(row), self._gang_candidates().key(row)) if self._results.is_old(key)]
        for key in old:
            self._results.forget(key)
        return bool(old)

    def _key(self, row: int) -> Hashable:
        return self._failed.plugin, self._search, row

    def displace_sparing(self, rule: DisplacementRule) -> Candidates:
        self._search = self._results.begin_search()
        return self._displace_sparing(rule)

    def _displace_sparing(self, rule: DisplacementRule) -> Candidates:
        gangs = self._runs.cache.gangs
        return self._displace(SparingGangs(rule, self._runs.gang_columns, gangs) if len(gangs) else rule)

    def rows_of_gangs(self, rule: DisplacementRule) -> Sequence[int]:
        return self._gang_candidates().likely(rule, self._failed.candidates())

    def _gang_candidates(self) -> GangCandidates:
        return GangCandidates(
            self._runs,
            self._failed,
            self._rerun_plugins,
            self._displacement,
            self._columns,
            self._results,
            self._search,
            self._blocks,
        )

    def _displace(self, rule: DisplacementRule) -> Candidates:
        tally, runs = _Tally(), self._runs
        rows = self._rows_that_may_have_victims(rule, tally)
        if not len(rows):
            return self._found(tally, None)
        cache = runs.victim_cache(_victim_cache_key(self._failed, rule, self._filters, runs.table))
        is_wide = runs.pods_by_priority.is_wide(rows)
        if self._tail or self._rerun_plugins.pre_filters:
            alone = is_wide | self._sensitive_rows(cache, rows, rule)
            if self._refusing:
                alone = _cheapest(runs.pods_by_priority, rows, alone)
            for pods in self._blocks(rows[alone]):
                self._displace_one_by_one(pods, rule, tally)
        else:
            alone = is_wide
            for pods in self._blocks(rows[is_wide]):
                self._displace_wide(pods, rule, tally)
        narrow = rows[~alone] if alone.any() else rows
        if self._refusing:
            narrow = self._refused_by_pre_filter(narrow, rule, tally)
        # The pod's own nomination is not counted on its nominated node. The result there is not valid for other pods of its class.
        own = runs.table.row_of(self._failed.pod.nominated_node)
        cache.forget(own)
        try:
            self._displacement.update(cache, narrow, rule, self._columns)
        except PluginFailure:
            cache.known[:] = False
            raise
        self._report(cache, narrow, tally)
        found = self._found(tally, cache)
        cache.forget(own)
        return found

    def _refused_by_pre_filter(self, rows: Rows, rule: DisplacementRule, tally: _Tally) -> Rows:
        """Adds these rows to the tally as refused by PreFilter, which does not run again for them. Returns an empty array.

        Either no possible victim on them matters to PreFilter, or PRE_FILTER_ROWS_MAX other rows are tested.
        """
        status = next(iter(self._refusing.values()))
        for pods in self._blocks(rows):
            has_displaceable = has_any(rule.displaceable(pods))
            tally.undisplaceable += int(np.count_nonzero(~has_displaceable))
            if has_displaceable.any():
                tally.refusals[status] += int(np.count_nonzero(has_displaceable))
        return rows[:0]

    def _rows_that_may_have_victims(self, rule: DisplacementRule, tally: _Tally) -> Rows:
        """Returns the candidate rows with a pod of a priority below `rule.below`. Often there are none, and the dry run ends here."""
        if not self.candidate_count or self._runs.table.priority_min >= rule.below:
            tally.undisplaceable = self.candidate_count
            return NO_ROWS
        rows = self._failed.candidates()
        lowest = self._runs.pods_by_priority.lowest(rows, self._results.pause)
        if lowest.item(lowest.argmin()) >= rule.below:
            tally.undisplaceable = len(rows)
            return rows[:0]
        may_help: Bools = lowest < rule.below
        tally.undisplaceable = len(rows) - int(np.count_nonzero(may_help))
        return rows[may_help]

    def _blocks(self, rows: Rows) -> list[PodColumns]:
        """Returns the pods on these rows, in blocks. Also fills the request columns that filters read later: filters cannot pause."""
        table = self._runs.table
        resources = [resource for resource in self._failed.pod.requests if table.has_column(resource)]
        return self._runs.pods_by_priority.blocks(rows, self._results.pause, resources)

    # -- many rows at once -----------------------------------------------------------------------------------------

    def _columns(self) -> ColumnOverlay:
        failed, runs = self._failed, self._runs
        return runs.nominated.columns(failed.pod, runs.nominator.requests(failed.pod, runs.table))

    def _run_filter(self, plugin: FilterPlugin, overlay: ColumnOverlay, rows: Rows) -> Codes:
        known = self._known(plugin, rows) if not plugin.depends_on.reads_pods else None
        if known is not None:
            return known
        view = replace(self._failed.view, nodes=overlay)
        return self._runs.runner.recheck(plugin, view, self._failed.pod, rows)

    def _known(self, plugin: FilterPlugin, rows: Rows) -> Codes | None:
        """Returns the codes that the failed attempt computed for these rows; None if some are missing."""
        known = self._failed.known.get(plugin.name)
        if known is None:
            return None
        rows_known, codes = known
        at = rows_known.searchsorted(rows)
        are_known = (rows_known.take(at, mode="clip") == rows).all()
        return codes[at] if are_known else None

    def _is_available(self, plugin: FilterPlugin) -> bool:
        return plugin.name not in self._runs.plugins.remote_names or plugin.name in self._failed.view.responses

    def _is_evaluated_by_row(self, plugin: FilterPlugin) -> bool:
        """Reports whether the plugin must be evaluated row by row: it is remote, or reads more of pods than their resources."""
        is_remote = plugin.name in self._runs.plugins.remote_names
        return is_remote or (plugin.depends_on.reads_pods and plugin.name not in self._runs.room)

    def _sensitive_rows(self, cache: VictimCache, rows: Rows, rule: DisplacementRule) -> Bools:
        """Returns bool[rows]: whether a plugin of `_tail`, or a PreFilter, depends on a possible victim or a nominated pod there."""
        runs, failed = self._runs, self._failed
        reading: list[Plugin] = [*self._rerun_plugins.pre_filters, *(p for p in self._tail if p.depends_on.reads_pods)]
        sensitivities = runs.nominated.sensitivities(reading, failed.view, failed.pod)
        if sensitivities is None:
            return np.ones(len(rows), np.bool_)  # some plugin does not declare which pods matter to it
        sensitive = np.isin(rows, list(runs.nominated.sensitive_rows(sensitivities, failed.pod)))
        for rows_that_matter in [
            sensitivity.rows_that_matter for sensitivity in sensitivities if sensitivity.rows_that_matter is not None
        ]:
            sensitive |= rows_that_matter(rows)
        by_labels = [sensitivity for sensitivity in sensitivities if sensitivity.rows_that_matter is None]
        if not by_labels or sensitive.all():
            return sensitive
        is_uncached = failed.signature is None  # without a signature, the victim cache is not kept during pauses
        kept = self._results.kept
        matches = kept.setdefault("label sets", LabelSetMatches()) if is_uncached else cache.label_set_matches
        for pods in self._blocks(rows):
            matters = matches.of(by_labels, pods.label_sets, self._results.pause)
            if matters.any():
                at = rows.searchsorted(pods.rows)
                sensitive[at] |= has_any(rule.displaceable(pods) & matters[pods.label_set])
        return sensitive

    def _codes_without_change(self, plugin: FilterPlugin, rows: Rows) -> Codes:
        """Returns the codes of a plugin of `_tail` for rows on which it depends on no possible victim: evictions do not change them."""
        known, failed = self._known(plugin, rows), self._failed
        return known if known is not None else self._runs.runner.recheck(plugin, failed.view, failed.pod, rows)

    def _report(self, cache: VictimCache, rows: Rows, tally: _Tally) -> None:
        """Adds the cached results of these rows to the tally."""
        has_displaceable: Bools = cache.has_displaceable[rows]
        tally.undisplaceable += len(rows) - int(np.count_nonzero(has_displaceable))
        tally.refusals += cache.report(rows)
        fits = has_displaceable & (cache.refusal[rows] < 0)
        refusal, statuses = first_refusals(self._tail, fits, lambda plugin: self._codes_without_change(plugin, rows))
        tally.refusals.update(statuses[number] for number in refusal[refusal >= 0].tolist())
        fits &= refusal < 0
        has_victims = cache.has_victims[rows]
        needless = rows[fits & ~has_victims]
        tally.needless += [self._runs.table.node(row).name for row in needless.tolist()]
        chosen = rows[fits & has_victims]
        if len(chosen):
            tally.rows.append(chosen)
            tally.costs.append(cache.costs[:, chosen])

    def _displace_wide(self, pods: PodColumns, rule: DisplacementRule, tally: _Tally) -> None:
        """Tests a row with too many pods for the victim cache, and adds the result to the tally."""
        displaceable = rule.displaceable(pods)
        first = rule.first(pods, displaceable)
        refusal, statuses, victims = self._displacement.find_victims(pods, displaceable, first, self._columns())
        self._count(pods, rule, displaceable, first, (refusal, statuses, victims), tally)

    # -- row by row ------------------------------------------------------------------------------------------------

    def _displace_one_by_one(self, pods: PodColumns, rule: DisplacementRule, tally: _Tally) -> None:
        displaceable = rule.displaceable(pods)
        first = rule.first(pods, displaceable)
        overlay = self._columns()
        overlay.remove(pods, displaceable)
        refusal, statuses = self._displacement.screen(pods.rows, has_any(displaceable), overlay)
        victims = np.zeros_like(displaceable)
        for i in np.flatnonzero((refusal < 0) & has_any(displaceable)).tolist():
            row, test = int(pods.rows[i]), partial(self._victims_on_row, pods, i, displaceable[:, i], first[:, i])
            tested = self._results.of(self._key(row), self._runs.version(self._failed.pod, row), test)
            if isinstance(tested, Status):
                refusal[i] = len(statuses)
                statuses.append(tested)
            else:
                victims[tested, i] = True
        self._count(pods, rule, displaceable, first, (refusal, statuses, victims), tally)

    def _victims_on_row(self, pods: PodColumns, i: int, displaceable: Bools, first: Bools) -> Status | list[int]:
        """Returns the positions of the victims on the i-th row, or why the pod does not fit even without all possible victims."""
        with RowTrial(self._runs, self._failed, self._rerun_plugins, int(pods.rows[i])) as row:
            status = row.without(victims_on(pods, i, displaceable))
            if status is not None:
                return status
            turns = (displaceable & first, displaceable & ~first)
            return [k for turn in turns for k in np.flatnonzero(turn).tolist() if not row.reprieve(pods.pod(k, i))]

    def _count(
        self,
        pods: PodColumns,
        rule: DisplacementRule,
        displaceable: Bools,
        first: Bools,
        results: tuple[Int32, list[Status], Bools],
        tally: _Tally,
    ) -> None:
        """Adds the results of a block of rows to the tally."""
        refusal, statuses, victims = results
        has_displaceable, has_victims = has_any(displaceable), has_any(victims)
        tally.undisplaceable += int(np.count_nonzero(~has_displaceable))
        for number in refusal[has_displaceable & (refusal >= 0)].tolist():
            tally.refusals[statuses[number]] += 1
        needless = pods.rows[has_displaceable & ~has_victims & (refusal < 0)]
        tally.needless += [self._runs.table.node(row).name for row in needless.tolist()]
        at = np.flatnonzero(has_victims)
        if not len(at):
            return
        some = next(iter(self._runs.pods_by_priority.blocks(pods.rows[at])))
        k = len(some.priority)
        tally.rows.append(some.rows)
        no_whole_gangs = np.zeros(len(at), np.int64)
        tally.costs.append(rule.costs(some, victims[:k, at], first[:k, at], no_whole_gangs))
        for i in at.tolist():
            tally.victims[int(pods.rows[i])] = victims_on(pods, i, victims[:, i])

    # -- ending ----------------------------------------------------------------------------------------------------

    def _found(self, tally: _Tally, cache: VictimCache | None) -> Candidates:
        rows = np.concatenate(tally.rows) if tally.rows else np.zeros(0, np.intp)
        costs = np.concatenate(tally.costs, axis=1) if tally.costs else np.zeros((0, 0))

        def victims_at(i: int) -> Mapping[str, tuple[Pod, ...]]:
            row = int(rows[i])
            victims = tally.victims.get(row)
            if victims is None:
                assert cache is not None, "victims that are not in the tally are in the cache"
                order = self._runs.pods_by_priority.order(row)
                victims = tuple(order[k] for k in cache.victims[: len(order), row].nonzero()[0].tolist())
            return {self._runs.table.node(row).name: victims}

        return Candidates(rows, costs, victims_at, tally.undisplaceable, tally.refusals, tally.needless)


def _cheapest(by_priority: PodsByPriority, rows: Rows, alone: Bools) -> Bools:
    """Limits `alone`, the rows on which PreFilter runs again, to the PRE_FILTER_ROWS_MAX with the pods of the lowest priority."""
    at = np.flatnonzero(alone)
    cheapest = by_priority.lowest(rows[at]).argsort(kind="stable")[:PRE_FILTER_ROWS_MAX]
    found = np.zeros_like(alone)
    found[at[cheapest]] = True
    return found


def _victim_cache_key(
    failed: FailedAttempt, rule: DisplacementRule, filters: Sequence[FilterPlugin], table: NodeTable
) -> Hashable | None:
    if failed.signature is None:
        return None
    kind = type(rule.rule) if isinstance(rule, SparingGangs) else type(rule)
    depends_on_nodes = any(p.depends_on.reads_all_nodes for p in filters)
    nodes_version = table.nodes_version if depends_on_nodes else 0
    return failed.plugin, kind, failed.signature, failed.skipped, nodes_version
