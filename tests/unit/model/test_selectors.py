"""Selectors, taints and tolerations as apimachinery and component-helpers read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multisched.model.selectors import (
    INT_MAX,
    INT_MIN,
    LabelSelector,
    NodeSelector,
    NodeTerm,
    Operator,
    Requirement,
    Taint,
    Toleration,
    is_label_value,
    is_qualified_name,
    parse_int64,
)

A, B = "a", "b"


@pytest.mark.parametrize(
    ("operator", "values", "value", "matches"),
    [
        (Operator.IN, (A, B), A, True),
        (Operator.IN, (A,), B, False),
        (Operator.IN, (A,), None, False),
        (Operator.IN, ("",), "", True),
        (Operator.NOT_IN, (A,), B, True),
        (Operator.NOT_IN, (A,), A, False),
        (Operator.NOT_IN, (A,), None, True),
        (Operator.EXISTS, (), "", True),
        (Operator.EXISTS, (), None, False),
        (Operator.DOES_NOT_EXIST, (), None, True),
        (Operator.DOES_NOT_EXIST, (), A, False),
        (Operator.GT, ("5",), "6", True),
        (Operator.GT, ("5",), "5", False),
        (Operator.GT, ("-1",), "0", True),
        (Operator.LT, ("5",), "+4", True),
        (Operator.LT, ("5",), "x", False),
        (Operator.GT, ("x",), "6", False),
        (Operator.GT, ("5", "6"), "9", False),
        (Operator.GT, (), "9", False),
        (Operator.GT, ("5",), None, False),
        (Operator.LT, ("5",), str(INT_MIN), True),
        (Operator.LT, ("5",), str(INT_MIN - 1), False),
    ],
)
def test_requirement_matches_labels(
    operator: Operator, values: tuple[str, ...], value: str | None, matches: bool
) -> None:
    assert Requirement("k", operator, values).matches_value(value) is matches


@given(st.integers(INT_MIN, INT_MAX), st.integers(INT_MIN, INT_MAX))
def test_numbers_compare_as_int64(left: int, right: int) -> None:
    assert Requirement("k", Operator.GT, (str(right),)).matches_value(str(left)) is (left > right)
    assert Requirement("k", Operator.LT, (str(right),)).matches_value(str(left)) is (left < right)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("007", 7),
        ("+5", 5),
        (str(INT_MAX), INT_MAX),
        (str(INT_MAX + 1), None),
        ("", None),
        ("-", None),
        ("1_0", None),
        (" 1", None),
        ("1.0", None),
        ("٣", None),
        ("9" * 5000, None),
    ],
)
def test_integers_are_read_as_go_reads_them(text: str, number: int | None) -> None:
    assert parse_int64(text) == number


def test_an_empty_label_selector_matches_everything() -> None:
    assert LabelSelector().matches({})
    assert LabelSelector().matches({"k": A})


def test_all_requirements_of_a_selector_must_hold() -> None:
    selector = LabelSelector((Requirement("k", Operator.IN, (A,)), Requirement("l", Operator.EXISTS)))
    assert selector.matches({"k": A, "l": ""})
    assert not selector.matches({"k": A})


def test_terms_are_alternatives_and_an_empty_or_invalid_one_matches_nothing() -> None:
    in_a = NodeTerm((Requirement("zone", Operator.IN, (A,)),))
    on_n = NodeTerm(fields=(Requirement("metadata.name", Operator.IN, ("n",)),))
    assert NodeSelector((in_a, on_n)).matches({"zone": B}, "n")
    assert not NodeSelector((in_a, on_n)).matches({"zone": B}, "m")
    assert not NodeSelector((NodeTerm(),)).matches({}, "n")
    assert not NodeSelector().matches({}, "n")
    assert not NodeTerm(in_a.expressions, is_valid=False).matches({"zone": A}, "n")


def test_a_field_other_than_the_name_reads_as_an_empty_text() -> None:
    odd = NodeTerm(fields=(Requirement("spec.odd", Operator.NOT_IN, ("x",)),))
    assert odd.matches({}, "n")


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        (Toleration("k", "Equal", "v"), True),
        (Toleration("k", "", "v"), True),
        (Toleration("k", "Equal", "w"), False),
        (Toleration("k", "Exists"), True),
        (Toleration("", "Exists"), True),
        (Toleration("l", "Exists"), False),
        (Toleration("k", "Exists", effect="NoSchedule"), True),
        (Toleration("k", "Exists", effect="NoExecute"), False),
        (Toleration("k", "Gt", "1"), False),
        (Toleration(), False),
        (Toleration("", "Equal", "v"), True),
    ],
)
def test_toleration_matches_taints(toleration: Toleration, tolerated: bool) -> None:
    assert toleration.tolerates(Taint("k", "v", "NoSchedule")) is tolerated


@pytest.mark.parametrize(
    ("text", "is_name", "is_value"),
    [
        ("a", True, True),
        ("A-b_c.9", True, True),
        ("example.com/gpu", True, False),
        ("", False, True),
        ("-a", False, False),
        ("a-", False, False),
        ("a" * 63, True, True),
        ("a" * 64, False, False),
        ("/a", False, False),
        ("a/", False, False),
        ("a/b/c", False, False),
        ("Upper.com/a", False, False),
        ("a" * 254 + "/b", False, False),
        ("a b", False, False),
        ("a\n", False, False),
        ("ä", False, False),
    ],
)
def test_label_names_and_values_are_validated(text: str, is_name: bool, is_value: bool) -> None:
    assert is_qualified_name(text) is is_name
    assert is_label_value(text) is is_value
