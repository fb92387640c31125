"""Documents as bytes: one computation serves all requests that it is recent enough for.

Many pages read the same documents, at the same moment when something has changed. A document is recent enough for a
request if its computation began after the request arrived, or after the latest overview was read: a page knows of no
later change. Requests are answered one after the other, each in a turn of the event loop of its own, so that the steps of two
computations are never in the same turn. Rights are checked before; a document is the same for all who may read it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

DOCUMENTS_KEPT: Final = 16
"""Documents that are kept while no request waits for them."""
KEPT_S: Final = 2.0
"""If no overview was sent for this time, no page follows it, and every request gets a new document."""


class _Document:
    """One document, and the requests that wait for it."""

    def __init__(self) -> None:
        self.readers = 0
        self.began = 0
        """Number of the event that began its computation; 0: never computed."""
        self.body = b""


class SharedDocuments:
    """The documents of a server."""

    def __init__(self) -> None:
        self._events = 0
        """Arrivals, computations and overviews, in their order."""
        self._overview, self._overview_at_s = 0, 0.0
        self._documents: dict[str, _Document] = {}
        self._turn = asyncio.Lock()

    def __len__(self) -> int:
        return len(self._documents)

    def note_overview(self) -> None:
        """Notes that an overview was read: later requests need documents that are at least as recent."""
        self._overview, self._overview_at_s = self._event(), asyncio.get_running_loop().time()

    async def body(self, key: str, make: Callable[[], Awaitable[bytes]]) -> bytes:
        """Returns the document `key`; `make` computes it, if no recent one is there. Its errors are those of this request only."""
        needed = self._event()
        if self._overview and asyncio.get_running_loop().time() - self._overview_at_s <= KEPT_S:
            needed = self._overview
        document = self._documents.pop(key, None) or _Document()
        self._documents[key] = document  # the last one now
        document.readers += 1
        try:
            async with self._turn:
                await asyncio.sleep(0)
                if document.began < needed:
                    began = self._event()
                    document.body = await make()
                    document.began = began
                return document.body
        finally:
            document.readers -= 1
            self._drop_oldest()

    def _event(self) -> int:
        self._events += 1
        return self._events

    def _drop_oldest(self) -> None:
        idle = [key for key, one in self._documents.items() if not one.readers]
        for key in idle[: max(0, len(idle) - DOCUMENTS_KEPT)]:
            del self._documents[key]
