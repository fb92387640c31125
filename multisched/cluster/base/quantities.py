"""Kubernetes quantities as exact rationals, for validation, LimitRange and display.

Grammar: k8s.io/apimachinery resource.ParseQuantity.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache

QUANTITY_LENGTH_MAX = 64
"""Longer strings are rejected without parsing."""

_PATTERN = re.compile(r"([+-]?)(\d+(?:\.\d*)?|\.\d+)(Ki|Mi|Gi|Ti|Pi|Ei|[numkMGTPE]|[eE][+-]?\d{1,3})?")
_SUFFIXES: dict[str, Fraction] = {
    "": Fraction(1),
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    **{letter: Fraction(1000**power) for power, letter in enumerate("kMGTPE", start=1)},
    **{f"{letter}i": Fraction(1024**power) for power, letter in enumerate("KMGTPE", start=1)},
}

FORMAT_RULE = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"


@lru_cache(maxsize=4_096)
def parse(text: str | int | float) -> Fraction | None:
    """Returns the value; None if the text is not a quantity."""
    shown = str(text)
    match = _PATTERN.fullmatch(shown) if len(shown) <= QUANTITY_LENGTH_MAX else None
    if match is None:
        return None
    sign, digits, suffix = match.groups()
    suffix = suffix or ""
    scale = _SUFFIXES.get(suffix)
    if scale is None:
        exponent = int(suffix[1:])
        scale = Fraction(10) ** exponent
    value = Fraction(digits if digits[0] != "." else "0" + digits) * scale
    return -value if sign == "-" else value
