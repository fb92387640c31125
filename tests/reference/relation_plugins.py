"""References of PodTopologySpread and InterPodAffinity: every count is taken by walking all pods."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tests.reference.matching import (
    has_untolerated_taint,
    required_node_affinity_matches,
    requirement_matches,
    requirements,
    selects,
)
from tests.reference.world import SKIP, PodState, Refused, Silent, Skip, World, unresolvable

Json = Mapping[str, Any]
HOSTNAME = "kubernetes.io/hostname"
SYSTEM_DEFAULTS: tuple[Json, ...] = (
    {"topologyKey": HOSTNAME, "whenUnsatisfiable": "ScheduleAnyway", "maxSkew": 3},
    {"topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "ScheduleAnyway", "maxSkew": 5},
)
NO_DOMAIN = 2**31 - 1
"""The least count where there is no domain at all."""

Requirement = tuple[str, str, list[str]]


@dataclass(frozen=True, slots=True)
class Constraint:
    key: str
    max_skew: int
    min_domains: int
    requirements: tuple[Requirement, ...] | None
    """None selects nothing; an empty tuple everything."""
    honors_affinity: bool
    honors_taints: bool

    def matches(self, labels: Mapping[str, str]) -> bool:
        return self.requirements is not None and all(requirement_matches(*r, labels) for r in self.requirements)

    def counts_node(self, world: World, pod: PodState, node: str) -> bool:
        state = world.nodes[node]
        if self.honors_affinity and not required_node_affinity_matches(pod.document, state.labels, node):
            return False
        return not (self.honors_taints and has_untolerated_taint(pod.document, state.taints))

    def count_on(self, world: World, pod: PodState, node: str) -> int:
        """Pods of the namespace that match and are not going away; a selector of everything counts nobody."""
        if self.requirements == ():
            return 0
        return sum(
            not p.is_terminating and p.namespace == pod.namespace and self.matches(p.labels) for p in world.on(node)
        )


@dataclass(frozen=True, slots=True)
class SpreadState:
    constraints: tuple[Constraint, ...]
    counts: tuple[Mapping[str, int], ...]
    """Per constraint: domain -> matching pods."""


class PodTopologySpread(Silent):
    """Source: plugins/podtopologyspread/*.go, plugins/helper/spread.go."""

    name, filters, scores = "PodTopologySpread", True, True

    def __init__(self, args: Json) -> None:
        self._is_system = args.get("defaultingType", "System") == "System"
        self._defaults = SYSTEM_DEFAULTS if self._is_system else args.get("defaultConstraints") or ()

    def _constraints(self, world: World, pod: PodState, action: str) -> tuple[Constraint, ...]:
        own = pod.document["spec"].get("topologySpreadConstraints") or ()
        if own:
            return tuple(_constraint(c, pod) for c in own if c["whenUnsatisfiable"] == action)
        defaults = [c for c in self._defaults if c["whenUnsatisfiable"] == action]
        selector = _default_selector(world, pod) if defaults else ()
        if not selector:
            return ()
        return tuple(replace(_constraint(c, pod), requirements=selector) for c in defaults)

    def prepare(self, world: World, pod: PodState) -> Any:
        constraints = self._constraints(world, pod, "DoNotSchedule")
        if not constraints:
            return SKIP
        counts: list[Counter[str]] = [Counter() for _ in constraints]
        for node, state in world.nodes.items():
            if all(c.key in state.labels for c in constraints):
                for at, constraint in enumerate(constraints):
                    if constraint.counts_node(world, pod, node):
                        counts[at][state.labels[constraint.key]] += constraint.count_on(world, pod, node)
        return SpreadState(constraints, tuple(counts))

    def moved(self, state: Any, world: World, pod: PodState, other: PodState, node: str, sign: int) -> Any:
        labels = world.nodes[node].labels
        if other.namespace != pod.namespace or any(c.key not in labels for c in state.constraints):
            return state
        counts = [Counter(c) for c in state.counts]
        for at, constraint in enumerate(state.constraints):
            if constraint.matches(other.labels) and constraint.counts_node(world, pod, node):
                counts[at][labels[constraint.key]] += sign
        return SpreadState(state.constraints, tuple(counts))

    def refusal(self, state: Any, world: World, pod: PodState, node: str) -> Refused | None:
        labels = world.nodes[node].labels
        for constraint, counts in zip(state.constraints, state.counts, strict=True):
            if constraint.key not in labels:
                return unresolvable("node(s) didn't match pod topology spread constraints (missing required label)")
            least = min(counts.values(), default=NO_DOMAIN) if len(counts) >= constraint.min_domains else 0
            itself = int(constraint.matches(pod.labels))
            if counts.get(labels[constraint.key], 0) + itself - least > constraint.max_skew:
                return Refused(("node(s) didn't match pod topology spread constraints",))
        return None

    def scored(self, world: World, pod: PodState, feasible: Sequence[str]) -> dict[str, int] | Skip:
        constraints = self._constraints(world, pod, "ScheduleAnyway")
        if not constraints:
            return SKIP
        needs_all = bool(pod.document["spec"].get("topologySpreadConstraints")) or not self._is_system
        nodes = [
            node
            for node, state in world.nodes.items()
            if not needs_all or all(c.key in state.labels for c in constraints)
        ]
        scored = [node for node in feasible if node in nodes]
        raw = dict.fromkeys(scored, 0.0)
        for constraint in constraints:
            counts, weight = _weighed(world, pod, constraint, nodes, scored)
            for node, count in counts.items():
                raw[node] += count * weight + (constraint.max_skew - 1)
        rounded = {node: math.floor(score + 0.5) for node, score in raw.items()}
        most, least = max(rounded.values(), default=0), min(rounded.values(), default=0)
        scores = {node: 100 if most == 0 else 100 * (most + least - score) // most for node, score in rounded.items()}
        return {node: scores.get(node, 0) for node in feasible}


def _weighed(
    world: World, pod: PodState, constraint: Constraint, nodes: Sequence[str], scored: Sequence[str]
) -> tuple[dict[str, int], float]:
    """Per scored node with the key, the matching pods of its domain; and what a pod of this constraint weighs."""
    key = constraint.key
    if key == HOSTNAME:
        found = {n: constraint.count_on(world, pod, n) for n in scored if key in world.nodes[n].labels}
        return found, math.log(len(scored) + 2)
    domains = {world.nodes[node].labels.get(key, ""): 0 for node in scored}
    for node in nodes:
        domain = world.nodes[node].labels.get(key, "")
        if domain in domains and constraint.counts_node(world, pod, node):
            domains[domain] += constraint.count_on(world, pod, node)
    found = {n: domains[world.nodes[n].labels[key]] for n in scored if key in world.nodes[n].labels}
    return found, math.log(len(domains) + 2)


def _constraint(document: Json, pod: PodState) -> Constraint:
    selector = document.get("labelSelector")
    wanted = None if selector is None else tuple(requirements(selector))
    if wanted is not None:
        keys = [key for key in document.get("matchLabelKeys") or () if key in pod.labels]
        wanted = (*wanted, *((key, "In", [pod.labels[key]]) for key in keys))
    return Constraint(
        document["topologyKey"],
        document["maxSkew"],
        document.get("minDomains") or 1,
        wanted,
        (document.get("nodeAffinityPolicy") or "Honor") == "Honor",
        (document.get("nodeTaintsPolicy") or "Ignore") == "Honor",
    )


def _default_selector(world: World, pod: PodState) -> tuple[Requirement, ...]:
    """Of the services that select the pod, and of the workload that controls it."""
    merged: dict[str, str] = {}
    for service in world.objects("services"):
        selector = service["spec"].get("selector")
        is_near = service["metadata"]["namespace"] == pod.namespace
        if selector and is_near and all(pod.labels.get(k) == v for k, v in selector.items()):
            merged |= selector
    more: list[Requirement] = []
    for owner in pod.document["metadata"].get("ownerReferences") or ():
        if not owner.get("controller"):
            continue
        field = {
            ("v1", "ReplicationController"): "replicationControllers",
            ("apps/v1", "ReplicaSet"): "replicaSets",
            ("apps/v1", "StatefulSet"): "statefulSets",
        }.get((owner["apiVersion"], owner["kind"]), "")
        found = world.named(field, owner["name"], pod.namespace) if field else None
        if found is not None and field == "replicationControllers":
            merged |= found["spec"]["selector"]
        elif found is not None:
            more = requirements(found["spec"]["selector"])
    return (*((key, "In", [value]) for key, value in merged.items()), *more)


@dataclass(frozen=True, slots=True)
class AffinityState:
    """(topology key, value) -> matching terms there."""

    affinity: Mapping[tuple[str, str], int]
    anti_affinity: Mapping[tuple[str, str], int]
    existing: Mapping[tuple[str, str], int]


class InterPodAffinity(Silent):
    """Source: plugins/interpodaffinity/*.go, framework/types.go AffinityTerm."""

    name, filters, scores = "InterPodAffinity", True, True

    def __init__(self, args: Json) -> None:
        self._hard_weight: int = args.get("hardPodAffinityWeight", 1)
        self._ignores_existing = bool(args.get("ignorePreferredTermsOfExistingPods"))

    def prepare(self, world: World, pod: PodState) -> Any:
        state = AffinityState({}, {}, {})
        has_terms = pod.terms("podAffinity", "required") or pod.terms("podAntiAffinity", "required")
        for node in world.nodes:
            for other in world.on(node):
                if has_terms or other.terms("podAntiAffinity", "required"):
                    state = self.moved(state, world, pod, other, node, 1)
        return state if has_terms or state.existing else SKIP

    def moved(self, state: Any, world: World, pod: PodState, other: PodState, node: str, sign: int) -> Any:
        labels = world.nodes[node].labels
        wanted = pod.terms("podAffinity", "required")
        matched = wanted if wanted and all(_matches(world, t, pod, other) for t in wanted) else ()
        avoided = [t for t in pod.terms("podAntiAffinity", "required") if _matches(world, t, pod, other)]
        avoiding = [t for t in other.terms("podAntiAffinity", "required") if _matches(world, t, other, pod)]
        if not (matched or avoided or avoiding):
            return state
        return AffinityState(
            _counted(state.affinity, matched, labels, sign),
            _counted(state.anti_affinity, avoided, labels, sign),
            _counted(state.existing, avoiding, labels, sign),
        )

    def refusal(self, state: Any, world: World, pod: PodState, node: str) -> Refused | None:
        labels = world.nodes[node].labels
        wanted = pod.terms("podAffinity", "required")
        places = [(t["topologyKey"], labels.get(t["topologyKey"])) for t in wanted]
        is_first = not state.affinity and all(_matches(world, t, pod, pod) for t in wanted)
        has_company = all(state.affinity.get(place, 0) > 0 for place in places)
        if any(value is None for _, value in places) or not (has_company or is_first):
            return unresolvable("node(s) didn't match pod affinity rules")
        for term in pod.terms("podAntiAffinity", "required"):
            if state.anti_affinity.get((term["topologyKey"], labels.get(term["topologyKey"])), 0) > 0:
                return Refused(("node(s) didn't match pod anti-affinity rules",))
        if any(state.existing.get(pair, 0) > 0 for pair in labels.items()):
            return Refused(("node(s) didn't satisfy existing pods anti-affinity rules",))
        return None

    def scored(self, world: World, pod: PodState, feasible: Sequence[str]) -> dict[str, int] | Skip:
        has_preferences = pod.terms("podAffinity", "preferred") or pod.terms("podAntiAffinity", "preferred")
        if self._ignores_existing and not has_preferences:
            return SKIP
        by_place: Counter[tuple[str, str]] = Counter()
        for node, state in world.nodes.items():
            for other in world.on(node):
                for key, weight in self._weights(world, pod, other):
                    if key in state.labels:
                        by_place[(key, state.labels[key])] += weight
        if not by_place:
            return SKIP
        raw = {node: sum(by_place.get(pair, 0) for pair in world.nodes[node].labels.items()) for node in feasible}
        least, most = min(raw.values()), max(raw.values())
        if most == least:
            return dict.fromkeys(feasible, 0)
        return {node: int(100.0 * ((score - least) / (most - least))) for node, score in raw.items()}

    def _weights(self, world: World, pod: PodState, other: PodState) -> Iterator[tuple[str, int]]:
        """Topology key and weight of every term between the two that matches."""
        for kind, sign in (("podAffinity", 1), ("podAntiAffinity", -1)):
            for asker, asked in ((pod, other), (other, pod)):
                for preference in asker.terms(kind, "preferred"):
                    term = preference["podAffinityTerm"]
                    if _matches(world, term, asker, asked):
                        yield term["topologyKey"], sign * preference["weight"]
        if self._hard_weight > 0:
            for term in other.terms("podAffinity", "required"):
                if _matches(world, term, other, pod):
                    yield term["topologyKey"], self._hard_weight


def _matches(world: World, term: Json, asker: PodState, asked: PodState) -> bool:
    """The term of `asker` selects `asked`: by namespace and labels."""
    names, selector = term.get("namespaces") or (), term.get("namespaceSelector")
    is_near = asked.namespace in names
    if selector is None:
        is_near = is_near or (not names and asked.namespace == asker.namespace)
    else:
        namespace = world.named("namespaces", asked.namespace)
        labels = (namespace or {}).get("metadata", {}).get("labels") or {}
        is_near = is_near or (selects(selector, labels) and (namespace is not None or _is_lenient(selector, asker)))
    return is_near and selects(term.get("labelSelector"), asked.labels)


def _is_lenient(selector: Json, asker: PodState) -> bool:
    """An asker that already runs reads an unknown namespace's labels as none; a pending one lists known namespaces."""
    return not requirements(selector) or bool(asker.node)


def _counted(
    counts: Mapping[tuple[str, str], int], terms: Sequence[Json], labels: Mapping[str, str], sign: int
) -> dict[tuple[str, str], int]:
    found = dict(counts)
    for term in terms:
        key = term["topologyKey"]
        if key in labels:
            pair = (key, labels[key])
            found[pair] = found.get(pair, 0) + sign
            if found[pair] == 0:
                del found[pair]
    return found
