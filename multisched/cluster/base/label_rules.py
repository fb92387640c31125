"""Rules for metadata of all objects: names, labels, annotations, owners, finalizers; with upstream's messages.

A rule for one text returns an error message, or an empty string if the text is valid. `labels` and `metadata` return causes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from multisched.cluster.base import errors
from multisched.cluster.base.resources import Resource

Causes = list[dict[str, str]]

ANNOTATIONS_BYTES_MAX = 256 * 1024
_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_LABEL_1035 = "[a-z]([-a-z0-9]*[a-z0-9])?"
_QUALIFIED = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_VALUE = f"({_QUALIFIED})?"

SUBDOMAIN_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end "
    f"with an alphanumeric character (e.g. 'example.com', regex used for validation is '{_SUBDOMAIN}')"
)
LABEL_RULE = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an "
    f"alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '{_LABEL}')"
)
LABEL_1035_RULE = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end "
    f"with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '{_LABEL_1035}')"
)
VALUE_RULE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end "
    "with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
QUALIFIED_RULE = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    f"character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '{_QUALIFIED}')"
)

_PATTERNS: Mapping[str, re.Pattern[str]] = {
    name: re.compile(pattern)
    for name, pattern in (
        ("label", _LABEL),
        ("subdomain", _SUBDOMAIN),
        ("1035", _LABEL_1035),
        ("name", _QUALIFIED),
        ("value", _VALUE),
    )
}


@lru_cache(maxsize=8_192)
def subdomain(text: str) -> str:
    """Checks a DNS subdomain."""
    if len(text) > 253:
        return "must be no more than 253 bytes"
    return "" if _PATTERNS["subdomain"].fullmatch(text) else SUBDOMAIN_RULE


@lru_cache(maxsize=8_192)
def label(text: str) -> str:
    """Checks a DNS label."""
    if len(text) > 63:
        return "must be no more than 63 bytes"
    return "" if _PATTERNS["label"].fullmatch(text) else LABEL_RULE


def label_1035(text: str) -> str:
    """Checks a DNS label that starts with a letter."""
    if len(text) > 63:
        return "must be no more than 63 bytes"
    return "" if _PATTERNS["1035"].fullmatch(text) else LABEL_1035_RULE


def path_segment(text: str) -> str:
    """Checks the name of a role or binding, which must be one path segment."""
    if text in (".", ".."):
        return f"may not be '{text}'"
    return next((f"may not contain '{mark}'" for mark in ("/", "%") if mark in text), "")


@lru_cache(maxsize=8_192)
def label_value(text: str) -> str:
    """Checks a label value."""
    if len(text) > 63:
        return "must be no more than 63 bytes"
    return "" if _PATTERNS["value"].fullmatch(text) else VALUE_RULE


@lru_cache(maxsize=8_192)
def qualified_name(text: str) -> str:
    """Checks a qualified name (label key, resource name, taint key)."""
    prefix, slash, name = text.rpartition("/")
    if slash:
        if "/" in prefix:
            return f"a qualified name {QUALIFIED_RULE.removeprefix('name part ')} with an optional DNS subdomain prefix and '/'"
        if not prefix:
            return "prefix part must be non-empty"
        if subdomain(prefix):
            return "prefix part " + subdomain(prefix)
    if not name:
        return "name part must be non-empty"
    if len(name) > 63:
        return "name part must be no more than 63 bytes"
    return "" if _PATTERNS["name"].fullmatch(name) else QUALIFIED_RULE


_NAME_RULES: Mapping[str, Callable[[str], str]] = {
    "namespaces": label,
    "services": label_1035,
    **{
        f"{plural}.rbac.authorization.k8s.io": path_segment
        for plural in ("roles", "rolebindings", "clusterroles", "clusterrolebindings")
    },
}


def labels(found: Any, path: str) -> Causes:
    """Returns the causes for a label set."""
    if not isinstance(found, dict):
        return [errors.invalid_value(path, found, "must be an object")] if found else []
    causes: Causes = []
    for key, value in found.items():
        if problem := qualified_name(key):
            causes.append(errors.invalid_value(path, key, problem))
        if not isinstance(value, str):
            causes.append(errors.invalid_value(path, value, "must be a string"))
        elif problem := label_value(value):
            causes.append(errors.invalid_value(path, value, problem))
    return causes


def metadata(resource: Resource, found: Mapping[str, Any], path: str = "metadata") -> Causes:
    """Returns the causes for an object's metadata."""
    rule = _NAME_RULES.get(resource.storage_key, subdomain)
    causes: Causes = []
    prefix = found.get("generateName")
    # A prefix may end with a dash, since a suffix follows.
    if prefix and (problem := rule(prefix[:-1] + "a" if prefix.endswith("-") else prefix)):
        causes.append(errors.invalid_value(f"{path}.generateName", prefix, problem))
    name = found.get("name")
    if not isinstance(name, str):
        causes.append(errors.invalid_value(f"{path}.name", name, "must be a string"))
    elif not prefix and (problem := rule(name)):
        causes.append(errors.invalid_value(f"{path}.name", name, problem))
    if found.get("labels"):
        causes += labels(found["labels"], f"{path}.labels")
    if found.get("annotations"):
        causes += _annotations(found["annotations"], f"{path}.annotations")
    for place, owner in enumerate(found.get("ownerReferences") or ()):
        causes += _owner(owner, f"{path}.ownerReferences[{place}]")
    for finalizer in found.get("finalizers") or ():
        if problem := qualified_name(finalizer):
            causes.append(errors.invalid_value(f"{path}.finalizers", finalizer, problem))
    return causes


def _annotations(found: Any, path: str) -> Causes:
    if not isinstance(found, dict):
        return [errors.invalid_value(path, found, "must be an object")]
    causes: Causes = []
    size = 0
    for key, value in found.items():
        if problem := qualified_name(key.lower()):
            causes.append(errors.invalid_value(path, key, problem))
        if not isinstance(value, str):
            causes.append(errors.invalid_value(path, value, "must be a string"))
            continue
        size += len(key.encode()) + len(value.encode())
    if size > ANNOTATIONS_BYTES_MAX:
        causes.append(errors.too_long(path, ANNOTATIONS_BYTES_MAX))
    return causes


def _owner(owner: Mapping[str, Any], path: str) -> Causes:
    return [
        errors.invalid_value(f"{path}.{field}", "", "must not be empty")
        for field in ("apiVersion", "kind", "name", "uid")
        if not owner.get(field)
    ]
