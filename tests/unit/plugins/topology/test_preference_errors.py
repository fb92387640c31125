"""The sentences of kube-scheduler about preferred node affinity that does not parse, as `make oracle` tells them."""

from __future__ import annotations

import pytest

from multisched.model.selectors import NodeTerm, Operator, PreferredTerm, Requirement
from multisched.plugins.topology.preference_errors import unreadable

NO_INTEGER = "for 'Gt', 'Lt' operators, the value must be an integer"
NO_LABEL = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end"
    " with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is"
    " '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)


def preferring(operator: Operator, *values: str, weight: int = 1) -> PreferredTerm:
    return PreferredTerm(weight, NodeTerm((Requirement("gen", operator, values),), is_valid=False))


GOOD = PreferredTerm(1, NodeTerm((Requirement("gen", Operator.GT, ("3",)),)))


@pytest.mark.parametrize(
    ("value", "texts"),
    [
        ("abc", [f'[1].matchExpressions[0].values[0]: Invalid value: "abc": {NO_INTEGER}']),
        ("-5", [f'[1].matchExpressions[0].values[0][gen]: Invalid value: "-5": {NO_LABEL}']),
        (
            "x" * 64,
            [
                f'[1].matchExpressions[0].values[0]: Invalid value: "{"x" * 64}": {NO_INTEGER}',
                f'[1].matchExpressions[0].values[0][gen]: Invalid value: "{"x" * 64}": must be no more than 63 bytes',
            ],
        ),
    ],
)
def test_invalid_value_is_named_with_its_problem(value: str, texts: list[str]) -> None:
    told = ", ".join(texts)
    assert unreadable([GOOD, preferring(Operator.GT, value)]) == (told if len(texts) == 1 else f"[{told}]")


def test_value_can_have_two_problems() -> None:
    told = unreadable([preferring(Operator.IN, "_" * 64)])
    assert told.endswith(f"must be no more than 63 bytes; {NO_LABEL}")


def test_preferences_without_weight_are_not_read() -> None:
    assert unreadable([GOOD, preferring(Operator.GT, "abc", weight=0)]) == ""


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("_" * 63, NO_LABEL),
        ("_" * 64, f"must be no more than 63 bytes; {NO_LABEL}"),
        ("\N{LATIN SMALL LETTER A WITH DIAERESIS}" * 31, NO_LABEL),
        ("\N{LATIN SMALL LETTER A WITH DIAERESIS}" * 32, f"must be no more than 63 bytes; {NO_LABEL}"),
    ],
    ids=["just as long", "too long", "counted in bytes", "too many bytes"],
)
def test_value_length_is_limited(value: str, why: str) -> None:
    told = unreadable([preferring(Operator.IN, "fine", value)])
    assert told == f'[0].matchExpressions[0].values[1][gen]: Invalid value: "{value}": {why}'
