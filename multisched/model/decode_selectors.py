"""Wire shapes of selectors and their compiled forms: node selector terms and label selectors.

Used by the decoders of pods, nodes and all other objects. Work is bounded (`SELECTOR_VALUES_MAX` keys and values per
term or selector), as authors of pods are not trusted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec

from multisched.model.selectors import (
    LabelSelector,
    NodeSelector,
    NodeTerm,
    Operator,
    Requirement,
    is_label_value,
    is_qualified_name,
    parse_int64,
)

AFFINITY_TERMS_MAX = 64
SELECTOR_VALUES_MAX = 256

_OPERATORS = frozenset(operator.value for operator in Operator)


class Refusal(ValueError):
    """A field that makes an object unschedulable: its path and the fix."""


class Wire(msgspec.Struct, gc=False, rename="camel", omit_defaults=True):
    """Base of the wire shapes: camelCase names, unknown fields ignored; defaults are omitted from the intern key of a spec."""


Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
"""int32 of the API; bounded because such values are stored in arrays."""


class WireExpression(Wire):
    key: str = ""
    operator: str = ""
    values: list[str] | None = None


class WireNodeTerm(Wire):
    match_expressions: list[WireExpression] | None = None
    match_fields: list[WireExpression] | None = None


class WireNodeSelector(Wire):
    node_selector_terms: list[WireNodeTerm] | None = None


class WireLabelSelector(Wire):
    match_labels: dict[str, str] | None = None
    match_expressions: list[WireExpression] | None = None


def compile_term(wire: WireNodeTerm, path: str) -> NodeTerm:
    """Compiles one node selector term. Keeps an unparsable one as invalid; raises Refusal for one that is too long."""
    expressions, fields = wire.match_expressions or [], wire.match_fields or []
    if sum(len(e.values or ()) + 1 for e in (*expressions, *fields)) > SELECTOR_VALUES_MAX:
        raise Refusal(f"{path}: a term of more than {SELECTOR_VALUES_MAX} keys and values; split or shorten it")
    compiled = NodeTerm(_requirements(expressions), _requirements(fields))
    is_valid = (
        len(compiled.expressions) == len(expressions)
        and len(compiled.fields) == len(fields)
        and all(_is_valid_expression(e) for e in compiled.expressions)
        and all(f.operator in (Operator.IN, Operator.NOT_IN) and len(f.values) == 1 for f in compiled.fields)
    )
    return compiled if is_valid else NodeTerm(compiled.expressions, compiled.fields, is_valid=False)


def compile_node_selector(wire: WireNodeSelector | None, path: str) -> NodeSelector | None:
    """Compiles a node selector; None stays None. Raises Refusal if it is too long."""
    if wire is None:
        return None
    terms = wire.node_selector_terms or []
    if len(terms) > AFFINITY_TERMS_MAX:
        raise Refusal(f"{path}: {len(terms)} terms, more than the {AFFINITY_TERMS_MAX} that are read; merge some")
    return NodeSelector(tuple(compile_term(term, path) for term in terms))


def compile_label_selector(
    wire: WireLabelSelector | None, path: str, *, is_bounded: bool = True
) -> LabelSelector | None:
    """Compiles a metav1.LabelSelector; None stays None. Raises Refusal if it does not parse (LabelSelectorAsSelector)."""
    if wire is None:
        return None
    labels, expressions = wire.match_labels or {}, wire.match_expressions or []
    if is_bounded and len(labels) + sum(len(e.values or ()) + 1 for e in expressions) > SELECTOR_VALUES_MAX:
        raise Refusal(f"{path}: more than {SELECTOR_VALUES_MAX} keys and values; shorten it")
    compiled = (*_equalities(labels), *_requirements(expressions))
    for expression in expressions:
        if expression.operator not in ("In", "NotIn", "Exists", "DoesNotExist"):
            raise Refusal(f'{path}: "{expression.operator}" is not a valid label selector operator')
    for requirement in compiled:
        if not _is_valid_expression(requirement):
            raise Refusal(f"{path}: {requirement.key} {requirement.operator.value} is not a valid requirement")
    return LabelSelector(compiled)


def equality_selector(labels: Mapping[str, str] | None) -> LabelSelector | None:
    """Compiles the selector of a Service or ReplicationController, a map of labels; None if it is missing or empty."""
    return LabelSelector(_equalities(labels)) if labels else None


def _equalities(labels: Mapping[str, str]) -> tuple[Requirement, ...]:
    return tuple(Requirement(key, Operator.IN, (value,)) for key, value in sorted(labels.items()))


def _requirements(wire: Sequence[WireExpression]) -> tuple[Requirement, ...]:
    """Compiles the expressions with a known operator; drops the others."""
    return tuple(
        Requirement(e.key, Operator(e.operator), tuple(e.values or ())) for e in wire if e.operator in _OPERATORS
    )


def _is_valid_expression(requirement: Requirement) -> bool:
    """Reports whether the requirement is valid. Source: apimachinery labels.NewRequirement."""
    if not is_qualified_name(requirement.key) or not all(is_label_value(v) for v in requirement.values):
        return False
    match requirement.operator:
        case Operator.IN | Operator.NOT_IN:
            return len(requirement.values) > 0
        case Operator.EXISTS | Operator.DOES_NOT_EXIST:
            return not requirement.values
        case Operator.GT | Operator.LT:
            return len(requirement.values) == 1 and parse_int64(requirement.values[0]) is not None
