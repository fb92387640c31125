"""Label and field selectors of list, watch and deletecollection: parsed once, then called for each object.

Grammar: k8s.io/apimachinery labels.Parse and fields.ParseSelector.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from multisched.cluster.base import errors
from multisched.cluster.base.resources import Document

SELECTOR_TERMS_MAX = 1_000
"""Maximum number of terms in a selector; limits the work per object."""

_TOKEN = re.compile(r"\s*(?:(notin|in)\b|(!=|==|=|!|,|\(|\)|<|>)|([^\s,()=!<>]+))")

LabelTest = Callable[[Mapping[str, str]], bool]


@dataclass(frozen=True, slots=True)
class Requirement:
    """One term: `key operator values`."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Reports whether a label set satisfies the term. As in upstream, NotIn and != match a missing key."""
        value = labels.get(self.key)
        if self.operator == "in":
            return value is not None and value in self.values
        if self.operator == "notin":
            return value is None or value not in self.values
        if self.operator == "exists":
            return value is not None
        if self.operator == "!":
            return value is None
        return self._compares(value)

    def _compares(self, value: str | None) -> bool:
        try:
            left, right = int(value or ""), int(next(iter(self.values)))
        except ValueError:
            return False
        return left > right if self.operator == ">" else left < right


def parse_labels(text: str) -> tuple[Requirement, ...]:
    """Parses a label selector. Raises 400 if it is invalid."""
    tokens = _tokens(text)
    requirements: list[Requirement] = []
    while tokens:
        requirements.append(_requirement(tokens, text))
        if tokens and tokens.pop(0) != ",":
            raise _unparsable(text)
    if len(requirements) > SELECTOR_TERMS_MAX:
        raise errors.bad_request(f"a selector may have at most {SELECTOR_TERMS_MAX} terms")
    return tuple(requirements)


def _unparsable(text: str) -> errors.ApiError:
    return errors.bad_request(f'unable to parse requirement: found unexpected token in selector "{text}"')


def _tokens(text: str) -> list[str]:
    tokens, position = [], 0
    stripped = text.rstrip()
    while position < len(stripped):
        match = _TOKEN.match(stripped, position)
        if match is None:
            raise _unparsable(text)
        tokens.append(match.group(1) or match.group(2) or match.group(3))
        position = match.end()
    return tokens


def _requirement(tokens: list[str], text: str) -> Requirement:
    first = tokens.pop(0)
    if first == "!" and tokens:
        return Requirement(tokens.pop(0), "!")
    if first in {"=", "==", "!=", ",", "(", ")", "<", ">", "!"}:
        raise _unparsable(text)
    if not tokens or tokens[0] == ",":
        return Requirement(first, "exists")
    operator = tokens.pop(0)
    if operator in ("in", "notin"):
        return Requirement(first, operator, frozenset(_value_list(tokens, text)))
    value = tokens.pop(0) if tokens and tokens[0] != "," else ""
    if operator in ("=", "=="):
        return Requirement(first, "in", frozenset((value,)))
    if operator == "!=":
        return Requirement(first, "notin", frozenset((value,)))
    if operator in ("<", ">"):
        return Requirement(first, operator, frozenset((value,)))
    raise _unparsable(text)


def _value_list(tokens: list[str], text: str) -> list[str]:
    if not tokens or tokens.pop(0) != "(":
        raise _unparsable(text)
    values, expect_value = [], True
    while tokens:
        part = tokens.pop(0)
        if part == ")":
            if expect_value:
                values.append("")
            return values
        if part == ",":
            if expect_value:
                values.append("")
            expect_value = True
        else:
            values.append(part)
            expect_value = False
    raise _unparsable(text)


def label_test(text: str) -> LabelTest | None:
    """Returns a test for label sets; None if everything matches."""
    requirements = parse_labels(text)
    if not requirements:
        return None
    if len(requirements) == 1:
        return requirements[0].matches
    return lambda labels: all(requirement.matches(labels) for requirement in requirements)


def from_label_selector(selector: Mapping[str, Any] | None) -> LabelTest:
    """Returns a test for a LabelSelector (matchLabels, matchExpressions). None matches nothing; an empty selector matches everything."""
    if selector is None:
        return lambda _labels: False
    operators = {"In": "in", "NotIn": "notin", "Exists": "exists", "DoesNotExist": "!"}
    requirements = [
        Requirement(key, "in", frozenset((value,))) for key, value in (selector.get("matchLabels") or {}).items()
    ]
    for expression in selector.get("matchExpressions") or ():
        operator = operators.get(expression.get("operator"), "never")
        requirements.append(Requirement(expression["key"], operator, frozenset(expression.get("values") or ())))
    return lambda labels: all(requirement.matches(labels) for requirement in requirements)


@dataclass(frozen=True, slots=True)
class FieldTerm:
    """A term `field = value` or `field != value`."""

    field: str
    value: str
    is_equal: bool


def parse_fields(text: str) -> tuple[FieldTerm, ...]:
    """Parses a field selector. Raises 400 if it is invalid."""
    terms = []
    for part in re.split(r"(?<!\\),", text):
        if not part:
            continue
        match = re.match(r"([^=!]+)(!=|==|=)(.*)", part, re.DOTALL)
        if match is None:
            raise errors.bad_request(f"invalid selector: '{text}'; can't understand '{part}'")
        value = re.sub(r"\\(.)", r"\1", match.group(3))
        terms.append(FieldTerm(match.group(1), value, match.group(2) != "!="))
    if len(terms) > SELECTOR_TERMS_MAX:
        raise errors.bad_request(f"a selector may have at most {SELECTOR_TERMS_MAX} terms")
    return tuple(terms)


FieldTest = Callable[[str, Sequence[str]], bool]
"""Called with the storage key (`namespace/name` or `name`) and the object's selectable values in the order of its kind."""


def field_test(text: str, selectable: Sequence[str], is_namespaced: bool) -> FieldTest | None:
    """Returns a test for the selectable fields of one kind; None if everything matches."""
    terms = parse_fields(text)
    if not terms:
        return None
    checks: list[tuple[int, str, bool]] = []
    for term in terms:
        if term.field == "metadata.name":
            place = -1
        elif term.field == "metadata.namespace" and is_namespaced:
            place = -2
        elif term.field in selectable:
            place = selectable.index(term.field)
        else:
            raise errors.bad_request(f"field label not supported: {term.field}")
        checks.append((place, term.value, term.is_equal))

    def test(key: str, values: Sequence[str]) -> bool:
        for place, wanted, is_equal in checks:
            if place >= 0:
                actual = values[place]
            else:
                namespace, _, name = key.rpartition("/")
                actual = name if place == -1 else namespace
            if (actual == wanted) is not is_equal:
                return False
        return True

    return test


def selector_text(selector: Document) -> str:
    """Formats a LabelSelector (or a plain map of labels) as a string."""
    labels = selector.get("matchLabels") if "matchLabels" in selector or "matchExpressions" in selector else selector
    parts = [f"{key}={value}" for key, value in sorted((labels or {}).items())]
    for entry in selector.get("matchExpressions") or ():
        key, operator, values = entry["key"], entry["operator"], ",".join(entry.get("values") or ())
        shapes = {
            "In": f"{key} in ({values})",
            "NotIn": f"{key} notin ({values})",
            "Exists": key,
            "DoesNotExist": f"!{key}",
        }
        parts.append(shapes.get(operator, key))
    return ",".join(parts)
