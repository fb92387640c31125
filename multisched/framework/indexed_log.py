"""IndexedLog: a bounded log of changes. Each reader catches up on the changes it has not read, filtered by tag.

Each entry carries *tags*. A reader that names tags reads only entries with one of them, however long the log is.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


class IndexedLog(Generic[T]):
    """The latest entries. When their total weight reaches twice the weight to keep, the older half is dropped."""

    __slots__ = ("_happened", "_kept", "_places", "_start", "_weigh", "_weight")

    def __init__(self, kept: int, weigh: Callable[[T], int] | None = None) -> None:
        """`kept`: total weight that is always kept. `weigh`: weight of an entry; None: each entry weighs 1."""
        self._kept = kept
        self._weigh = weigh
        self._happened: list[T] = []
        self._start = self._weight = 0
        self._places: dict[Hashable, list[int]] = {}
        """Tag -> positions of the entries with it, ascending, counted from the first entry ever noted."""

    @property
    def end(self) -> int:
        """Number of entries ever noted; the position of the next one."""
        return self._start + len(self._happened)

    def note(self, one: T, tags: Iterable[Hashable]) -> None:
        happened, places = self._happened, self._places
        end = self._start + len(happened)
        for tag in tags:
            at = places.get(tag)
            if at is None:
                places[tag] = [end]
            else:
                at.append(end)
        happened.append(one)
        self._weight += 1 if self._weigh is None else self._weigh(one)
        if self._weight >= 2 * self._kept:
            self._forget((len(self._happened) + 1) // 2)

    def since(self, seen: int, tags: Collection[Hashable] | None = None) -> Sequence[T] | None:
        """Returns the entries from position `seen` on, in order, that carry one of the tags; None if some were dropped."""
        if seen < self._start:
            return None
        if tags is None:
            return self._happened[seen - self._start :]
        found: list[int] = []
        for tag in tags:
            places = self._places.get(tag)
            if places is not None and places[-1] >= seen:
                there = places[bisect_left(places, seen) :]
                found = sorted({*found, *there}) if found else there
        return [self._happened[place - self._start] for place in found] if found else ()

    def clear(self) -> None:
        """Drops all entries: every reader that is behind must start over."""
        self._forget(len(self._happened))

    def _forget(self, count: int) -> None:
        self._start += count
        del self._happened[:count]
        self._weight = len(self._happened) if self._weigh is None else sum(map(self._weigh, self._happened))
        left = ((tag, places[bisect_left(places, self._start) :]) for tag, places in self._places.items())
        self._places = {tag: places for tag, places in left if places}
