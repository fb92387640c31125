"""Selectors, node selector terms and tolerations, read from their JSON.

Source: k8s.io/apimachinery labels, k8s.io/component-helpers scheduling/corev1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Json = Mapping[str, Any]
Labels = Mapping[str, str]

NO_SCHEDULE_EFFECTS = ("NoSchedule", "NoExecute")


def requirement_matches(key: str, operator: str, values: Iterable[str], labels: Labels) -> bool:
    value = labels.get(key)
    match operator:
        case "In":
            return value is not None and value in values
        case "NotIn":
            return value is None or value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
    bound = int(next(iter(values)))
    try:
        number = int(value or "")
    except ValueError:
        return False
    return number > bound if operator == "Gt" else number < bound


def requirements(selector: Json) -> list[tuple[str, str, list[str]]]:
    """The requirements of a label selector; none for one that selects everything."""
    found = [(key, "In", [value]) for key, value in (selector.get("matchLabels") or {}).items()]
    found += [(e["key"], e["operator"], e.get("values") or []) for e in selector.get("matchExpressions") or ()]
    return found


def selects(selector: Json | None, labels: Labels) -> bool:
    """A selector that is not there selects nothing, an empty one everything."""
    return selector is not None and all(requirement_matches(*one, labels) for one in requirements(selector))


def node_term_matches(term: Json, labels: Labels, name: str) -> bool:
    """A term without expressions and fields matches nothing."""
    expressions, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    if not expressions and not fields:
        return False
    by_labels = all(requirement_matches(e["key"], e["operator"], e.get("values") or (), labels) for e in expressions)
    place = {"metadata.name": name}  # volumes are asked without a name, and then no field is heeded
    return by_labels and all(
        not name or requirement_matches(f["key"], f["operator"], f["values"], place) for f in fields
    )


def node_selector_matches(selector: Json, labels: Labels, name: str) -> bool:
    return any(node_term_matches(term, labels, name) for term in selector.get("nodeSelectorTerms") or ())


def required_node_affinity_matches(pod: Json, labels: Labels, name: str) -> bool:
    """The pod's nodeSelector and its required node affinity."""
    wanted = pod["spec"].get("nodeSelector") or {}
    if any(labels.get(key) != value for key, value in wanted.items()):
        return False
    required = node_affinity(pod).get("requiredDuringSchedulingIgnoredDuringExecution")
    return required is None or node_selector_matches(required, labels, name)


def node_affinity(pod: Json) -> Json:
    found: Json = (pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    return found


def tolerates(toleration: Json, taint: Json) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint["effect"]:
        return False
    if toleration.get("key") and toleration["key"] != taint["key"]:
        return False
    if toleration.get("operator") == "Exists":
        return True
    return bool((toleration.get("value") or "") == (taint.get("value") or ""))


def is_tolerated(tolerations: Iterable[Json], taint: Json) -> bool:
    return any(tolerates(one, taint) for one in tolerations)


def has_untolerated_taint(pod: Json, taints: Iterable[Json]) -> bool:
    tolerations = pod["spec"].get("tolerations") or ()
    return any(t["effect"] in NO_SCHEDULE_EFFECTS and not is_tolerated(tolerations, t) for t in taints)
