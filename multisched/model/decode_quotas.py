"""Decodes ElasticQuotas of scheduler-plugins and of Koordinator, and finds the problems of each object alone.

See decode_objects.py. `model/quotas` combines several objects into a tree.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypedDict, TypeVar

import msgspec

from multisched.model.decode_metadata import AgedMetadata
from multisched.model.decode_selectors import Wire
from multisched.model.objects import Requests
from multisched.model.quota_tree import TreeProblem, check_namespace, read_amounts, shown_amount
from multisched.model.wire import UNREADABLE

KOORDINATOR: Final = "quota.scheduling.koordinator.sh/"
"""Prefix of Koordinator's labels and annotations. Source: koordinator apis/extension/elastic_quota.go."""

A = TypeVar("A", dict[str, Any], list[Any])


class _Spec(Wire):
    min: Any = None
    max: Any = None


class WireElasticQuota(Wire):
    metadata: AgedMetadata
    spec: _Spec = msgspec.field(default_factory=_Spec)


class Bounds(TypedDict):
    """Fields of `cluster_objects.ElasticQuota`."""

    min: Requests
    max: Requests
    problems: tuple[TreeProblem, ...]


class Place(Bounds):
    """Fields of `cluster_objects.KoordinatorQuota`."""

    parent: str
    is_parent: bool
    tree_id: str
    is_lent: bool
    weights: Requests | None
    namespaces: tuple[str, ...]
    total: Requests


class _Problems:
    """Collects the problems of one object."""

    def __init__(self) -> None:
        self.found: list[TreeProblem] = []

    def __call__(self, path: str, text: str, fix: str) -> None:
        self.found.append(TreeProblem(path, text, fix))


def bounds(wire: WireElasticQuota) -> Bounds:
    """Decodes min and max of one quota."""
    problems = _Problems()
    least, most = read_amounts(wire.spec.min, "spec.min", problems), read_amounts(wire.spec.max, "spec.max", problems)
    for resource, amount in least.items():
        bound = most.get(resource)
        if bound is not None and amount > bound:
            what = f"min {shown_amount(resource, amount)} is over max {shown_amount(resource, bound)}"
            problems(f"spec.min.{resource}", what, "lower min or raise max")
    return {"min": least, "max": most, "problems": tuple(problems.found)}


def place_in_tree(wire: WireElasticQuota) -> Place:
    """Decodes min and max, and Koordinator's labels and annotations.

    Source: the checks of a single quota in koordinator's pkg/webhook/elasticquota/quota_topology_check.go.
    """
    problems, found = _Problems(), bounds(wire)
    labels, annotations = wire.metadata.labels or {}, wire.metadata.annotations or {}
    for resource in found["min"]:
        if resource not in found["max"]:
            problems(f"spec.min.{resource}", "min names it and max does not", "write max, too")
    weights = _annotation(annotations, "shared-weight", dict, problems)
    return {
        "min": found["min"],
        "max": found["max"],
        "parent": labels.get(f"{KOORDINATOR}parent", ""),
        "is_parent": _is_true(labels, "is-parent", problems, otherwise=False),
        "tree_id": labels.get(f"{KOORDINATOR}tree-id", ""),
        "is_lent": _is_true(labels, "allow-lent-resource", problems, otherwise=True),
        "weights": _weights(weights, problems) if weights else None,
        "namespaces": _namespaces(annotations, problems),
        "total": read_amounts(
            _annotation(annotations, "total-resource", dict, problems), annotation_path("total-resource"), problems
        ),
        "problems": (*found["problems"], *problems.found),
    }


def _is_true(labels: Mapping[str, str], name: str, problems: _Problems, *, otherwise: bool) -> bool:
    """Returns the label's value; `otherwise` if it is missing. Any value but "true" and "false" is a problem, and counts as False."""
    value = labels.get(f"{KOORDINATOR}{name}")
    if value not in (None, "", "true", "false"):
        problems(label_path(name), f"{value!r} is neither true nor false", 'write "true" or "false"')
    return value == "true" if value else otherwise


def label_path(name: str) -> str:
    return f"metadata.labels[{KOORDINATOR}{name}]"


def annotation_path(name: str) -> str:
    return f"metadata.annotations[{annotation_key(name)}]"


def annotation_key(name: str) -> str:
    return f"{KOORDINATOR}{name}"


def _namespaces(annotations: Mapping[str, str], problems: _Problems) -> tuple[str, ...]:
    names = _annotation(annotations, "namespaces", list, problems) or []
    if not all(isinstance(one, str) and one for one in names):
        problems(annotation_path("namespaces"), "not a list of names", 'write for example ["team-a"]')
        return ()
    for name in names:
        check_namespace(name, annotation_path("namespaces"), problems)
    return tuple(names)


def _weights(amounts: Mapping[str, Any], problems: _Problems) -> Requests:
    return read_amounts(amounts, annotation_path("shared-weight"), problems, are_weights=True)


def _annotation(annotations: Mapping[str, str], name: str, kind: type[A], problems: _Problems) -> A | None:
    """Parses the annotation as JSON; None if it is missing or unreadable."""
    text = annotations.get(f"{KOORDINATOR}{name}")
    if not text:
        return None
    try:
        found = msgspec.json.decode(text)
    except UNREADABLE:
        found = None
    if isinstance(found, kind):
        return found
    example = '["team-a"]' if kind is list else '{"cpu": "40"}'
    problems(annotation_path(name), "it cannot be read", f"write JSON, for example {example}")
    return None
