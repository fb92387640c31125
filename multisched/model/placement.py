"""Rules between pods: affinity terms and spread constraints, and the queries over placed pods that they need.

Pure values, compiled once per distinct spec. A *scope* is a set of pods by namespace and labels. A *query* counts the
pods that are in all of its scopes. A *demand* is a term of a placed pod, as it applies to later pods.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

import msgspec

from multisched.model.selectors import LabelSelector

NO_NAMES: frozenset[str] = frozenset()
"""Shared: a separate empty set would take a third of a term's memory."""


class PodAffinityTerm(msgspec.Struct, frozen=True, gc=False):
    """A term as written; `namespaces` and `namespace_selector` together select its namespaces."""

    topology_key: str
    selector: LabelSelector | None = None
    """None matches no pod."""
    namespaces: frozenset[str] = NO_NAMES
    namespace_selector: LabelSelector | None = None
    """None selects no namespace; an empty selector selects all of them, known or not."""

    def named_namespaces(self, own: str) -> frozenset[str]:
        """Returns the named namespaces; the pod's own if the term selects no namespaces at all."""
        if not self.namespaces and self.namespace_selector is None:
            return frozenset((own,))
        return self.namespaces


class WeightedPodTerm(msgspec.Struct, frozen=True, gc=False):
    """A preferred term with its weight."""

    weight: int
    term: PodAffinityTerm


class PodAffinity(msgspec.Struct, frozen=True, gc=False):
    """spec.affinity.podAffinity and podAntiAffinity, compiled."""

    required: tuple[PodAffinityTerm, ...] = ()
    preferred: tuple[WeightedPodTerm, ...] = ()
    anti_required: tuple[PodAffinityTerm, ...] = ()
    anti_preferred: tuple[WeightedPodTerm, ...] = ()


class SpreadConstraint(msgspec.Struct, frozen=True, gc=False):
    """One of spec.topologySpreadConstraints, with upstream's defaults."""

    max_skew: int
    topology_key: str
    is_hard: bool
    """True for DoNotSchedule, false for ScheduleAnyway."""
    selector: LabelSelector | None = None
    min_domains: int = 1
    honors_affinity: bool = True
    honors_taints: bool = False
    match_label_keys: tuple[str, ...] = ()


class PodScope(msgspec.Struct, frozen=True, gc=False):
    """Pods of some namespaces with matching labels."""

    selector: LabelSelector
    namespaces: frozenset[str] | None = None
    """None: all namespaces."""

    @property
    def texts(self) -> int:
        """Number of its keys, values and names; a measure of its memory."""
        named = 0 if self.namespaces is None else len(self.namespaces)
        return named + sum(1 + len(one.values) for one in self.selector.requirements)

    def has(self, namespace: str, labels: Mapping[str, str]) -> bool:
        return (self.namespaces is None or namespace in self.namespaces) and self.selector.matches(labels)


class PodQuery(msgspec.Struct, frozen=True, gc=False):
    """Counts, per row, the pods that are in every one of the scopes. Without scopes, no pod is."""

    scopes: tuple[PodScope, ...]
    counts_deleting: bool = True
    """False leaves out terminating pods."""

    def has(self, namespace: str, labels: Mapping[str, str]) -> bool:
        return bool(self.scopes) and all(scope.has(namespace, labels) for scope in self.scopes)


class DemandKind(Enum):
    """The list of a placed pod's affinity that a demand belongs to."""

    REQUIRED = "required affinity"
    ANTI_REQUIRED = "required anti-affinity"
    PREFERRED = "preferred affinity"
    ANTI_PREFERRED = "preferred anti-affinity"


class PodDemand(msgspec.Struct, frozen=True, gc=False):
    """One term of a placed pod, as it applies to later pods."""

    kind: DemandKind
    topology_key: str
    selector: LabelSelector
    namespaces: frozenset[str]
    namespace_selector: LabelSelector | None
    weight: int = 1

    def matches(self, namespace: str, labels: Mapping[str, str], namespace_labels: Mapping[str, str]) -> bool:
        """Reports whether a pod with these labels in that namespace matches the term (source: AffinityTerm.Matches)."""
        is_there = namespace in self.namespaces or (
            self.namespace_selector is not None and self.namespace_selector.matches(namespace_labels)
        )
        return is_there and self.selector.matches(labels)


def demands_of(affinity: PodAffinity, namespace: str) -> tuple[PodDemand, ...]:
    """Returns the demands of a placed pod of this namespace; duplicate terms are kept."""
    listed = (
        *((DemandKind.REQUIRED, 1, term) for term in affinity.required),
        *((DemandKind.ANTI_REQUIRED, 1, term) for term in affinity.anti_required),
        *((DemandKind.PREFERRED, weighted.weight, weighted.term) for weighted in affinity.preferred),
        *((DemandKind.ANTI_PREFERRED, weighted.weight, weighted.term) for weighted in affinity.anti_preferred),
    )
    return tuple(
        PodDemand(
            kind, term.topology_key, term.selector, term.named_namespaces(namespace), term.namespace_selector, weight
        )
        for kind, weight, term in listed
        if term.selector is not None
    )
