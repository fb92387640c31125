"""RowTrial: tests whether the pod of a failed attempt fits on one row without some of the row's pods.

Used for rows on which a filter depends on more than resources. It works on an overlay with AddPod and RemovePod. PreFilters that read
pods run again, and the amounts that their plugins' cluster-wide ledgers hold for removed pods are suspended. A trial is used within one
synchronous step only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import msgspec
import numpy as np
from msgspec.structs import replace

from multisched.cycle.preemption.dry_run_parts import DryRuns, FailedAttempt
from multisched.cycle.preemption.victim_units import Members, Search
from multisched.framework.points import CycleView, FilterPlugin, PreFilterPlugin
from multisched.framework.runner import PluginFailure, Runner
from multisched.framework.status import Code, Status
from multisched.model.objects import Pod
from multisched.state.cluster_cache import NO_ROW, PlacedPod
from multisched.state.overlay import OverlayCycle


class RerunPlugins(msgspec.Struct, frozen=True):
    """The plugins of an attempt that run again without some pods."""

    pre_filters: Sequence[PreFilterPlugin]
    """Plugins whose PreFilter reads pods (`Traits.pre_filter_reads_pods`)."""
    filters: Sequence[FilterPlugin]

    @property
    def reading(self) -> Sequence[FilterPlugin]:
        """Filters that depend on the pods on a row."""
        return [p for p in self.filters if p.depends_on.reads_pods]


class RowTrial:
    """Implements `victim_units.VictimTrial` for one pod on one row. A context manager, which restores the ledgers at its end."""

    def __init__(self, runs: DryRuns, failed: FailedAttempt, rerun: RerunPlugins, row: int) -> None:
        self._runner = runs.runner
        self._ledgers = runs.cache.ledgers
        self._pod = failed.pod
        self._rerun = rerun
        self._owners = frozenset(p.name for p in rerun.pre_filters)
        self._suspended: dict[str, Pod] = {}
        """uid -> removed pod whose amounts in the ledgers of `_owners` are suspended."""
        self._row = row
        self._rows = np.array([row], np.intp)
        self._node = runs.table.node(row).name
        self._ahead = runs.nominator.ahead_on(self._node, failed.pod)
        extensions = runs.nominated.extensions(failed.skipped)
        self._overlay = OverlayCycle(
            runs.table, failed.view.state, failed.pod, extensions, runs.runner, failed.view.attempt
        )
        self._view = replace(failed.view, nodes=self._overlay.view.nodes, state=self._overlay.view.state)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for pod in self._suspended.values():
            self._ledgers.resume_cluster(self._owners, pod)

    def without(self, removed: Sequence[Pod]) -> Status | None:
        """Removes pods from the row. Returns why the pod still does not fit; None if it fits."""
        for one in removed:
            self._remove(one, self._row)
        return self._refusal(self._rerun.filters)

    def reprieve(self, other: Pod) -> bool:
        """Restores a removed pod if the pod of the attempt still fits. Returns whether it was restored."""
        self._add(other, self._row)
        if self._refusal(self._rerun.reading) is None:
            return True
        self._remove(other, self._row)
        return False

    # -- VictimTrial -----------------------------------------------------------------------------------------------

    def fits(self) -> bool:
        """Reports whether the pod passes all filters without the removed pods."""
        return self._refusal(self._rerun.filters) is None

    def restore(self, members: Members) -> Search[bool]:
        yield from ()  # a single pod on one row: no pause is needed
        for one in members:
            self._add(one.pod, one.row)
        if self._refusal(self._rerun.reading) is None:
            return True
        self.remove(members)
        return False

    def remove(self, members: Members) -> None:
        for one in members:
            self._remove(one.pod, one.row)

    def may_affect(self, member: PlacedPod) -> bool:
        return bool(self._owners) or member.row == self._row

    def can_free_room(self, member: PlacedPod) -> bool:
        return self.may_affect(member)

    # -- internal --------------------------------------------------------------------------------------------------

    def _remove(self, other: Pod, row: int) -> None:
        if row != NO_ROW:  # a pod on an unknown node occupies no row
            _require_success(self._overlay.remove_pod(other, row))
        if self._owners:
            self._ledgers.suspend_cluster(self._owners, other)
            self._suspended[other.uid] = other

    def _add(self, other: Pod, row: int) -> None:
        if row != NO_ROW:
            _require_success(self._overlay.add_pod(other, row))
        if self._owners:
            self._ledgers.resume_cluster(self._owners, self._suspended.pop(other.uid))

    def _refusal(self, plugins: Sequence[FilterPlugin]) -> Status | None:
        """Runs the plugins with the nominated pods added, then without them. Returns the first refusal; None if the pod passes twice."""
        if self._ahead:
            for other in self._ahead:
                _require_success(self._overlay.add_pod(other, self._row))
            refusal = self._first_refusal(plugins)
            for other in self._ahead:
                _require_success(self._overlay.remove_pod(other, self._row))
            if refusal is not None:
                return refusal
        return self._first_refusal(plugins)

    def _first_refusal(self, plugins: Sequence[FilterPlugin]) -> Status | None:
        for pre_filter in self._rerun.pre_filters:
            refusal = refusal_of(self._runner, pre_filter, self._view, self._pod, self._node)
            if refusal is not None:
                return refusal
        for plugin in plugins:
            code = int(self._runner.recheck(plugin, self._view, self._pod, self._rows)[0])
            if code:
                return plugin.reasons.status(code)
        return None


def refusal_of(
    runner: Runner, plugin: PreFilterPlugin, view: CycleView, pod: Pod, node: str | None = None
) -> Status | None:
    """Returns why PreFilter refuses the pod (on this node, if one is given); None if it does not. Raises PluginFailure.

    Works on a copy of the cycle state; the state that Filter reads is updated by AddPod and RemovePod.
    """
    result = runner.pre_filter(plugin, replace(view, state=view.state.copy()), pod)
    if result.status.code is not Code.SKIP and not result.status.is_success:
        return result.status.by(plugin.name)
    if node is not None and result.nodes is not None and node not in result.nodes:
        return Status.unresolvable(f"node(s) didn't satisfy plugin {plugin.name}").by(plugin.name)
    return None


def _require_success(status: Status) -> None:
    """Raises PluginFailure if AddPod or RemovePod did not succeed, because they must not refuse a pod."""
    if not status.is_success:
        raise PluginFailure(Status.error(*status.reasons).by(status.plugin))
