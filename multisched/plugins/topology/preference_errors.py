"""Kube-scheduler's error messages for invalid preferred node affinity, some of which the API server accepts.

Source: kube-scheduler 1.36, component-helpers scheduling/corev1/nodeaffinity and apimachinery pkg/labels NewRequirement.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from multisched.model.selectors import (
    LABEL_CHARS_MAX,
    Operator,
    PreferredTerm,
    Requirement,
    has_label_form,
    is_label_value,
    parse_int64,
)

_NO_INTEGER = "for 'Gt', 'Lt' operators, the value must be an integer"
_TOO_LONG = f"must be no more than {LABEL_CHARS_MAX} bytes"
_NO_LABEL = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end"
    " with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is"
    " '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)


def unreadable(preferred: Sequence[PreferredTerm]) -> str:
    """Returns the error message for all invalid preferences; empty if there are none. Ignores preferences without a weight."""
    found: dict[str, None] = {}
    for index, preference in enumerate(preferred):
        if preference.weight and not preference.term.is_valid:
            expression_errors = list(_of_expressions(preference.term.expressions, f"[{index}].matchExpressions"))
            # The API server rejects all other errors, so upstream's message for them is unknown.
            found |= dict.fromkeys(
                expression_errors or [f"[{index}]: is not a valid node selector term; fix its operator, key or values"]
            )
    texts = list(found)
    return texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]" if texts else ""


def _of_expressions(expressions: Sequence[Requirement], path: str) -> Iterator[str]:
    for at, expression in enumerate(expressions):
        values = [(f"{path}[{at}].values[{number}]", value) for number, value in enumerate(expression.values)]
        if expression.operator in (Operator.GT, Operator.LT):
            yield from (_invalid(where, value, _NO_INTEGER) for where, value in values if parse_int64(value) is None)
        for where, value in values:
            if not is_label_value(value):
                yield _invalid(f"{where}[{expression.key}]", value, "; ".join(_faults(value)))


def _faults(value: str) -> Iterator[str]:
    if len(value.encode()) > LABEL_CHARS_MAX:
        yield _TOO_LONG
    if not has_label_form(value):
        yield _NO_LABEL


def _invalid(where: str, value: str, why: str) -> str:
    return f"{where}: Invalid value: {json.dumps(value, ensure_ascii=False)}: {why}"
