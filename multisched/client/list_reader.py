"""Reads whole lists of one kind into the feed, page by page; drops a list that is older than what is known.

Owns the state that distinguishes a server that lags from a history that went back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from typing import Final

import msgspec

from multisched.client.history import History
from multisched.client.known_objects import Observation, is_older
from multisched.client.lister import MalformedAnswerError, Page, list_pages
from multisched.client.object_feed import BATCH_ITEMS, ObjectFeed, ObjectMetadata, metadata_of
from multisched.model.wire import UNREADABLE, Transport

STALE_LISTS_MAX: Final = 5
"""After this number of consecutive lists that are older than what was seen, the server's history itself counts as older, because a
backup was restored.
"""


class ContradictoryListError(Exception):
    """A list that is as new as what is known shows an older object: the server's history was replaced."""


class ListReader:
    """Reads lists of one kind for one reflector."""

    def __init__(
        self,
        transport: Transport,
        path: str,
        feed: ObjectFeed,
        history: History,
        *,
        name: str,
        field_selector: str,
        label_selector: str,
    ) -> None:
        """`name`: the reflector's."""
        self.stale = 0
        """Number of lists that were older than what was seen."""
        self._transport = transport
        self.url = path
        """The path of the list; that of another version of the kind if the server does not serve the first."""
        self._name = name
        self._feed = feed
        self._history = history
        self._field_selector = field_selector
        self._label_selector = label_selector
        self._stale_in_a_row = 0

    async def read(self, page_items: int) -> str | None:
        """Reads a list; returns its version, or None if it was dropped as older than what was seen."""
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
            starts_over = self._history.must_start_over(self._name)
            if starts_over:
                whole = [self._items_of(page) for page in [first, *[page async for page in pages]]]
                # only once the list is complete: until then the known objects stay in effect
                self._feed.known.forget_versions()
                self._feed.begin_list()
                for items in whole:
                    await self._ingest(items)
            else:
                self._feed.begin_list(first.version)
                await self._ingest(self._items_of(first), first.version)
                async for page in pages:
                    await self._ingest(self._items_of(page), page.version)
        self._feed.end_list(first.version)
        if starts_over:
            self._history.started_over(self._name)
        return first.version

    def _may_use(self, version: str) -> bool:
        """Refuses a list that is older than what was seen (a lagging API server, #59848), unless STALE_LISTS_MAX in a row were, so that
        a backup must have been restored.
        """
        if not is_older(version, self._feed.newest):
            self._stale_in_a_row = 0
            return True
        self.stale += 1
        self._stale_in_a_row += 1
        self._history.doubt(self._name)
        if self._stale_in_a_row < STALE_LISTS_MAX:
            return False
        self._history.went_back(self._name)
        return True

    def _items_of(self, page: Page) -> list[tuple[ObjectMetadata, msgspec.Raw]]:
        try:
            return [(metadata_of(raw), raw) for raw in page.items]
        except UNREADABLE as error:
            raise MalformedAnswerError(f"an item in the list of {self._name} has no metadata") from error

    async def _ingest(self, items: Sequence[tuple[ObjectMetadata, msgspec.Raw]], version: str = "") -> None:
        """Passes a page of a list to the feed. `version`: of a list that is as new as what is known, or newer; else empty."""
        for start in range(0, len(items), BATCH_ITEMS):
            for metadata, raw in items[start : start + BATCH_ITEMS]:
                verdict = self._feed.observe(metadata, raw)
                if verdict is Observation.STALE and is_older(metadata.version, version):
                    # The version seen before, or the deletion, never happened: a list that is as new cannot show an
                    # earlier state.
                    self._history.went_back(self._name)
                    raise ContradictoryListError(f"the list of {self._name} shows an object in an older state")
            await asyncio.sleep(0)
