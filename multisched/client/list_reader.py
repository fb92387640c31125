"""Takes up whole lists of one kind: page by page into the feed, or not at all where a list comes from the past.

Owns what it takes to tell a server that lags from a history that went back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from typing import Final

import msgspec

from multisched.client.history import History
from multisched.client.known_objects import Verdict, is_older
from multisched.client.lister import MalformedAnswerError, Page, list_pages
from multisched.client.object_feed import BATCH_ITEMS, ObjectFeed, ObjectMetadata, metadata_of
from multisched.model.wire import UNREADABLE, Transport

STALE_LISTS_MAX: Final = 5
"""So many lists in a row that are older than what was seen mean that the server's history itself went back (restored backup)."""


class ContradictoryListError(Exception):
    """A list that is as new as what is known shows something older: the server's history was rewritten."""


class ListReader:
    """Of one kind, for one reflector."""

    def __init__(
        self,
        transport: Transport,
        path: str,
        feed: ObjectFeed,
        history: History,
        *,
        field_selector: str,
        label_selector: str,
    ) -> None:
        self.stale = 0
        """Lists that were older than what was seen."""
        self._transport = transport
        self.url = path
        """Where the list is asked for: that of another version of the kind, where the server does not serve the first."""
        self._path = path
        self._feed = feed
        self._history = history
        self._field_selector = field_selector
        self._label_selector = label_selector
        self._stale_in_a_row = 0

    async def read(self, page_items: int) -> str | None:
        """The version of the list that has been handed on; None if it was not used, as it is older than what has been seen."""
        pages = list_pages(
            self._transport,
            self.url,
            field_selector=self._field_selector,
            label_selector=self._label_selector,
            page_items=page_items,
        )
        async with aclosing(pages):
            first = await anext(pages)
            if not self._may_use(first.version):
                return None
            if self._history.must_start_over(self._path):
                whole = [self._items_of(page) for page in [first, *[page async for page in pages]]]
                self._feed.known.forget_versions()  # not before the list is whole: until then what is known stays in force
                self._feed.begin_list()
                for items in whole:
                    await self._ingest(items)
                self._history.started_over(self._path)
            else:
                self._feed.begin_list(first.version)
                await self._ingest(self._items_of(first), first.version)
                async for page in pages:
                    await self._ingest(self._items_of(page), page.version)
        self._feed.end_list(first.version)
        return first.version

    def _may_use(self, version: str) -> bool:
        """Refuses a list from the past (a lagging API server, #59848), unless the past has plainly become the present."""
        if not is_older(version, self._feed.newest):
            self._stale_in_a_row = 0
            return True
        self.stale += 1
        self._stale_in_a_row += 1
        self._history.doubt(self._path)
        if self._stale_in_a_row < STALE_LISTS_MAX:
            return False
        self._history.went_back(self._path)
        return True

    def _items_of(self, page: Page) -> list[tuple[ObjectMetadata, msgspec.Raw]]:
        try:
            return [(metadata_of(raw), raw) for raw in page.items]
        except UNREADABLE as error:
            raise MalformedAnswerError(f"an item in the list of {self._path} has no metadata") from error

    async def _ingest(self, items: Sequence[tuple[ObjectMetadata, msgspec.Raw]], version: str = "") -> None:
        """Hands on a page of a list. `version`: of a list that shows what is known, or something newer."""
        for start in range(0, len(items), BATCH_ITEMS):
            for metadata, raw in items[start : start + BATCH_ITEMS]:
                verdict = self._feed.observe(metadata, raw)
                if verdict is Verdict.STALE and is_older(metadata.version, version):
                    # What was seen of it never was, or its deletion: a list that is as new cannot show an earlier state.
                    self._history.went_back(self._path)
                    raise ContradictoryListError(f"the list of {self._path} shows an object as it was before")
            await asyncio.sleep(0)
