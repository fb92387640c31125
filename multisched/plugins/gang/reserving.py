"""GangScheduling with `reserveAfter`: a gang that waits too long keeps room that becomes free for itself.

The gang is placed in thought on nodes from which as few pods as possible are taken, the youngest first, since those are
the likeliest to be part of the stream that keeps the gang waiting. Nothing is removed: its members are nominated to these
nodes, so pods of the same or a lower priority leave them what becomes free there. The queue says which gang may, and for
how long (`queueing/gang_reservations.py`).
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


class MayEnd:
    """`framework.preemption.DisplacementRule`: all pods but those of the system may end."""

    mark: Hashable = None
    below = SYSTEM_PRIORITY

    def displaceable(self, pods: PlacedPods) -> Bools:
        return pods.priority < self.below

    def first(self, pods: PlacedPods, displaceable: Bools) -> Bools:
        return np.zeros_like(displaceable)

    def costs(self, pods: PlacedPods, victims: Bools, first: Bools, whole_gangs: Int64) -> Costs:
        """How many would have to end."""
        return np.stack((np.count_nonzero(victims, axis=0),)).astype(np.float64)


class ReservingGangScheduling(GangScheduling):
    """See the module."""

    def __init__(self, context: PluginContext, reserve: ReservePolicy) -> None:
        super().__init__(context)
        self.reserve_policy = reserve

    def post_filter_group(
        self, cycle: CycleView, pods: Sequence[Pod], dry_run: GroupDryRun
    ) -> Generator[None, None, PostFilterResult]:
        """Nominates members of the gang whose turn it is; once all are nominated, they keep their nodes."""
        key = self._gangs.key_of(pods[0].uid)
        if key is None or self._gangs.reserving(key) is not Reserving.NOW:
            return PostFilterResult(Status.unschedulable())
        if all(pod.nominated_node for pod in pods):
            return PostFilterResult(self._said({pod.nominated_node for pod in pods}))
        found = yield from dry_run.displace(MayEnd())
        if found is None:
            why = "No room can be reserved for the gang: it would not fit if all other pods ended."
            return PostFilterResult(Status.unschedulable(why), nominated_node="")
        preemption = Preemption({}, found.nominations, self.name, group=dry_run.name)
        return PostFilterResult(self._said({one.node for one in found.nominations}), preemption=preemption)

    def _said(self, nodes: set[str]) -> Status:
        where = f"on node {min(nodes)}" if len(nodes) == 1 else f"on {len(nodes)} nodes"
        text = (
            f"What becomes free {where} is reserved for the gang, from pods of its priority or a lower one,"
            f" for {self.reserve_policy.for_s:g} s at most."
        )
        return Status(Code.SUCCESS, reasons=(text,))
