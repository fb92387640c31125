"""A heap of uids with removal: lazy deletion, bounded garbage.

Owns its items; knows nothing about pods. Ties of the key fall to `order`, then to the order of pushes, so that pops are
deterministic whatever the keys are. Used by the active queue and by backoff.

Pods mostly come in the order in which they go. An item not smaller than all such items before it joins a line of its
own, where it costs no search. Only the others are in a heap.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from typing import Any

GARBAGE_MIN_ITEMS = 64
"""Dead items that are tolerated beside live ones; above it, at most as many dead items as live ones."""

_Item = tuple[Any, int, int, str]
"""Key, order, number of the push, uid."""


class UidHeap:
    """uid → (key, order); the smallest is the head. Each uid at most once. All operations O(log n) amortised."""

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
        """Items held, dead ones included; bounded by `2 * len + GARBAGE_MIN_ITEMS`."""
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
        """False if it was not there."""
        if self._live.pop(uid, None) is None:
            return False
        self._bound()
        return True

    def head(self) -> tuple[Any, str] | None:
        """The smallest key and its uid, left in place."""
        item = self._first()
        return None if item is None else (item[0], item[3])

    def top(self) -> tuple[Any, int, str] | None:
        """The head with its order: (key, order, uid), comparable with that of another heap of such keys."""
        item = self._first()
        return None if item is None else (item[0], item[1], item[3])

    def pop(self) -> str | None:
        """Takes the head out."""
        item = self._first()
        if item is None:
            return None
        del self._live[item[3]]  # the item itself goes when the head is next looked for, or with the last live one
        if not self._live:
            self._bound()
        return item[3]

    def _first(self) -> _Item | None:
        """The smallest live item. Dead ones that are met on the way go."""
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
        if not live:  # keys of another kind may follow, which cannot be compared with these
            self._line.clear()
            self._heap.clear()
        if len(self._line) + len(self._heap) <= 2 * len(live) + GARBAGE_MIN_ITEMS:
            return
        self._line = deque(item for item in self._line if live.get(item[3]) == item[2])
        self._heap = [item for item in self._heap if live.get(item[3]) == item[2]]
        heapq.heapify(self._heap)
