"""Pauses all domains while the API server's history is in doubt, and redoes all decisions if it went back (a restored backup)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from multisched.client.history import History
from multisched.shell.ingest.router import Router

WENT_BACK = "the API server's history went back (restored backup) before the pod was bound"


class HistoryGuard:
    """The history guard of one program. Owns the count of rewritten histories that it has handled."""

    def __init__(self, history: History, router: Router, on_rewritten: Sequence[Callable[[], None]]) -> None:
        """`on_rewritten`: callbacks that drop records of earlier writes."""
        self._history = history
        self._router = router
        self._on_rewritten = on_rewritten
        self._rewritten = 0

    def changed(self, is_trusted: bool) -> None:
        """Pauses or resumes all domains. Called when trust in the history changes."""
        is_rewritten = is_trusted and self._history.rewritten != self._rewritten
        for worker in self._router.workers():
            if not is_trusted:
                worker.pause_scheduling()
            elif is_rewritten:
                worker.resume_scheduling(cancel_binds=WENT_BACK)
            else:
                worker.resume_scheduling()
        if is_rewritten:
            self._rewritten = self._history.rewritten
            for forget in self._on_rewritten:
                forget()
