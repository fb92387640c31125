"""A heap of uids with removal: lazy deletion, bounded garbage.

Owns its items; knows nothing about pods. Ties of the key fall to `order`, then to the order of pushes, so that pops are
deterministic whatever the keys are. Used by the active queue and by backoff.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any

GARBAGE_MIN_ITEMS = 64
"""Dead items that are tolerated whatever the size; above it, at most as many dead items as live ones."""


class UidHeap:
    """uid → (key, order); the smallest is the head. Each uid at most once. All operations O(log n) amortised."""

    __slots__ = ("_items", "_live", "_pushes")

    def __init__(self) -> None:
        self._items: list[tuple[Any, int, int, str]] = []
        self._live: dict[str, int] = {}
        self._pushes = 0

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, uid: object) -> bool:
        return uid in self._live

    def __iter__(self) -> Iterator[str]:
        return iter(self._live)

    @property
    def items(self) -> int:
        """Items held, dead ones included; bounded by `2 * len + GARBAGE_MIN_ITEMS`."""
        return len(self._items)

    def push(self, uid: str, key: Any, order: int) -> None:
        """Adds the uid, or gives it a new key."""
        self._pushes += 1
        heapq.heappush(self._items, (key, order, self._pushes, uid))
        self._live[uid] = self._pushes
        if len(self._items) > 2 * len(self._live) + GARBAGE_MIN_ITEMS:
            self._collect()

    def discard(self, uid: str) -> bool:
        """False if it was not there."""
        if self._live.pop(uid, None) is None:
            return False
        if len(self._items) > 2 * len(self._live) + GARBAGE_MIN_ITEMS:
            self._collect()
        return True

    def head(self) -> tuple[Any, str] | None:
        """The smallest key and its uid, left in place."""
        items, live = self._items, self._live
        while items:
            key, _, push, uid = items[0]
            if live.get(uid) == push:
                return key, uid
            heapq.heappop(items)
        return None

    def top(self) -> tuple[Any, int, str] | None:
        """The head with its order: (key, order, uid), comparable with that of another heap of such keys."""
        if self.head() is None:
            return None
        key, order, _, uid = self._items[0]
        return key, order, uid

    def pop(self) -> str | None:
        """Takes the head out."""
        head = self.head()
        if head is None:
            return None
        heapq.heappop(self._items)
        del self._live[head[1]]
        return head[1]

    def _collect(self) -> None:
        live = self._live
        self._items = [item for item in self._items if live.get(item[3]) == item[2]]
        heapq.heapify(self._items)
