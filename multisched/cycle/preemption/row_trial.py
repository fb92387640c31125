"""One row with some of its pods gone: does the pod of a failed attempt fit there?

For rows on which a filter depends on more than the room that pods leave. Works on an overlay with AddPod and RemovePod;
used within one synchronous step and never kept.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from multisched.cycle.preemption.dry_run_parts import DryRuns, FailedAttempt
from multisched.cycle.preemption.victim_units import Members
from multisched.framework.points import FilterPlugin
from multisched.framework.runner import PluginFailure
from multisched.framework.status import Status
from multisched.model.objects import Pod
from multisched.state.cluster_cache import NO_ROW, PlacedPod
from multisched.state.overlay import OverlayCycle


class RowTrial:
    """`victim_units.Ground` for one pod on one row."""

    def __init__(self, runs: DryRuns, failed: FailedAttempt, filters: Sequence[FilterPlugin], row: int) -> None:
        self._runner = runs.runner
        self._pod = failed.pod
        self._filters = filters
        self._reading = [p for p in filters if p.depends_on.reads_pods]
        self._row = row
        self._rows = np.array([row], np.intp)
        self._ahead = runs.nominator.ahead_on(runs.table.node(row).name, failed.pod)
        extensions = runs.nominated.extensions(failed.skipped)
        self._overlay = OverlayCycle(
            runs.table, failed.view.state, failed.pod, extensions, runs.runner, failed.view.attempt
        )
        self._view = replace(failed.view, nodes=self._overlay.view.nodes, state=self._overlay.view.state)

    def without(self, gone: Sequence[Pod]) -> Status | None:
        """Takes pods of the row away; why the pod does not fit even so."""
        for one in gone:
            _must_agree(self._overlay.remove_pod(one, self._row))
        return self._refusal(self._filters)

    def is_spared(self, other: Pod) -> bool:
        """Gives a pod of the row back, unless the pod does not fit beside it."""
        _must_agree(self._overlay.add_pod(other, self._row))
        if self._refusal(self._reading) is None:
            return True
        _must_agree(self._overlay.remove_pod(other, self._row))
        return False

    # -- Ground ----------------------------------------------------------------------------------------------------

    def fits(self) -> bool:
        """By every filter, without whom was taken away."""
        return self._refusal(self._filters) is None

    def give_back(self, members: Members) -> bool:
        for one in _on_rows(members):
            _must_agree(self._overlay.add_pod(one.pod, one.row))
        if self._refusal(self._reading) is None:
            return True
        self.take_away(members)
        return False

    def take_away(self, members: Members) -> None:
        for one in _on_rows(members):
            _must_agree(self._overlay.remove_pod(one.pod, one.row))

    def matters(self, member: PlacedPod) -> bool:
        return member.row == self._row

    # -- inside ----------------------------------------------------------------------------------------------------

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
            code = int(self._runner.recheck(plugin, self._view, self._pod, self._rows)[0])
            if code:
                return plugin.reasons.status(code)
        return None


def _on_rows(members: Members) -> list[PlacedPod]:
    """Those whose node is known: the others are on no row, and keep nobody away."""
    return [one for one in members if one.row != NO_ROW]


def _must_agree(status: Status) -> None:
    """AddPod and RemovePod keep count and decide nothing: one that refuses has failed."""
    if not status.is_success:
        raise PluginFailure(Status.error(*status.reasons).by(status.plugin))
