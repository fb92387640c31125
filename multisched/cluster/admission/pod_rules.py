"""Validation of a pod's spec and of changes to it, with kube-apiserver's paths and messages.

Functions return causes. `check_quantities` rejects an invalid quantity with 400, since upstream fails to decode it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from multisched.cluster.base import errors, label_rules, quantities
from multisched.cluster.base.resources import Document

Causes = list[dict[str, str]]

NATIVE = frozenset({"cpu", "memory", "ephemeral-storage", "storage", "pods"})
CHANGEABLE = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_SELECTOR_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")
_NODE_OPERATORS = (*_SELECTOR_OPERATORS, "Gt", "Lt")


def check_quantities(kind: str, amounts: Any) -> None:
    """Raises 400 if a resource list contains an invalid quantity."""
    if amounts is None:
        return
    if not isinstance(amounts, dict):
        raise errors.bad_request(f'{kind} in version "v1" cannot be handled as a {kind}: a resource list is an object')
    for amount in amounts.values():
        if isinstance(amount, bool) or not isinstance(amount, (str, int, float)) or quantities.parse(amount) is None:
            raise errors.bad_request(f'{kind} in version "v1" cannot be handled as a {kind}: {quantities.FORMAT_RULE}')


def spec(found: Document, path: str = "spec") -> Causes:
    """Returns the causes for the spec of a pod or template."""
    causes: Causes = []
    containers = found.get("containers")
    if not containers:
        causes.append(errors.required(f"{path}.containers"))
    seen: set[str] = set()
    volumes = {entry.get("name") for entry in found.get("volumes") or ()}
    for place, entry in enumerate(containers or ()):
        causes += _container(entry, f"{path}.containers[{place}]", seen, volumes)
    for place, entry in enumerate(found.get("initContainers") or ()):
        causes += _container(entry, f"{path}.initContainers[{place}]", seen, volumes)
    policy = found.get("restartPolicy")
    if policy not in ("Always", "OnFailure", "Never"):
        causes.append(errors.unsupported_value(f"{path}.restartPolicy", policy, ["Always", "OnFailure", "Never"]))
    grace = found.get("terminationGracePeriodSeconds")
    if isinstance(grace, int) and grace < 0:
        causes.append(
            errors.invalid_value(f"{path}.terminationGracePeriodSeconds", grace, "must be greater than or equal to 0")
        )
    if found.get("nodeSelector"):
        causes += label_rules.labels(found["nodeSelector"], f"{path}.nodeSelector")
    if found.get("tolerations"):
        causes += tolerations(found["tolerations"], f"{path}.tolerations")
    if found.get("affinity"):
        causes += _affinity(found["affinity"], f"{path}.affinity")
    for place, entry in enumerate(found.get("topologySpreadConstraints") or ()):
        causes += _spread(entry, f"{path}.topologySpreadConstraints[{place}]")
    if found.get("schedulingGates"):
        causes += _gates(found["schedulingGates"], f"{path}.schedulingGates")
    if found.get("overhead"):
        check_quantities("Pod", found["overhead"])
    if found.get("resources"):
        causes += _resources(found["resources"], f"{path}.resources")
    return causes


def new_pod(found: Document) -> Causes:
    """Returns the causes for the spec of a new pod."""
    causes = spec(found)
    if found.get("nodeName") and found.get("schedulingGates"):
        causes.append(
            errors.forbidden_value("spec.nodeName", "cannot be set until all schedulingGates have been cleared")
        )
    return causes


def _container(entry: Mapping[str, Any], path: str, seen: set[str], volumes: set[Any]) -> Causes:
    causes: Causes = []
    name = entry.get("name")
    if not name:
        causes.append(errors.required(f"{path}.name"))
    elif problem := label_rules.label(name):
        causes.append(errors.invalid_value(f"{path}.name", name, problem))
    elif name in seen:
        causes.append(errors.duplicate_value(f"{path}.name", name))
    else:
        seen.add(name)
    if not entry.get("image"):
        causes.append(errors.required(f"{path}.image"))
    if entry.get("resources"):
        causes += _resources(entry["resources"], f"{path}.resources")
    if entry.get("ports"):
        causes += _ports(entry["ports"], f"{path}.ports")
    for place, mount in enumerate(entry.get("volumeMounts") or ()):
        if mount.get("name") not in volumes:
            causes.append(
                errors.cause(
                    "FieldValueNotFound", f"{path}.volumeMounts[{place}].name", f'Not found: "{mount.get("name", "")}"'
                )
            )
    policy = entry.get("imagePullPolicy")
    if policy not in ("Always", "IfNotPresent", "Never"):
        causes.append(errors.unsupported_value(f"{path}.imagePullPolicy", policy, ["Always", "IfNotPresent", "Never"]))
    return causes


def _resources(resources: Mapping[str, Any], path: str) -> Causes:
    requests, limits = resources.get("requests"), resources.get("limits")
    check_quantities("Pod", requests)
    check_quantities("Pod", limits)
    causes: Causes = []
    for field, amounts in (("limits", limits), ("requests", requests)):
        for name, amount in (amounts or {}).items():
            causes += _amount(name, amount, f"{path}.{field}")
    for name, amount in (requests or {}).items():
        limit = (limits or {}).get(name)
        wanted, bound = quantities.parse(amount), None if limit is None else quantities.parse(limit)
        if bound is None:
            if _is_extended(name):
                causes.append(errors.required(f"{path}.limits", "Limit must be set for non overcommitable resources"))
        elif wanted is not None and (wanted > bound or (_is_extended(name) and wanted != bound)):
            detail = (
                f"must be equal to {name} limit of {limit}"
                if _is_extended(name)
                else f"must be less than or equal to {name} limit of {limit}"
            )
            causes.append(errors.invalid_value(f"{path}.requests", str(amount), detail))
    return causes


def _is_extended(name: str) -> bool:
    return name not in NATIVE and not name.startswith(("kubernetes.io/", "requests."))


def _amount(name: str, amount: Any, path: str) -> Causes:
    value = quantities.parse(amount)
    assert value is not None
    if value < 0:
        return [
            errors.invalid_value(
                f"{path}[{name}]",
                str(amount),
                "must be greater than or equal to 0",
            )
        ]
    if name in NATIVE:
        return []
    if problem := label_rules.qualified_name(name):
        return [errors.invalid_value(f"{path}[{name}]", name, problem)]
    if "/" not in name and not name.startswith("hugepages-"):
        return [errors.invalid_value(f"{path}[{name}]", name, "must be a standard resource type or fully qualified")]
    if _is_extended(name) and value.denominator != 1:
        return [errors.invalid_value(f"{path}[{name}]", str(amount), "must be an integer")]
    return []


def _ports(ports: Iterable[Mapping[str, Any]], path: str) -> Causes:
    causes: Causes = []
    for place, port in enumerate(ports):
        for field in ("containerPort", "hostPort"):
            number = port.get(field)
            if field == "containerPort" and not number:
                causes.append(errors.required(f"{path}[{place}].containerPort"))
            elif number and not 0 < number < 65_536:
                causes.append(
                    errors.invalid_value(f"{path}[{place}].{field}", number, "must be between 1 and 65535, inclusive")
                )
        if port.get("protocol") not in ("TCP", "UDP", "SCTP"):
            causes.append(
                errors.unsupported_value(f"{path}[{place}].protocol", port.get("protocol"), ["SCTP", "TCP", "UDP"])
            )
    return causes


def tolerations(found: Iterable[Mapping[str, Any]], path: str) -> Causes:
    """Returns the causes for tolerations."""
    causes: Causes = []
    for place, entry in enumerate(found):
        here, key, operator = f"{path}[{place}]", entry.get("key", ""), entry.get("operator", "")
        if key and (problem := label_rules.qualified_name(key)):
            causes.append(errors.invalid_value(f"{here}.key", key, problem))
        if not key and operator != "Exists":
            causes.append(
                errors.invalid_value(
                    f"{here}.operator",
                    operator,
                    'operator must be Exists when `key` is empty, which means "match all values and all keys"',
                )
            )
        if entry.get("tolerationSeconds") is not None and entry.get("effect") != "NoExecute":
            causes.append(
                errors.invalid_value(
                    f"{here}.effect",
                    entry.get("effect", ""),
                    "effect must be 'NoExecute' when `tolerationSeconds` is set",
                )
            )
        if operator == "Exists" and entry.get("value"):
            causes.append(
                errors.invalid_value(
                    f"{here}.operator", entry["value"], "value must be empty when `operator` is 'Exists'"
                )
            )
        elif operator not in ("", "Equal", "Exists", "Gt", "Lt"):
            causes.append(errors.unsupported_value(f"{here}.operator", operator, ["Equal", "Exists"]))
        if entry.get("effect") and entry["effect"] not in _EFFECTS:
            causes.append(errors.unsupported_value(f"{here}.effect", entry["effect"], _EFFECTS))
    return causes


def taints(found: Iterable[Mapping[str, Any]], path: str = "spec.taints") -> Causes:
    """Returns the causes for a node's taints."""
    causes: Causes = []
    seen = set()
    for place, entry in enumerate(found):
        key, effect = entry.get("key") or "", entry.get("effect") or ""
        if problem := label_rules.qualified_name(key):
            causes.append(errors.invalid_value(f"{path}[{place}].key", key, problem))
        if problem := label_rules.label_value(entry.get("value") or ""):
            causes.append(errors.invalid_value(f"{path}[{place}].value", entry.get("value"), problem))
        if effect not in _EFFECTS:
            causes.append(errors.unsupported_value(f"{path}[{place}].effect", effect, _EFFECTS))
        if (key, effect) in seen:
            causes.append(errors.duplicate_value(f"{path}[{place}]", dict(entry)))
        seen.add((key, effect))
    return causes


def _affinity(found: Mapping[str, Any], path: str) -> Causes:
    causes: Causes = []
    node = found.get("nodeAffinity") or {}
    required = node.get("requiredDuringSchedulingIgnoredDuringExecution")
    here = f"{path}.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution"
    if required is not None:
        if not required.get("nodeSelectorTerms"):
            causes.append(errors.required(f"{here}.nodeSelectorTerms", "must have at least one node selector term"))
        for place, term in enumerate(required.get("nodeSelectorTerms") or ()):
            causes += _node_term(term, f"{here}.nodeSelectorTerms[{place}]")
    here = f"{path}.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution"
    for place, entry in enumerate(node.get("preferredDuringSchedulingIgnoredDuringExecution") or ()):
        causes += _weight(entry, f"{here}[{place}]")
        causes += _node_term(entry.get("preference") or {}, f"{here}[{place}].preference")
    for kind in ("podAffinity", "podAntiAffinity"):
        causes += _pod_affinity(found.get(kind) or {}, f"{path}.{kind}")
    return causes


def _weight(entry: Mapping[str, Any], path: str) -> Causes:
    weight = entry.get("weight") or 0
    return [] if 0 < weight <= 100 else [errors.invalid_value(f"{path}.weight", weight, "must be in the range 1-100")]


def _node_term(term: Mapping[str, Any], path: str) -> Causes:
    causes: Causes = []
    for field in ("matchExpressions", "matchFields"):
        for place, entry in enumerate(term.get(field) or ()):
            causes += _expression(entry, f"{path}.{field}[{place}]", _NODE_OPERATORS)
    return causes


def _expression(entry: Mapping[str, Any], path: str, operators: tuple[str, ...]) -> Causes:
    operator, values = entry.get("operator"), entry.get("values") or ()
    causes: Causes = []
    if operator in ("In", "NotIn") and not values:
        causes.append(errors.required(f"{path}.values", "must be specified when `operator` is 'In' or 'NotIn'"))
    elif operator in ("Exists", "DoesNotExist") and values:
        causes.append(
            errors.forbidden_value(
                f"{path}.values", "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
            )
        )
    elif operator in ("Gt", "Lt") and len(values) != 1:
        causes.append(
            errors.required(f"{path}.values", "must be specified single value when `operator` is 'Lt' or 'Gt'")
        )
    elif operator not in operators:
        causes.append(errors.invalid_value(f"{path}.operator", operator, "not a valid selector operator"))
    if problem := label_rules.qualified_name(entry.get("key") or ""):
        causes.append(errors.invalid_value(f"{path}.key", entry.get("key") or "", problem))
    return causes


def label_selector(selector: Any, path: str) -> Causes:
    """Returns the causes for a LabelSelector."""
    if selector is None:
        return []
    causes: Causes = label_rules.labels(selector.get("matchLabels"), f"{path}.matchLabels")
    for place, entry in enumerate(selector.get("matchExpressions") or ()):
        causes += _expression(entry, f"{path}.matchExpressions[{place}]", _SELECTOR_OPERATORS)
    return causes


def _pod_affinity(found: Mapping[str, Any], path: str) -> Causes:
    causes: Causes = []
    terms = [
        (term, f"{path}.requiredDuringSchedulingIgnoredDuringExecution[{place}]")
        for place, term in enumerate(found.get("requiredDuringSchedulingIgnoredDuringExecution") or ())
    ]
    here = f"{path}.preferredDuringSchedulingIgnoredDuringExecution"
    for place, entry in enumerate(found.get("preferredDuringSchedulingIgnoredDuringExecution") or ()):
        causes += _weight(entry, f"{here}[{place}]")
        terms.append((entry.get("podAffinityTerm") or {}, f"{here}[{place}].podAffinityTerm"))
    for term, place_path in terms:
        causes += label_selector(term.get("labelSelector"), f"{place_path}.labelSelector")
        if not term.get("topologyKey"):
            causes.append(errors.required(f"{place_path}.topologyKey", "can not be empty"))
        elif problem := label_rules.qualified_name(term["topologyKey"]):
            causes.append(errors.invalid_value(f"{place_path}.topologyKey", term["topologyKey"], problem))
    return causes


def _spread(entry: Mapping[str, Any], path: str) -> Causes:
    causes: Causes = []
    skew = entry.get("maxSkew") or 0
    if skew <= 0:
        causes.append(errors.invalid_value(f"{path}.maxSkew", skew, "must be greater than zero"))
    if not entry.get("topologyKey"):
        causes.append(errors.required(f"{path}.topologyKey", "can not be empty"))
    wanted = entry.get("whenUnsatisfiable")
    if wanted not in ("DoNotSchedule", "ScheduleAnyway"):
        causes.append(
            errors.unsupported_value(f"{path}.whenUnsatisfiable", wanted or "", ["DoNotSchedule", "ScheduleAnyway"])
        )
    return causes + label_selector(entry.get("labelSelector"), f"{path}.labelSelector")


def _gates(gates: Iterable[Mapping[str, Any]], path: str) -> Causes:
    causes: Causes = []
    seen = set()
    for place, gate in enumerate(gates):
        name = gate.get("name") or ""
        if problem := label_rules.qualified_name(name):
            causes.append(errors.invalid_value(f"{path}[{place}].name", name, problem))
        if name in seen:
            causes.append(errors.duplicate_value(f"{path}[{place}]", name))
        seen.add(name)
    return causes


# -- changes -----------------------------------------------------------------------------------------------------


def changed_pod(new: Document, old: Document) -> Causes:
    """Returns the causes for forbidden changes of a pod's spec."""
    wanted, before = dict(new["spec"]), dict(old["spec"])
    if wanted == before:
        return []
    causes: Causes = []
    is_gated = bool(before.get("schedulingGates"))
    gates_before = {gate["name"] for gate in before.pop("schedulingGates", None) or ()}
    gates_wanted = [gate["name"] for gate in wanted.pop("schedulingGates", None) or ()]
    causes += [
        errors.forbidden_value(
            f"spec.schedulingGates[{place}].name", f"only deletion is allowed, but found new scheduling gate '{name}'"
        )
        for place, name in enumerate(gates_wanted)
        if name not in gates_before
    ]
    causes += _changed_tolerations(wanted, before)
    for field in ("containers", "initContainers"):
        wanted[field], before[field] = _without_images(wanted.get(field)), _without_images(before.get(field))
    deadline = wanted.pop("activeDeadlineSeconds", None)
    if before.pop("activeDeadlineSeconds", None) is not None and deadline is None:
        causes.append(
            errors.invalid_value(
                "spec.activeDeadlineSeconds", None, "must not update from a positive integer to nil value"
            )
        )
    grace = before.get("terminationGracePeriodSeconds")
    if isinstance(grace, int) and grace < 0 and wanted.get("terminationGracePeriodSeconds") == 1:
        before["terminationGracePeriodSeconds"] = 1
    if is_gated:  # node selector and affinity of a gated pod may still be narrowed
        if not _narrows(wanted.get("nodeSelector") or {}, before.get("nodeSelector") or {}):
            causes.append(
                errors.invalid_value(
                    "spec.nodeSelector",
                    wanted.get("nodeSelector"),
                    "only additions are allowed (no mutations or deletions)",
                )
            )
        for field in ("nodeSelector", "affinity"):
            wanted.pop(field, None)
            before.pop(field, None)
    if wanted != before:
        causes.append(errors.forbidden_value("spec", CHANGEABLE))
    return causes


def _narrows(wanted: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    return all(wanted.get(key) == value for key, value in before.items())


def _changed_tolerations(wanted: Document, before: Document) -> Causes:
    new, old = wanted.pop("tolerations", None) or [], before.pop("tolerations", None) or []

    def bare(entry: Mapping[str, Any]) -> Document:
        return {key: value for key, value in entry.items() if key != "tolerationSeconds"}

    kept = [bare(entry) for entry in new]
    if all(bare(entry) in kept for entry in old):
        return []
    detail = "existing toleration can not be modified except its tolerationSeconds"
    return [errors.forbidden_value("spec.tolerations", detail)]


def _without_images(containers: Any) -> list[Document]:
    return [{key: value for key, value in entry.items() if key != "image"} for entry in containers or ()]
