"""GangScheduling with `reserveAfter`: a gang that waits too long reserves resources as they become free.

A dry run places the gang on nodes from which as few pods as possible are removed, the youngest first: those are most
likely part of the stream of pods that keeps the gang waiting. No pod is evicted. The members are nominated to these
nodes, so pods of the same or a lower priority cannot use what becomes free there. The queue decides which gang may
reserve, and for how long (`queueing/gang_reservations.py`).
"""

from __future__ import annotations

from collections.abc import Generator, Hashable, Sequence
from typing import Final

import numpy as np

from multisched.framework.context import PluginContext
from multisched.framework.gangs import ReservePolicy, Reserving
from multisched.framework.node_view import Bools, Int64
from multisched.framework.points import CycleView, PostFilterResult
from multisched.framework.preemption import Costs, GroupDryRun, PlacedPods, Preemption
from multisched.framework.status import Code, Status
from multisched.model.objects import Pod
from multisched.plugins.gang.gang_scheduling import GangScheduling

SYSTEM_PRIORITY: Final = 2_000_000_000
"""Pods of this priority or a higher one, as system-cluster-critical, are not expected to end."""


class NonSystemPods:
    """`framework.preemption.DisplacementRule`: all pods except system pods count as removable."""

    mark: Hashable = None
    below = SYSTEM_PRIORITY

    def displaceable(self, pods: PlacedPods) -> Bools:
        return pods.priority < self.below

    def first(self, pods: PlacedPods, displaceable: Bools) -> Bools:
        return np.zeros_like(displaceable)

    def costs(self, pods: PlacedPods, victims: Bools, first: Bools, whole_gangs: Int64) -> Costs:
        """Returns the number of pods that would have to end."""
        return np.stack((np.count_nonzero(victims, axis=0),)).astype(np.float64)


class ReservingGangScheduling(GangScheduling):
    """GangScheduling with a PostFilter that reserves resources for a gang."""

    def __init__(self, context: PluginContext, reserve: ReservePolicy) -> None:
        super().__init__(context)
        self.reserve_policy = reserve

    def post_filter_group(
        self, cycle: CycleView, pods: Sequence[Pod], dry_run: GroupDryRun
    ) -> Generator[None, None, PostFilterResult]:
        """Nominates nodes for the members if it is the gang's turn. Once all are nominated, they keep their nodes."""
        key = self._gangs.key_of(pods[0].uid)
        if key is None or self._gangs.reserving(key) is not Reserving.NOW:
            return PostFilterResult(Status.unschedulable())
        if all(pod.nominated_node for pod in pods):
            return PostFilterResult(self._said({pod.nominated_node for pod in pods}))
        found = yield from dry_run.displace(NonSystemPods())
        if found is None:
            why = "No resources can be reserved for the gang: it would not fit even if all other pods ended."
            return PostFilterResult(Status.unschedulable(why), nominated_node="")
        preemption = Preemption({}, found.nominations, self.name, group=dry_run.name)
        return PostFilterResult(self._said({one.node for one in found.nominations}), preemption=preemption)

    def _said(self, nodes: set[str]) -> Status:
        where = f"on node {min(nodes)}" if len(nodes) == 1 else f"on {len(nodes)} nodes"
        text = (
            f"Resources that become free {where} are reserved for the gang, ahead of pods of the same or a lower priority,"
            f" for {self.reserve_policy.for_s:g} s at most."
        )
        return Status(Code.SUCCESS, reasons=(text,))
