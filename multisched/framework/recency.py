"""Recency: keys ordered by their last change, so that readers can update counts incrementally. Repeated changes count once."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

KEYS_MAX = 1 << 18
"""Keys remembered; a reader that missed a dropped key must recompute everything."""

K = TypeVar("K", bound=Hashable)


class Recency(Generic[K]):
    """Keys in the order of their last change. A read costs O(changed keys), independent of other readers."""

    __slots__ = ("_forgotten", "_last", "sequence")

    def __init__(self) -> None:
        self._last: dict[K, int] = {}
        self._forgotten = 0
        self.sequence = 0
        """Number of changes ever noted."""

    def note(self, key: K) -> None:
        self.sequence += 1
        self._last.pop(key, None)
        self._last[key] = self.sequence
        if len(self._last) > KEYS_MAX:
            oldest = next(iter(self._last))
            self._forgotten = self._last.pop(oldest)

    def since(self, sequence: int) -> list[K] | None:
        """Returns the keys changed after `sequence`, latest first; None if some of them were dropped."""
        if sequence == self.sequence:
            return []
        if sequence < self._forgotten:
            return None
        found = []
        for key, changed in reversed(self._last.items()):
            if changed <= sequence:
                break
            found.append(key)
        return found
