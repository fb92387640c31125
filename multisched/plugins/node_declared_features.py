"""NodeDeclaredFeatures: restricts pods that need a kubelet feature to nodes that declare it."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from multisched.framework.dependency import Dependency
from multisched.framework.events import Action, ClusterEvent, EventObject, EventRegistration, Hint, Resource
from multisched.framework.node_view import Codes, Rows
from multisched.framework.points import CycleView, PreFilterResult
from multisched.framework.reasons import ReasonTable
from multisched.framework.status import SKIP, Code
from multisched.framework.traits import Traits
from multisched.model.objects import Node, Pod
from multisched.plugins.columns import zeros


class NodeDeclaredFeatures:
    """Source: kube-scheduler 1.36, plugins/nodedeclaredfeatures/nodedeclaredfeatures.go."""

    name = "NodeDeclaredFeatures"
    depends_on = Dependency.NODE
    traits = Traits(signs_spec_only=True)

    def __init__(self) -> None:
        self.reasons = ReasonTable(self.name)
        self._lacks = self.reasons.code(
            Code.UNSCHEDULABLE_AND_UNRESOLVABLE, "node(s) didn't match Pod's required features"
        )

    def pre_filter(self, cycle: CycleView, pod: Pod) -> PreFilterResult:
        return PreFilterResult() if pod.spec.required_features else PreFilterResult(SKIP)

    def filter(self, cycle: CycleView, pod: Pod, rows: Rows) -> Codes:
        """Returns uint8[rows]: refuses rows that lack a feature. Checks each distinct set of declared features once."""
        verdicts: dict[tuple[str, ...], bool] = {}
        lacks = np.zeros(len(rows), np.bool_)
        for at, row in enumerate(rows.tolist()):
            declared = cycle.nodes.node(row).declared_features
            verdict = verdicts.get(declared)
            if verdict is None:
                verdict = verdicts[declared] = not pod.spec.required_features <= set(declared)
            lacks[at] = verdict
        codes = zeros(rows)
        codes[lacks] = self._lacks
        return codes

    def sign(self, pod: Pod) -> Hashable:
        return pod.spec.required_features

    def events_to_register(self) -> Sequence[EventRegistration]:
        node = ClusterEvent(Resource.NODE, Action.ADD | Action.UPDATE_NODE_DECLARED_FEATURE, "NodeAddOrDeclaredFeature")
        own = ClusterEvent(Resource.TARGET_POD, UPDATE_POD, "PodUpdate")
        return EventRegistration(node, _after_node_change), EventRegistration(own, _after_own_update)


UPDATE_POD = (
    Action.UPDATE_POD_LABEL
    | Action.UPDATE_POD_SCALE_DOWN
    | Action.UPDATE_POD_SCALE_UP
    | Action.UPDATE_POD_TOLERATION
    | Action.UPDATE_POD_GATES
    | Action.UPDATE_POD_OTHER
)


def _after_node_change(pod: Pod, old: EventObject, new: EventObject) -> Hint:
    """Queues the pod if the node is new or its features changed, and it declares all that the pod needs (upstream does not check that)."""
    if not isinstance(new, Node) or not pod.spec.required_features <= set(new.declared_features):
        return Hint.SKIP
    is_same = isinstance(old, Node) and old.declared_features == new.declared_features
    return Hint.SKIP if is_same else Hint.QUEUE


def _after_own_update(pod: Pod, old: EventObject, new: EventObject) -> Hint:
    """Queues the pod if its required features changed."""
    if not isinstance(old, Pod) or not isinstance(new, Pod):
        return Hint.QUEUE
    return Hint.SKIP if old.spec.required_features == new.spec.required_features else Hint.QUEUE
