"""The labels and annotations `multisched.io/...` of pods and nodes, and remarks about those without effect.

A misspelt key, a key in the wrong place and an unknown value change nothing, so their
author gets a remark. Pure. docs/reference.md has the same table; a test compares both with the sources.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Iterator, Mapping
from enum import Enum
from typing import Final

import msgspec

from multisched.model.objects import Node, Pod

PREFIX: Final = "multisched.io/"
REMARKS_MAX: Final = 5
"""Most remarks about one object."""
SHOWN_MAX: Final = 63


class Holder(Enum):
    """The kind of object that has the key."""

    POD = "pod"
    NODE = "node"


class Form(Enum):
    """How the key is written."""

    LABEL = "label"
    ANNOTATION = "annotation"


class OwnKey(msgspec.Struct, frozen=True):
    """One known key."""

    key: str
    holder: Holder
    form: Form
    values: tuple[str, ...] = ()
    """The only valid values; empty: the reader checks them itself and refuses invalid ones."""
    otherwise: str = ""
    """The meaning of any other value."""
    plugin: str = ""
    """The key has no effect in a domain without this plugin; empty: not checked."""
    is_prefix: bool = False
    """The key is only the prefix of the full key."""


_KEPT: Final = "repair keeps the pod"
_YES_NO: Final = ("true", "false")
OWN_KEYS: Final = (
    OwnKey("multisched.io/domain", Holder.NODE, Form.LABEL),
    OwnKey(
        "multisched.io/gpu-indices",
        Holder.NODE,
        Form.LABEL,
        ("honoured",),
        "the kubelet is assumed to choose the devices",
    ),
    OwnKey("multisched.io/capacity-", Holder.NODE, Form.ANNOTATION, is_prefix=True),
    OwnKey("multisched.io/gpu-milli", Holder.POD, Form.ANNOTATION, plugin="GpuShare"),
    OwnKey("multisched.io/gpu-count", Holder.POD, Form.ANNOTATION, plugin="GpuShare"),
    OwnKey("multisched.io/gpu-devices", Holder.POD, Form.ANNOTATION),
    OwnKey("multisched.io/gpu-allocated-milli", Holder.POD, Form.ANNOTATION),
    OwnKey("multisched.io/gpu-allocated-mib", Holder.POD, Form.ANNOTATION),
    OwnKey("multisched.io/unit", Holder.POD, Form.ANNOTATION),
    OwnKey("multisched.io/tide-notice", Holder.POD, Form.ANNOTATION),
    OwnKey("multisched.io/tide-hook", Holder.POD, Form.ANNOTATION),
    OwnKey("multisched.io/loan-notice", Holder.POD, Form.ANNOTATION),
    OwnKey("multisched.io/idle-request", Holder.POD, Form.ANNOTATION, plugin="Loans"),
    OwnKey("multisched.io/checkpoint", Holder.POD, Form.ANNOTATION),
    OwnKey("multisched.io/retries-left", Holder.POD, Form.ANNOTATION),
    OwnKey("multisched.io/deadline", Holder.POD, Form.ANNOTATION, plugin="DeadlineSort"),
    OwnKey("multisched.io/service", Holder.POD, Form.LABEL),
    OwnKey("multisched.io/service-class", Holder.POD, Form.LABEL),
    OwnKey("multisched.io/repair", Holder.POD, Form.ANNOTATION, _YES_NO, _KEPT),
    OwnKey("multisched.io/gang-topology", Holder.POD, Form.ANNOTATION),
    OwnKey("multisched.io/run-seconds", Holder.POD, Form.ANNOTATION),
    OwnKey("multisched.io/chaos", Holder.POD, Form.LABEL),
    OwnKey("multisched.io/fake-provider", Holder.NODE, Form.ANNOTATION),
    OwnKey("multisched.io/gpu-kind", Holder.NODE, Form.LABEL),
)
OTHERS_KEYS: Final = tuple(
    OwnKey(key, Holder.POD, Form.ANNOTATION, _YES_NO, _KEPT)
    for key in ("cluster-autoscaler.kubernetes.io/safe-to-evict", "descheduler.alpha.kubernetes.io/evict")
)
"""Annotations of other projects that repair reads. They have other uses, too, so only `explain` remarks on them."""


def remarks_of_pod(pod: Pod, domain: str, plugins: Collection[str]) -> list[str]:
    """Returns remarks on the pod's keys without effect, at most REMARKS_MAX. `plugins`: names of its domain's plugins."""
    found = _remarks(Holder.POD, pod.labels, pod.annotations)
    for known in OWN_KEYS if pod.annotations else ():
        if known.plugin and known.plugin not in plugins and known.key in pod.annotations:
            found.append(
                f"annotation {known.key} has no effect: domain {domain} has no plugin {known.plugin}; use the schedulerName"
                " of a domain that has it"
            )
    return found[:REMARKS_MAX]


def remarks_of_node(node: Node) -> list[str]:
    """Returns remarks on the node's keys without effect, at most REMARKS_MAX."""
    return _remarks(Holder.NODE, node.labels, node.annotations)[:REMARKS_MAX]


def unclear_consents(pod: Pod) -> list[str]:
    """Returns remarks on annotations of other projects with values that repair does not understand."""
    found = ((known, pod.annotations.get(known.key)) for known in OTHERS_KEYS)
    return [_unclear(known, value) for known, value in found if value is not None and value not in known.values]


def _remarks(holder: Holder, labels: Mapping[str, str], annotations: Mapping[str, str]) -> list[str]:
    written = [
        (form, key, value)
        for form, pairs in ((Form.LABEL, labels), (Form.ANNOTATION, annotations))
        for key, value in pairs.items()
        if key.startswith(PREFIX)
    ]
    written.sort(key=lambda one: one[1])
    return [text for one in written for text in _of_one(holder, *one)]


def _of_one(holder: Holder, form: Form, key: str, value: str) -> Iterator[str]:
    meant = [known for known in OWN_KEYS if known.key == key or (known.is_prefix and key.startswith(known.key))]
    here = [known for known in meant if known.holder is holder]
    what = f"{form.value} {key}"
    if any(known.form is form for known in here):
        yield from (_unclear(known, value) for known in here if known.values and value not in known.values)
    elif here:
        yield f"{what} has no effect: it is read as {_with_article(here[0].form)}; write it there"
    elif meant:
        yield f"{what} has no effect on a {holder.value}: it is read on {meant[0].holder.value}s"
    else:
        names = {known.key.removeprefix(PREFIX): known for known in OWN_KEYS if known.holder is holder}
        near = difflib.get_close_matches(key.removeprefix(PREFIX)[:SHOWN_MAX], names, n=1)
        hint = f"did you mean the {names[near[0]].form.value} {PREFIX}{near[0]}?" if near else "remove it"
        yield f"{what} has no effect: multisched reads no such key of {holder.value}s; {hint}"


def _unclear(known: OwnKey, value: str) -> str:
    shown = json.dumps(value[:SHOWN_MAX])
    first, *others = (json.dumps(one) for one in known.values)
    wrong = f"which is neither {first} nor {', '.join(others)}" if others else f"not {first}"
    return f"{known.form.value} {known.key} is {shown}, {wrong}: {known.otherwise}"


def _with_article(form: Form) -> str:
    return f"an {form.value}" if form is Form.ANNOTATION else f"a {form.value}"
