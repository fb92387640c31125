"""Dry runs: one attempt's filters, run again on rows from which pods are taken away (`framework.preemption.DryRun`).

Where only plugins that want room read pods, thousands of rows are looked at in a few vector operations per pod given back;
rows that other plugins must be asked about are gone through one by one, on overlays with AddPod and RemovePod. Every row
is looked at with the pods nominated there and without them, as upstream. Nothing is written.
Source: kube-scheduler 1.36, plugins/defaultpreemption, SelectVictimsOnNode.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from multisched.cycle.promised_room import PromisedRoom, wants_room_only
from multisched.framework.node_view import Bools, Codes, Rows, any_true
from multisched.framework.plugin import CycleView, FilterPlugin
from multisched.framework.preemption import Spared, StandingPods
from multisched.framework.registry import PluginSet
from multisched.framework.runner import PluginFailure, Runner
from multisched.framework.status import Status
from multisched.model.objects import Pod
from multisched.state.column_overlay import ColumnOverlay
from multisched.state.node_table import NodeTable
from multisched.state.nominator import Nominator
from multisched.state.overlay import OverlayCycle
from multisched.state.standing_pods import PodColumns, StandingTable


@dataclass(frozen=True, slots=True)
class Failed:
    """The attempt that found no row."""

    pod: Pod
    view: CycleView
    candidates: Rows
    node_count: int
    skipped: frozenset[str]
    known: Mapping[str, tuple[Rows, Codes]]
    """Plugin that reads no pods -> rows, ascending, and the codes it gave for them; may be empty."""


class DryRuns:
    """Makes the dry runs of one domain's attempts."""

    def __init__(
        self, plugins: PluginSet, runner: Runner, table: NodeTable, nominator: Nominator, promised: PromisedRoom
    ) -> None:
        self.plugins = plugins
        self.runner = runner
        self.table = table
        self.nominator = nominator
        self.promised = promised
        self.standing = StandingTable(table)
        self.room = frozenset(p.name for p in plugins.filter if wants_room_only(p))

    def of(self, failed: Failed) -> AttemptDryRun:
        return AttemptDryRun(self, failed)


class AttemptDryRun:
    """`framework.preemption.DryRun` for one attempt."""

    def __init__(self, runs: DryRuns, failed: Failed) -> None:
        self._runs = runs
        self._failed = failed
        self.node_count = failed.node_count
        asked = [p for p in runs.plugins.filter if p.name not in failed.skipped and self._is_answered(p)]
        first_other = next((i for i, p in enumerate(asked) if self._is_other(p)), len(asked))
        self._screen = asked[:first_other]
        """Fixed answers and plugins that want room, as far as no other comes before them."""
        self._moving = [p for p in self._screen if p.depends_on.reads_pods]
        self._has_other = first_other < len(asked)
        self._filters = asked

    def _is_answered(self, plugin: FilterPlugin) -> bool:
        return plugin.name not in self._runs.plugins.asking_names or plugin.name in self._failed.view.answers

    def _is_other(self, plugin: FilterPlugin) -> bool:
        """True for a plugin that must be asked row by row: the pods of other rows count for it, or more than room does."""
        is_asking = plugin.name in self._runs.plugins.asking_names
        return is_asking or (plugin.depends_on.reads_pods and plugin.name not in self._runs.room)

    # -- DryRun ----------------------------------------------------------------------------------------------------

    def candidates(self) -> Rows:
        return self._failed.candidates

    def standing(self, rows: Rows) -> Sequence[PodColumns]:
        return self._runs.standing.blocks(rows)

    def spare(self, pods: StandingPods, displaceable: Bools, first: Bools) -> Spared:
        assert isinstance(pods, PodColumns), "blocks come from this dry run"
        overlay = self._columns(pods, displaceable)
        fits, refusals = self._screened(pods, overlay, displaceable)
        if self._has_other:
            return self._spare_by_rows(pods, displaceable, first, fits, refusals)
        victims = self._spare_by_columns(pods, displaceable & fits, first, overlay)
        return Spared(fits, victims, tuple(refusals.items()))

    # -- many rows at once -----------------------------------------------------------------------------------------

    def _columns(self, pods: PodColumns, away: Bools) -> ColumnOverlay:
        failed, runs = self._failed, self._runs
        overlay = runs.promised.columns(failed.pod, runs.nominator.promised(failed.pod, runs.table))
        overlay.take_away(pods, away)
        return overlay

    def _view(self, overlay: ColumnOverlay) -> CycleView:
        return replace(self._failed.view, nodes=overlay)

    def _screened(self, pods: PodColumns, overlay: ColumnOverlay, displaceable: Bools) -> tuple[Bools, Counter[Status]]:
        """Rows that pass the plugins that can be asked about all at once, and why the others do not."""
        fits: Bools = np.asarray(displaceable.any(axis=0), np.bool_)
        refusals: Counter[Status] = Counter()
        view = self._view(overlay)
        for plugin in self._screen:
            codes = self._codes(plugin, view, pods.rows)
            if any_true(refused := fits & (codes != 0)):
                for code, count in zip(*np.unique(codes[refused], return_counts=True), strict=True):
                    refusals[plugin.reasons.status(int(code))] += int(count)
                fits &= ~refused
        return fits, refusals

    def _codes(self, plugin: FilterPlugin, view: CycleView, rows: Rows) -> Codes:
        known = self._failed.known.get(plugin.name)
        if known is not None and not plugin.depends_on.reads_pods:
            known_rows, codes = known
            return codes if known_rows is rows else codes[known_rows.searchsorted(rows)]
        return self._runs.runner.filter(plugin, view, self._failed.pod, rows)

    def _spare_by_columns(self, pods: PodColumns, displaceable: Bools, first: Bools, overlay: ColumnOverlay) -> Bools:
        victims = displaceable.copy()
        view = self._view(overlay)
        for turn in (displaceable & first, displaceable & ~first):
            for k in range(len(turn)):
                at = np.flatnonzero(turn[k])
                if not len(at):
                    continue
                overlay.give_back(k, at)
                refused = self._refused(view, pods.rows[at])
                if any_true(refused):
                    overlay.take_again(k, at[refused])
                victims[k, at[~refused]] = False
        return victims

    def _refused(self, view: CycleView, rows: Rows) -> Bools:
        refused = np.zeros(len(rows), np.bool_)
        for plugin in self._moving:
            refused |= self._runs.runner.filter(plugin, view, self._failed.pod, rows) != 0
        return refused

    # -- row by row ------------------------------------------------------------------------------------------------

    def _spare_by_rows(
        self, pods: PodColumns, displaceable: Bools, first: Bools, passes: Bools, refusals: Counter[Status]
    ) -> Spared:
        """`passes`: rows that the plugins before the first other one let pass."""
        fits, victims = passes.copy(), np.zeros_like(displaceable)
        for i in np.flatnonzero(passes).tolist():
            row = _Row(self._runs, self._failed, self._filters, pods, i)
            refusal = row.without(np.flatnonzero(displaceable[:, i]).tolist())
            if refusal is not None:
                refusals[refusal] += 1
                fits[i] = False
                continue
            for turn in (displaceable[:, i] & first[:, i], displaceable[:, i] & ~first[:, i]):
                for k in np.flatnonzero(turn).tolist():
                    victims[k, i] = not row.is_spared(k)
        return Spared(fits, victims, tuple(refusals.items()))


class _Row:
    """One row with some of its pods gone."""

    def __init__(
        self, runs: DryRuns, failed: Failed, filters: Sequence[FilterPlugin], pods: PodColumns, i: int
    ) -> None:
        self._runner = runs.runner
        self._pod = failed.pod
        self._filters = filters
        self._reading = [p for p in filters if p.depends_on.reads_pods]
        self._pods = pods
        self._i = i
        self._row = int(pods.rows[i])
        self._rows = np.array([self._row], np.intp)
        self._ahead = runs.nominator.ahead_on(runs.table.node(self._row).name, failed.pod)
        extensions = runs.promised.extensions(failed.skipped)
        self._overlay = OverlayCycle(
            runs.table, failed.view.state, failed.pod, extensions, runs.runner, failed.view.attempt
        )
        self._overlay.view.answers = failed.view.answers

    def without(self, gone: Sequence[int]) -> Status | None:
        """Takes these pods away; why the pod does not fit even so."""
        for k in gone:
            _must_agree(self._overlay.remove_pod(self._pods.pod(k, self._i), self._row))
        return self._refusal(self._filters)

    def is_spared(self, k: int) -> bool:
        """Gives a pod back, unless the pod does not fit beside it."""
        other = self._pods.pod(k, self._i)
        _must_agree(self._overlay.add_pod(other, self._row))
        if self._refusal(self._reading) is None:
            return True
        _must_agree(self._overlay.remove_pod(other, self._row))
        return False

    def _refusal(self, plugins: Sequence[FilterPlugin]) -> Status | None:
        """With the pods nominated there, then without."""
        if self._ahead:
            for other in self._ahead:
                _must_agree(self._overlay.add_pod(other, self._row))
            refusal = self._first_refusal(plugins)
            for other in self._ahead:
                _must_agree(self._overlay.remove_pod(other, self._row))
            if refusal is not None:
                return refusal
        return self._first_refusal(plugins)

    def _first_refusal(self, plugins: Sequence[FilterPlugin]) -> Status | None:
        for plugin in plugins:
            code = int(self._runner.recheck(plugin, self._overlay.view, self._pod, self._rows)[0])
            if code:
                return plugin.reasons.status(code)
        return None


def _must_agree(status: Status) -> None:
    """AddPod and RemovePod keep count and decide nothing: one that refuses has failed."""
    if not status.is_success:
        raise PluginFailure(Status.error(*status.reasons).by(status.plugin))
