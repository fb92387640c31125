"""Merges matchLabelKeys and mismatchLabelKeys of a new pod into the label selectors next to them.

Schedulers read only the selectors. Source: kube-apiserver 1.36, pkg/registry/core/pod/strategy.go.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from multisched.cluster.base.resources import Document

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def merge_label_keys(pod: Document) -> None:
    """Adds a requirement to each selector for each listed key that is a label of the pod."""
    labels = pod["metadata"].get("labels") or {}
    for place in _places(pod["spec"]):
        selector = place.get("labelSelector")
        if selector is None:
            continue  # a missing selector matches no pod; a requirement would not change that
        for field, operator in (("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn")):
            for key in place.get(field) or ():
                if key in labels:
                    added = {"key": key, "operator": operator, "values": [labels[key]]}
                    selector["matchExpressions"] = [*(selector.get("matchExpressions") or ()), added]


def _places(spec: Mapping[str, Any]) -> Iterator[Document]:
    """Yields affinity terms and spread constraints that may list keys."""
    affinity = spec.get("affinity") or {}
    for side in ("podAffinity", "podAntiAffinity"):
        terms = affinity.get(side) or {}
        yield from terms.get(_REQUIRED) or ()
        yield from (weighted.get("podAffinityTerm") or {} for weighted in terms.get(_PREFERRED) or ())
    yield from spec.get("topologySpreadConstraints") or ()
