"""Logs kinds that cannot be read: one line per cause with the number of kinds, again at intervals that double.

Owns the cause of failure per kind. Shared by all reflectors of one server, which all fail together if a token is
refused.
"""

from __future__ import annotations

import logging
from typing import Final

from multisched.client.errors import ApiError, fix_of
from multisched.client.recurring_trouble import RecurringTrouble
from multisched.framework.ports import Clock

logger = logging.getLogger(__name__)

PATHS_SHOWN: Final = 5
CAUSES_MAX: Final = 16
"""Limit of remembered causes, which tells a recurring cause from a new one; the oldest is dropped first."""


class KindTroubles:
    """One operation that can fail for many kinds. Kinds are identified by their paths."""

    def __init__(self, what: str, level: int, clock: Clock) -> None:
        """`what`: the log message, written at `level`."""
        self._what = what
        self._level = level
        self._clock = clock
        self._cause_of: dict[str, str] = {}
        """Path -> current cause of failure."""
        self._troubles: dict[str, RecurringTrouble] = {}
        """Cause -> when it is logged again."""

    def failed(self, path: str, error: Exception) -> None:
        """Notes a failed try for one kind, and logs it if due."""
        cause = f"{error.status} {error.reason}" if isinstance(error, ApiError) else type(error).__name__
        self._cause_of[path] = cause
        trouble = self._troubles.get(cause)
        if trouble is None:
            if len(self._troubles) >= CAUSES_MAX:
                del self._troubles[next(iter(self._troubles))]
            trouble = self._troubles[cause] = RecurringTrouble(self._clock)
        if not trouble.is_due(cause):
            return
        paths = sorted(one for one, why in self._cause_of.items() if why == cause)
        shown = [*paths[:PATHS_SHOWN], *(["..."] if len(paths) > PATHS_SHOWN else [])]
        fields = {"error": str(error), "kinds": len(paths), "paths": ", ".join(shown)}
        fix = fix_of(error)
        logger.log(self._level, self._what, extra={**fields, "fix": fix} if fix else fields)

    def fine(self, path: str) -> None:
        """Notes success for this kind. A cause that no kind has any more is logged as new if it occurs again."""
        cause = self._cause_of.pop(path, None)
        if cause is not None and cause not in self._cause_of.values():
            self._troubles.pop(cause, None)


class ReadTroubles:
    """Failures of the reflectors of one server."""

    def __init__(self, clock: Clock) -> None:
        self.lists = KindTroubles("list failed", logging.WARNING, clock)
        self.watches = KindTroubles("watch refused", logging.WARNING, clock)
        self.broken_watches = KindTroubles("watch broke", logging.INFO, clock)
