"""Reason codes of Filter plugins: one byte per row in the hot path, converted to text on request."""

from __future__ import annotations

import threading

from multisched.framework.status import Code, Status

REASON_CODES_MAX = 254
"""Limit of distinct (status code, sentences) pairs per plugin; all further ones share the number 255."""

_OVERFLOW = 255


class ReasonTable:
    """Interns (status code, sentences) to 1..255. Owned by one plugin; only grows."""

    def __init__(self, plugin: str) -> None:
        self._plugin = plugin
        self._codes: dict[tuple[Code, tuple[str, ...]], int] = {}
        self._statuses: list[Status] = [Status(plugin=plugin)]
        self._lock = threading.Lock()  # a plugin isolated in threads may add reasons from several threads

    def code(self, code: Code, *reasons: str) -> int:
        """Returns the number of this reason. Register fixed reasons in the plugin's constructor."""
        known = self._codes.get((code, reasons))
        if known is not None:
            return known
        with self._lock:
            return self._add(code, reasons)

    def _add(self, code: Code, reasons: tuple[str, ...]) -> int:
        known = self._codes.get((code, reasons))
        if known is not None:
            return known
        if len(self._statuses) > REASON_CODES_MAX:
            return _OVERFLOW
        self._statuses.append(Status(code, self._plugin, reasons))
        self._codes[(code, reasons)] = len(self._statuses) - 1
        return len(self._statuses) - 1

    def status(self, number: int) -> Status:
        """Returns the status of a code; 0 is success."""
        if number < len(self._statuses):
            return self._statuses[number]
        return Status(Code.UNSCHEDULABLE, self._plugin, (f"{self._plugin}: too many distinct reasons",))

    def __len__(self) -> int:
        return len(self._statuses)
