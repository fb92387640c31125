"""Quantities of the Kubernetes API as exact rationals.

Source: the API's documentation of `Quantity` (a decimal number with a binary suffix, a decimal suffix or an exponent).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache

from multisched.verify.fields import Json, Unreadable, mapping, shown

Amounts = dict[str, Fraction]

TEXT_MAX = 64
"""Longest quantity, in characters; the API server writes much shorter ones."""
_EXPONENT_MAX = 100
_FORM = re.compile(
    r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))(?:(Ki|Mi|Gi|Ti|Pi|Ei|[numkMGTPE])|[eE]([+-]?[0-9]+))?", re.ASCII
)
_SUFFIXES: Mapping[str, Fraction] = {
    **{suffix: Fraction(1024) ** power for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), start=1)},
    **{suffix: Fraction(1000) ** power for power, suffix in enumerate(("k", "M", "G", "T", "P", "E"), start=1)},
    "m": Fraction(1, 1000),
    "u": Fraction(1, 1000**2),
    "n": Fraction(1, 1000**3),
}


@lru_cache(maxsize=65_536)
def _parsed(text: str) -> Fraction:
    found = _FORM.fullmatch(text) if len(text) <= TEXT_MAX else None
    if found is None or (found[3] is not None and abs(int(found[3])) > _EXPONENT_MAX):
        raise Unreadable(f"{shown(text)} is not a quantity; write for example 500m, 2 or 1Gi")
    scale = _SUFFIXES[found[2]] if found[2] else Fraction(10) ** int(found[3] or 0)
    return Fraction(found[1]) * scale


def quantity(value: object) -> Fraction:
    """Parses a quantity exactly. Raises Unreadable."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise Unreadable(f"{shown(value)} is not a quantity; write for example 500m, 2 or 1Gi")
    return _parsed(str(value))


def amounts(document: Json, field: str) -> Amounts:
    """Parses a map of resource names to quantities of 0 or more."""
    found: Amounts = {}
    for name, value in mapping(document, field).items():
        try:
            found[name] = quantity(value)
        except Unreadable as error:
            raise Unreadable(f"{field}.{name}: {error}") from error
        if found[name] < 0:
            raise Unreadable(f"{field}.{name}: {shown(value)} is below 0")
    return found


def quota_units(resource: str, amount: Fraction) -> int:
    """Rounds up to thousandths of a CPU or a device (`nvidia.com/gpu`), else to units: quotas bound parts of devices, too."""
    return math.ceil(amount * 1000) if "/" in resource else whole_units(resource, amount)


def whole_units(resource: str, amount: Fraction) -> int:
    """Rounds up to thousandths of a CPU, else to units (bytes, devices), as schedulers count them."""
    return math.ceil(amount * 1000) if resource == "cpu" else math.ceil(amount)
