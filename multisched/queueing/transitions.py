"""The states of a pod in the queue, and every step between two states: allowed or forbidden, with the reason.

Pure. `EntryStates` calls `check` for a step that is not allowed; a forbidden step is a bug and raises with the entry's
latest moves.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Final


class QueueState(StrEnum):
    """The state of a pod in the queue. A pod the queue does not know is ABSENT; every other pod is in exactly one state (I3)."""

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


POPPED: Final = frozenset({QueueState.IN_FLIGHT, QueueState.LEAVING})
"""The states of a pod whose attempt has not ended."""

Step = tuple[QueueState, QueueState]

ALLOWED: dict[Step, str] = {
    (QueueState.ABSENT, QueueState.ACTIVE): "a new pod that every gate admits",
    (QueueState.ABSENT, QueueState.GATED): "a new pod that a gate refuses",
    (QueueState.GATED, QueueState.GATED): "the gates ran again and refused again, perhaps another gate",
    (QueueState.GATED, QueueState.ACTIVE): "every gate admits",
    (QueueState.GATED, QueueState.BACKOFF): "every gate admits, and the backoff of an earlier failure is not over",
    (QueueState.GATED, QueueState.ABSENT): "removed",
    (QueueState.ACTIVE, QueueState.IN_FLIGHT): "popped",
    (QueueState.ACTIVE, QueueState.GATED): "a gate refuses it, or its gang waits for members again",
    (QueueState.ACTIVE, QueueState.ABSENT): "removed",
    (QueueState.BACKOFF, QueueState.ACTIVE): "the backoff ended, or the pod was activated",
    (QueueState.BACKOFF, QueueState.IN_FLIGHT): "popped because no pod is active",
    (QueueState.BACKOFF, QueueState.GATED): "a gate refuses it, or its gang waits for members again",
    (QueueState.BACKOFF, QueueState.ABSENT): "removed",
    (QueueState.ABSENT, QueueState.GANG): "a new member of a gang with another lead",
    (QueueState.GATED, QueueState.GANG): "every gate admits, and its gang has another lead",
    (QueueState.ACTIVE, QueueState.GANG): "its gang must start together again, and has another lead",
    (QueueState.BACKOFF, QueueState.GANG): "its gang must start together again, and has another lead",
    (QueueState.UNSCHEDULABLE, QueueState.GANG): "its gang must start together again, and has another lead",
    (QueueState.IN_FLIGHT, QueueState.GANG): "failed with its gang, which has another lead",
    (QueueState.GANG, QueueState.IN_FLIGHT): "popped with the lead of its gang",
    (QueueState.GANG, QueueState.ACTIVE): "it is the lead now, or its gang has started",
    (QueueState.GANG, QueueState.BACKOFF): "it is the lead now, and the backoff of an earlier failure is not over",
    (QueueState.GANG, QueueState.GATED): "it would be the lead, but a gate refuses it now",
    (QueueState.GANG, QueueState.ABSENT): "removed",
    (QueueState.UNSCHEDULABLE, QueueState.ACTIVE): "an event can help, and the backoff is over",
    (QueueState.UNSCHEDULABLE, QueueState.BACKOFF): "an event can help, and the backoff is not over",
    (QueueState.UNSCHEDULABLE, QueueState.GATED): "an event can help, but a gate refuses it now",
    (QueueState.UNSCHEDULABLE, QueueState.ABSENT): "removed",
    (QueueState.IN_FLIGHT, QueueState.ACTIVE): "failed without backoff",
    (QueueState.IN_FLIGHT, QueueState.BACKOFF): "failed by an error, or an event during the attempt can help",
    (QueueState.IN_FLIGHT, QueueState.UNSCHEDULABLE): "failed, and no event during the attempt can help",
    (QueueState.IN_FLIGHT, QueueState.GATED): "failed, and a gate refuses it now",
    (QueueState.IN_FLIGHT, QueueState.LEAVING): "removed before the attempt ended",
    (QueueState.IN_FLIGHT, QueueState.ABSENT): "done",
    (QueueState.LEAVING, QueueState.IN_FLIGHT): "added again before the attempt ended",
    (QueueState.LEAVING, QueueState.ABSENT): "the attempt ended",
}


def _forbid(origins: Iterable[QueueState], targets: Iterable[QueueState], why: str) -> dict[Step, str]:
    return {(origin, target): why for origin in origins for target in targets}


_QUEUED = (QueueState.GATED, QueueState.ACTIVE, QueueState.BACKOFF, QueueState.UNSCHEDULABLE, QueueState.GANG)

FORBIDDEN: dict[Step, str] = {
    **_forbid([QueueState.ABSENT], [QueueState.ABSENT], "there is nothing to move"),
    **_forbid([QueueState.ABSENT], [QueueState.BACKOFF, QueueState.UNSCHEDULABLE], "only a failed attempt leads there"),
    **_forbid([QueueState.ABSENT], [QueueState.IN_FLIGHT, QueueState.LEAVING], "only a queued pod is popped"),
    **_forbid([QueueState.GATED], [QueueState.UNSCHEDULABLE], "a gated pod was not tried"),
    **_forbid([QueueState.GATED], [QueueState.IN_FLIGHT], "a gated pod is never scheduled (I7)"),
    **_forbid([QueueState.ACTIVE], [QueueState.ACTIVE], "it is already active"),
    **_forbid([QueueState.ACTIVE], [QueueState.BACKOFF, QueueState.UNSCHEDULABLE], "only a failed attempt leads there"),
    **_forbid([QueueState.BACKOFF], [QueueState.BACKOFF], "it is already in backoff"),
    **_forbid([QueueState.BACKOFF], [QueueState.UNSCHEDULABLE], "only a failed attempt leads there"),
    **_forbid([QueueState.GANG], [QueueState.GANG], "it already follows its lead"),
    **_forbid([QueueState.GANG], [QueueState.UNSCHEDULABLE], "only the lead of a gang is parked"),
    **_forbid([QueueState.UNSCHEDULABLE], [QueueState.UNSCHEDULABLE], "an event that cannot help moves no pod"),
    **_forbid([QueueState.UNSCHEDULABLE], [QueueState.IN_FLIGHT], "only an active pod or one in backoff is popped"),
    **_forbid(_QUEUED, [QueueState.LEAVING], "only a pod in flight becomes leaving; a queued pod is removed at once"),
    **_forbid([QueueState.IN_FLIGHT], [QueueState.IN_FLIGHT], "one attempt at a time (I2)"),
    **_forbid([QueueState.LEAVING], [*_QUEUED, QueueState.LEAVING], "a removed pod returns only if it is added again"),
}


class QueueInvariantError(AssertionError):
    """A forbidden step was requested, or the queue's indices disagree. A bug, never caused by input."""


def check(uid: str, origin: QueueState, target: QueueState, transitions: Iterable[str] = ()) -> None:
    """Raises QueueInvariantError if `origin` → `target` is forbidden."""
    if (origin, target) in ALLOWED:
        return
    past = "; ".join(transitions) or "unknown to this queue"
    raise QueueInvariantError(f"pod {uid}: {origin} → {target}: {FORBIDDEN[origin, target]} [{past}]")
