"""PodTopologySpread: spreads a workload's pods evenly over zones, hosts, or the values of another node label."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from multisched.framework.caching import SplitCacheKey
from multisched.framework.context import PluginContext
from multisched.framework.cycle_state import StateKey
from multisched.framework.dependency import Dependency
from multisched.framework.events import Action, ClusterEvent, EventObject, EventRegistration, Hint, Resource
from multisched.framework.node_view import Codes, Rows, Scores
from multisched.framework.normalize import MAX_SCORE
from multisched.framework.points import CycleView, PreFilterResult
from multisched.framework.reasons import ReasonTable
from multisched.framework.sensitivity import PodSensitivity
from multisched.framework.status import SKIP, SUCCESS, Code, Status
from multisched.framework.traits import Traits
from multisched.model.objects import Node, Pod
from multisched.plugins.topology.default_selector import KINDS, SELECTING
from multisched.plugins.topology.domain_tally import versions
from multisched.plugins.topology.pod_topology_spread_args import PodTopologySpreadArgs
from multisched.plugins.topology.spread_counts import HOSTNAME, LEFT_OUT, HardSpread, SoftSpread
from multisched.plugins.topology.spread_eligibility import EligibleRows
from multisched.plugins.topology.spread_rules import SpreadRule, SpreadRuleCache

_HARD: StateKey[HardSpread] = StateKey("PodTopologySpread.hard")
_SOFT: StateKey[SoftSpread] = StateKey("PodTopologySpread.soft")

_ANY = Action.ADD | Action.UPDATE | Action.DELETE

_UNMET = "node(s) didn't match pod topology spread constraints"


class PodTopologySpread:
    """Source: kube-scheduler 1.36, plugins/podtopologyspread/.

    Only rows of the pod's resource domain count, including temporarily withheld rows, because the pod can run on no others.
    """

    name = "PodTopologySpread"
    depends_on = Dependency.CACHE_KEY
    traits = Traits(signs_alike=True, reads_feasible=True, reads_objects=KINDS)

    def __init__(self, args: PodTopologySpreadArgs, context: PluginContext) -> None:
        self._rule_cache = SpreadRuleCache(args, context.objects)
        self._eligible = EligibleRows()
        self.reasons = ReasonTable(self.name)
        self._missing = self.reasons.code(Code.UNSCHEDULABLE_AND_UNRESOLVABLE, f"{_UNMET} (missing required label)")
        self._skewed = self.reasons.code(Code.UNSCHEDULABLE, _UNMET)

    def sign(self, pod: Pod) -> Hashable:
        return self._rule_cache.rules_of(pod) or ()

    def cache_key(self, cycle: CycleView, pod: Pod) -> SplitCacheKey | None:
        rules = self._rule_cache.rules_of(pod)
        if rules is None:
            return None
        counts = cycle.nodes.pod_counts
        return SplitCacheKey(
            versions(rules.hard_sources, counts) if rules.hard else None,
            versions(rules.soft_sources, counts) if rules.soft else None,
        )

    def topology_keys(self, cycle: CycleView, pod: Pod) -> tuple[str, ...] | None:
        """Returns the topology keys; None if a soft constraint uses the hostname, because it counts pods per row."""
        rules = self._rule_cache.rules_of(pod)
        if rules is None or any(rule.key == HOSTNAME for rule in rules.soft):
            return None
        return tuple(sorted({rule.key for rule in (*rules.hard, *rules.soft)}))

    def pre_filter(self, cycle: CycleView, pod: Pod) -> PreFilterResult:
        """Updates the pods per domain of the hard constraints; skips pods without any."""
        rules = self._rule_cache.rules_of(pod)
        if rules is None or not rules.hard:
            return PreFilterResult(SKIP)
        state = cycle.state.find(_HARD)
        if state is None or not state.follow(cycle.nodes, rules):
            cycle.state.write(_HARD, HardSpread(cycle, rules, self._eligible))
        return PreFilterResult()

    def add_pod(self, cycle: CycleView, pod: Pod, other: Pod, row: int) -> Status:
        return self._change(cycle, pod, other, row, 1)

    def remove_pod(self, cycle: CycleView, pod: Pod, other: Pod, row: int) -> Status:
        return self._change(cycle, pod, other, row, -1)

    def pod_sensitivity(self, cycle: CycleView, pod: Pod) -> PodSensitivity:
        """Returns sensitivity to pods of the namespace that a hard constraint selects."""
        hard, namespace = self._hard(pod), pod.namespace
        return PodSensitivity(
            hard, lambda other: other.namespace == namespace and any(rule.matches(other.labels) for rule in hard)
        )

    def _change(self, cycle: CycleView, pod: Pod, other: Pod, row: int, change: int) -> Status:
        """Adds or removes the other pod, even if it is terminating, as upstream."""
        state = cycle.state.find(_HARD)
        if state is not None and other.namespace == pod.namespace:
            cycle.state.write(_HARD, state.changed_by(row, other.labels, change))
        return SUCCESS

    def filter(self, cycle: CycleView, pod: Pod, rows: Rows) -> Codes:
        """Returns uint8[rows]: refuses rows whose domain would exceed the emptiest domain by more than maxSkew pods."""
        return cycle.state.read(_HARD).codes(rows, self._missing, self._skewed)

    def moved_rows(self, cycle: CycleView, pod: Pod) -> Rows | None:
        """Returns the rows of domains whose verdict changed."""
        return cycle.state.read(_HARD).moved_rows(self._missing, self._skewed)

    def pre_score(self, cycle: CycleView, pod: Pod, rows: Rows) -> Status:
        """Updates the pods per domain of the soft constraints; skips pods without any."""
        rules = self._rule_cache.rules_of(pod)
        if rules is None or not rules.soft:
            return SKIP
        state = cycle.state.find(_SOFT)
        if state is None or not state.follow(cycle.nodes, rules):
            state = SoftSpread(cycle, rules, self._eligible)
            cycle.state.write(_SOFT, state)
        state.weigh(rows)
        return SUCCESS

    def score(self, cycle: CycleView, pod: Pod, rows: Rows) -> Scores:
        """Returns int64[rows]: sum over constraints of pods * ln(domains + 2) + maxSkew - 1, rounded; higher is worse."""
        return cycle.state.read(_SOFT).scores(rows)

    def normalize_score(self, cycle: CycleView, pod: Pod, raw: Scores) -> Scores:
        """Returns int64[rows]: 100 * (largest + smallest - raw) // largest over the rows that have all topology keys, else 0."""
        largest, smallest = raw.item(raw.argmax()), raw.item(raw.argmin())
        if smallest == LEFT_OUT:
            is_counted = raw != LEFT_OUT
            smallest = int(raw.min(where=is_counted, initial=largest))
            return np.where(is_counted, self._scaled(np.where(is_counted, raw, smallest), largest, smallest), 0)
        return self._scaled(raw, largest, smallest)

    @staticmethod
    def _scaled(raw: Scores, largest: int, smallest: int) -> Scores:
        if largest <= 0:
            return np.full(len(raw), MAX_SCORE, np.int64)
        return MAX_SCORE * (largest + smallest - raw) // largest

    # -- queueing hints --------------------------------------------------------------------------------------------

    def events_to_register(self) -> Sequence[EventRegistration]:
        assigned = Action.ADD | Action.DELETE | Action.UPDATE_POD_LABEL | Action.UPDATE_POD_DELETING
        own = Action.UPDATE_POD_LABEL | Action.UPDATE_POD_TOLERATION
        nodes = Action.ADD | Action.DELETE | Action.UPDATE_NODE_LABEL | Action.UPDATE_NODE_TAINT
        return (
            EventRegistration(ClusterEvent(Resource.ASSIGNED_POD, assigned, "AssignedPod"), self._after_pod_change),
            EventRegistration(ClusterEvent(Resource.TARGET_POD, own, "TargetPod"), self._after_own_change),
            EventRegistration(ClusterEvent(Resource.NODE, nodes, "Node"), self._after_node_change),
            *(EventRegistration(ClusterEvent(kind, _ANY, kind.value), self._after_default_change) for kind in KINDS),
        )

    def _hard(self, pod: Pod) -> tuple[SpreadRule, ...]:
        rules = self._rule_cache.rules_of(pod)
        return () if rules is None else rules.hard

    def _after_pod_change(self, pod: Pod, old: EventObject, new: EventObject) -> Hint:
        """Queues the pod if a placed or nominated pod of the namespace starts or stops counting.

        A terminating pod does not count. Upstream queues the pod only when the other one is deleted.
        """
        before, after = old if isinstance(old, Pod) else None, new if isinstance(new, Pod) else None
        for other in (before, after):
            if other is not None and (other.namespace != pod.namespace or not (other.node or other.nominated_node)):
                return Hint.SKIP
        for rule in self._hard(pod):
            matched = before is not None and not before.is_deleting and rule.matches(before.labels)
            matches = after is not None and not after.is_deleting and rule.matches(after.labels)
            if matched != matches:
                return Hint.QUEUE
        return Hint.SKIP

    def _after_own_change(self, pod: Pod, old: EventObject, new: EventObject) -> Hint:
        """Queues the pod if a change of its labels or tolerations changed its rules."""
        if not isinstance(old, Pod) or not isinstance(new, Pod):
            return Hint.SKIP
        return Hint.SKIP if self._rule_cache.rules_of(old) is self._rule_cache.rules_of(new) else Hint.QUEUE

    def _after_node_change(self, pod: Pod, old: EventObject, new: EventObject) -> Hint:
        """Queues the pod if the set of eligible nodes may have changed.

        That is so if a node with all topology keys was added or removed, or changed its domain, its taints, or whether it
        matches the pod's node affinity: a domain without eligible nodes no longer counts as the emptiest. Upstream ignores
        a change of the node affinity match.
        """
        before, after = old if isinstance(old, Node) else None, new if isinstance(new, Node) else None
        rules = self._hard(pod)
        keys = [rule.key for rule in rules]
        had = before is not None and all(key in before.labels for key in keys)
        has = after is not None and all(key in after.labels for key in keys)
        if had != has:
            return Hint.QUEUE
        if not has or before is None or after is None:
            return Hint.SKIP
        is_moved = any(before.labels[key] != after.labels[key] for key in keys) or before.taints != after.taints
        if not is_moved and any(rule.constraint.honors_affinity for rule in rules):
            affinity = pod.spec.affinity
            is_moved = affinity.matches(before.labels, before.name) != affinity.matches(after.labels, after.name)
        return Hint.QUEUE if is_moved else Hint.SKIP

    def _after_default_change(self, pod: Pod, old: EventObject, new: EventObject) -> Hint:
        """Queues a pod under default constraints if a service or controller of its namespace changed its selector.

        Upstream leaves such a pod parked.
        """
        changed = new if new is not None else old
        if not isinstance(changed, SELECTING) or changed.namespace != pod.namespace or pod.spec.spread:
            return Hint.SKIP
        is_same = isinstance(old, SELECTING) and isinstance(new, SELECTING) and old.selector == new.selector
        return Hint.QUEUE if self._rule_cache.has_hard_defaults and not is_same else Hint.SKIP
