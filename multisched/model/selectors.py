"""Label, node and field selectors, taints and tolerations: compiled once per distinct spec, matched often.

Semantics are those of apimachinery and component-helpers 1.36: see each class for its source. Label values are opaque
text: no regular expressions, integers parsed only for Gt and Lt and only as bounded base-10 numbers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum

import msgspec

INT_MIN, INT_MAX = -(2**63), 2**63 - 1

LABEL_CHARS_MAX = 63
"""Characters of a label value, and of a label key without the prefix."""
_SUBDOMAIN_MAX = 253
_NAME = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?\Z")
_LABEL = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?\Z")
_SUBDOMAIN = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*\Z")

NODE_NAME_FIELD = "metadata.name"
"""The only field that node selector terms may match; any other has an empty value."""


class Operator(Enum):
    """Operators of node selector requirements and of label selector requirements."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"
    GT = "Gt"
    LT = "Lt"


class Requirement(msgspec.Struct, frozen=True, gc=False):
    """One test: key, operator, values. Hashable, as masks are cached under it."""

    key: str
    operator: Operator
    values: tuple[str, ...] = ()

    @property
    def names_a_node(self) -> bool:
        """True for a field requirement that exactly one node can satisfy."""
        return self.key == NODE_NAME_FIELD and self.operator is Operator.IN and len(self.values) == 1

    def matches_value(self, value: str | None) -> bool:
        """Reports whether a label with this value satisfies the requirement. None: the label is missing.

        NotIn and DoesNotExist hold for a missing label; Gt and Lt need both sides to be integers
        (source: apimachinery pkg/labels/selector.go, Requirement.Matches).
        """
        match self.operator:
            case Operator.IN:
                return value is not None and value in self.values
            case Operator.NOT_IN:
                return value is None or value not in self.values
            case Operator.EXISTS:
                return value is not None
            case Operator.DOES_NOT_EXIST:
                return value is None
            case Operator.GT | Operator.LT:
                return value is not None and self._compare(value)

    def _compare(self, value: str) -> bool:
        left, right = parse_int64(value), parse_int64(self.values[0]) if len(self.values) == 1 else None
        if left is None or right is None:
            return False
        return left > right if self.operator is Operator.GT else left < right


def parse_int64(text: str) -> int | None:
    """Parses as strconv.ParseInt(text, 10, 64): an optional sign and ASCII digits within int64; else None."""
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not digits or len(digits) > 64 or not (digits.isascii() and digits.isdigit()):
        return None
    number = int(text)
    return number if INT_MIN <= number <= INT_MAX else None


def is_qualified_name(text: str) -> bool:
    """Reports whether this is a label key: a name of at most 63 characters, after an optional DNS subdomain and slash.

    Source: apimachinery pkg/api/validate/content IsLabelKey.
    """
    prefix, slash, name = text.rpartition("/")
    if slash and not (len(prefix) <= _SUBDOMAIN_MAX and _SUBDOMAIN.match(prefix)):
        return False
    return bool(name) and is_label_value(name)


def is_dns_label(text: str) -> bool:
    """Reports whether this can name a namespace: at most 63 of a-z 0-9 -, first and last a letter or digit (IsDNS1123Label)."""
    return len(text) <= LABEL_CHARS_MAX and _LABEL.match(text) is not None


def is_label_value(text: str) -> bool:
    """Reports whether this is empty, or at most 63 of A-Z a-z 0-9 - _ . with a letter or digit first and last (IsLabelValue)."""
    return len(text) <= LABEL_CHARS_MAX and has_label_form(text)


def has_label_form(text: str) -> bool:
    """Reports whether this is a label value, without regard to its length."""
    return not text or _NAME.match(text) is not None


class LabelSelector(msgspec.Struct, frozen=True, gc=False):
    """All requirements must hold; no requirements match everything (a metav1.LabelSelector that is not nil)."""

    requirements: tuple[Requirement, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        return all(r.matches_value(labels.get(r.key)) for r in self.requirements)


class NodeTerm(msgspec.Struct, frozen=True, gc=False):
    """One node selector term: label expressions and field matches, all of which must hold.

    `is_valid` is False for a term that does not parse (for example Gt with two values): it matches nothing. Its readable
    parts are kept, since PreFilter uses the field matches of such a term, too.
    """

    expressions: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()
    is_valid: bool = True

    @property
    def is_empty(self) -> bool:
        """True for an empty or null term, which matches no node (source: component-helpers scheduling/corev1/nodeaffinity)."""
        return self.is_valid and not self.expressions and not self.fields

    def matches(self, labels: Mapping[str, str], name: str) -> bool:
        """Reports whether a node with these labels and this name satisfies the term."""
        if not self.is_valid or self.is_empty:
            return False
        return all(r.matches_value(labels.get(r.key)) for r in self.expressions) and all(
            r.matches_value(name if r.key == NODE_NAME_FIELD else "") for r in self.fields
        )


class NodeSelector(msgspec.Struct, frozen=True, gc=False):
    """Required node affinity: one of the terms must match."""

    terms: tuple[NodeTerm, ...] = ()

    def matches(self, labels: Mapping[str, str], name: str) -> bool:
        return any(term.matches(labels, name) for term in self.terms)


class PreferredTerm(msgspec.Struct, frozen=True, gc=False):
    """A node selector term with its weight (1..100)."""

    weight: int
    term: NodeTerm


class Taint(msgspec.Struct, frozen=True, gc=False):
    """A taint of a node."""

    key: str
    value: str = ""
    effect: str = ""


class Toleration(msgspec.Struct, frozen=True, gc=False):
    """A toleration of a pod. An empty effect tolerates all effects, an empty key with Exists all taints."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""

    def tolerates(self, taint: Taint) -> bool:
        """Source: k8s.io/api core/v1 toleration.go, ToleratesTaint (operators Equal, Exists, and 1.35's Lt and Gt)."""
        if self.effect and self.effect != taint.effect:
            return False
        if self.key and self.key != taint.key:
            return False
        match self.operator:
            case "" | "Equal":
                return self.value == taint.value
            case "Exists":
                return True
            case _:
                return False


NO_SCHEDULE, PREFER_NO_SCHEDULE, NO_EXECUTE = "NoSchedule", "PreferNoSchedule", "NoExecute"
