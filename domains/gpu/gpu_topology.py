"""GpuTopology: prefers nodes whose free cards are close to each other, and to the cards of the pod's gang.

Score only: a pod without such a node is placed as GpuShare decides.
"""

from __future__ import annotations

from collections.abc import Hashable
from itertools import islice
from typing import Final

import numpy as np

from domains.gpu.dialects.whole import CLIQUE_LABEL
from domains.gpu.gpu_ledger import GpuLedger
from multisched.framework.context import PluginContext
from multisched.framework.dependency import Dependency
from multisched.framework.node_view import Rows, Scores
from multisched.framework.normalize import MAX_SCORE
from multisched.framework.points import CycleView
from multisched.model.objects import Pod

CLIQUE_POINTS: Final = 3
"""A node of a clique with members of the gang; the cards of the node give up to 2, see `CardArrays.closeness`."""
POINTS_MAX: Final = CLIQUE_POINTS + 2
MEMBERS_READ_MAX: Final = 256
"""Placed members of a gang whose cliques are looked up in one attempt."""


class GpuTopology:
    """Scores a node by the distance of the cards that the pod would get.

    Per pod of several cards: whether one link group of the node has room for all of them, or else one NUMA node. Per member of a
    gang: whether a placed member is in the same clique (label `nvidia.com/gpu.clique`: NVLink across nodes). The clique counts
    more, because the links between the members' nodes are the slower ones.
    """

    name = "GpuTopology"
    depends_on = Dependency.ROW_AND_CACHE_KEY

    def __init__(self, context: PluginContext) -> None:
        ledger = context.hold.register(GpuLedger(context.scheduler_names, context.objects))
        assert isinstance(ledger, GpuLedger), f"ledger {ledger.name} belongs to another plugin"
        self._ledger = ledger
        self._nodes, self._gangs, self._placed = context.nodes, context.gangs, context.hold.placed

    def sign(self, pod: Pod) -> Hashable:
        """Signs what the pod's scores depend on; the same for all pods to which no node is closer than another."""
        return self._number(pod), self._gang(pod)

    def _number(self, pod: Pod) -> int:
        """Returns the number of the pod's demand; 0 if it takes one card, or if no card's group is known."""
        demands = self._ledger.demands(pod) if self._ledger.arrays.has_groups else None
        return demands.number if demands and not demands.problem and demands.first.count > 1 else 0

    def _gang(self, pod: Pod) -> str:
        """Returns the pod's gang; empty if it has none, needs no GPU, or no node is in a clique."""
        if not len(self._gangs) or len(self._nodes.label_values(CLIQUE_LABEL)) < 2 or not self._ledger.demands(pod):
            return ""
        return self._gangs.key_of(pod.uid) or ""

    def cache_key(self, cycle: CycleView, pod: Pod) -> Hashable | None:
        """Returns the cliques in which members of the pod's gang are placed."""
        gang = self._gang(pod)
        if not gang:
            return () if self._number(pod) else None
        return self._cliques(gang)

    def _cliques(self, gang: str) -> frozenset[int]:
        """Returns the codes of `NodeView.label_codes`."""
        placed = [self._placed(uid) for uid in islice(self._gangs.placed_members(gang), MEMBERS_READ_MAX)]
        rows = {row for one in placed if one is not None and (row := self._nodes.row_of(one.node)) is not None}
        codes = self._nodes.label_codes(CLIQUE_LABEL)
        return frozenset(code for row in rows if (code := codes.item(row)))

    def score(self, cycle: CycleView, pod: Pod, rows: Rows) -> Scores:
        """Returns int64[rows], 0..100."""
        points = np.zeros(len(rows), np.int64)
        if self._number(pod):
            arrays, demands = self._ledger.arrays, self._ledger.demands(pod).by_mode
            for mode, where, some in arrays.by_mode(rows):
                demand = demands.get(mode)
                if demand is not None and not demand.is_counted:
                    points[where] = arrays.closeness(demand, demand.parts[0], some)
        gang = self._gang(pod)
        cliques = self._cliques(gang) if gang else None
        if cliques:
            codes = cycle.nodes.label_codes(CLIQUE_LABEL).take(rows)
            points += CLIQUE_POINTS * np.isin(codes, tuple(cliques))
        return points * MAX_SCORE // POINTS_MAX
