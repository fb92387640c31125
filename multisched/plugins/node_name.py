"""NodeName: a pod with `spec.nodeName` passes on that node only."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from multisched.framework.dependency import Dependency
from multisched.framework.events import NODE_ADD, EventRegistration
from multisched.framework.node_view import Codes, Rows
from multisched.framework.points import CycleView
from multisched.framework.reasons import ReasonTable
from multisched.framework.status import Code
from multisched.framework.traits import Traits
from multisched.model.objects import Pod
from multisched.plugins.columns import zeros


class NodeName:
    """Source: kube-scheduler 1.36, plugins/nodename/node_name.go."""

    name = "NodeName"
    depends_on = Dependency.NODE
    traits = Traits(signs_alike=True)

    def __init__(self) -> None:
        self.reasons = ReasonTable(self.name)
        self._elsewhere = self.reasons.code(
            Code.UNSCHEDULABLE_AND_UNRESOLVABLE, "node(s) didn't match the requested node name"
        )

    def filter(self, cycle: CycleView, pod: Pod, rows: Rows) -> Codes:
        """Returns uint8[rows]: if `spec.nodeName` is set, refuses all rows except that node's."""
        if not pod.node:
            return zeros(rows)
        wanted = cycle.nodes.row_of(pod.node)
        codes: Codes = (rows != (-1 if wanted is None else wanted)) * np.uint8(self._elsewhere)
        return codes

    def sign(self, pod: Pod) -> Hashable:
        return pod.node

    def events_to_register(self) -> Sequence[EventRegistration]:
        return (EventRegistration(NODE_ADD),)
