"""The documents of `/api/v1/repair/…` and their parameters: values only.

A plan is a `framework.repair.RepairPlan`, a status a `framework.moving.RepairStatus`; the server encodes them,
`multisched repair` decodes them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final, Protocol

import msgspec

from multisched.framework.moving import RepairStatus
from multisched.framework.repair import ALL_DIMENSIONS, RepairPlan, RepairRequest

PLAN_PARAMETERS: Final = ("domain", "threshold", "moves", "movesPerNode", "movesPerService")
"""Query parameters of a plan."""
PLAN_MOVES_MAX: Final = 10_000
THRESHOLDS_MAX: Final = 64
DIMENSION_CHARS_MAX: Final = 253


class RepairSource(Protocol):
    """Makes plans off the loop, and starts them.

    All methods raise RepairRefusedError, and NotLeadingError for a domain that another replica leads.

    A Protocol because `observe` does not import `whatif`; implemented there (`RepairPlans`).
    """

    async def plan(self, request: RepairRequest) -> RepairPlan: ...

    def status(self, domain: str) -> RepairStatus:
        """Returns the state of repair; `domain` empty: of the only domain that can be repaired."""
        ...

    async def run(self, request: RepairRequest, digest: str) -> RepairStatus:
        """Starts the plan that was shown with this digest, if planning still gives the same one."""
        ...


class RunRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a POST to `/api/v1/repair/run`; the URL has the parameters of the plan."""

    digest: str


def encode_status(status: RepairStatus) -> bytes:
    """Returns JSON with camelCase names."""
    return msgspec.json.encode(status)


def decode_status(body: bytes) -> RepairStatus:
    """Decodes JSON. Raises msgspec.DecodeError for anything else."""
    return msgspec.json.decode(body, type=RepairStatus)


def thresholds(texts: Iterable[str]) -> Mapping[str, float]:
    """Parses `log=90` for one dimension, `90` for all others; in percent of capacity. Raises ValueError with the fix."""
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
    """Returns JSON with camelCase names."""
    return msgspec.json.encode(plan)


def decode_plan(body: bytes) -> RepairPlan:
    """Decodes JSON. Raises msgspec.DecodeError for anything else."""
    return msgspec.json.decode(body, type=RepairPlan)
