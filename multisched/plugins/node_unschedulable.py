"""NodeUnschedulable: refuses cordoned nodes, unless the pod tolerates the taint node.kubernetes.io/unschedulable."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from multisched.framework.dependency import Dependency
from multisched.framework.events import Action, ClusterEvent, EventObject, EventRegistration, Hint, Resource
from multisched.framework.node_view import Codes, Rows, any_true
from multisched.framework.points import CycleView
from multisched.framework.reasons import ReasonTable
from multisched.framework.status import Code
from multisched.framework.traits import Traits
from multisched.model.objects import Node, Pod
from multisched.model.selectors import NO_SCHEDULE, Taint
from multisched.plugins.columns import Selection, zeros

UNSCHEDULABLE_TAINT = Taint("node.kubernetes.io/unschedulable", effect=NO_SCHEDULE)


class NodeUnschedulable:
    """Source: kube-scheduler 1.36, plugins/nodeunschedulable/node_unschedulable.go."""

    name = "NodeUnschedulable"
    depends_on = Dependency.NODE
    traits = Traits(signs_spec_only=True)

    def __init__(self) -> None:
        self.reasons = ReasonTable(self.name)
        self._cordoned = self.reasons.code(Code.UNSCHEDULABLE_AND_UNRESOLVABLE, "node(s) were unschedulable")

    def filter(self, cycle: CycleView, pod: Pod, rows: Rows) -> Codes:
        """Returns uint8[rows]: refuses rows with spec.unschedulable."""
        if _tolerates_cordon(pod):
            return zeros(rows)
        cordoned = Selection(rows).of(cycle.nodes.is_unschedulable)
        return cordoned * np.uint8(self._cordoned) if any_true(cordoned) else zeros(rows)

    def sign(self, pod: Pod) -> Hashable:
        return _tolerates_cordon(pod)

    def events_to_register(self) -> Sequence[EventRegistration]:
        return (
            EventRegistration(
                ClusterEvent(Resource.NODE, Action.ADD | Action.UPDATE_NODE_TAINT, "NodeAddOrUncordoned"),
                _after_node_change,
            ),
            EventRegistration(
                ClusterEvent(Resource.TARGET_POD, Action.UPDATE_POD_TOLERATION, "TargetPodToleration"),
                _after_toleration_change,
            ),
        )


def _tolerates_cordon(pod: Pod) -> bool:
    return any(t.tolerates(UNSCHEDULABLE_TAINT) for t in pod.spec.tolerations)


def _after_node_change(pod: Pod, old: EventObject, new: EventObject) -> Hint:
    """Queues the pod if the node is new or was uncordoned."""
    if not isinstance(new, Node) or new.is_unschedulable:
        return Hint.SKIP
    return Hint.SKIP if isinstance(old, Node) and not old.is_unschedulable else Hint.QUEUE


def _after_toleration_change(pod: Pod, old: EventObject, new: EventObject) -> Hint:
    return Hint.QUEUE if isinstance(new, Pod) and new.uid == pod.uid and _tolerates_cordon(new) else Hint.SKIP
