"""The answers of `/api/v1/repair/…`, and how they are asked for: values only.

A plan is a `framework.repair.RepairPlan`, a status a `framework.moving.RepairStatus`; the server encodes them, `multisched
repair` decodes them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final, Protocol

import msgspec

from multisched.framework.moving import RepairStatus
from multisched.framework.repair import ALL_DIMENSIONS, RepairAsked, RepairPlan

PLAN_PARAMETERS: Final = ("domain", "threshold", "moves", "movesPerNode", "movesPerService")
"""Of the question's URL."""
PLAN_MOVES_MAX: Final = 10_000
THRESHOLDS_MAX: Final = 64
DIMENSION_CHARS_MAX: Final = 253


class RepairSource(Protocol):
    """Makes plans, off the loop, and has them carried out.

    All raise RepairRefusedError, and NotLeadingError for a domain that is not led here.

    Border: `whatif` has it (`RepairPlans`), above `observe`.
    """

    async def plan(self, asked: RepairAsked) -> RepairPlan: ...

    def status(self, domain: str) -> RepairStatus:
        """How repair stands; empty: of the only domain that can be repaired."""
        ...

    async def run(self, asked: RepairAsked, digest: str) -> RepairStatus:
        """Begins to carry out the plan that was shown under this digest, if the same is still made."""
        ...


class RunAsked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a POST to `/api/v1/repair/run`; the question the plan answered is in the URL."""

    digest: str


def encode_status(status: RepairStatus) -> bytes:
    """JSON with camelCase names."""
    return msgspec.json.encode(status)


def decode_status(body: bytes) -> RepairStatus:
    """Raises msgspec.DecodeError for anything else."""
    return msgspec.json.decode(body, type=RepairStatus)


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
        if not 0 < percent < math.inf:
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
