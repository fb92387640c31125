"""The lock of a node: an annotation that names the pod which HAMi's device plugin serves next. Pure values.

Sources: reference gpu 1.3; HAMi, pkg/util/nodelock/nodelock.go.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from multisched.model.objects import Pod

EXPIRES_AFTER: Final = timedelta(minutes=5)
"""HAMi's default. A lock in the future expires this long after it was first seen."""
NAME_MAX: Final = 253
SEPARATOR: Final = ","
LOCKED: Final = "node(s) had a GPU lock held by another scheduler"


class NodeLockKey(msgspec.Struct, frozen=True):
    """The lock of the nodes of one mode."""

    annotation: str
    is_written_before_bind: bool
    """This program takes it before it binds a pod. False: only other schedulers do."""
    held_while: frozenset[str] = frozenset()
    """Texts of `Hold.awaits`: a pod with one of these uses the lock that names it."""


class NodeLock(msgspec.Struct, frozen=True):
    """The text of a lock."""

    text: str
    at: datetime | None
    """None: the text is malformed."""
    namespace: str = ""
    pod: str = ""
    """Empty in the old form, which names no pod."""

    @property
    def pod_key(self) -> str:
        return f"{self.namespace}/{self.pod}"

    def has_expired(self, now: datetime) -> bool:
        return self.at is not None and now - self.at > EXPIRES_AFTER


def read_lock(text: str) -> NodeLock:
    """Reads `time,namespace,pod`, or the old form `time`."""
    parts = text.split(SEPARATOR) if len(text) <= 4 * NAME_MAX else []
    at = _time(parts[0]) if len(parts) in (1, 3) else None
    if at is None or (len(parts) == 3 and not (parts[1] and parts[2])):
        return NodeLock(text, None)
    return NodeLock(text, at, *parts[1:])


def lock_text(pod: Pod, now: datetime) -> str:
    return SEPARATOR.join((now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), pod.namespace, pod.name))


def _time(text: str) -> datetime | None:
    """Parses RFC 3339."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return at if at.tzinfo is not None and "T" in text else None
