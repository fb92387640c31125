"""Whether the server's history is still the one that the reflectors know; shared by all reflectors of one server.

A list that is older than what was seen comes from a server that lags, or from a store that was restored from a backup.
Until that is settled nothing that is known can be trusted, and nothing may be decided or written: `is_trusted` is
False. Once it is clear that history went back, every reflector takes a whole new list, whatever its versions say. Trust
returns when all have done so. Until a reflector has its list whole, what it knew stays in force.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

logger = logging.getLogger(__name__)


class History:
    """Decides whether the API server's history is still the one that the reflectors know.

    Reflectors are known by their paths.
    """

    def __init__(self) -> None:
        self._relists: dict[str, Callable[[], None]] = {}
        self._doubting: set[str] = set()
        """Whose latest list was older than what they had seen."""
        self._to_start_over: set[str] = set()
        """Who has yet to take up the list of the new history."""
        self._on_change: list[Callable[[bool], None]] = []
        self.rewritten = 0
        """How often history went back."""

    @property
    def is_trusted(self) -> bool:
        return not (self._doubting or self._to_start_over)

    def on_change(self, call: Callable[[bool], None]) -> None:
        """`call(is_trusted)` is made, synchronously, whenever that changes."""
        self._on_change.append(call)

    # -- called by reflectors ----------------------------------------------------------------------------------------

    def join(self, path: str, relist: Callable[[], None]) -> None:
        """`relist` makes the reflector list at once."""
        self._relists[path] = relist

    def leave(self, path: str) -> None:
        """The server does not serve the kind, or not to us: nobody waits for its list."""
        self._settle(path)

    def doubt(self, path: str) -> None:
        """A list was older than what was seen."""
        if path not in self._doubting:
            logger.warning(
                "a list is older than what is known; nothing is decided until it is newer", extra={"path": path}
            )
        was_trusted = self.is_trusted
        self._doubting.add(path)
        self._report(was_trusted)

    def went_back(self, path: str) -> None:
        """It is clear that the server's history is another one than was seen: all start over, the caller by its next list."""
        if path in self._to_start_over:
            return
        logger.error("the server's history went back; all kinds are listed anew", extra={"path": path})
        was_trusted = self.is_trusted
        self.rewritten += 1
        self._to_start_over.update(self._relists)
        for other, relist in self._relists.items():
            if other != path:
                relist()
        self._report(was_trusted)

    def must_start_over(self, path: str) -> bool:
        """True if the next list is to be taken up whatever its versions say."""
        return path in self._to_start_over

    def started_over(self, path: str) -> None:
        """A whole list was taken up, whatever its versions said."""
        self._settle(path)

    def listed(self, path: str) -> None:
        """A list that was new enough has been handed on."""
        was_trusted = self.is_trusted
        self._doubting.discard(path)
        self._report(was_trusted)

    def _settle(self, path: str) -> None:
        was_trusted = self.is_trusted
        self._doubting.discard(path)
        self._to_start_over.discard(path)
        self._report(was_trusted)

    def _report(self, was_trusted: bool) -> None:
        if was_trusted == self.is_trusted:
            return
        if not was_trusted:
            logger.warning("what is known of the cluster is the server's present again")
        for call in self._on_change:
            call(self.is_trusted)
