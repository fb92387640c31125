"""Quantities are exact: recorded answers of apimachinery, and an oracle of rational numbers for everything else."""

from __future__ import annotations

from fractions import Fraction
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multisched.model.quantity import (
    QUANTITY_MAX,
    QuantityError,
    bytes_text,
    milli_of_nano,
    parse_milli,
    parse_nano,
    parse_value,
    value_of_nano,
)

RECORDED = (
    ("0", 0, 0),
    ("1", 1, 1000),
    ("100m", 1, 100),
    ("0.5", 1, 500),
    ("1.5Gi", 1610612736, 1610612736000),
    ("2e3", 2000, 2000000),
    ("0.1", 1, 100),
    ("1n", 1, 1),
    ("999n", 1, 1),
    ("1u", 1, 1),
    ("0.0001", 1, 1),
    ("1Ki", 1024, 1024000),
    ("1.5Ki", 1536, 1536000),
    ("0.0005Ki", 1, 512),
    ("1000000001n", 2, 1001),
    ("4000m", 4, 4000),
    (".5", 1, 500),
    ("5.", 5, 5000),
    ("00012", 12, 12000),
    ("+7", 7, 7000),
    ("0.000000000001", 1, 1),
    ("0.1Mi", 104858, 104857600),
    ("1.0000000001", 2, 1001),
    ("12E-9", 1, 1),
    ("1e0", 1, 1000),
    ("4969.8034246k", 4969804, 4969803425),
    ("8.7713T", 8771300000000, 8771300000000000),
    ("576255771.846m", 576256, 576255772),
    ("28101", 28101, 28101000),
    ("35618.37963E-9", 1, 1),
    ("90930Ki", 93112320, 93112320000),
    ("70", 70, 70000),
    ("238.1n", 1, 1),
    ("84067373e3", 84067373000, 84067373000000),
    ("52E-9", 1, 1),
    ("37085007.9877899Ki", 37975048180, 37975048179497),
    ("213365594m", 213366, 213365594),
    ("3.2001Ki", 3277, 3276903),
    ("297.5u", 1, 1),
    ("96321Ki", 98632704, 98632704000),
    ("5.793E-9", 1, 1),
    ("256.339e-3", 1, 257),
    ("5.373Mi", 5633999, 5633998848),
    ("74901.6946G", 74901694600000, 74901694600000000),
    ("7.609k", 7609, 7609000),
    ("8.5266n", 1, 1),
    ("3962.4948498T", 3962494849800000, 3962494849800000000),
    ("518.31770e3", 518318, 518317700),
    ("3792.18573Ki", 3883199, 3883198188),
    ("5e-3", 1, 5),
    ("679531.55G", 679531550000000, 679531550000000000),
    ("344.86234074Ki", 353140, 353139037),
    ("2Pi", 2251799813685248, 2251799813685248000),
    ("3", 3, 3000),
    ("15189.3730168E3", 15189374, 15189373017),
    ("3.858185E3", 3859, 3858185),
    ("70653372.4e+2", 7065337240, 7065337240000),
    ("42.4Mi", 44459623, 44459622400),
    ("3920845Gi", 4209975261921280, 4209975261921280000),
    ("9.537368Ti", 10486447014379, 10486447014378734),
    ("1982605M", 1982605000000, 1982605000000000),
)
"""Text, Value() and MilliValue() of k8s.io/apimachinery 0.36.3."""

SUFFIXES = {
    **{"n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000), "": Fraction(1)},
    **{suffix: Fraction(1000**power) for power, suffix in enumerate("kMGTPE", 1)},
    **{f"{suffix}i": Fraction(1024**power) for power, suffix in enumerate("KMGTPE", 1)},
    **{f"{mark}{sign}{power}": Fraction(10) ** power for mark in "eE" for power in (0, 3, 9, 30) for sign in ("", "+")},
    **{f"e-{power}": Fraction(1, 10**power) for power in (1, 6, 12, 30)},
}

INVALID = (
    *("", " ", "one", "1 ", " 1", "1_000", "1,5", "0x10", "1..2", "1.2.3", "--1", "+-1", "٣", "inf", "NaN"),
    *("1K", "1mi", "1ki", "1KI", "1e", "1e+", "1E-", "1e3m", "1Kii", "1iK", "m1", "1e1.5", "1Mi2", "1\n", "1\x00"),
    *("m", "+", "-", ".", ".Ki", "1e1000", "1e65", "-1e99", "9" * 65, "0." + "0" * 63),
)

digits = st.from_regex(r"[0-9]{1,18}(\.[0-9]{0,12})?|\.[0-9]{1,12}", fullmatch=True)
texts = st.tuples(st.sampled_from(("", "+", "-")), digits, st.sampled_from(sorted(SUFFIXES)))


def expected(sign: str, number: str, suffix: str, unit: Fraction) -> int:
    """Rounded up to nano and then to the unit, away from zero, and saturated."""
    nano = ceil(Fraction(f"0{number}0" if "." in number else number) * SUFFIXES[suffix] * 10**9)
    amount = min(QUANTITY_MAX, ceil(Fraction(nano, 10**9) / unit))
    return -amount if sign == "-" else amount


@pytest.mark.parametrize(("text", "value", "milli"), RECORDED)
def test_quantity_is_read_as_upstream(text: str, value: int, milli: int) -> None:
    assert (parse_value(text), parse_milli(text)) == (value, milli)


@given(texts)
def test_every_quantity_is_exact_and_rounded_away_from_zero(parts: tuple[str, str, str]) -> None:
    text = "".join(parts)
    assert parse_value(text) == expected(*parts, Fraction(1))
    assert parse_milli(text) == expected(*parts, Fraction(1, 1000))


@given(texts, texts)
def test_sums_are_rounded_once_at_the_end(left: tuple[str, str, str], right: tuple[str, str, str]) -> None:
    nano = parse_nano("".join(left)) + parse_nano("".join(right))
    exact = Fraction(nano, 10**9)
    assert abs(value_of_nano(nano)) == min(QUANTITY_MAX, ceil(abs(exact)))
    assert abs(milli_of_nano(nano)) == min(QUANTITY_MAX, ceil(abs(exact) * 1000))


@given(st.integers(-(10**30), 10**30) | st.floats(1e-9, 1e15))
def test_numbers_in_json_are_quantities_too(number: float) -> None:
    nano = ceil(abs(Fraction(str(number))) * 10**9)
    amount = min(QUANTITY_MAX, ceil(Fraction(nano, 10**9)))
    assert parse_value(number) == (amount if number >= 0 else -amount)


@pytest.mark.parametrize("text", INVALID)
def test_invalid_quantity_is_refused_with_its_truncated_text(text: str) -> None:
    with pytest.raises(QuantityError) as caught:
        parse_value(text)
    assert len(str(caught.value)) < 400


@given(st.text(max_size=12))
def test_any_text_is_a_quantity_or_is_refused(text: str) -> None:
    try:
        value = parse_value(text)
    except QuantityError:
        return
    assert any(mark.isdigit() for mark in text)
    assert abs(value) <= QUANTITY_MAX


@pytest.mark.parametrize("text", ["40G", "500M", "8Gi", "1536Mi", "3Ki", "2T", "1Ti", "1001", "0"])
def test_bytes_are_shown_in_the_unit_of_the_author(text: str) -> None:
    assert bytes_text(parse_value(text)) == text


@given(st.integers(0, QUANTITY_MAX))
def test_shown_bytes_are_exact(amount: int) -> None:
    assert parse_value(bytes_text(amount)) == amount
