"""Reports whether the API server's history is still the one that the reflectors know; shared by all reflectors of one
server.

A list that is older than what was seen comes from a server that lags, or from a store that was restored from a backup.
Until it is clear which, the known state cannot be trusted and nothing may be decided or written: `is_trusted` is False.
Once it is clear that the history went back, every reflector applies a whole new list, whatever its versions. Trust
returns when all have done so. Until a reflector has its whole list, its old objects stay in effect.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

logger = logging.getLogger(__name__)


class History:
    """Decides whether the API server's history is still the one that the reflectors know.

    Reflectors are identified by their names, which are their paths in most cases.
    """

    def __init__(self) -> None:
        self._relists: dict[str, Callable[[], None]] = {}
        self._doubting: set[str] = set()
        """Reflectors whose latest list was older than what they had seen."""
        self._to_start_over: set[str] = set()
        """Reflectors that have not yet applied a list of the new history."""
        self._on_change: list[Callable[[bool], None]] = []
        self.rewritten = 0
        """Number of times that the history went back."""

    @property
    def is_trusted(self) -> bool:
        return not (self._doubting or self._to_start_over)

    def on_change(self, call: Callable[[bool], None]) -> None:
        """Registers `call(is_trusted)`, which is called synchronously whenever the value changes."""
        self._on_change.append(call)

    # -- called by reflectors ----------------------------------------------------------------------------------------

    def join(self, name: str, relist: Callable[[], None]) -> None:
        """Registers a reflector; `relist` makes it list at once."""
        self._relists[name] = relist

    def leave(self, name: str) -> None:
        """Removes a reflector from the wait: the server returns 404 or 403 for its kind."""
        self._settle(name)

    def doubt(self, name: str) -> None:
        """Notes that a list was older than what was seen."""
        if name not in self._doubting:
            logger.warning(
                "a list is older than what is known; nothing is decided until it is newer", extra={"path": name}
            )
        was_trusted = self.is_trusted
        self._doubting.add(name)
        self._report(was_trusted)

    def went_back(self, name: str) -> None:
        """Notes that the server's history was replaced: all reflectors start over, the caller's with its next list."""
        if name in self._to_start_over:
            return
        logger.error("the server's history went back; all kinds are listed again", extra={"path": name})
        was_trusted = self.is_trusted
        self.rewritten += 1
        self._to_start_over.update(self._relists)
        for other, relist in self._relists.items():
            if other != name:
                relist()
        self._report(was_trusted)

    def must_start_over(self, name: str) -> bool:
        """Returns whether the next list is to be applied whatever its versions."""
        return name in self._to_start_over

    def started_over(self, name: str) -> None:
        """Notes that a whole list was applied, whatever its versions."""
        self._settle(name)

    def listed(self, name: str) -> None:
        """Notes that a list that was new enough has been applied."""
        was_trusted = self.is_trusted
        self._doubting.discard(name)
        self._report(was_trusted)

    def _settle(self, name: str) -> None:
        was_trusted = self.is_trusted
        self._doubting.discard(name)
        self._to_start_over.discard(name)
        self._report(was_trusted)

    def _report(self, was_trusted: bool) -> None:
        if was_trusted == self.is_trusted:
            return
        if not was_trusted:
            logger.warning("the known state matches the API server again")
        for call in self._on_change:
            call(self.is_trusted)
