"""Defects of kube-scheduler 1.36.3: problems are rewritten so that it gives the intended answer.

A term of a pending pod with a `namespaceSelector` applies to the namespaces that the selector selects. kube-scheduler lists
them, adds them to the term's `namespaces`, and should then drop the selector, but drops that of a copy
(interpodaffinity/plugin.go, mergeAffinityTermNamespacesIfNotEmpty takes the term by value). The remaining selector is matched
against an empty set of labels. So a selector that selects a namespace without labels (NotIn, DoesNotExist) selects the
namespace of every pod, and required affinity is satisfied by pods of other namespaces. The product follows the API. A term
with explicit namespaces instead of the selector has the same meaning in both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

from tests.reference.matching import requirements, selects

Json = dict[str, Any]
NOWHERE = "no-such-namespace"
"""Namespace of a term that selects none: a term without namespaces would select the pod's own."""


def with_explicit_namespaces(problem: Mapping[str, Any]) -> Json:
    """Returns the problem with explicit namespaces instead of the pending pod's selectors that trigger the defect."""
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
