"""Wire shapes of pod affinity and topology spread constraints, and their compiled forms.

Limits the terms and constraints of a pending pod, and the keys and values of each selector: authors of pods are not trusted.
`matchLabelKeys` and `mismatchLabelKeys` of affinity terms are not read: the API server has merged them into the selectors,
and kube-scheduler reads only those.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import msgspec

from multisched.model.decode_selectors import (
    AFFINITY_TERMS_MAX,
    SELECTOR_VALUES_MAX,
    Refusal,
    Wire,
    WireLabelSelector,
    compile_label_selector,
)
from multisched.model.placement import NO_NAMES, PodAffinity, PodAffinityTerm, SpreadConstraint, WeightedPodTerm

SPREAD_CONSTRAINTS_MAX = 16
WEIGHT_MAX = 100
INT32_MAX = 2**31 - 1

_HONOR = "Honor"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


class WirePodTerm(Wire):
    label_selector: WireLabelSelector | None = None
    topology_key: str = ""
    namespaces: list[str] | None = None
    namespace_selector: WireLabelSelector | None = None


class WireWeightedTerm(Wire):
    weight: int = 0
    pod_affinity_term: WirePodTerm = msgspec.field(default_factory=WirePodTerm)


class WirePodAffinity(Wire):
    required: list[WirePodTerm] | None = msgspec.field(default=None, name=_REQUIRED)
    preferred: list[WireWeightedTerm] | None = msgspec.field(default=None, name=_PREFERRED)


class WireSpread(Wire):
    max_skew: int = 1
    topology_key: str = ""
    when_unsatisfiable: str = "DoNotSchedule"
    label_selector: WireLabelSelector | None = None
    min_domains: int | None = None
    node_affinity_policy: str | None = None
    node_taints_policy: str | None = None
    match_label_keys: list[str] | None = None


def compile_pod_affinity(affinity: WirePodAffinity | None, anti: WirePodAffinity | None) -> PodAffinity | None:
    """Compiles affinity and anti-affinity; None if neither has a term. Raises Refusal if one is unusable."""
    near, far = affinity or WirePodAffinity(), anti or WirePodAffinity()
    lists = (near.required, near.preferred, far.required, far.preferred)
    count = sum(len(terms or ()) for terms in lists)
    if count > AFFINITY_TERMS_MAX:
        raise Refusal(f"spec.affinity: {count} terms between pods, more than the {AFFINITY_TERMS_MAX} that are read")
    if not count:
        return None
    here, there = "spec.affinity.podAffinity", "spec.affinity.podAntiAffinity"
    return PodAffinity(
        required=_terms(near.required or (), f"{here}.{_REQUIRED}"),
        preferred=_weighted(near.preferred or (), f"{here}.{_PREFERRED}"),
        anti_required=_terms(far.required or (), f"{there}.{_REQUIRED}"),
        anti_preferred=_weighted(far.preferred or (), f"{there}.{_PREFERRED}"),
    )


def held_pod_affinity(affinity: WirePodAffinity | None, anti: WirePodAffinity | None) -> PodAffinity | None:
    """Compiles the terms of a placed pod, which later pods must respect. Any number is read; invalid ones are dropped, as upstream."""
    near, far = affinity or WirePodAffinity(), anti or WirePodAffinity()
    held = PodAffinity(
        required=_held_terms(near.required or ()),
        preferred=_held_weighted(near.preferred or ()),
        anti_required=_held_terms(far.required or ()),
        anti_preferred=_held_weighted(far.preferred or ()),
    )
    return held if held != PodAffinity() else None


def _held_terms(wire: Sequence[WirePodTerm]) -> tuple[PodAffinityTerm, ...]:
    found = []
    for one in wire:
        with suppress(Refusal):
            found.append(_term(one, "", is_bounded=False))
    return tuple(found)


def _held_weighted(wire: Sequence[WireWeightedTerm]) -> tuple[WeightedPodTerm, ...]:
    found = []
    for one in wire:
        with suppress(Refusal):
            term = _term(one.pod_affinity_term, "", is_bounded=False)
            found.append(WeightedPodTerm(min(max(one.weight, 0), WEIGHT_MAX), term))
    return tuple(found)


def compile_spread(wire: Sequence[WireSpread] | None) -> tuple[SpreadConstraint, ...]:
    """Compiles the constraints, in order. Raises Refusal if one is unusable."""
    if not wire:
        return ()
    path = "spec.topologySpreadConstraints"
    if len(wire) > SPREAD_CONSTRAINTS_MAX:
        raise Refusal(f"{path}: {len(wire)} constraints, more than the {SPREAD_CONSTRAINTS_MAX} that are read")
    return tuple(_constraint(one, f"{path}[{index}]") for index, one in enumerate(wire))


def _terms(wire: Sequence[WirePodTerm], path: str) -> tuple[PodAffinityTerm, ...]:
    return tuple(_term(term, f"{path}[{index}]") for index, term in enumerate(wire))


def _weighted(wire: Sequence[WireWeightedTerm], path: str) -> tuple[WeightedPodTerm, ...]:
    found = []
    for index, one in enumerate(wire):
        if not 0 <= one.weight <= WEIGHT_MAX:
            raise Refusal(f"{path}[{index}].weight: {one.weight} is not within 1..{WEIGHT_MAX}")
        found.append(WeightedPodTerm(one.weight, _term(one.pod_affinity_term, f"{path}[{index}].podAffinityTerm")))
    return tuple(found)


def _term(wire: WirePodTerm, path: str, *, is_bounded: bool = True) -> PodAffinityTerm:
    names = wire.namespaces or []
    if is_bounded and len(names) > SELECTOR_VALUES_MAX:
        raise Refusal(f"{path}.namespaces: {len(names)} names, more than the {SELECTOR_VALUES_MAX} that are read")
    return PodAffinityTerm(
        wire.topology_key,
        compile_label_selector(wire.label_selector, f"{path}.labelSelector", is_bounded=is_bounded),
        frozenset(names) if names else NO_NAMES,
        compile_label_selector(wire.namespace_selector, f"{path}.namespaceSelector", is_bounded=is_bounded),
    )


def _constraint(wire: WireSpread, path: str) -> SpreadConstraint:
    if not 1 <= wire.max_skew <= INT32_MAX:
        raise Refusal(f"{path}.maxSkew: {wire.max_skew} is not above zero")
    if wire.when_unsatisfiable not in ("DoNotSchedule", "ScheduleAnyway"):
        raise Refusal(
            f'{path}.whenUnsatisfiable: write DoNotSchedule or ScheduleAnyway, not "{wire.when_unsatisfiable}"'
        )
    keys = wire.match_label_keys or []
    if len(keys) > SELECTOR_VALUES_MAX:
        raise Refusal(f"{path}.matchLabelKeys: {len(keys)} keys, more than the {SELECTOR_VALUES_MAX} that are read")
    domains = 1 if wire.min_domains is None else wire.min_domains
    if not 1 <= domains <= INT32_MAX:
        raise Refusal(f"{path}.minDomains: {domains} is not above zero")
    return SpreadConstraint(
        max_skew=wire.max_skew,
        topology_key=wire.topology_key,
        is_hard=wire.when_unsatisfiable == "DoNotSchedule",
        selector=compile_label_selector(wire.label_selector, f"{path}.labelSelector"),
        min_domains=domains,
        honors_affinity=wire.node_affinity_policy in (None, _HONOR),
        honors_taints=wire.node_taints_policy == _HONOR,
        match_label_keys=tuple(keys),
    )
