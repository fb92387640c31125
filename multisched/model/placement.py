"""Rules between pods: affinity terms and spread constraints, and the questions about placed pods that they come down to.

Pure values, compiled once per distinct spec. A *scope* is a set of pods by namespace and labels. A *query* asks for
pods that are in all of its scopes. A *demand* is what a placed pod's own term says of pods that come after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

import msgspec

from multisched.model.selectors import LabelSelector

NO_NAMES: frozenset[str] = frozenset()
"""An empty set of its own would be a third of what a term takes in memory."""


class PodAffinityTerm(msgspec.Struct, frozen=True, gc=False):
    """A term as written; `namespaces` and `namespace_selector` together name the namespaces it is about."""

    topology_key: str
    selector: LabelSelector | None = None
    """None matches no pod."""
    namespaces: frozenset[str] = NO_NAMES
    namespace_selector: LabelSelector | None = None
    """None selects no namespace; an empty one all of them, known or not."""

    def named_namespaces(self, own: str) -> frozenset[str]:
        """Those it names; the pod's own where it says nothing of namespaces at all."""
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
    """DoNotSchedule; else ScheduleAnyway."""
    selector: LabelSelector | None = None
    min_domains: int = 1
    honors_affinity: bool = True
    honors_taints: bool = False
    match_label_keys: tuple[str, ...] = ()


class PodScope(msgspec.Struct, frozen=True, gc=False):
    """Pods of some namespaces whose labels match."""

    selector: LabelSelector
    namespaces: frozenset[str] | None = None
    """None: all of them."""

    @property
    def texts(self) -> int:
        """Keys, values and names in it: what it takes in memory."""
        named = 0 if self.namespaces is None else len(self.namespaces)
        return named + sum(1 + len(one.values) for one in self.selector.requirements)

    def has(self, namespace: str, labels: Mapping[str, str]) -> bool:
        return (self.namespaces is None or namespace in self.namespaces) and self.selector.matches(labels)


class PodQuery(msgspec.Struct, frozen=True, gc=False):
    """Asks how many pods on each row are in every one of the scopes. No scopes: no pod is."""

    scopes: tuple[PodScope, ...]
    counts_deleting: bool = True
    """False leaves out pods that are being deleted."""

    def has(self, namespace: str, labels: Mapping[str, str]) -> bool:
        return bool(self.scopes) and all(scope.has(namespace, labels) for scope in self.scopes)


class DemandKind(Enum):
    """Which list of a placed pod a demand stands in."""

    REQUIRED = "required affinity"
    ANTI_REQUIRED = "required anti-affinity"
    PREFERRED = "preferred affinity"
    ANTI_PREFERRED = "preferred anti-affinity"


class PodDemand(msgspec.Struct, frozen=True, gc=False):
    """One term of a placed pod, as it looks at pods that come after."""

    kind: DemandKind
    topology_key: str
    selector: LabelSelector
    namespaces: frozenset[str]
    namespace_selector: LabelSelector | None
    weight: int = 1

    def concerns(self, namespace: str, labels: Mapping[str, str], namespace_labels: Mapping[str, str]) -> bool:
        """True if a pod with these labels in that namespace matches the term (source: AffinityTerm.Matches)."""
        is_there = namespace in self.namespaces or (
            self.namespace_selector is not None and self.namespace_selector.matches(namespace_labels)
        )
        return is_there and self.selector.matches(labels)


def demands_of(affinity: PodAffinity, namespace: str) -> tuple[PodDemand, ...]:
    """What a pod of this namespace demands once it is placed; a term that says a thing twice is there twice."""
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
