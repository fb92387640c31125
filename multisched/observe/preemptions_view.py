"""The latest preemptions, reclaims included: the document of `/api/v1/decisions/preemptions`. Values only."""

from __future__ import annotations

from typing import Final, Protocol

import msgspec

PREEMPTIONS_SHOWN: Final = 20
PREEMPTIONS_SHOWN_MAX: Final = 100


class ShownVictim(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A pod that was to be evicted."""

    pod: str
    node: str
    state: str
    """deleted, terminating, or present."""


class ShownPreemptor(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A pod for which others were evicted."""

    pod: str
    node: str
    """Nominated then."""


class ShownPreemption(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One preemption, and what has become of it by now."""

    at_seconds: float
    """Unix time of the decision."""
    domain: str
    plugin: str
    state: str
    """in progress, done, or not carried out: victims are there, and nothing evicts them any more."""
    pods: tuple[ShownPreemptor, ...]
    pods_left_out: int
    victims: tuple[ShownVictim, ...]
    victims_left_out: int
    freed: dict[str, int]
    """Resource -> sum of its victims' requests: thousandths of cores for cpu, bytes or counts for others."""


class PreemptionList(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The whole document."""

    preemptions: tuple[ShownPreemption, ...]
    """Started by this process, the newest first."""


class PreemptionsSource(Protocol):
    """Reads the preemptions of a running program.

    A Protocol because `observe` does not import the shell; implemented there (`ProgramPreemptions`).
    """

    async def preemptions(self, *, plugin: str, limit: int) -> PreemptionList:
        """Returns the latest of one plugin, or of all if it is empty."""
        ...
