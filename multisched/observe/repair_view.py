"""The answer of `/api/v1/repair/plan`, and how it is asked for: values only.

The plan itself is `framework.repair.RepairPlan`; the server encodes it, `multisched repair plan` decodes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Protocol

import msgspec

from multisched.framework.repair import ALL_DIMENSIONS, RepairAsked, RepairPlan

PLAN_PARAMETERS: Final = ("domain", "threshold", "moves", "movesPerNode", "movesPerService")
"""Of the question's URL."""
PLAN_MOVES_MAX: Final = 10_000
THRESHOLDS_MAX: Final = 64
DIMENSION_CHARS_MAX: Final = 253


class RepairSource(Protocol):
    """Makes plans, off the loop."""

    async def plan(self, asked: RepairAsked) -> RepairPlan:
        """Raises RepairRefusedError."""
        ...


def thresholds(texts: Iterable[str]) -> Mapping[str, float]:
    """`log=90` for one dimension, `90` for all that are not named; in percent of capacity. ValueError with what to write."""
    found: dict[str, float] = {}
    for number, text in enumerate(texts):
        name, equals, amount = text.rpartition("=")
        try:
            percent = float(amount.strip().removesuffix("%"))
        except ValueError:
            percent = float("nan")
        if number >= THRESHOLDS_MAX or (equals and not name.strip()) or len(name) > DIMENSION_CHARS_MAX:
            percent = float("nan")
        if not 0 < percent < float("inf"):
            raise ValueError(
                f"threshold {text[:80]!r}: write DIMENSION=PERCENT such as log=90, or 90 for all dimensions"
            )
        at = name.strip() or ALL_DIMENSIONS
        if at in found:
            raise ValueError(f"threshold {text!r}: {at or 'the one for all'} is given twice")
        found[at] = percent
    return found


def encode_plan(plan: RepairPlan) -> bytes:
    """JSON with camelCase names."""
    return msgspec.json.encode(plan)


def decode_plan(body: bytes) -> RepairPlan:
    """Raises msgspec.DecodeError for anything else."""
    return msgspec.json.decode(body, type=RepairPlan)
