"""Label selectors, node selectors and tolerations, by the API's documentation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import orjson

from multisched.verify.fields import Json, Unreadable, mapping, objects, shown, strings, text, texts

Labels = Mapping[str, str]

_LABEL_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")
_NODE_OPERATORS = (*_LABEL_OPERATORS, "Gt", "Lt")
_EXACT: dict[str, LabelSelector] = {}
SELECTORS_MAX = 20_000
"""Cached selectors; equal ones are one object."""


@dataclass(frozen=True, slots=True)
class Expression:
    """One test: key, operator, values."""

    key: str
    operator: str
    values: frozenset[str]

    def matches(self, value: str | None) -> bool:
        match self.operator:
            case "In":
                return value in self.values
            case "NotIn":
                return value not in self.values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
        number, bound = integer_of(value), integer_of(next(iter(self.values)))
        if number is None or bound is None:
            return False
        return number > bound if self.operator == "Gt" else number < bound


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """All expressions must hold. Without expressions it matches everything; a missing selector is `None`."""

    expressions: tuple[Expression, ...] = ()

    def matches(self, labels: Labels) -> bool:
        return all(e.matches(labels.get(e.key)) for e in self.expressions)

    def pairs(self) -> Iterable[tuple[str, str]]:
        """Returns label pairs that every match must have."""
        return ((e.key, next(iter(e.values))) for e in self.expressions if e.operator == "In" and len(e.values) == 1)

    def with_labels(self, pairs: Mapping[str, str]) -> LabelSelector:
        """Returns a selector that requires these labels in addition."""
        more = (Expression(key, "In", frozenset((value,))) for key, value in pairs.items())
        return LabelSelector((*self.expressions, *more)) if pairs else self


def label_selector(document: Json, field: str) -> LabelSelector | None:
    """Reads a label selector; None if it is missing."""
    if document.get(field) is None:
        return None
    found = mapping(document, field)
    try:
        exact = orjson.dumps(found, option=orjson.OPT_SORT_KEYS).decode()  # its bytes keep a buffer of 4 KiB each
    except TypeError as error:
        raise Unreadable(f"{field}: {error}") from error
    if exact not in _EXACT:
        if len(_EXACT) >= SELECTORS_MAX:
            _EXACT.clear()
        equal = tuple(
            Expression(key, "In", frozenset((value,))) for key, value in sorted(strings(found, "matchLabels").items())
        )
        rest = tuple(_expression(one, _LABEL_OPERATORS) for one in objects(found, "matchExpressions"))
        _EXACT[exact] = LabelSelector(equal + rest)
    return _EXACT[exact]


def judged_selector(document: Json) -> LabelSelector:
    """Reads a node selector of the configuration, which also allows Gt and Lt. Raises Unreadable."""
    equal = (Expression(key, "In", frozenset((value,))) for key, value in strings(document, "matchLabels").items())
    rest = (_expression(one, _NODE_OPERATORS) for one in objects(document, "matchExpressions"))
    return LabelSelector((*equal, *rest))


@dataclass(frozen=True, slots=True)
class NodeTerm:
    """Expressions on labels and on the name; without any it matches no node."""

    labels: tuple[Expression, ...]
    names: tuple[Expression, ...]

    def matches(self, labels: Labels, name: str | None) -> bool:
        """`name`: None if only labels are compared, as for volumes."""
        if not self.labels and not self.names:
            return False
        by_name = name is None or all(e.matches(name) for e in self.names)
        return by_name and all(e.matches(labels.get(e.key)) for e in self.labels)


@dataclass(frozen=True, slots=True)
class NodeSelector:
    """At least one term must match."""

    terms: tuple[NodeTerm, ...]

    def matches(self, labels: Labels, name: str | None) -> bool:
        return any(term.matches(labels, name) for term in self.terms)


def node_selector(document: Json, field: str) -> NodeSelector | None:
    """Reads a node selector; None if it is missing."""
    if document.get(field) is None:
        return None
    return NodeSelector(tuple(_node_term(one) for one in objects(mapping(document, field), "nodeSelectorTerms")))


def _node_term(document: Json) -> NodeTerm:
    labels = tuple(_expression(one, _NODE_OPERATORS) for one in objects(document, "matchExpressions"))
    names = tuple(_expression(one, ("In", "NotIn")) for one in objects(document, "matchFields"))
    if any(one.key != "metadata.name" for one in names):
        raise Unreadable("matchFields.key: only metadata.name is known")
    return NodeTerm(labels, names)


def _expression(document: Json, operators: Sequence[str]) -> Expression:
    key, operator, values = text(document, "key"), text(document, "operator"), texts(document, "values")
    if operator not in operators:
        raise Unreadable(f"operator: {shown(operator)} is none of {', '.join(operators)}")
    if operator in ("In", "NotIn") and not values:
        raise Unreadable(f"values: {operator} needs at least one")
    if operator in ("Gt", "Lt") and (len(values) != 1 or integer_of(values[0]) is None):
        raise Unreadable(f"values: {operator} needs exactly one integer")
    return Expression(key, operator, frozenset(values))


@dataclass(frozen=True, slots=True)
class Taint:
    key: str
    value: str
    effect: str
    added_s: float | None = None
    """Seconds since 1970; None if unknown."""

    def __str__(self) -> str:
        return f"{self.key}={self.value}:{self.effect}" if self.value else f"{self.key}:{self.effect}"


@dataclass(frozen=True, slots=True)
class Toleration:
    """An empty key or effect matches all."""

    key: str
    operator: str
    value: str
    effect: str

    def tolerates(self, taint: Taint) -> bool:
        if self.effect not in ("", taint.effect) or self.key not in ("", taint.key):
            return False
        match self.operator:
            case "Exists":
                return True
            case "" | "Equal":
                return self.value == taint.value
            case "Gt" | "Lt":
                number, bound = integer_of(taint.value), integer_of(self.value)
                if number is None or bound is None:
                    return False
                return number > bound if self.operator == "Gt" else number < bound
        return False


def tolerations(document: Json, field: str) -> tuple[Toleration, ...]:
    return tuple(
        Toleration(text(one, "key"), text(one, "operator"), text(one, "value"), text(one, "effect"))
        for one in objects(document, field)
    )


def integer_of(value: str | None) -> int | None:
    """Parses a 64-bit decimal integer; None if it is not one."""
    if value is None or len(value) > 20:
        return None
    digits = value[1:] if value[:1] in ("+", "-") else value
    if not (digits.isascii() and digits.isdigit()):
        return None
    number = int(value)
    return number if -(2**63) <= number < 2**63 else None
