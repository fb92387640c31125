"""Reads policies: the spec of a ResourcePolicy, and the plugin's args for clusters without its definition.

    policies:
      - name: web
        namespaces: [shop]
        selector: {app: web}
        units:
          - {resource: ecs, max: 10}
          - {resource: eci}

The fields of both forms are those of ResourcePolicy; only `ignorePreviousPod` needs an object, which has a creation time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from domains.job.units.policy import TIMEOUT_S, UNITS_MAX, WAIT_LABEL, Next, Policy, Unit
from multisched.framework.plugin_args import ArgsProblem, Fields
from multisched.model.cluster_objects import ResourcePolicy
from multisched.model.decode_selectors import Refusal, WireLabelSelector, compile_label_selector
from multisched.model.objects import CPU
from multisched.model.quantity import QuantityError, parse_milli, parse_value
from multisched.model.selectors import LabelSelector, is_dns_label, is_label_value, is_qualified_name

DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"
INT32_MAX: Final = 2**31 - 1
POLICIES_MAX: Final = 256
KEYS_MAX: Final = 8
TIMEOUT_MAX_S: Final = 7 * 86_400.0
PODS_MAX: Final = 1_000_000

_SHARED: Final = (
    "selector",
    "matchExpressions",
    "strategy",
    "units",
    "preemptPolicy",
    "ignoreTerminatingPod",
    "matchLabelKeys",
    "whenTryNextUnits",
)
_OF_OBJECT: Final = (*_SHARED, "consumerRef", "ignorePreviousPod")
_OF_ARGS: Final = ("name", "namespaces", *_SHARED)
_OF_UNIT: Final = (
    "resource",
    "nodeSelector",
    "max",
    "maxResources",
    "podLabels",
    "podAnnotations",
    "spotInstance",
    "scaleInWeight",
)
_OTHER_SPELLINGS: Final = {"LackResourceAndNoterminating": Next.LACK_AND_NONE_TERMINATING}
"""Spellings in ACK's Go types that differ from its documentation -> their value."""
_NEXT: Final = {one.value: one for one in Next} | _OTHER_SPELLINGS


def object_policy(found: ResourcePolicy) -> Policy:
    """Returns the policy of an object. If the object is invalid, `problem` has the reason, with which its pods are refused."""
    name = f"ResourcePolicy {found.key}"
    if found.malformed:
        problem = f"{name}: {found.malformed}"
        return Policy(name=name, key=found.key, namespaces=frozenset({found.namespace}), problem=problem)
    problems: list[ArgsProblem] = []
    fields = Fields(found.spec, "spec", _OF_OBJECT, problems)
    policy = _policy(fields, name, found.key, frozenset({found.namespace}))
    policy = replace(
        policy,
        ignores_previous=fields.flag("ignorePreviousPod", default=False),
        created_s=found.created_s,
    )
    return replace(policy, problem=f"{name}: {problems[0]}") if problems else policy


def configured_policies(args: Mapping[str, Any], path: str = "args") -> tuple[Policy, ...]:
    """Reads the plugin's args. Raises PluginArgsError with all problems."""
    found: dict[str, Policy] = {}
    with Fields(args, path, ("policies",)) as fields:
        for entry in fields.entries("policies", _OF_ARGS, POLICIES_MAX):
            name, namespaces = entry.text("name"), entry.names("namespaces")
            if not is_dns_label(name):
                entry.refuse("name", f"{name[:64]!r} is no name; write lower-case letters, digits and -")
            if name in found:
                entry.refuse("name", f"{name} is the name of two policies; rename one")
            for namespace in namespaces:
                if not is_dns_label(namespace):
                    entry.refuse("namespaces", f"{namespace[:64]!r} cannot name a namespace; correct it")
            found[name] = _policy(entry, f"policy {name}", name, frozenset(namespaces))
    return tuple(found.values())


def _policy(fields: Fields, name: str, key: str, namespaces: frozenset[str]) -> Policy:
    fields.choice("strategy", "prefer", ("prefer",))
    following = fields.below("whenTryNextUnits", ("policy", "timeout"))
    timeout_s = following.duration_s("timeout", TIMEOUT_S, 1.0)
    if timeout_s > TIMEOUT_MAX_S:
        following.refuse("timeout", f"is too long; write at most {TIMEOUT_MAX_S:g}s")
    preempt = fields.choice("preemptPolicy", "AfterAllUnits", ("AfterAllUnits", "BeforeNextUnit"))
    keys = fields.names("matchLabelKeys", KEYS_MAX)
    for one in keys:
        if not is_qualified_name(one):
            fields.refuse("matchLabelKeys", f"{one[:64]!r} is not a label key; correct it")
    units = [_unit(unit, index) for index, unit in enumerate(fields.entries("units", _OF_UNIT, UNITS_MAX))]
    if not units:
        fields.refuse("units", "is empty; write at least one unit")
    return Policy(
        name=name,
        key=key,
        namespaces=namespaces,
        selector=_selector(fields),
        units=tuple(units),
        next=_NEXT[following.choice("policy", Next.LACK_OR_MAX.value, tuple(_NEXT))],
        timeout_s=timeout_s,
        preempts_before_next=preempt == "BeforeNextUnit",
        counts_terminating=not fields.flag("ignoreTerminatingPod", default=True),
        group_keys=keys,
    )


def _selector(fields: Fields) -> LabelSelector:
    wire = {"matchLabels": fields.value("selector"), "matchExpressions": fields.value("matchExpressions")}
    try:
        found = compile_label_selector(msgspec.convert(wire, WireLabelSelector), "selector")
    except (msgspec.ValidationError, Refusal) as error:
        fields.refuse("selector", f"{str(error).removeprefix('selector: ')}; write labels, for example {{app: web}}")
        return LabelSelector()
    return found or LabelSelector()


def _unit(fields: Fields, index: int) -> Unit:
    resource = fields.text("resource")
    if resource == "elastic":
        fields.refuse("resource", "elastic is deprecated and not supported; write ecs with nodeSelector of the pool")
    elif resource not in ("", "ecs", "eci", "acs"):
        fields.refuse("resource", f"{resource[:64]!r} is not known; write ecs, eci or acs")
    if fields.flag("spotInstance", default=False):
        fields.refuse(
            "spotInstance", "is not supported; write the provider's annotation for spot instances into podAnnotations"
        )
    if fields.has("max") and fields.value("max") == 0:
        fields.refuse("max", "0 would keep all pods out; write 1 or more, or remove the unit")
    labels, annotations = fields.pairs("podLabels"), fields.pairs("podAnnotations")
    for key, value in labels.items():
        if not (is_qualified_name(key) and is_label_value(value)):
            fields.refuse("podLabels", f"{key[:64]}={value[:64]} is not a label; correct it")
    cost = annotations.get(DELETION_COST)
    if cost is not None and not is_int32(cost):
        fields.refuse("podAnnotations", f"{DELETION_COST} is {cost[:64]!r}; write a whole number of 32 bits")
    weight = fields.integer("scaleInWeight", UNITS_MAX - index, -INT32_MAX - 1, INT32_MAX)
    return Unit(
        index,
        resource,
        fields.pairs("nodeSelector"),
        fields.integer("max", 1, 1, PODS_MAX) if fields.has("max") and not fields.is_refused("max") else None,
        _amounts(fields),
        {key: value for key, value in labels.items() if key != WAIT_LABEL},
        annotations,
        weight,
        labels.get(WAIT_LABEL) == "true",
    )


def is_int32(text: str) -> bool:
    """Reports whether Kubernetes reads the text as a deletion cost. Source: pkg/apis/core/helper, GetDeletionCostFromPodAnnotations."""
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()) or (len(digits) > 1 and digits[0] == "0") or text == "-0":
        return False
    return -INT32_MAX - 1 <= int(text) <= INT32_MAX


def _amounts(fields: Fields) -> Mapping[str, int]:
    document = fields.value("maxResources")
    if document is None:
        return {}
    if not isinstance(document, Mapping):
        fields.refuse("maxResources", "is no mapping; write for example {cpu: 100, memory: 400Gi}")
        return {}
    found: dict[str, int] = {}
    for resource, text in document.items():
        try:
            found[resource] = parse_milli(text) if resource == CPU else parse_value(text)
        except QuantityError as error:
            fields.refuse("maxResources", f"{resource}: {error}")
    if any(amount <= 0 for amount in found.values()):
        fields.refuse("maxResources", "0 would keep all pods out; write more, or remove the unit")
    return found
