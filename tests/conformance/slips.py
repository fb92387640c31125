"""Where kube-scheduler 1.36.3 does not do what it means to do: problems are put so that its answer is the one it means.

A term of a pending pod with a `namespaceSelector` is about the namespaces that the selector selects. kube-scheduler lists them,
adds them to the term's names, and then means to drop the selector, but drops that of a copy (interpodaffinity/plugin.go,
mergeAffinityTermNamespacesIfNotEmpty takes the term by value). What is left of the selector is asked about no labels at all, so
one that selects a namespace without labels (NotIn, DoesNotExist) selects every pod's namespace: required affinity is then met
by pods that it is not about. The product does what the API says. Said by names, the term means the same to both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

from tests.reference.matching import requirements, selects

Json = dict[str, Any]
NOWHERE = "no-such-namespace"
"""Stands in a term that is about no namespace: one without names would be about the pod's own."""


def with_explicit_namespaces(problem: Mapping[str, Any]) -> Json:
    """The problem, with the pending pod's namespace selectors said by names where kube-scheduler slips over them."""
    found = dict(problem)
    if any(_selects_unlabelled(term) for term in _terms(found["pod"])):
        found["pod"] = deepcopy(found["pod"])
        for term in _terms(found["pod"]):
            if _selects_unlabelled(term):
                _replace_by_names(term, found.get("namespaces") or ())
    return found


def _terms(pod: Json) -> Iterator[Json]:
    affinity = pod["spec"].get("affinity") or {}
    for side in ("podAffinity", "podAntiAffinity"):
        of_side = affinity.get(side) or {}
        yield from of_side.get("requiredDuringSchedulingIgnoredDuringExecution") or ()
        for preferred in of_side.get("preferredDuringSchedulingIgnoredDuringExecution") or ():
            yield preferred["podAffinityTerm"]


def _selects_unlabelled(term: Json) -> bool:
    """The selector selects a namespace without labels, and not simply all."""
    selector = term.get("namespaceSelector")
    return selector is not None and bool(requirements(selector)) and selects(selector, {})


def _replace_by_names(term: Json, namespaces: Any) -> None:
    selector, known = term.pop("namespaceSelector"), [n["metadata"] for n in namespaces]
    selected = [one["name"] for one in known if selects(selector, one.get("labels") or {})]
    term["namespaces"] = sorted({*(term.get("namespaces") or ()), *selected}) or [NOWHERE]
