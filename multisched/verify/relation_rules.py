"""Rules between pods: affinity, anti-affinity in both directions, topology spread.

Each rule checks one placed pod, the judged pod. If the order of binds is known, the judged pod was placed last. Otherwise, the times in
the API decide which pods were placed before it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from multisched.verify.findings import Fault
from multisched.verify.objects import Node, Order, Pod, Query, Spread, Term
from multisched.verify.placed_pods import PlacedPods
from multisched.verify.placement_rules import Domains, untolerated

DEFAULT_SCHEDULER = "default-scheduler"
"""The scheduler that may use all nodes."""


class OtherPods(NamedTuple):
    """The pods with which the judged pod is compared."""

    placed_pods: PlacedPods
    knows_order: bool
    """True if the judged pod is known to be placed after all others."""
    ended: Iterable[Pod] = ()
    """Ended pods. They may still have run when the judged pod was placed."""

    def before(self, pod: Pod, other: Pod) -> bool:
        """Reports whether `other` was placed before `pod`."""
        return other.uid != pod.uid and (self.knows_order or other.order < pod.order)


def anti_affinity_faults(pod: Pod, node: Node, others: OtherPods) -> Iterator[Fault]:
    """Checks the pod's anti-affinity, and the anti-affinity of pods placed before it."""
    placed_pods = others.placed_pods
    for term in pod.anti_affinity:
        domain = node.labels.get(term.topology_key)
        if term.query is None or domain is None:
            continue
        other = _first(pod, placed_pods.in_domain(term.query, term.topology_key, domain), others)
        if other is not None:
            yield Fault("podAntiAffinity", f"its anti-affinity forbids {other.key} in {term.topology_key}={domain}")
            return
    for key, domains in placed_pods.kept_away(pod):
        domain = node.labels.get(key)
        other = _first(pod, domains.get(domain, {}).values(), others) if domain is not None else None
        if other is not None:
            yield Fault("podAntiAffinity", f"the anti-affinity of {other.key} forbids it in {key}={domain}")
            return


def _first(pod: Pod, there: Iterable[Pod], others: OtherPods) -> Pod | None:
    return next((other for other in there if others.before(pod, other)), None)


def affinity_faults(pod: Pod, node: Node, others: OtherPods) -> Iterator[Fault]:
    """Checks that the topology domain of each term contains another pod that matches all terms.

    As in kube-scheduler, the first pod of a group, which matches its own terms, needs no other pod.
    """
    if not pod.affinity:
        return
    for term in pod.affinity:
        if term.topology_key not in node.labels:
            yield Fault("podAffinity", f"the node has no label {term.topology_key}, which its affinity requires")
            return
    placed_pods = others.placed_pods
    queries = [term.query for term in pod.affinity if term.query is not None]
    if len(queries) < len(pod.affinity):
        yield Fault("podAffinity", "its affinity has a term without labelSelector, which no pod matches")
        return
    matches_all = placed_pods.all_of(queries)
    unsatisfied = [term for term in pod.affinity if not _is_satisfied(pod, node, term, matches_all, placed_pods)]
    if not unsatisfied:
        return
    matching = filter(matches_all, placed_pods.everywhere(queries[0]))
    counted = [one for one in matching if one.uid != pod.uid and _has_topology_key(one, pod.affinity, placed_pods)]
    if matches_all(pod) and not any(others.before(pod, one) for one in counted):
        return
    term = unsatisfied[0]
    message = f"no pod that matches its affinity is in {term.topology_key}={node.labels[term.topology_key]}"
    may_have_ended = not counted or any(_was_in_same_domain(one, pod, node, others) for one in others.ended)
    yield Fault("podAffinity", message, is_sure=others.knows_order or not may_have_ended)


def _is_satisfied(
    pod: Pod, node: Node, term: Term, matches_all: Callable[[Pod], bool], placed_pods: PlacedPods
) -> bool:
    """Reports whether another pod that matches all terms is in the node's topology domain of this term."""
    if term.query is None:
        return False
    here = placed_pods.in_domain(term.query, term.topology_key, node.labels[term.topology_key])
    return any(one.uid != pod.uid and matches_all(one) for one in here)


def _has_topology_key(other: Pod, terms: Iterable[Term], placed_pods: PlacedPods) -> bool:
    """Reports whether the other pod's node has a topology key of these terms: else the pod does not count, as in kube-scheduler."""
    labels = placed_pods.nodes[other.node].labels
    return any(term.topology_key in labels for term in terms)


def _was_in_same_domain(ended: Pod, pod: Pod, node: Node, others: OtherPods) -> bool:
    """Reports whether the ended pod matches all affinity terms of the pod, and was in the same topology domains as the node."""
    there = others.placed_pods.nodes.get(ended.node)
    return there is not None and all(
        term.query is not None
        and others.placed_pods.matches(term.query, ended)
        and there.labels.get(term.topology_key) == node.labels.get(term.topology_key)
        for term in pod.affinity
    )


class SpreadCounts:
    """Pods per topology domain for spread constraints, cached until a pod or a node changes."""

    def __init__(self, placed_pods: PlacedPods, domains: Domains) -> None:
        self._placed_pods = placed_pods
        self._domains = domains
        self._nodes_version = -1
        self._version = -1
        self._places: dict[object, Mapping[str, Node]] = {}
        self._tallies: dict[object, Mapping[str, list[Order]]] = {}

    def faults(self, pod: Pod, node: Node, others: OtherPods) -> Iterator[Fault]:
        """Checks the pod's spread constraints. Yields at most one fault."""
        for spread in pod.spread:
            if spread.topology_key not in node.labels:
                yield Fault(
                    "topologySpread",
                    f"the node has no label {spread.topology_key}, which its spread constraint requires",
                )
                return
        for spread in pod.spread:
            if spread.query is None or not spread.query.selector.expressions:
                continue  # matches no pod; kube-scheduler counts no pods for an empty selector either
            kind, places = self._reach(pod, spread)
            skew = self._skew(pod, node, spread, self._tally(spread, spread.query, kind, places), others)
            if skew <= spread.max_skew:
                continue
            domain = node.labels[spread.topology_key]
            is_sure = others.knows_order or not self._may_have_complied(pod, node, spread, places, others)
            message = f"in {spread.topology_key}={domain} the skew is {skew}, maxSkew is {spread.max_skew}"
            yield Fault("topologySpread", message, is_sure)
            return

    def _reach(self, pod: Pod, spread: Spread) -> tuple[object, Mapping[str, Node]]:
        """Returns a cache key and the nodes whose pods are counted.

        These nodes belong to the pod's domain, have all topology keys, and comply with nodeAffinityPolicy and nodeTaintsPolicy.
        """
        if self._nodes_version != self._placed_pods.nodes_version:
            self._places.clear()
            self._nodes_version = self._placed_pods.nodes_version
        domain, tolerations = self._domains.of(pod), self._domains.tolerations(pod)
        keys = tuple(sorted({one.topology_key for one in pod.spread}))
        affinity = (pod.node_labels, pod.node_affinity) if spread.honors_affinity else None
        kind = (domain and domain.name, keys, affinity, tolerations if spread.honors_taints else None)
        found = self._places.get(kind)
        if found is None:
            found = self._places[kind] = {
                node.name: node
                for node in self._placed_pods.nodes.values()
                if all(key in node.labels for key in keys)
                and (not spread.honors_affinity or pod.accepts(node))
                and not (spread.honors_taints and any(untolerated(tolerations, node.taints)))
                and (domain is None or self._domains.is_usable(domain, node))
            }
        return kind, found

    def _tally(
        self, spread: Spread, query: Query, kind: object, places: Mapping[str, Node]
    ) -> Mapping[str, list[Order]]:
        """Returns topology domain -> order of placement of each pod counted there, ascending."""
        if self._version != self._placed_pods.version:
            self._tallies.clear()
            self._version = self._placed_pods.version
        key = spread.topology_key
        found = self._tallies.get((query, key, kind))
        if found is None:
            tally: dict[str, list[Order]] = {node.labels[key]: [] for node in places.values()}
            for pod in self._placed_pods.everywhere(query):
                if not pod.is_terminating and pod.node in places:
                    tally[places[pod.node].labels[key]].append(pod.order)
            for orders in tally.values():
                orders.sort()
            found = self._tallies[query, key, kind] = tally
        return found

    def _skew(self, pod: Pod, node: Node, spread: Spread, tally: Mapping[str, list[Order]], others: OtherPods) -> int:
        """Returns the number of pods in the pod's topology domain, including the pod, minus the lowest number of any domain."""
        assert spread.query is not None
        matches_itself = self._placed_pods.matches(spread.query, pod)
        here = tally.get(node.labels[spread.topology_key], [])
        earlier = bisect_left(here, pod.order)
        counts_itself = earlier < len(here) and here[earlier] == pod.order
        if others.knows_order:
            earlier = len(here) - counts_itself
        least = 0
        if len(tally) >= spread.min_domains:
            least = min((len(orders) for orders in tally.values()), default=earlier)
            least = min(least, len(here) - 1) if counts_itself else least
        return earlier + matches_itself - least

    def _may_have_complied(
        self, pod: Pod, node: Node, spread: Spread, places: Mapping[str, Node], others: OtherPods
    ) -> bool:
        """Reports whether maxSkew may have been observed at the time: pods have ended since, or nodes were added later."""
        key, query = spread.topology_key, spread.query
        assert query is not None
        old = {name: one for name, one in places.items() if not came_after(one, pod) and self._is_known_to(pod, name)}
        counts = {one.labels[key]: 0 for one in old.values()}
        domain, earlier = node.labels[key], 0
        ended = [
            one
            for one in others.ended
            if one.uid not in self._placed_pods.pods and self._placed_pods.matches(query, one)
        ]
        for other in (*self._placed_pods.everywhere(query), *ended):
            if other.uid == pod.uid or other.node not in old:
                continue
            where = old[other.node].labels[key]
            is_ending = other.is_terminating or other.uid not in self._placed_pods.pods
            counts[where] += not is_ending or where != domain
            earlier += where == domain and not is_ending and others.before(pod, other)
        least = min(counts.values(), default=earlier) if len(counts) >= spread.min_domains else 0
        return earlier + self._placed_pods.matches(query, pod) - least <= spread.max_skew

    def _is_known_to(self, pod: Pod, node: str) -> bool:
        """Reports whether the pod's scheduler probably uses the node. False if it is not configured here and has no pod there."""
        if pod.scheduler in ("", DEFAULT_SCHEDULER) or self._domains.of(pod) is not None:
            return True
        return any(other.scheduler == pod.scheduler for other in self._placed_pods.on.get(node, {}).values())


def came_after(node: Node, pod: Pod) -> bool:
    """Reports whether the node was created after the pod was placed, so that it replaces an older node of this name."""
    return node.created_s is not None and pod.placed_s is not None and node.created_s > pod.placed_s
