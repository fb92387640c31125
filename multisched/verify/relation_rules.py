"""Rules between pods: affinity, anti-affinity in both directions, topology spread.

Each rule judges a placed pod. If the order of binds is known, the judged pod is the latest, and all others were placed before.
If not, the times in the API decide which pods were placed before.
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
"""Uses all nodes."""


class OtherPods(NamedTuple):
    """All other pods."""

    placed_pods: PlacedPods
    knows_order: bool
    """True if the judged pod was placed after all others."""
    gone: Iterable[Pod] = ()
    """Ended pods, which may have counted when the others were placed."""

    def before(self, pod: Pod, other: Pod) -> bool:
        """Reports whether the other pod was placed before the pod."""
        return other.uid != pod.uid and (self.knows_order or other.order < pod.order)


def anti_affinity_faults(pod: Pod, node: Node, others: OtherPods) -> Iterator[Fault]:
    """Checks the pod's anti-affinity, and that of pods placed before it."""
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
    """Checks that the topology domain of each term contains a pod that matches all terms. The first pod of a group needs none."""
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
    is_meant = placed_pods.all_of(queries)
    lonely = [term for term in pod.affinity if not _has_company(pod, node, term, is_meant, placed_pods)]
    if not lonely:
        return
    meant = filter(is_meant, placed_pods.everywhere(queries[0]))
    company = [one for one in meant if one.uid != pod.uid and _counts(one, pod.affinity, placed_pods)]
    if is_meant(pod) and not any(others.before(pod, one) for one in company):
        return
    term = lonely[0]
    message = f"no pod that matches its affinity is in {term.topology_key}={node.labels[term.topology_key]}"
    may_have_left = not company or any(_is_gone_from_here(one, pod, node, others) for one in others.gone)
    yield Fault("podAffinity", message, is_sure=others.knows_order or not may_have_left)


def _has_company(pod: Pod, node: Node, term: Term, is_meant: Callable[[Pod], bool], placed_pods: PlacedPods) -> bool:
    if term.query is None:
        return False
    here = placed_pods.in_domain(term.query, term.topology_key, node.labels[term.topology_key])
    return any(one.uid != pod.uid and is_meant(one) for one in here)


def _counts(other: Pod, terms: Iterable[Term], placed_pods: PlacedPods) -> bool:
    labels = placed_pods.nodes[other.node].labels
    return any(term.topology_key in labels for term in terms)


def _is_gone_from_here(gone: Pod, pod: Pod, node: Node, others: OtherPods) -> bool:
    there = others.placed_pods.nodes.get(gone.node)
    return there is not None and all(
        term.query is not None
        and others.placed_pods.matches(term.query, gone)
        and there.labels.get(term.topology_key) == node.labels.get(term.topology_key)
        for term in pod.affinity
    )


class SpreadCounts:
    """Pods per domain for spread constraints, cached until something changes."""

    def __init__(self, placed_pods: PlacedPods, domains: Domains) -> None:
        self._placed_pods = placed_pods
        self._domains = domains
        self._nodes_version = -1
        self._version = -1
        self._places: dict[object, Mapping[str, Node]] = {}
        self._tallies: dict[object, Mapping[str, list[Order]]] = {}

    def faults(self, pod: Pod, node: Node, others: OtherPods) -> Iterator[Fault]:
        """Yields at most one fault."""
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
            is_sure = others.knows_order or not self._may_have_been_level(pod, node, spread, places, others)
            message = f"in {spread.topology_key}={domain} the skew is {skew}, maxSkew is {spread.max_skew}"
            yield Fault("topologySpread", message, is_sure)
            return

    def _reach(self, pod: Pod, spread: Spread) -> tuple[object, Mapping[str, Node]]:
        """Returns the nodes that count: of the pod's domain, with all topology keys, and eligible by the node policies."""
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
        """Returns domain -> the pods that count there, in order."""
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
        """Returns the number of pods in the pod's domain, including the pod, minus the number in the domain with the fewest."""
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

    def _may_have_been_level(
        self, pod: Pod, node: Node, spread: Spread, places: Mapping[str, Node], others: OtherPods
    ) -> bool:
        """Reports whether terminating or ended pods, or nodes newer than the pod, may explain the skew."""
        key, query = spread.topology_key, spread.query
        assert query is not None
        old = {name: one for name, one in places.items() if not came_after(one, pod) and self._is_known_to(pod, name)}
        counts = {one.labels[key]: 0 for one in old.values()}
        domain, earlier = node.labels[key], 0
        gone = [
            one
            for one in others.gone
            if one.uid not in self._placed_pods.pods and self._placed_pods.matches(query, one)
        ]
        for other in (*self._placed_pods.everywhere(query), *gone):
            if other.uid == pod.uid or other.node not in old:
                continue
            where = old[other.node].labels[key]
            is_going = other.is_terminating or other.uid not in self._placed_pods.pods
            counts[where] += not is_going or where != domain
            earlier += where == domain and not is_going and others.before(pod, other)
        least = min(counts.values(), default=earlier) if len(counts) >= spread.min_domains else 0
        return earlier + self._placed_pods.matches(query, pod) - least <= spread.max_skew

    def _is_known_to(self, pod: Pod, node: str) -> bool:
        """Returns False if the pod's scheduler is not configured here and has no pod on the node: it may not use the node."""
        if pod.scheduler in ("", DEFAULT_SCHEDULER) or self._domains.of(pod) is not None:
            return True
        return any(other.scheduler == pod.scheduler for other in self._placed_pods.on.get(node, {}).values())


def came_after(node: Node, pod: Pod) -> bool:
    """Reports whether the node is newer than the pod's placement: a node of that name was replaced."""
    return node.created_s is not None and pod.placed_s is not None and node.created_s > pod.placed_s
