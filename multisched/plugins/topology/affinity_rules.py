"""Affinity rules of a pod: its own terms, and the terms of placed pods that select it.

Resolves namespace selectors by the current namespaces. Equal rules share one object with a number, which is part of
signatures, since these are hashed for every pod. The terms of placed pods are not collected here: they are read from sums
that are updated whenever a pod is added or removed (`framework/pod_demands.py`), so their number does not slow an attempt.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Final

from multisched.framework.objects_view import ObjectsView, hidden
from multisched.framework.pod_counts import PodCounts, PodCountsView
from multisched.framework.pod_demands import AffinityIndexEntry, TermKind
from multisched.model.cluster_objects import Namespace
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Pod
from multisched.model.placement import DemandKind, PodAffinity, PodAffinityTerm, PodQuery, PodScope
from multisched.model.selectors import LabelSelector
from multisched.plugins.topology.domain_tally import AnySource, DemandSource, Source
from multisched.plugins.topology.inter_pod_affinity_args import InterPodAffinityArgs

RULES_KEPT: Final = 16_384
"""Maximum number of pods with cached rules. If exceeded, the cache is cleared, which only costs time."""

TEXTS_KEPT: Final = 262_144
"""Limit on the number of counts, labels, keys, values and names held by cached rules, about 200 bytes each.

If exceeded, the cache is cleared. It is needed because rules of deleted pods stay in the cache.
"""

BYTES_PER_TEXT: Final = 64
"""Estimate: bytes of a spec per counted text."""

_NOTHING: Final = PodScope(LabelSelector(), frozenset())
_NO_LABELS: Mapping[str, str] = {}

Sources = Mapping[str, tuple[AnySource, ...]]
"""Topology key -> the counts that are summed per domain of that key."""

_Weighted = tuple[str, PodQuery, int]
"""Topology key, query of pods to count, and weight."""
_Keyed = tuple[str, AnySource]


class AffinityRules:
    """Everything that InterPodAffinity needs to know about a pod."""

    __slots__ = (
        "affinity",
        "affinity_entry",
        "anti",
        "existing",
        "filter_sources",
        "is_own_match",
        "keys",
        "number",
        "own_anti",
        "own_near",
        "score_sources",
        "soft",
        "unknown",
    )

    def __init__(
        self,
        number: int,
        near: tuple[tuple[str, PodScope], ...],
        far: tuple[tuple[str, PodScope], ...],
        liked: Iterable[_Weighted],
        existing: Iterable[_Keyed],
        theirs: Iterable[_Keyed],
        entry: AffinityIndexEntry,
        *,
        is_own_match: bool,
        unknown: str = "",
    ) -> None:
        """`existing`, `theirs`: terms of placed pods that refuse rows, and those that score rows."""
        self.number = number
        """Part of signatures. Equal for rules that differ only in placed pods' terms with the same topology keys; never reused."""
        self.affinity_entry = entry
        """The terms of placed pods that select such pods."""
        self.unknown = unknown
        """Why the pods selected by the required terms cannot be determined; empty if they can."""
        query = PodQuery(tuple(scope for _, scope in near))
        self.keys = tuple(dict.fromkeys(key for key, _ in near))
        """Distinct topology keys of the required affinity."""
        one = Source(query)
        self.affinity: Sources = dict.fromkeys(self.keys, (one,))
        """Counts of pods that match all terms of the required affinity."""
        self.anti = _by_key((key, Source(PodQuery((scope,)))) for key, scope in far)
        """Counts of pods that match a term of the required anti-affinity."""
        self.existing = _by_key(existing)
        """Counts of pods with a required anti-affinity term that selects this pod."""
        self.soft = _by_key([*((key, Source(query, weight)) for key, query, weight in liked), *theirs])
        """Counts for scores: preferred terms of the pod and terms of placed pods."""
        self.own_near = query
        self.own_anti = far
        self.is_own_match = is_own_match
        """Whether the pod matches all terms of its own required affinity."""
        self.filter_sources = _each_once(self.affinity, self.anti, self.existing)
        self.score_sources = _each_once(self.soft)

    @property
    def filters(self) -> bool:
        """Whether any rule can refuse a row."""
        return bool(self.affinity or self.anti or self.existing)


def _each_once(*groups: Sources) -> tuple[AnySource, ...]:
    return tuple({id(s): s for group in groups for sources in group.values() for s in sources}.values())


def _by_key(keyed: Iterable[_Keyed]) -> Sources:
    found: dict[str, list[AnySource]] = {}
    for key, source in keyed:
        found.setdefault(key, []).append(source)
    return {key: tuple(sources) for key, sources in found.items()}


class AffinityRuleCache:
    """Computes and caches the rules of pods."""

    def __init__(self, args: InterPodAffinityArgs, objects: ObjectsView, counts: PodCountsView) -> None:
        self._args = args
        self._objects = objects
        self._counts = counts
        self._remembered: dict[tuple[int, int, str], tuple[Hashable, AffinityRules | None, object]] = {}
        self._rules: dict[Hashable, AffinityRules] = {}
        self._numbers: dict[Hashable, int] = {}
        self._numbers_given = self._texts_kept = 0
        self._latest: tuple[Pod | None, Hashable, AffinityRules | None] = (None, None, None)
        """The last requested pod, the versions of its rules, and the rules: an attempt requests them several times."""

    def rules_of(self, pod: Pod, counts: PodCountsView | None = None) -> AffinityRules | None:
        """Returns the pod's rules with respect to `counts` (default: the node table's); None if it has none."""
        counts = self._counts if counts is None else counts
        affinity = pod.spec.pod_affinity
        if affinity is None and not counts.has_demands:
            return None
        if counts is not self._counts or not isinstance(counts, PodCounts):
            return self._found(pod, counts)
        moment = (counts.demands_sequence, self._objects.version(ObjectKind.NAMESPACE))
        latest, known_at, rules = self._latest
        if pod is latest and moment == known_at and rules is not None and rules.affinity_entry.is_kept:
            return rules
        rules = self._found(pod, counts)
        self._latest = (pod, moment, rules)
        return rules

    def _found(self, pod: Pod, counts: PodCountsView) -> AffinityRules | None:
        affinity = pod.spec.pod_affinity
        entry = counts.affinity_entry(pod.namespace, pod.labels, self.namespace_labels(pod.namespace))
        if affinity is None and entry.is_silent:
            return None
        if counts is not self._counts and not isinstance(counts, PodCounts):
            return self._made(pod, entry, is_kept=False)  # hypothetical pods may have terms that no real pod has
        versions = (entry.number, len(entry.sums), entry.is_silent, self._objects.version(ObjectKind.NAMESPACE))
        key = (id(affinity), id(pod.labels), pod.namespace)
        known = self._remembered.get(key)
        if known is not None and known[0] == versions:
            return known[1]
        rules = self._made(pod, entry, is_kept=True)
        if len(self._remembered) >= RULES_KEPT:
            self._remembered.clear()
        self._make_room(len(pod.labels) + pod.spec.size_bytes // BYTES_PER_TEXT)
        self._remembered[key] = (
            versions,
            rules,
            (affinity, pod.labels),
        )  # the objects are kept so that their ids are not reused
        return rules

    def namespace_labels(self, namespace: str) -> Mapping[str, str]:
        """Returns the namespace's labels; empty for an unknown namespace, as upstream."""
        found = self._objects.namespace(namespace)
        return _NO_LABELS if found is None else found.labels

    def scope(self, term: PodAffinityTerm, namespace: str) -> PodScope:
        """Returns the scope of pods selected by a term of a pod in this namespace."""
        if term.selector is None:
            return _NOTHING
        selector = term.namespace_selector
        if selector is not None and not selector.requirements:
            return PodScope(term.selector)
        names = term.named_namespaces(namespace)
        if selector is not None:
            everywhere = self._objects.all(ObjectKind.NAMESPACE)
            names |= {n.name for n in everywhere if isinstance(n, Namespace) and selector.matches(n.labels)}
        return PodScope(term.selector, names)

    def _made(self, pod: Pod, entry: AffinityIndexEntry, *, is_kept: bool) -> AffinityRules | None:
        """Computes rules. `is_kept`: cache them, and share one object between equal ones."""
        own = pod.spec.pod_affinity or PodAffinity()
        near = tuple((term.topology_key, self.scope(term, pod.namespace)) for term in own.required)
        far = tuple((term.topology_key, self.scope(term, pod.namespace)) for term in own.anti_required)
        liked = tuple(self._preferences(pod))
        has_own = bool(near or far or liked)
        # Term kinds are only added while an index entry is kept, so they do not change the class of a pod with terms of its own.
        term_kinds = tuple(entry.sums) if has_own or not entry.is_silent else ()
        existing = [
            (term_kind.key, DemandSource(entry, term_kind))
            for term_kind in term_kinds
            if term_kind.kind is DemandKind.ANTI_REQUIRED
        ]
        theirs = list(self._preferences_of_others(own, entry, term_kinds))
        if not (near or far or existing or liked or theirs):
            return None
        # All of the pod's own terms are compared, even if the result does not depend on them now: pods of one class must
        # have the same effect on each other.
        own_near = tuple(scope.has(pod.namespace, pod.labels) for _, scope in near)
        own_far = tuple(scope.has(pod.namespace, pod.labels) for _, scope in far)
        own_liked = tuple(query.has(pod.namespace, pod.labels) for _, query, _ in liked)
        needs_labels = any(_selects_by_labels(term) for term in (*own.required, *own.anti_required))
        unknown = hidden(self._objects, ObjectKind.NAMESPACE) if needs_labels else ""
        entry_number = entry.number if has_own or term_kinds else 0
        keys = frozenset(topology for topology, *_ in (*near, *far, *liked, *existing, *theirs))
        signed = (near, far, liked, keys, entry_number, own_near, own_far, own_liked, unknown)
        key = (signed, term_kinds)
        rules = self._rules.get(key) if is_kept else None
        if rules is None:
            number = self._numbers.get(signed)
            if number is None or not is_kept:
                self._numbers_given += 1
                number = self._numbers_given
            rules = AffinityRules(
                number,
                near,
                far,
                liked,
                existing,
                theirs,
                entry,
                is_own_match=bool(near) and all(own_near),
                unknown=unknown,
            )
            if is_kept:
                scopes = (*near, *far, *((key, scope) for key, query, _ in liked for scope in query.scopes))
                self._make_room(
                    1 + len(rules.filter_sources) + len(rules.score_sources) + sum(scope.texts for _, scope in scopes)
                )
                self._rules[key], self._numbers[signed] = rules, number
        return rules

    def _make_room(self, texts: int) -> None:
        self._texts_kept += texts
        if self._texts_kept > TEXTS_KEPT:
            self._rules.clear()
            self._numbers.clear()
            self._remembered.clear()
            self._texts_kept = texts

    def _preferences(self, pod: Pod) -> Iterable[_Weighted]:
        own = pod.spec.pod_affinity or PodAffinity()
        for sign, preferred in ((1, own.preferred), (-1, own.anti_preferred)):
            for one in preferred:
                query = PodQuery((self.scope(one.term, pod.namespace),))
                yield one.term.topology_key, query, sign * one.weight

    def _preferences_of_others(
        self, own: PodAffinity, entry: AffinityIndexEntry, term_kinds: Iterable[TermKind]
    ) -> Iterable[_Keyed]:
        if self._args.ignore_preferred_terms_of_existing_pods and not (own.preferred or own.anti_preferred):
            return
        weights = {DemandKind.REQUIRED: self._args.hard_pod_affinity_weight, DemandKind.PREFERRED: 1}
        for term_kind in term_kinds:
            if weights.get(term_kind.kind, 0) > 0:
                yield term_kind.key, DemandSource(entry, term_kind, weights[term_kind.kind])


def _selects_by_labels(term: PodAffinityTerm) -> bool:
    """Reports whether the term selects namespaces by labels."""
    return term.namespace_selector is not None and bool(term.namespace_selector.requirements)
