"""Rows that take a pod only as long as the pods nominated there do not come (upstream's second pass over the filters).

Where only plugins that want room heed the promised pods, all such rows are looked at in a few vector operations; the
others row by row on overlays. Owns nothing that changes. Source: kube-scheduler 1.36, framework/runtime, RunFilterPluginsWithNominatedPods.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from multisched.cycle.classes.equivalence_class import PodClass
from multisched.framework.node_view import Rows, any_true
from multisched.framework.points import CycleView, FilterPlugin, PreFilterExtensions
from multisched.framework.registry import PluginSet, implements, those
from multisched.framework.runner import PluginFailure, Runner
from multisched.framework.sensitivity import Heed, HeedingPlugin
from multisched.framework.status import Code, Status
from multisched.framework.traits import traits_of
from multisched.model.objects import Pod
from multisched.state.column_overlay import ColumnOverlay
from multisched.state.node_table import NodeTable
from multisched.state.nominator import Nominator, Promised
from multisched.state.overlay import OverlayCycle

Held = dict[int, Status]
"""Position in the class's rows -> why the row is kept for the pods nominated there."""


def wants_room_only(plugin: FilterPlugin) -> bool:
    return traits_of(plugin).wants_room_only and not implements(plugin, PreFilterExtensions)


class PromisedRoom:
    """The nominated pods as the cycles of one domain see them."""

    def __init__(self, plugins: PluginSet, runner: Runner, table: NodeTable, nominator: Nominator) -> None:
        self._plugins = plugins
        self._runner = runner
        self._table = table
        self._nominator = nominator
        self._extensions = those(plugins.pre_filter, PreFilterExtensions)
        self._room = frozenset(p.name for p in plugins.filter if wants_room_only(p))
        self._heeding = {p.name: p for p in those(plugins.filter, HeedingPlugin)}

    def held(self, group: PodClass, pod: Pod, attempt: int, *, everywhere: bool = False) -> Held:
        """Feasible rows of the class that are not, once the promised pods have come. Raises PluginFailure.

        `everywhere`: rows that are not feasible anyway too, since it is the first pass that a refusal is told from.
        """
        if not len(self._nominator):
            return {}
        promised = self._nominator.promised(pod, self._table)
        if promised is None or not len(group.rows):
            return {}
        at = np.searchsorted(group.rows, promised.rows)
        at[at == len(group.rows)] = 0
        is_asked = group.rows[at] == promised.rows
        if not everywhere:
            is_asked &= group.feasible[at]
        at = np.sort(at[is_asked])
        if not len(at):
            return {}
        reading = [column.plugin for column in group.filters if column.depends_on.reads_pods]
        heeds = self.heeds([p for p in reading if p.name not in self._room], group.view, pod)
        if heeds is None:
            return self._held_by_rows(group, pod, attempt, at)
        alone = np.isin(group.rows[at], list(self.heeded(heeds, pod))) if heeds else np.zeros(len(at), np.bool_)
        together = self._held_by_columns(group, pod, attempt, at[~alone], promised)
        return together | self._held_by_rows(group, pod, attempt, at[alone])

    def heeds(self, plugins: Sequence[FilterPlugin], view: CycleView, pod: Pod) -> list[Heed] | None:
        """Which other pods make a difference to these plugins; None where one of them does not say."""
        if any(p.name not in self._heeding or p.name in self._plugins.asking_names for p in plugins):
            return None
        return [self._runner.call(p, "Heed", self._heeding[p.name].heed, view, pod) for p in plugins]

    def heeded(self, heeds: Sequence[Heed], pod: Pod) -> set[int]:
        """Rows promised to somebody who makes a difference."""
        known: dict[tuple[str, int, int, int], bool] = {}
        rows = set()
        for node, ahead in self._nominator.ahead_of(pod):
            for other in ahead:
                key = (other.namespace, id(other.labels), id(other.annotations), id(other.spec))
                if key not in known:
                    known[key] = any(heed.matters(other) for heed in heeds)
                row = self._table.row_of(node) if known[key] else None
                if row is not None:
                    rows.add(row)
        return rows

    def extensions(self, skipped: frozenset[str]) -> list[PreFilterExtensions]:
        """Those whose PreFilter did not skip the pod."""
        return [p for p in self._extensions if p.name not in skipped]

    def columns(self, pod: Pod, promised: Promised | None) -> ColumnOverlay:
        """The node table with the promised pods on it."""

        def pods() -> list[tuple[int, Pod]]:
            found = []
            for node, ahead in self._nominator.ahead_of(pod):
                row = self._table.row_of(node)
                if row is not None:
                    found += [(row, one) for one in ahead if one.spec.host_ports]
            return found

        return ColumnOverlay(self._table, promised, pods)

    def refusal_of_move(self, group: PodClass, pod: Pod, row: int, left: tuple[Pod, int] | None) -> Status | None:
        """Why the row refuses the pod once another has left its row and the promised pods have come; None: it does not.

        `group`: of this pod and this row alone. Raises PluginFailure.
        """
        ahead = self._nominator.ahead_on(self._table.node(row).name, pod)
        overlay = OverlayCycle(self._table, group.view.state, pod, self.extensions(group.skipped), self._runner, 1)
        if left is not None:
            status = overlay.remove_pod(*left)
            if not status.is_success:
                return status
        return _added(overlay, ahead, row) or self._refusal(group, overlay.view, pod, row)

    def _held_by_columns(self, group: PodClass, pod: Pod, attempt: int, at: Rows, promised: Promised) -> Held:
        held = Held()
        if not len(at):
            return held
        view, rows = replace(group.view, nodes=self.columns(pod, promised), attempt=attempt), group.rows[at]
        for column in group.filters:
            plugin = column.plugin
            codes = column.codes[at]
            if plugin.name in self._room:
                codes = self._runner.recheck(plugin, view, pod, rows)
            if any_true(refused := codes != 0):
                for position, code in zip(at[refused].tolist(), codes[refused].tolist(), strict=True):
                    held.setdefault(position, plugin.reasons.status(code))
        return held

    def _held_by_rows(self, group: PodClass, pod: Pod, attempt: int, at: Rows) -> Held:
        held = Held()
        for position in at.tolist():
            row = int(group.rows[position])
            ahead = self._nominator.ahead_on(self._table.node(row).name, pod)
            overlay = OverlayCycle(
                self._table, group.view.state, pod, self.extensions(group.skipped), self._runner, attempt
            )
            refusal = _added(overlay, ahead, row)
            if refusal is None:
                refusal = self._refusal(group, overlay.view, pod, row)
            if refusal is not None:
                held[position] = refusal
        return held

    def _refusal(self, group: PodClass, view: CycleView, pod: Pod, row: int) -> Status | None:
        rows = np.array([row], np.intp)
        for plugin in self._plugins.filter:
            if plugin.name in self._plugins.asking_names or plugin.name in group.skipped:
                continue
            code = int(self._runner.recheck(plugin, view, pod, rows)[0])
            if code:
                return plugin.reasons.status(code)
        return None


def _added(overlay: OverlayCycle, pods: Sequence[Pod], row: int) -> Status | None:
    """Adds pods to a row in thought; the first refusal of a plugin that keeps count. Raises PluginFailure for an error."""
    for other in pods:
        status = overlay.add_pod(other, row)
        if status.code is Code.ERROR:
            raise PluginFailure(status)
        if not status.is_success:
            return status
    return None
