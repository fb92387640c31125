"""Runs the PostFilter plugins for a refused pod, and gives them the reasons of the refusal.

Owns no mutable state. Source: kube-scheduler 1.36, framework/runtime, RunPostFilterPlugins.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from multisched.cycle.classes.equivalence_class import EquivalenceClass
from multisched.cycle.diagnosis import Diagnosis
from multisched.cycle.effort import Effort, RowResults
from multisched.cycle.preemption.dry_run import AttemptDryRun
from multisched.cycle.preemption.dry_run_parts import DryRuns, FailedAttempt
from multisched.cycle.preemption.group_dry_run import GroupAttemptDryRun
from multisched.cycle.preemption.group_trial import GroupOfPods
from multisched.cycle.preemption.member_placer import MemberPlacer
from multisched.cycle.preemption.victim_units import Search
from multisched.framework.cycle_state import CycleState
from multisched.framework.extender import NegotiablePostFilter, Offer
from multisched.framework.node_view import Codes, Rows
from multisched.framework.points import CycleView, PostFilterResult
from multisched.framework.preemption import Preemption
from multisched.framework.registry import implements
from multisched.framework.runner import PluginFailure
from multisched.framework.status import Code, Status
from multisched.model.objects import Pod
from multisched.state.domain_rows import DomainRows

CLEARED = ""
"""Value of `nominated_node` that clears the nomination of a pod."""
_ERROR: Final = Code.ERROR
"""Module constants, because in Python 3.11 looking up an enum member takes as long as three calls."""
_UNSCHEDULABLE: Final = Code.UNSCHEDULABLE
_UNRESOLVABLE_CODE: Final = Code.UNSCHEDULABLE_AND_UNRESOLVABLE
_UNRESOLVABLE = Status(_UNRESOLVABLE_CODE)
_NO_REJECTORS: frozenset[str] = frozenset()


class PostFilterOutcome(msgspec.Struct, frozen=True):
    """The result of PostFilter."""

    sentence: str = ""
    nominated_node: str | None = None
    """See `PostFilterResult.nominated_node`."""
    preemption: Preemption | None = None
    rejectors: frozenset[str] = frozenset()
    """See `PostFilterResult.rejectors`."""
    condition_reason: str = ""
    """`Status.condition_reason` of the last plugin that gave one."""
    is_tried_again: bool = False
    """See `PostFilterResult.is_tried_again`."""


class GroupPostFilters:
    """The PostFilter plugins of one domain, for pods that must start together."""

    def __init__(self, runs: DryRuns, rows: DomainRows, places: MemberPlacer) -> None:
        self._runs = runs
        self._rows = rows
        self._places = places
        self._plugins = runs.plugins.post_filter_group

    def run(self, group: GroupOfPods, effort: Effort) -> Search[PostFilterOutcome]:
        """Runs the plugins in order until one makes room for all members. The preemption contains the nominated nodes.

        Without a preemption, the result says whether members keep their nominations. Must be called outside their transaction;
        may pause. Runs no plugin if the domain has no nodes, as for a single pod: the pod would be parked with that plugin as its
        rejector and miss the event of a new node.
        """
        if not self._plugins or not len(self._rows.rows):
            return PostFilterOutcome(nominated_node=CLEARED)
        reasons: list[str] = []
        nominated: str | None = None
        view = CycleView(self._runs.table, CycleState(), group.attempt)
        for plugin in self._plugins:
            dry_run = GroupAttemptDryRun(plugin.name, self._runs, self._rows, self._places, group, effort)
            result = yield from self._runs.runner.post_filter_group(plugin, view, group.pods, dry_run)
            status = result.status
            if status.code is _ERROR:
                return PostFilterOutcome(status.message)
            if status.is_success or status.code is _UNRESOLVABLE_CODE:
                return PostFilterOutcome(status.message, result.nominated_node, result.preemption, result.rejectors)
            if result.nominated_node is not None:
                nominated = result.nominated_node
            reasons += status.reasons
        return PostFilterOutcome(", ".join(reasons), nominated)


class PostFilterRuns:
    """The PostFilter plugins of one domain."""

    def __init__(self, runs: DryRuns, rows: DomainRows) -> None:
        self._runs = runs
        self._rows = rows
        self._plugins = runs.plugins.post_filter

    def offers(
        self,
        pod: Pod,
        view: CycleView,
        pod_class: EquivalenceClass,
        found: Diagnosis,
        results: RowResults,
        settled: Container[str],
    ) -> Iterator[tuple[NegotiablePostFilter, Sequence[Offer] | PostFilterResult]]:
        """Yields, for each plugin that extenders may influence, the candidates it would choose from. Skips `settled` plugins.

        `results`: as for `run`. Raises PauseDue if the attempt must pause.
        """
        if not found.node_count:
            return
        for plugin in self._plugins:
            if implements(plugin, NegotiablePostFilter) and plugin.name not in settled:
                refusals = _Refusals(self, plugin.name, pod, view, pod_class, found, results)
                try:
                    yield plugin, self._runs.runner.call(plugin, "PostFilter", plugin.offers, view, pod, refusals)
                except PluginFailure as failure:
                    yield plugin, PostFilterResult(failure.status)

    def run(
        self,
        pod: Pod,
        view: CycleView,
        pod_class: EquivalenceClass,
        found: Diagnosis,
        settled: Mapping[str, PostFilterResult],
        results: RowResults,
    ) -> PostFilterOutcome:
        """Runs the plugins in order until one makes room. `settled`: plugin -> its result, for those that ran before.

        `results`: of rows that this attempt tested before it paused. Raises PauseDue if the attempt must pause.
        """
        if not self._plugins or not found.node_count:
            return PostFilterOutcome(nominated_node=CLEARED)
        reasons: list[str] = []
        nominated: str | None = None
        condition_reason, rejectors = "", _NO_REJECTORS
        for plugin in self._plugins:
            refusals = _Refusals(self, plugin.name, pod, view, pod_class, found, results)
            result = settled.get(plugin.name) or self._runs.runner.post_filter(plugin, view, pod, refusals)
            status = result.status
            if status.code is _ERROR:
                return PostFilterOutcome(status.message)
            if status.is_success or status.code is _UNRESOLVABLE_CODE:
                return PostFilterOutcome(status.message, result.nominated_node, result.preemption, result.rejectors)
            if result.is_tried_again:
                return PostFilterOutcome(is_tried_again=True)
            if result.nominated_node is not None:
                nominated = result.nominated_node
            reasons += status.reasons
            condition_reason = status.condition_reason or condition_reason
            rejectors |= result.rejectors
        return PostFilterOutcome(", ".join(reasons), nominated, None, rejectors, condition_reason)

    def row_of(self, node: str) -> int | None:
        return self._runs.table.row_of(node)

    def node_names(self, rows: Rows) -> list[str]:
        nodes = (self._runs.table.node_at(row) for row in rows.tolist())
        return [node.name for node in nodes if node is not None]

    def dry_run(
        self,
        plugin: str,
        pod: Pod,
        view: CycleView,
        pod_class: EquivalenceClass,
        found: Diagnosis,
        remote_refusals: Mapping[str, Status],
        results: RowResults,
    ) -> AttemptDryRun:
        candidate_count, candidates = self._candidates(found, remote_refusals)
        known: dict[str, tuple[Rows, Codes]] = {}
        if pod_class.refusal is None and pod_class.generation == self._rows.generation:
            known = {column.plugin.name: (pod_class.rows, column.codes) for column in pod_class.filters}
        failed = FailedAttempt(
            plugin,
            pod,
            view,
            candidate_count,
            candidates,
            found.node_count,
            pod_class.skipped,
            pod_class.signature,
            known,
        )
        return AttemptDryRun(self._runs, failed, results)

    def _candidates(self, found: Diagnosis, remote_refusals: Mapping[str, Status]) -> tuple[int, Callable[[], Rows]]:
        """Returns the rows whose first refusal was Unschedulable, and that still belong to the domain: their number, and a
        function that returns them.
        """
        verdicts = found.verdicts
        if verdicts is not None and verdicts.generation == self._rows.generation and not remote_refusals:
            return verdicts.curable_count, lambda: verdicts.curable_rows
        rows = self._rows.rows[:0] if verdicts is None else verdicts.curable_rows
        if found.pre_filter is not None and found.pre_filter.code is _UNSCHEDULABLE:
            rows = self._rows.rows
        curable = [self.row_of(node) for node, status in remote_refusals.items() if status.code is _UNSCHEDULABLE]
        if curable:
            rows = np.union1d(rows, np.array([row for row in curable if row is not None], np.intp))
        rows = rows[self._rows.members().take(rows)]
        return len(rows), lambda: rows


class _Refusals:
    """`points.Refusals` from a diagnosis, for one plugin."""

    def __init__(
        self,
        runs: PostFilterRuns,
        plugin: str,
        pod: Pod,
        view: CycleView,
        pod_class: EquivalenceClass,
        found: Diagnosis,
        results: RowResults,
    ) -> None:
        self._results = results
        self._runs = runs
        self._plugin = plugin
        self._pod = pod
        self._view = view
        self._pod_class = pod_class
        self._found = found
        self._remote_refusals = dict(found.nodes)
        self._otherwise = found.pre_filter or _UNRESOLVABLE

    def status_of(self, node: str) -> Status:
        if node in self._remote_refusals:
            return self._remote_refusals[node]
        verdicts, row = self._found.verdicts, self._runs.row_of(node)
        if verdicts is None or row is None:
            return self._otherwise
        at = int(verdicts.rows.searchsorted(row))
        if at == len(verdicts.rows) or int(verdicts.rows[at]) != row or verdicts.which[at] < 0:
            return self._otherwise
        return verdicts.statuses[int(verdicts.which[at])]

    def nodes(self) -> Sequence[str]:
        verdicts = self._found.verdicts
        refused = verdicts.rows[verdicts.which >= 0] if verdicts is not None else np.zeros(0, np.intp)
        return [*self._runs.node_names(refused), *self._remote_refusals]

    def dry_run(self) -> AttemptDryRun:
        return self._runs.dry_run(
            self._plugin, self._pod, self._view, self._pod_class, self._found, self._remote_refusals, self._results
        )
