"""Rows on which a pod fits only without the pods nominated there (kube-scheduler's second pass over the filters).

If filters depend only on the nominated pods' resources, a few vector operations test all their rows at once. Other rows
are tested one by one on overlays. Owns no mutable state.
Source: kube-scheduler 1.36, framework/runtime, RunFilterPluginsWithNominatedPods.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from multisched.cycle.classes.equivalence_class import EquivalenceClass
from multisched.framework.node_view import Rows, any_true
from multisched.framework.points import CycleView, FilterPlugin, Plugin, PreFilterExtensions
from multisched.framework.registry import PluginSet, implementing, implements
from multisched.framework.runner import PluginFailure, Runner
from multisched.framework.sensitivity import PodSensitivePlugin, PodSensitivity
from multisched.framework.status import Code, Status
from multisched.framework.traits import traits_of
from multisched.model.objects import Pod
from multisched.state.column_overlay import ColumnOverlay
from multisched.state.node_table import NodeTable
from multisched.state.nominator import NominatedRequests, Nominator
from multisched.state.overlay import OverlayCycle

Blocked = dict[int, Status]
"""Position in the class's rows -> why pods nominated there block the row."""


def wants_room_only(plugin: FilterPlugin) -> bool:
    return traits_of(plugin).wants_room_only and not implements(plugin, PreFilterExtensions)


class NominatedPodsFilter:
    """Nominated pods as they affect the cycles of one domain."""

    def __init__(self, plugins: PluginSet, runner: Runner, table: NodeTable, nominator: Nominator) -> None:
        self._plugins = plugins
        self._runner = runner
        self._table = table
        self._nominator = nominator
        self._extensions = implementing(plugins.pre_filter, PreFilterExtensions)
        self._room = frozenset(p.name for p in plugins.filter if wants_room_only(p))
        asked = {p.name: p for p in (*plugins.filter, *plugins.pre_filter)}
        self._sensitive_plugins = {p.name: p for p in implementing(asked.values(), PodSensitivePlugin)}

    def blocked(self, pod_class: EquivalenceClass, pod: Pod, attempt: int, *, everywhere: bool = False) -> Blocked:
        """Returns the feasible rows of the class that refuse the pod once the nominated pods are added. Raises PluginFailure.

        `everywhere`: includes rows that are infeasible anyway; for the diagnosis, which reports the pass with nominated pods.
        """
        if not len(self._nominator):
            return {}
        nominated = self._nominator.requests(pod, self._table)
        if nominated is None or not len(pod_class.rows):
            return {}
        at = np.searchsorted(pod_class.rows, nominated.rows)
        at[at == len(pod_class.rows)] = 0
        is_asked = pod_class.rows[at] == nominated.rows
        if not everywhere:
            is_asked &= pod_class.feasible[at]
        at = np.sort(at[is_asked])
        if not len(at):
            return {}
        reading = [column.plugin for column in pod_class.filters if column.depends_on.reads_pods]
        sensitivities = self.sensitivities([p for p in reading if p.name not in self._room], pod_class.view, pod)
        if sensitivities is None:
            return self._blocked_by_rows(pod_class, pod, attempt, at)
        alone = (
            np.isin(pod_class.rows[at], list(self.sensitive_rows(sensitivities, pod)))
            if sensitivities
            else np.zeros(len(at), np.bool_)
        )
        together = self._blocked_by_columns(pod_class, pod, attempt, at[~alone], nominated)
        return together | self._blocked_by_rows(pod_class, pod, attempt, at[alone])

    def sensitivities(self, plugins: Sequence[Plugin], view: CycleView, pod: Pod) -> list[PodSensitivity] | None:
        """Returns which other pods matter to these plugins; None if one of them does not declare this."""
        if any(p.name not in self._sensitive_plugins or p.name in self._plugins.remote_names for p in plugins):
            return None
        return [
            self._runner.call(p, "PodSensitivity", self._sensitive_plugins[p.name].pod_sensitivity, view, pod)
            for p in plugins
        ]

    def sensitive_rows(self, sensitivities: Sequence[PodSensitivity], pod: Pod) -> set[int]:
        """Returns the rows with a nominated pod that matters."""
        known: dict[tuple[str, int, int, int], bool] = {}
        rows = set()
        for node, ahead in self._nominator.ahead_of(pod):
            for other in ahead:
                key = (other.namespace, id(other.labels), id(other.annotations), id(other.spec))
                if key not in known:
                    known[key] = any(sensitivity.matters(other) for sensitivity in sensitivities)
                row = self._table.row_of(node) if known[key] else None
                if row is not None:
                    rows.add(row)
        return rows

    def extensions(self, skipped: frozenset[str]) -> list[PreFilterExtensions]:
        """Returns the plugins with AddPod and RemovePod whose PreFilter did not skip the pod."""
        return [p for p in self._extensions if p.name not in skipped]

    def columns(self, pod: Pod, nominated: NominatedRequests | None) -> ColumnOverlay:
        """Returns the node table with the nominated pods added."""

        def pods() -> list[tuple[int, Pod]]:
            found = []
            for node, ahead in self._nominator.ahead_of(pod):
                row = self._table.row_of(node)
                if row is not None:
                    found += [(row, one) for one in ahead if one.spec.host_ports]
            return found

        return ColumnOverlay(self._table, nominated, pods)

    def refusal_of_move(
        self, pod_class: EquivalenceClass, pod: Pod, row: int, left: tuple[Pod, int] | None
    ) -> Status | None:
        """Returns why the row refuses the pod once another has left its row and the nominated pods are added; None if it does not.

        `pod_class`: of this pod and this row alone. `left`: the pod that leaves, and its row. Raises PluginFailure.
        """
        ahead = self._nominator.ahead_on(self._table.node(row).name, pod)
        overlay = OverlayCycle(
            self._table, pod_class.view.state, pod, self.extensions(pod_class.skipped), self._runner, 1
        )
        if left is not None:
            status = overlay.remove_pod(*left)
            if not status.is_success:
                return status
        return _added(overlay, ahead, row) or self._refusal(pod_class.skipped, overlay.view, pod, row)

    def _blocked_by_columns(
        self, pod_class: EquivalenceClass, pod: Pod, attempt: int, at: Rows, nominated: NominatedRequests
    ) -> Blocked:
        blocked = Blocked()
        if not len(at):
            return blocked
        view, rows = replace(pod_class.view, nodes=self.columns(pod, nominated), attempt=attempt), pod_class.rows[at]
        for column in pod_class.filters:
            plugin = column.plugin
            codes = column.codes[at]
            if plugin.name in self._room:
                codes = self._runner.recheck(plugin, view, pod, rows)
            if any_true(refused := codes != 0):
                for position, code in zip(at[refused].tolist(), codes[refused].tolist(), strict=True):
                    blocked.setdefault(position, plugin.reasons.status(code))
        return blocked

    def _blocked_by_rows(self, pod_class: EquivalenceClass, pod: Pod, attempt: int, at: Rows) -> Blocked:
        blocked = Blocked()
        for position in at.tolist():
            row = int(pod_class.rows[position])
            ahead = self._nominator.ahead_on(self._table.node(row).name, pod)
            overlay = OverlayCycle(
                self._table, pod_class.view.state, pod, self.extensions(pod_class.skipped), self._runner, attempt
            )
            refusal = _added(overlay, ahead, row)
            if refusal is None:
                refusal = self._refusal(pod_class.skipped, overlay.view, pod, row)
            if refusal is not None:
                blocked[position] = refusal
        return blocked

    def fits_with_nominated(
        self,
        view: CycleView,
        skipped: frozenset[str],
        pod: Pod,
        row: int,
        ahead: Sequence[Pod],
        removed: Sequence[Pod] = (),
    ) -> bool:
        """Reports whether the row takes the pod once pods in `removed` are removed and `ahead` are added. Raises PluginFailure."""
        overlay = OverlayCycle(self._table, view.state, pod, self.extensions(skipped), self._runner, view.attempt)
        for other in removed:
            status = overlay.remove_pod(other, row)
            if not status.is_success:
                raise PluginFailure(Status.error(*status.reasons).by(status.plugin))
        return _added(overlay, ahead, row) is None and self._refusal(skipped, overlay.view, pod, row) is None

    def _refusal(self, skipped: frozenset[str], view: CycleView, pod: Pod, row: int) -> Status | None:
        rows = np.array([row], np.intp)
        for plugin in self._plugins.filter:
            if plugin.name in self._plugins.remote_names or plugin.name in skipped:
                continue
            code = int(self._runner.recheck(plugin, view, pod, rows)[0])
            if code:
                return plugin.reasons.status(code)
        return None


def _added(overlay: OverlayCycle, pods: Sequence[Pod], row: int) -> Status | None:
    """Adds pods to a row of the overlay. Returns the first refusal by AddPod. Raises PluginFailure for an error."""
    for other in pods:
        status = overlay.add_pod(other, row)
        if status.code is Code.ERROR:
            raise PluginFailure(status)
        if not status.is_success:
            return status
    return None
