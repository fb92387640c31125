"""A heap of uids with removal: lazy deletion, bounded garbage.

Owns its items; independent of pods. Equal keys are sorted by `order`, then by the order of pushes, so that pops are
deterministic for any keys. Used for active pods and for backoff. Pods are mostly pushed in the order in which they are
popped. An item not smaller than all earlier such items is appended to a queue, which costs no search. Only the others
are in a heap.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from typing import Any

GARBAGE_MIN_ITEMS = 64
"""Dead items that are tolerated; above this number, at most as many dead items as live ones."""

_Item = tuple[Any, int, int, str]
"""Key, order, number of the push, uid."""


class UidHeap:
    """uid → (key, order); the smallest is the head. Each uid at most once. All operations O(log n) amortized."""

    __slots__ = ("_heap", "_line", "_live", "_pushes")

    def __init__(self) -> None:
        self._line: deque[_Item] = deque()
        """Ascending."""
        self._heap: list[_Item] = []
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
        """Items held, including dead ones; at most `2 * len + GARBAGE_MIN_ITEMS`."""
        return len(self._line) + len(self._heap)

    def push(self, uid: str, key: Any, order: int) -> None:
        """Adds the uid, or gives it a new key."""
        self._pushes += 1
        item = (key, order, self._pushes, uid)
        if not self._line or self._line[-1] < item:
            self._line.append(item)
        else:
            heapq.heappush(self._heap, item)
        self._live[uid] = self._pushes
        self._bound()

    def discard(self, uid: str) -> bool:
        """Removes the uid; returns False if it was not present."""
        if self._live.pop(uid, None) is None:
            return False
        self._bound()
        return True

    def head(self) -> tuple[Any, str] | None:
        """Returns the smallest key and its uid without removing them."""
        item = self._first()
        return None if item is None else (item[0], item[3])

    def top(self) -> tuple[Any, int, str] | None:
        """Returns (key, order, uid) of the head, comparable with that of another heap with such keys."""
        item = self._first()
        return None if item is None else (item[0], item[1], item[3])

    def pop(self) -> str | None:
        """Removes and returns the head."""
        item = self._first()
        if item is None:
            return None
        del self._live[item[3]]  # the item itself is removed at a later look-up of the head, or with the last live one
        if not self._live:
            self._bound()
        return item[3]

    def _first(self) -> _Item | None:
        """Returns the smallest live item; removes dead items before it."""
        line, heap, live = self._line, self._heap, self._live
        while line and live.get(line[0][3]) != line[0][2]:
            line.popleft()
        while heap and live.get(heap[0][3]) != heap[0][2]:
            heapq.heappop(heap)
        if not heap:
            return line[0] if line else None
        return line[0] if line and line[0] < heap[0] else heap[0]

    def _bound(self) -> None:
        live = self._live
        if not live:  # later keys may have other types, which cannot be compared with these
            self._line.clear()
            self._heap.clear()
            return
        if len(self._line) + len(self._heap) <= 2 * len(live) + GARBAGE_MIN_ITEMS:
            return
        self._line = deque(item for item in self._line if live.get(item[3]) == item[2])
        self._heap = [item for item in self._heap if live.get(item[3]) == item[2]]
        heapq.heapify(self._heap)
