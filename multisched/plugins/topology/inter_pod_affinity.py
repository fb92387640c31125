"""InterPodAffinity: applies affinity and anti-affinity between the pod and placed pods, in both directions."""

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
from multisched.framework.term_columns import IncomingPod
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
    """PreFilter's state: per domain, the pods that match the required affinity and anti-affinity terms."""

    __slots__ = ("_was_first", "affinity", "anti", "existing", "is_copy", "rules")

    def __init__(self, nodes: NodeView, rules: AffinityRules) -> None:
        self.rules = rules
        self.affinity = _tallies(nodes, rules.affinity)
        self.anti = _tallies(nodes, rules.anti)
        self.existing = _tallies(nodes, rules.existing)
        self.is_copy = False
        self._was_first: bool | None = None
        """`_is_first` at the last call of `moved_rows`; None before the first call."""

    def follow(self, nodes: NodeView, rules: AffinityRules) -> bool:
        """Applies added and removed pods. Returns False if the state must be rebuilt."""
        return (
            rules is self.rules
            and not self.is_copy
            and _follow(nodes, self.affinity, rules.affinity)
            and _follow(nodes, self.anti, rules.anti)
            and _follow(nodes, self.existing, rules.existing)
        )

    def copy(self) -> _FilterState:
        """Returns an independent copy; self if it is one."""
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
        """Returns bool[rows]: the row's domain of every key has a pod that matches all terms of the required affinity.

        If no placed pod matches but the pod matches its own terms, rows that have all keys pass.
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
        """Returns rows whose result may have changed since the last call; None: all."""
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
    for key, sources in by_key.items():  # noqa: SIM110 - a loop takes half the time of `all`, and this runs in each attempt
        if not tallies[key].follow(nodes, sources):
            return False
    return True


_FILTER: StateKey[_FilterState] = StateKey("InterPodAffinity.filter")
_SCORE: StateKey[_ScoreState] = StateKey("InterPodAffinity.score")


class InterPodAffinity:
    """Source: kube-scheduler 1.36, plugins/interpodaffinity/.

    Counts pods of the whole cluster, also those on rows of other resource domains.
    """

    name = "InterPodAffinity"
    depends_on = Dependency.CACHE_KEY
    traits = Traits(signs_alike=True, reads_objects=(ObjectKind.NAMESPACE,))

    def __init__(self, args: InterPodAffinityArgs, context: PluginContext) -> None:
        self._rule_cache = AffinityRuleCache(args, context.objects, context.nodes.pod_counts)
        self._nodes = context.nodes
        self._one_row: dict[str, bool] = {}
        """Topology key -> whether each of its domains is a single row, as of `_one_row_at`."""
        self._one_row_at = -1
        self.reasons = ReasonTable(self.name)
        # The order matters: `filter` uses the largest code, so the last of several reasons wins, as upstream.
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
            is_by_row=not rules.affinity and self._are_of_one_row((*rules.anti, *rules.existing), cycle.nodes),
        )

    def _are_of_one_row(self, keys: Iterable[str], nodes: NodeView) -> bool:
        """Reports whether every topology domain of these keys is a single row, as for the host name."""
        if nodes is not self._nodes:
            return False
        if nodes.nodes_version != self._one_row_at:
            self._one_row_at, self._one_row = nodes.nodes_version, {}
        for key in keys:
            if key not in self._one_row:
                codes = nodes.label_codes(key)
                self._one_row[key] = bool(np.bincount(codes[codes > 0], minlength=1).max() <= 1)
            if not self._one_row[key]:
                return False
        return True

    def topology_keys(self, cycle: CycleView, pod: Pod) -> tuple[str, ...] | None:
        """Returns the topology keys of all terms."""
        rules = self._rule_cache.rules_of(pod, cycle.nodes.pod_counts)
        if rules is None:
            return None
        groups = (rules.affinity, rules.anti, rules.existing, rules.soft)
        return tuple(sorted({key for group in groups for key in group}))

    def pre_filter(self, cycle: CycleView, pod: Pod) -> PreFilterResult:
        """Updates the pods per domain; skips a pod that no required term can refuse."""
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
        """Returns sensitivity to pods selected by the required terms, and to pods whose required anti-affinity selects this pod."""
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
        """Returns uint8[rows]: refuses rows that violate the required affinity, or the required anti-affinity of either side."""
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
        """Returns the rows of domains whose pods changed."""
        return cycle.state.read(_FILTER).moved_rows()

    def pre_score(self, cycle: CycleView, pod: Pod, rows: Rows) -> Status:
        """Updates the weights per domain; skips a pod if no placed pod affects its scores."""
        rules = self._rule_cache.rules_of(pod, cycle.nodes.pod_counts)
        if rules is None or not rules.soft:
            return SKIP
        state = cycle.state.find(_SCORE)
        if state is None or not state.follow(cycle.nodes, rules):
            state = _ScoreState(cycle.nodes, rules)
            cycle.state.write(_SCORE, state)
        return SUCCESS if any(tally.pods for tally in state.soft.values()) else SKIP

    def score(self, cycle: CycleView, pod: Pod, rows: Rows) -> Scores:
        """Returns int64[rows]: the sum of weights of the pod's and placed pods' terms that match in the row's domains."""
        selection, total = Selection(rows), np.zeros(len(rows), np.int64)
        for tally in cycle.state.read(_SCORE).soft.values():
            total += tally.counts.take(selection.of(tally.codes))
        return total

    def normalize_score(self, cycle: CycleView, pod: Pod, raw: Scores) -> Scores:
        """Returns int64[rows]: 100 * (raw - smallest) / (largest - smallest), rounded down; 0 if all are equal."""
        smallest = raw.item(raw.argmin())
        spread = raw.item(raw.argmax()) - smallest
        if not spread:
            return np.zeros(len(raw), np.int64)
        # Upstream's order of operations: dividing first may give a value just below an integer.
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
            # Upstream registers none: a pod refused because of a namespaceSelector stays parked until the flush.
            EventRegistration(ClusterEvent(ObjectKind.NAMESPACE, namespaces, "Namespace"), _after_relabelling),
        )

    def _after_pod_change(self, pod: Pod, old: EventObject, new: EventObject) -> Hint:
        """Queues the pod if a placed pod matches its affinity now, no longer matches its anti-affinity, or no longer repels it.

        If the pod matches its own affinity, it is also queued when a matching pod is deleted or relabelled: without other
        matches it passes as the first pod. Upstream leaves it parked.
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
        """Queues the pod if a node was added to or removed from a topology domain of a term, or a new node may be outside all of them.

        A pod without terms is refused by other pods' anti-affinity; a new node may be outside their domains. Upstream
        leaves it parked.
        """
        own = pod.spec.pod_affinity or PodAffinity()
        if old is None and isinstance(new, Node) and (own.anti_required or not own.required):
            return Hint.QUEUE
        return self._after_distant_node(pod, old, new)

    def _after_distant_node(self, pod: Pod, old: EventObject, new: EventObject) -> Hint:
        """Queues the pod if the pods on a node count in another topology domain now, or no longer count, and that may matter.

        They may match its affinity, match an anti-affinity term, or be the last match of its own affinity.
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
        """Yields topology keys of anti-affinity terms that may refuse the pod. `left`: keys whose value the node lost."""
        yield from (term.topology_key for term in own.anti_required)
        rules = self._rule_cache.rules_of(pod)
        if rules is not None:
            yield from rules.existing
        # Terms with a key that no node has are not in the counts, so such a key may belong to one of them.
        yield from (key for key in left if len(self._nodes.label_values(key)) <= 1)

    def _is_near(self, pod: Pod, own: PodAffinity, other: Pod) -> bool:
        """Reports whether the other pod matches all terms of the required affinity."""
        return bool(own.required) and all(self._selects(pod, term, other) for term in own.required)

    def _selects(self, pod: Pod, term: PodAffinityTerm, other: Pod) -> bool:
        """Reports whether the term selects the other pod. Compares labels first, since it runs for every added or removed pod."""
        if term.selector is None or not term.selector.matches(other.labels):
            return False
        return self._rule_cache.scope(term, pod.namespace).has(other.namespace, other.labels)

    def _keeps_away(self, counts: PodCountsView, pod: Pod, other: Pod) -> Sequence[tuple[str, int]]:
        """Returns (topology key, count) of the other pod's required anti-affinity terms that select this pod."""
        affinity = other.spec.pod_affinity
        if affinity is None or not affinity.anti_required:
            return ()
        incoming = IncomingPod(pod.namespace, pod.labels, self._rule_cache.namespace_labels(pod.namespace))
        effect = counts.effect(incoming, affinity, other.namespace)
        return tuple(
            (term_kind.key, terms) for term_kind, terms, _ in effect if term_kind.kind is DemandKind.ANTI_REQUIRED
        )


def _after_relabelling(pod: Pod, old: EventObject, new: EventObject) -> Hint:
    """Queues the pod if a namespace is new or relabelled, since terms select namespaces by label.

    The watch may show a namespace later than the pods in it.
    """
    if not isinstance(new, Namespace):
        return Hint.SKIP
    return Hint.SKIP if isinstance(old, Namespace) and old.labels == new.labels else Hint.QUEUE
