"""The places of a pod in the queue, and every step between two places: allowed or forbidden, with the reason.

Pure. `EntryPlaces` calls `check` for a step that is not allowed; a forbidden step is a bug and raises with the entry's
latest moves.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum


class Place(StrEnum):
    """Where a pod is. A pod the queue does not know is ABSENT; every other pod is in exactly one place (I3)."""

    ABSENT = "absent"
    GATED = "gated"
    """Refused by a PreEnqueue plugin; waits for an event of that plugin, an update, or the leftover flush."""
    ACTIVE = "active"
    BACKOFF = "backoff"
    GANG = "gang"
    """Follows the lead of its gang, and is popped with it."""
    UNSCHEDULABLE = "unschedulable"
    """Refused by a cycle; waits for an event that can help, or the leftover flush."""
    IN_FLIGHT = "in-flight"
    """Popped: in a cycle, waiting at Permit, or being bound, until `fail` or `done`."""
    LEAVING = "leaving"
    """Removed while in flight. Kept until the attempt ends, so that a pod added again meanwhile is not tried twice (I2)."""


Step = tuple[Place, Place]

ALLOWED: dict[Step, str] = {
    (Place.ABSENT, Place.ACTIVE): "a new pod that every gate admits",
    (Place.ABSENT, Place.GATED): "a new pod that a gate refuses",
    (Place.GATED, Place.GATED): "the gates ran again and refused again, perhaps another gate",
    (Place.GATED, Place.ACTIVE): "every gate admits",
    (Place.GATED, Place.BACKOFF): "every gate admits, and the backoff of an earlier failure is not over",
    (Place.GATED, Place.ABSENT): "removed",
    (Place.ACTIVE, Place.IN_FLIGHT): "popped",
    (Place.ACTIVE, Place.GATED): "a gate refuses it, or its gang waits for members again",
    (Place.ACTIVE, Place.ABSENT): "removed",
    (Place.BACKOFF, Place.ACTIVE): "the backoff ended, or the pod was activated",
    (Place.BACKOFF, Place.IN_FLIGHT): "popped because no pod is active",
    (Place.BACKOFF, Place.GATED): "a gate refuses it, or its gang waits for members again",
    (Place.BACKOFF, Place.ABSENT): "removed",
    (Place.ABSENT, Place.GANG): "a new member of a gang with another lead",
    (Place.GATED, Place.GANG): "every gate admits, and its gang has another lead",
    (Place.ACTIVE, Place.GANG): "its gang must start together again, and has another lead",
    (Place.BACKOFF, Place.GANG): "its gang must start together again, and has another lead",
    (Place.UNSCHEDULABLE, Place.GANG): "its gang must start together again, and has another lead",
    (Place.IN_FLIGHT, Place.GANG): "failed with its gang, which has another lead",
    (Place.GANG, Place.IN_FLIGHT): "popped with the lead of its gang",
    (Place.GANG, Place.ACTIVE): "it is the lead now, or its gang has started",
    (Place.GANG, Place.BACKOFF): "it is the lead now, and the backoff of an earlier failure is not over",
    (Place.GANG, Place.GATED): "it would be the lead, but a gate refuses it now",
    (Place.GANG, Place.ABSENT): "removed",
    (Place.UNSCHEDULABLE, Place.ACTIVE): "an event can help, and the backoff is over",
    (Place.UNSCHEDULABLE, Place.BACKOFF): "an event can help, and the backoff is not over",
    (Place.UNSCHEDULABLE, Place.GATED): "an event can help, but a gate refuses it now",
    (Place.UNSCHEDULABLE, Place.ABSENT): "removed",
    (Place.IN_FLIGHT, Place.ACTIVE): "failed without backoff",
    (Place.IN_FLIGHT, Place.BACKOFF): "failed by an error, or an event during the attempt can help",
    (Place.IN_FLIGHT, Place.UNSCHEDULABLE): "failed, and no event during the attempt can help",
    (Place.IN_FLIGHT, Place.GATED): "failed, and a gate refuses it now",
    (Place.IN_FLIGHT, Place.LEAVING): "removed before the attempt ended",
    (Place.IN_FLIGHT, Place.ABSENT): "done",
    (Place.LEAVING, Place.IN_FLIGHT): "added again before the attempt ended",
    (Place.LEAVING, Place.ABSENT): "the attempt ended",
}


def _forbid(origins: Iterable[Place], targets: Iterable[Place], why: str) -> dict[Step, str]:
    return {(origin, target): why for origin in origins for target in targets}


_QUEUED = (Place.GATED, Place.ACTIVE, Place.BACKOFF, Place.UNSCHEDULABLE, Place.GANG)

FORBIDDEN: dict[Step, str] = {
    **_forbid([Place.ABSENT], [Place.ABSENT], "there is nothing to move"),
    **_forbid([Place.ABSENT], [Place.BACKOFF, Place.UNSCHEDULABLE], "only a failed attempt leads there"),
    **_forbid([Place.ABSENT], [Place.IN_FLIGHT, Place.LEAVING], "only a queued pod is popped"),
    **_forbid([Place.GATED], [Place.UNSCHEDULABLE], "a gated pod was not tried"),
    **_forbid([Place.GATED], [Place.IN_FLIGHT], "a gated pod is never scheduled (I7)"),
    **_forbid([Place.ACTIVE], [Place.ACTIVE], "it is already active"),
    **_forbid([Place.ACTIVE], [Place.BACKOFF, Place.UNSCHEDULABLE], "only a failed attempt leads there"),
    **_forbid([Place.BACKOFF], [Place.BACKOFF], "it is already in backoff"),
    **_forbid([Place.BACKOFF], [Place.UNSCHEDULABLE], "only a failed attempt leads there"),
    **_forbid([Place.GANG], [Place.GANG], "it already follows its lead"),
    **_forbid([Place.GANG], [Place.UNSCHEDULABLE], "only the lead of a gang is parked"),
    **_forbid([Place.UNSCHEDULABLE], [Place.UNSCHEDULABLE], "an event that cannot help moves no pod"),
    **_forbid([Place.UNSCHEDULABLE], [Place.IN_FLIGHT], "only an active pod or one in backoff is popped"),
    **_forbid(_QUEUED, [Place.LEAVING], "only a pod in flight becomes leaving; a queued pod is removed at once"),
    **_forbid([Place.IN_FLIGHT], [Place.IN_FLIGHT], "one attempt at a time (I2)"),
    **_forbid([Place.LEAVING], [*_QUEUED, Place.LEAVING], "a removed pod returns only if it is added again"),
}


class QueueInvariantError(AssertionError):
    """A forbidden step was requested, or the queue's indices disagree. A bug, never caused by input."""


def check(uid: str, origin: Place, target: Place, story: Iterable[str] = ()) -> None:
    """Raises QueueInvariantError if `origin` → `target` is forbidden."""
    if (origin, target) in ALLOWED:
        return
    past = "; ".join(story) or "unknown to this queue"
    raise QueueInvariantError(f"pod {uid}: {origin} → {target}: {FORBIDDEN[origin, target]} [{past}]")
