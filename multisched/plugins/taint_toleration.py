"""TaintToleration: refuses rows with untolerated taints, and prefers rows with fewer untolerated PreferNoSchedule taints."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import numpy as np

from multisched.framework.dependency import Dependency
from multisched.framework.events import Action, ClusterEvent, EventObject, EventRegistration, Hint, Resource
from multisched.framework.node_view import Bools, Codes, NodeView, Rows, Scores
from multisched.framework.normalize import ByLargest
from multisched.framework.points import CycleView
from multisched.framework.reasons import ReasonTable
from multisched.framework.status import SUCCESS, Code, Status
from multisched.framework.traits import Traits
from multisched.model.objects import Node, Pod
from multisched.model.selectors import NO_EXECUTE, NO_SCHEDULE, PREFER_NO_SCHEDULE, Taint, Toleration
from multisched.plugins.columns import Selection

Taints = tuple[Taint, ...]
Tolerations = tuple[Toleration, ...]


class TaintToleration:
    """Source: kube-scheduler 1.36, plugins/tainttoleration/taint_toleration.go."""

    name = "TaintToleration"
    depends_on = Dependency.NODE
    traits = Traits(signs_spec_only=True, normalizer=ByLargest(reverse=True))

    def __init__(self) -> None:
        self.reasons = ReasonTable(self.name)
        self._tainted = self.reasons.code(Code.UNSCHEDULABLE_AND_UNRESOLVABLE, "node(s) had untolerated taint(s)")

    def filter(self, cycle: CycleView, pod: Pod, rows: Rows) -> Codes:
        """Returns uint8[rows]: refuses rows with a NoSchedule or NoExecute taint that no toleration matches."""
        tolerations, refusal = pod.spec.tolerations, self._tainted
        return _by_taint_set(
            cycle.nodes, rows, np.uint8, lambda taints: refusal if _is_untolerated(taints, tolerations) else 0
        )

    def pre_score(self, cycle: CycleView, pod: Pod, rows: Rows) -> Status:
        return SUCCESS

    def score(self, cycle: CycleView, pod: Pod, rows: Rows) -> Scores:
        """Returns int64[rows]: the number of PreferNoSchedule taints that the pod does not tolerate."""
        soft = tuple(t for t in pod.spec.tolerations if t.effect in ("", PREFER_NO_SCHEDULE))
        return _by_taint_set(cycle.nodes, rows, np.int64, lambda taints: _count_untolerated(taints, soft))

    def sign(self, pod: Pod) -> Hashable:
        return pod.spec.tolerations

    def events_to_register(self) -> Sequence[EventRegistration]:
        return (
            EventRegistration(
                ClusterEvent(Resource.NODE, Action.ADD | Action.UPDATE_NODE_TAINT, "NodeAddOrTaint"), _after_node_change
            ),
            EventRegistration(
                ClusterEvent(Resource.TARGET_POD, Action.UPDATE_POD_TOLERATION, "TargetPodToleration"),
                _after_toleration_change,
            ),
        )


def are_untolerated(nodes: NodeView, rows: Rows, tolerations: Tolerations) -> Bools:
    """Returns bool[rows]: rows with a NoSchedule or NoExecute taint that no toleration matches."""
    found: Bools = _by_taint_set(nodes, rows, np.bool_, lambda taints: _is_untolerated(taints, tolerations))
    return found


def _by_taint_set(nodes: NodeView, rows: Rows, dtype: type[np.generic], value: Callable[[Taints], int]) -> np.ndarray:
    """Returns `value` of each row's taint set, computed once per distinct set among the rows."""
    sets, codes = nodes.taint_sets, Selection(rows).of(nodes.taint_set)
    if len(sets) == 1:
        return np.full(len(rows), value(sets[0]), dtype)
    table = np.zeros(len(sets), dtype)
    for index in range(len(sets)) if len(sets) <= len(rows) else set(codes.tolist()):
        if sets[index]:
            table[index] = value(sets[index])
    return table.take(codes)


def _is_untolerated(taints: Taints, tolerations: Tolerations) -> bool:
    return any(
        taint.effect in (NO_SCHEDULE, NO_EXECUTE) and not any(t.tolerates(taint) for t in tolerations)
        for taint in taints
    )


def _count_untolerated(taints: Taints, tolerations: Tolerations) -> int:
    return sum(
        taint.effect == PREFER_NO_SCHEDULE and not any(t.tolerates(taint) for t in tolerations) for taint in taints
    )


def _after_node_change(pod: Pod, old: EventObject, new: EventObject) -> Hint:
    """Queues the pod if it tolerates the node's taints now and did not before."""
    if not isinstance(new, Node) or _is_untolerated(new.taints, pod.spec.tolerations):
        return Hint.SKIP
    could_before = isinstance(old, Node) and not _is_untolerated(old.taints, pod.spec.tolerations)
    return Hint.SKIP if could_before else Hint.QUEUE


def _after_toleration_change(pod: Pod, old: EventObject, new: EventObject) -> Hint:
    return Hint.QUEUE if isinstance(new, Pod) and new.uid == pod.uid else Hint.SKIP
