"""InterPodAffinity: places pods near the pods they want beside them, and away from those that one side does not want."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from multisched.framework.caching import SplitCacheKey
from multisched.framework.context import PluginContext
from multisched.framework.cycle_state import StateKey
from multisched.framework.dependency import Dependency
from multisched.framework.events import Action, ClusterEvent, EventObject, EventRegistration, Hint, Resource
from multisched.framework.node_view import NO_ROWS, Bools, Codes, NodeView, Rows, Scores
from multisched.framework.normalize import MAX_SCORE
from multisched.framework.pod_counts import PodCountsView
from multisched.framework.points import CycleView, PreFilterResult
from multisched.framework.reasons import ReasonTable
from multisched.framework.sensitivity import PodSensitivity
from multisched.framework.status import SKIP, SUCCESS, Code, Status
from multisched.framework.term_columns import Asker
from multisched.framework.traits import Traits
from multisched.model.cluster_objects import Namespace
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Node, Pod
from multisched.model.placement import DemandKind, PodAffinity, PodAffinityTerm
from multisched.plugins.columns import NOUGHT, Selection, zeros
from multisched.plugins.topology.affinity_rules import AffinityRuleCache, AffinityRules, Sources
from multisched.plugins.topology.domain_tally import DomainTally, versions
from multisched.plugins.topology.inter_pod_affinity_args import InterPodAffinityArgs

_NO_LABELS: Mapping[str, str] = {}

Tallies = dict[str, DomainTally]
"""Topology key -> pods per domain."""


class _FilterState:
    """PreFilter's state: pods per domain that the pod must be near to, or must not be near to."""

    __slots__ = ("_was_first", "affinity", "anti", "existing", "is_copy", "rules")

    def __init__(self, nodes: NodeView, rules: AffinityRules) -> None:
        self.rules = rules
        self.affinity = _tallies(nodes, rules.affinity)
        self.anti = _tallies(nodes, rules.anti)
        self.existing = _tallies(nodes, rules.existing)
        self.is_copy = False
        self._was_first: bool | None = None
        """Whether such a pod was the first of its kind when the moved rows were read last; None: they were not yet."""

    def follow(self, nodes: NodeView, rules: AffinityRules) -> bool:
        """Catches up with the pods that came and went; False if it must be made anew."""
        return (
            rules is self.rules
            and not self.is_copy
            and _follow(nodes, self.affinity, rules.affinity)
            and _follow(nodes, self.anti, rules.anti)
            and _follow(nodes, self.existing, rules.existing)
        )

    def copy(self) -> _FilterState:
        """A copy that changes on its own."""
        if self.is_copy:
            return self
        copied = object.__new__(_FilterState)
        copied.rules, copied.is_copy, copied._was_first = self.rules, True, self._was_first
        copied.affinity, copied.anti, copied.existing = (
            {key: tally.copy() for key, tally in tallies.items()}
            for tallies in (self.affinity, self.anti, self.existing)
        )
        return copied

    def near(self, selection: Selection) -> Bools:
        """bool[rows]: the required affinity is met: a pod that matches all terms in the row's domain of every key.

        If no such pod stands anywhere, the first of pods that want one another is let through where all keys are.
        """
        is_first = self._is_first
        met: Bools = np.ones(selection.count, np.bool_)
        for at, tally in enumerate(self.affinity.values()):
            domains = selection.of(tally.codes)
            found = domains > 0 if is_first else tally.counts.take(domains) > NOUGHT
            met = met & found if at else found
        return met

    @property
    def _is_first(self) -> bool:
        return self.rules.is_own_match and not any(tally.pods for tally in self.affinity.values())

    def moved_rows(self) -> Rows | None:
        """Rows that may be answered otherwise than when this was asked last; None: all."""
        was_first, self._was_first = self._was_first, self._is_first
        flipped: dict[str, tuple[DomainTally, set[int]]] = {}
        for tallies in (self.existing, self.anti, self.affinity):
            for key, tally in tallies.items():
                if tally.flipped:
                    flipped.setdefault(key, (tally, set()))[1].update(tally.flipped)
                tally.flipped = set()
        if was_first != self._was_first:
            return None
        found = NO_ROWS
        for tally, domains in flipped.values():
            rows = tally.rows_of(domains)
            found = np.union1d(found, rows) if len(found) else rows
        return found


class _ScoreState:
    """PreScore's state: weighted preferences per domain."""

    __slots__ = ("rules", "soft")

    def __init__(self, nodes: NodeView, rules: AffinityRules) -> None:
        self.rules = rules
        self.soft = _tallies(nodes, rules.soft)

    def follow(self, nodes: NodeView, rules: AffinityRules) -> bool:
        return rules is self.rules and _follow(nodes, self.soft, rules.soft)


def _tallies(nodes: NodeView, by_key: Sources) -> Tallies:
    return {key: DomainTally(nodes, key, sources) for key, sources in by_key.items()}


def _follow(nodes: NodeView, tallies: Tallies, by_key: Sources) -> bool:
    for key, sources in by_key.items():  # noqa: SIM110 - a loop takes half of the time of `all`, in each decision
        if not tallies[key].follow(nodes, sources):
            return False
    return True


_FILTER: StateKey[_FilterState] = StateKey("InterPodAffinity.filter")
_SCORE: StateKey[_ScoreState] = StateKey("InterPodAffinity.score")


class InterPodAffinity:
    """Source: kube-scheduler 1.36, plugins/interpodaffinity/.

    Pods of the whole cluster count, on whose domain's rows they ever stand: a zone is full of them all the same.
    """

    name = "InterPodAffinity"
    depends_on = Dependency.CACHE_KEY
    traits = Traits(reads_objects=(ObjectKind.NAMESPACE,))

    def __init__(self, args: InterPodAffinityArgs, context: PluginContext) -> None:
        self._rule_cache = AffinityRuleCache(args, context.objects, context.nodes.pod_counts)
        self._nodes = context.nodes
        self.reasons = ReasonTable(self.name)
        # In this order: of several, a row is refused for the last, as upstream, and `filter` takes the largest code.
        self._unwanted, self._not_far, self._not_near = (
            np.array(self.reasons.code(code, f"node(s) didn't {sentence} rules"), np.uint8)
            for code, sentence in (
                (Code.UNSCHEDULABLE, "satisfy existing pods anti-affinity"),
                (Code.UNSCHEDULABLE, "match pod anti-affinity"),
                (Code.UNSCHEDULABLE_AND_UNRESOLVABLE, "match pod affinity"),
            )
        )

    def sign(self, pod: Pod) -> Hashable:
        rules = self._rule_cache.rules_of(pod)
        return 0 if rules is None else rules.number

    def cache_key(self, cycle: CycleView, pod: Pod) -> SplitCacheKey | None:
        rules = self._rule_cache.rules_of(pod, cycle.nodes.pod_counts)
        if rules is None:
            return None
        counts = cycle.nodes.pod_counts
        return SplitCacheKey(
            versions(rules.filter_sources, counts) if rules.filters else None,
            versions(rules.score_sources, counts) if rules.soft else None,
        )

    def topology_keys(self, cycle: CycleView, pod: Pod) -> tuple[str, ...] | None:
        """The topology keys of all terms."""
        rules = self._rule_cache.rules_of(pod, cycle.nodes.pod_counts)
        if rules is None:
            return None
        groups = (rules.affinity, rules.anti, rules.existing, rules.soft)
        return tuple(sorted({key for group in groups for key in group}))

    def pre_filter(self, cycle: CycleView, pod: Pod) -> PreFilterResult:
        """Brings the pods per domain up to date; skips a pod that wants nothing and that nobody keeps away."""
        rules = self._rule_cache.rules_of(pod, cycle.nodes.pod_counts)
        if rules is None or not rules.filters:
            return PreFilterResult(SKIP)
        if rules.unknown:
            return PreFilterResult(Status.unresolvable(rules.unknown).by(self.name))
        state = cycle.state.find(_FILTER)
        if state is None or not state.follow(cycle.nodes, rules):
            state = _FilterState(cycle.nodes, rules)
            cycle.state.write(_FILTER, state)
        if not rules.affinity and not rules.anti and not any(tally.pods for tally in state.existing.values()):
            return PreFilterResult(SKIP)
        return PreFilterResult()

    def add_pod(self, cycle: CycleView, pod: Pod, other: Pod, row: int) -> Status:
        return self._change(cycle, pod, other, row, 1)

    def remove_pod(self, cycle: CycleView, pod: Pod, other: Pod, row: int) -> Status:
        return self._change(cycle, pod, other, row, -1)

    def pod_sensitivity(self, cycle: CycleView, pod: Pod) -> PodSensitivity:
        """Pods that the required terms are about, and those whose required anti-affinity is about the pod."""
        rules, labels = (
            self._rule_cache.rules_of(pod, cycle.nodes.pod_counts),
            self._rule_cache.namespace_labels(pod.namespace),
        )

        def matters(other: Pod) -> bool:
            if rules is not None and rules.affinity and rules.own_near.has(other.namespace, other.labels):
                return True
            if rules is not None and any(scope.has(other.namespace, other.labels) for _, scope in rules.own_anti):
                return True
            return self._keeps_away(cycle.nodes.pod_counts, pod, other) != ()

        return PodSensitivity((rules, tuple(sorted(labels.items()))), matters)

    def _change(self, cycle: CycleView, pod: Pod, other: Pod, row: int, change: int) -> Status:
        state = cycle.state.find(_FILTER)
        if state is None:
            return SUCCESS
        state = state.copy()
        rules = state.rules
        if rules.own_near.has(other.namespace, other.labels):
            for tally in state.affinity.values():
                tally.add(row, change, change)
        for key, scope in rules.own_anti:
            if scope.has(other.namespace, other.labels):
                state.anti[key].add(row, change, change)
        for key, terms in self._keeps_away(cycle.nodes.pod_counts, pod, other):
            if key not in state.existing:
                state.existing[key] = DomainTally(cycle.nodes, key, ())
            state.existing[key].add(row, change * terms, change * terms)
        cycle.state.write(_FILTER, state)
        return SUCCESS

    def filter(self, cycle: CycleView, pod: Pod, rows: Rows) -> Codes:
        """uint8[rows]: refuses rows away from pods the pod must be near to, or near to pods it or they cannot bear."""
        state, selection = cycle.state.read(_FILTER), Selection(rows)
        codes = zeros(rows)
        for tallies, refusal in ((state.existing, self._unwanted), (state.anti, self._not_far)):
            for tally in tallies.values():
                if tally.pods:
                    is_held = tally.counts.take(selection.of(tally.codes)) > NOUGHT
                    codes = np.maximum(codes, is_held * refusal)
        if state.affinity:
            codes = np.maximum(codes, ~state.near(selection) * self._not_near)
        return codes

    def moved_rows(self, cycle: CycleView, pod: Pod) -> Rows | None:
        """Those of domains that pods came to or left."""
        return cycle.state.read(_FILTER).moved_rows()

    def pre_score(self, cycle: CycleView, pod: Pod, rows: Rows) -> Status:
        """Brings the preferences per domain up to date; skips a pod that no placed pod bears upon."""
        rules = self._rule_cache.rules_of(pod, cycle.nodes.pod_counts)
        if rules is None or not rules.soft:
            return SKIP
        state = cycle.state.find(_SCORE)
        if state is None or not state.follow(cycle.nodes, rules):
            state = _ScoreState(cycle.nodes, rules)
            cycle.state.write(_SCORE, state)
        return SUCCESS if any(tally.pods for tally in state.soft.values()) else SKIP

    def score(self, cycle: CycleView, pod: Pod, rows: Rows) -> Scores:
        """int64[rows]: the weights of all terms, the pod's and the placed pods', that the row's domains meet, summed."""
        selection, total = Selection(rows), np.zeros(len(rows), np.int64)
        for tally in cycle.state.read(_SCORE).soft.values():
            total += tally.counts.take(selection.of(tally.codes))
        return total

    def normalize_score(self, cycle: CycleView, pod: Pod, raw: Scores) -> Scores:
        """int64[rows]: 100 * (raw - smallest) / (largest - smallest), rounded down; 0 if all are equal."""
        smallest = raw.item(raw.argmin())
        spread = raw.item(raw.argmax()) - smallest
        if not spread:
            return np.zeros(len(raw), np.int64)
        # In upstream's order: a quotient that is multiplied afterwards may fall just short of a whole number.
        scaled: Scores = (float(MAX_SCORE) * ((raw - smallest) / spread)).astype(np.int64)
        return scaled

    # -- queueing hints --------------------------------------------------------------------------------------------

    def events_to_register(self) -> Sequence[EventRegistration]:
        assigned = Action.ADD | Action.DELETE | Action.UPDATE_POD_LABEL
        nodes, namespaces = Action.ADD | Action.DELETE | Action.UPDATE_NODE_LABEL, Action.ADD | Action.UPDATE
        return (
            EventRegistration(ClusterEvent(Resource.ASSIGNED_POD, assigned, "AssignedPod"), self._after_pod_change),
            EventRegistration(ClusterEvent(Resource.TARGET_POD, Action.UPDATE_POD_LABEL, "TargetPodLabel")),
            EventRegistration(ClusterEvent(Resource.NODE, nodes, "Node"), self._after_node_change),
            EventRegistration(ClusterEvent(Resource.DISTANT_NODE, nodes, "DistantNode"), self._after_distant_node),
            # Upstream registers none: a pod that a namespaceSelector refused stays parked until the flush.
            EventRegistration(ClusterEvent(ObjectKind.NAMESPACE, namespaces, "Namespace"), _after_relabelling),
        )

    def _after_pod_change(self, pod: Pod, old: EventObject, new: EventObject) -> Hint:
        """A placed pod matches the affinity now, or no longer matches a term of the anti-affinity, or its own term is deleted.

        A pod that matches its own affinity also waits for the last other match to be deleted or relabelled: then it is the
        first of its series. Upstream leaves it parked.
        """
        before, after = old if isinstance(old, Pod) else None, new if isinstance(new, Pod) else None
        for other in (before, after):
            if other is not None and not (other.node or other.nominated_node):
                return Hint.SKIP
        own = pod.spec.pod_affinity or PodAffinity()
        was_near = before is not None and self._is_near(pod, own, before)
        is_near = after is not None and self._is_near(pod, own, after)
        if (is_near and not was_near) or (was_near and not is_near and self._is_near(pod, own, pod)):
            return Hint.QUEUE
        if before is None:
            return Hint.SKIP
        for term in own.anti_required:
            if self._selects(pod, term, before) and not (after is not None and self._selects(pod, term, after)):
                return Hint.QUEUE
        if after is None and self._keeps_away(self._nodes.pod_counts, pod, before):
            return Hint.QUEUE
        return Hint.SKIP

    def _after_node_change(self, pod: Pod, old: EventObject, new: EventObject) -> Hint:
        """A node came into a topology domain of some term, left one, or may be free of what refuses the pod elsewhere.

        A pod without terms is refused by others' anti-affinity: a new node may be outside their domains. Upstream leaves
        it parked.
        """
        own = pod.spec.pod_affinity or PodAffinity()
        if old is None and isinstance(new, Node) and (own.anti_required or not own.required):
            return Hint.QUEUE
        return self._after_distant_node(pod, old, new)

    def _after_distant_node(self, pod: Pod, old: EventObject, new: EventObject) -> Hint:
        """The pods on a node count in another topology domain than before, or no longer count.

        They may be company that the pod needs, be what it is kept away from, or be the last match of its own affinity.
        """
        before, after = old if isinstance(old, Node) else None, new if isinstance(new, Node) else None
        had, has = before.labels if before else _NO_LABELS, after.labels if after else _NO_LABELS
        moved = {key for key in had.keys() | has.keys() if had.get(key) != has.get(key)}
        own = pod.spec.pod_affinity or PodAffinity()
        for term in own.required:
            is_moved = term.topology_key in moved
            if is_moved and (term.topology_key in has or self._is_near(pod, own, pod)):
                return Hint.QUEUE
        left = moved & had.keys()
        return Hint.QUEUE if left and not left.isdisjoint(self._kept_away_by(pod, own, left)) else Hint.SKIP

    def _kept_away_by(self, pod: Pod, own: PodAffinity, left: Iterable[str]) -> Iterator[str]:
        """Topology keys of terms, its own and others', that keep the pod away; `left`: keys of which a node lost its value."""
        yield from (term.topology_key for term in own.anti_required)
        rules = self._rule_cache.rules_of(pod)
        if rules is not None:
            yield from rules.existing
        # Terms by a key that no node has any more are not counted.
        yield from (key for key in left if len(self._nodes.label_values(key)) <= 1)

    def _is_near(self, pod: Pod, own: PodAffinity, other: Pod) -> bool:
        """The other pod is in all of the required affinity."""
        return bool(own.required) and all(self._selects(pod, term, other) for term in own.required)

    def _selects(self, pod: Pod, term: PodAffinityTerm, other: Pod) -> bool:
        """By the labels first, which few pods have: asked about every pod that comes or goes."""
        if term.selector is None or not term.selector.matches(other.labels):
            return False
        return self._rule_cache.scope(term, pod.namespace).has(other.namespace, other.labels)

    def _keeps_away(self, counts: PodCountsView, pod: Pod, other: Pod) -> Sequence[tuple[str, int]]:
        """The other pod's required anti-affinity terms that are about this one: how many by topology key."""
        affinity = other.spec.pod_affinity
        if affinity is None or not affinity.anti_required:
            return ()
        asker = Asker(pod.namespace, pod.labels, self._rule_cache.namespace_labels(pod.namespace))
        effect = counts.effect(asker, affinity, other.namespace)
        return tuple((lane.key, terms) for lane, terms, _ in effect if lane.kind is DemandKind.ANTI_REQUIRED)


def _after_relabelling(pod: Pod, old: EventObject, new: EventObject) -> Hint:
    """Terms select namespaces by their labels. The watch may show a namespace later than the pods in it."""
    if not isinstance(new, Namespace):
        return Hint.SKIP
    return Hint.SKIP if isinstance(old, Namespace) and old.labels == new.labels else Hint.QUEUE
