"""The spread constraints of a pod: its own, or the defaults with the selector of its services and controller.

Equal rules share one object and are compared by identity: they are part of signatures, which are hashed for every pod.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Final

import msgspec

from multisched.framework.objects_view import ObjectsView
from multisched.model.objects import NodeAffinity, Owner, Pod, PodSpec
from multisched.model.placement import PodQuery, PodScope, SpreadConstraint
from multisched.model.selectors import LabelSelector, Operator, Requirement, Toleration
from multisched.plugins.topology.default_selector import DefaultSelectors
from multisched.plugins.topology.domain_tally import Source
from multisched.plugins.topology.pod_topology_spread_args import DO_NOT_SCHEDULE, HONOR, PodTopologySpreadArgs

RULES_KEPT: Final = 16_384
"""Maximum number of distinct rules and of pods with cached rules. If exceeded, the cache is cleared, which only costs time."""

SPECS_BYTES_MAX: Final = 32 * 1024 * 1024
"""Limit on the size of specs and labels held by the cache: entries of deleted pods stay in it."""

_Remembered = tuple[Hashable, "SpreadRules | None", PodSpec, Mapping[str, str], Owner | None]
"""Versions, rules, and the objects whose ids are in the key, kept so that the ids are not reused."""


class SpreadRule:
    """One constraint with its selector resolved for a pod."""

    __slots__ = ("constraint", "is_self_match", "key", "sources")

    def __init__(self, constraint: SpreadConstraint, namespace: str, *, is_self_match: bool) -> None:
        self.constraint = constraint
        self.key = constraint.topology_key
        self.is_self_match = is_self_match
        """Whether the pod matches its own selector."""
        self.sources: tuple[Source, ...] = ()
        if constraint.selector is not None and constraint.selector.requirements:
            scope = PodScope(constraint.selector, frozenset((namespace,)))
            self.sources = (Source(PodQuery((scope,), counts_deleting=False)),)
        # An empty selector matches every pod, yet upstream counts none for it.

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Reports whether a pod of the namespace with these labels counts."""
        return self.constraint.selector is not None and self.constraint.selector.matches(labels)


class SpreadRules:
    """All constraints of a pod: `hard` ones filter, `soft` ones score."""

    __slots__ = ("affinity", "hard", "hard_sources", "needs_all_keys", "soft", "soft_sources", "tolerations")

    def __init__(
        self,
        rules: tuple[SpreadRule, ...],
        affinity: NodeAffinity,
        tolerations: tuple[Toleration, ...],
        *,
        needs_all_keys: bool,
    ) -> None:
        self.hard = tuple(rule for rule in rules if rule.constraint.is_hard)
        self.soft = tuple(rule for rule in rules if not rule.constraint.is_hard)
        self.needs_all_keys = needs_all_keys
        """Whether rows without all soft topology keys are left out of scoring. False for the system defaults, as upstream."""
        self.affinity = affinity
        self.tolerations = tolerations
        self.hard_sources = tuple(source for rule in self.hard for source in rule.sources)
        self.soft_sources = tuple(source for rule in self.soft for source in rule.sources)


class SpreadRuleCache:
    """Computes and caches the rules of pods."""

    def __init__(self, args: PodTopologySpreadArgs, objects: ObjectsView) -> None:
        self._defaults = tuple(
            SpreadConstraint(
                max_skew=default.max_skew,
                topology_key=default.topology_key,
                is_hard=default.when_unsatisfiable == DO_NOT_SCHEDULE,
                min_domains=1 if default.min_domains is None else default.min_domains,
                honors_affinity=default.node_affinity_policy == HONOR,
                honors_taints=default.node_taints_policy == HONOR,
            )
            for default in args.default_constraints
        )
        self._is_system = args.is_system
        self._selectors = DefaultSelectors(objects)
        self._latest: tuple[Pod | None, SpreadRules | None] = (None, None)
        """The last requested pod with constraints of its own: an attempt requests its rules several times."""
        self._remembered: dict[tuple[int, int, int, str], _Remembered] = {}
        self._rules: dict[Hashable, SpreadRules] = {}
        self._bytes = 0

    @property
    def has_hard_defaults(self) -> bool:
        """Whether default constraints can refuse nodes."""
        return any(default.is_hard for default in self._defaults)

    def rules_of(self, pod: Pod) -> SpreadRules | None:
        """Returns the pod's current rules; None if it has no constraints."""
        latest, rules = self._latest
        if latest is pod:
            return rules
        if not pod.spec.spread and not (self._defaults and self._selectors.may_have(pod)):
            return None
        versions = () if pod.spec.spread else self._selectors.versions()
        key = (id(pod.spec), id(pod.labels), id(pod.owner), pod.namespace)
        known = self._remembered.get(key)
        if known is not None and known[0] == versions:
            if pod.spec.spread:
                self._latest = (pod, known[1])
            return known[1]
        rules = self._made(pod)
        self._bytes += pod.kept_bytes
        if len(self._remembered) >= RULES_KEPT or self._bytes > SPECS_BYTES_MAX:
            self._remembered.clear()
            self._rules.clear()
            self._bytes = 0
        self._remembered[key] = (versions, rules, pod.spec, pod.labels, pod.owner)
        return rules

    def _made(self, pod: Pod) -> SpreadRules | None:
        constraints = self._own(pod) if pod.spec.spread else self._by_default(pod)
        if not constraints:
            return None
        matches = tuple(c.selector is not None and c.selector.matches(pod.labels) for c in constraints)
        affinity = pod.spec.affinity if any(c.honors_affinity for c in constraints) else NodeAffinity()
        tolerations = pod.spec.tolerations if any(c.honors_taints for c in constraints) else ()
        # The pod's own constraints leave out a row without a zone; the system defaults still score it by its hostname.
        needs_all_keys = bool(pod.spec.spread) or not self._is_system
        key = (constraints, matches, pod.namespace, affinity, tolerations, needs_all_keys)
        rules = self._rules.get(key)
        if rules is None:
            if len(self._rules) >= RULES_KEPT:
                self._rules.clear()
            rules = self._rules[key] = SpreadRules(
                tuple(
                    SpreadRule(constraint, pod.namespace, is_self_match=matched)
                    for constraint, matched in zip(constraints, matches, strict=True)
                ),
                affinity,
                tolerations,
                needs_all_keys=needs_all_keys,
            )
        return rules

    def _by_default(self, pod: Pod) -> tuple[SpreadConstraint, ...]:
        selector = self._selectors.of(pod)
        if selector is None:
            return ()
        return tuple(msgspec.structs.replace(constraint, selector=selector) for constraint in self._defaults)

    @staticmethod
    def _own(pod: Pod) -> tuple[SpreadConstraint, ...]:
        """Returns the pod's constraints, with the labels of `matchLabelKeys` added to their selectors."""
        return tuple(
            msgspec.structs.replace(c, selector=_with_labels(c, pod.labels), match_label_keys=())
            for c in pod.spec.spread
        )


def _with_labels(constraint: SpreadConstraint, labels: Mapping[str, str]) -> LabelSelector | None:
    selector = constraint.selector
    named = sorted({key for key in constraint.match_label_keys if key in labels})
    if selector is None or not named:
        return selector
    equal = (Requirement(key, Operator.IN, (labels[key],)) for key in named)
    return LabelSelector((*equal, *selector.requirements))
