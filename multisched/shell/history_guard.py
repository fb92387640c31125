"""Holds all domains while the server's history is in doubt, and has everything decided anew if it went back."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from multisched.client.history import History
from multisched.shell.ingest.router import Router

WENT_BACK = "the server's history went back before the pod was bound"


class HistoryGuard:
    """Of one program. Owns up to which rewriting of history everything has been decided anew."""

    def __init__(self, history: History, router: Router, on_rewritten: Sequence[Callable[[], None]]) -> None:
        """`on_rewritten`: those who remember what they have written."""
        self._history = history
        self._router = router
        self._on_rewritten = on_rewritten
        self._rewritten = 0

    def changed(self, is_trusted: bool) -> None:
        """Listens to the history."""
        is_rewritten = is_trusted and self._history.rewritten != self._rewritten
        for worker in self._router.workers():
            if not is_trusted:
                worker.hold()
            elif is_rewritten:
                worker.go_on(turned_back=WENT_BACK)
            else:
                worker.go_on()
        if is_rewritten:
            self._rewritten = self._history.rewritten
            for forget in self._on_rewritten:
                forget()
