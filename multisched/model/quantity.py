"""Kubernetes quantities to int64, exactly.

`"100m"`, `"1.5Gi"`, `"2e3"` and others are parsed with integer arithmetic only. Results are rounded up, as
apimachinery's Quantity.Value and MilliValue do. They saturate at `QUANTITY_MAX`, where upstream's overflow. A text
without a digit ("m", "+") is refused; upstream parses it as zero, but no API server returns one.
"""

from __future__ import annotations

import re
from functools import lru_cache

QUANTITY_MAX = 2**62 - 1
"""Largest returned value. Half of int64: the sum of any two still fits, and saturating sums stay below 2**63."""

ONE_NANO = 1_000_000_000
"""One unit."""

_TEXT_MAX = 64
"""Longest text read as a quantity, in characters. Upstream does not accept longer ones either."""

_EXPONENT_MAX = 64
_CACHE_ENTRIES = 4096

_FORM = re.compile(r"([+-]?)(\d*)(?:\.(\d*))?(?:([eE])([+-]?\d{1,3})|([KMGTPE]i|[numkMGTPE]?))\Z", re.ASCII)
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}


_SHOWN = (("Ti", 2**40), ("Gi", 2**30), ("Mi", 2**20), ("T", 10**12), ("G", 10**9), ("M", 10**6), ("Ki", 2**10))
"""Units to show bytes in. Powers of ten come before Ki: 40G is easier to read than 39062500Ki."""


class QuantityError(ValueError):
    """Raised when a text is not a quantity; the message quotes it, truncated."""


def bytes_text(amount: int) -> str:
    """Returns a quantity of exactly this many bytes, in the first unit of _SHOWN that divides them."""
    found = (f"{amount // size}{unit}" for unit, size in _SHOWN if amount and amount % size == 0)
    return next(found, str(amount))


def parse_value(text: str | int | float) -> int:
    """Returns the quantity in whole units (bytes, counts), rounded away from zero. Raises QuantityError."""
    return value_of_nano(parse_nano(text))


def parse_milli(text: str | int | float) -> int:
    """Returns the quantity in thousandths (milli-CPU), rounded away from zero. Raises QuantityError."""
    return milli_of_nano(parse_nano(text))


def parse_nano(text: str | int | float) -> int:
    """Returns the quantity in 1e-9 units, unbounded, for sums that are rounded once at the end. Raises QuantityError."""
    return _parse_nano(str(text))


def value_of_nano(nano: int) -> int:
    """Returns whole units, rounded away from zero and saturated."""
    return _scaled(nano, ONE_NANO)


def milli_of_nano(nano: int) -> int:
    """Returns thousandths, rounded away from zero and saturated."""
    return _scaled(nano, 1_000_000)


def _scaled(nano: int, divisor: int) -> int:
    magnitude = min(QUANTITY_MAX, -(-abs(nano) // divisor))
    return magnitude if nano >= 0 else -magnitude


@lru_cache(maxsize=_CACHE_ENTRIES)
def _parse_nano(text: str) -> int:
    match = _FORM.match(text) if len(text) <= _TEXT_MAX else None
    if match is None or not (match[2] or match[3]):
        raise QuantityError(f"{text[:_TEXT_MAX]!r} is not a quantity; write for example 500m, 2, 1.5Gi or 2e3")
    sign, whole, fraction, exponent_mark, exponent, suffix = match.groups()
    digits, power = int((whole or "") + (fraction or "")), 9 - len(fraction or "")
    shift = 0
    if exponent_mark:
        power += int(exponent)
        if abs(int(exponent)) > _EXPONENT_MAX:
            raise QuantityError(f"{text[:_TEXT_MAX]!r} is not a quantity: its exponent is beyond ±{_EXPONENT_MAX}")
    elif suffix in _BINARY:
        shift = _BINARY[suffix]
    else:
        power += _DECIMAL[suffix]
    numerator, denominator = digits << shift, 1
    if power >= 0:
        numerator *= 10**power
    else:
        denominator = 10**-power
    value = -(-numerator // denominator)
    return -value if sign == "-" else value
