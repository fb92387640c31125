"""matchLabelKeys and mismatchLabelKeys of a new pod, put into the label selectors they stand beside.

Source: kube-apiserver 1.36, pkg/registry/core/pod/strategy.go. Schedulers go by the selectors alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from multisched.cluster.base.resources import Document

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def merge_label_keys(pod: Document) -> None:
    """Adds to each selector a requirement for each named key that the pod has as a label."""
    labels = pod["metadata"].get("labels") or {}
    for place in _places(pod["spec"]):
        selector = place.get("labelSelector")
        if selector is None:
            continue  # it matches nothing, and does so with more requirements too
        for field, operator in (("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn")):
            for key in place.get(field) or ():
                if key in labels:
                    added = {"key": key, "operator": operator, "values": [labels[key]]}
                    selector["matchExpressions"] = [*(selector.get("matchExpressions") or ()), added]


def _places(spec: Mapping[str, Any]) -> Iterator[Document]:
    """Terms and constraints that may name keys."""
    affinity = spec.get("affinity") or {}
    for side in ("podAffinity", "podAntiAffinity"):
        terms = affinity.get(side) or {}
        yield from terms.get(_REQUIRED) or ()
        yield from (weighted.get("podAffinityTerm") or {} for weighted in terms.get(_PREFERRED) or ())
    yield from spec.get("topologySpreadConstraints") or ()
