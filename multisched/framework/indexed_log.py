"""IndexedLog: what happened, in order, for readers that catch up with what they have not seen, each with its own part alone.

What happened carries *tags*. A reader that is about a few tags reads what carries one of them, however much else happened.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


class IndexedLog(Generic[T]):
    """The latest that happened. Its older half is forgotten when it weighs twice of what it is to keep."""

    __slots__ = ("_happened", "_kept", "_places", "_start", "_weigh", "_weight")

    def __init__(self, kept: int, weigh: Callable[[T], int] | None = None) -> None:
        """`kept`: what stays in any case, in units of weight. `weigh`: None: each weighs one."""
        self._kept = kept
        self._weigh = weigh
        self._happened: list[T] = []
        self._start = self._weight = 0
        self._places: dict[Hashable, list[int]] = {}
        """Tag -> what carries it, ascending, counted from the first that ever happened."""

    @property
    def end(self) -> int:
        """How much ever happened."""
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
        """What happened after `seen`, in order, and carries one of the tags; None where it is too long ago to know."""
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
        """Nobody may catch up with what happened before."""
        self._forget(len(self._happened))

    def _forget(self, count: int) -> None:
        self._start += count
        del self._happened[:count]
        self._weight = len(self._happened) if self._weigh is None else sum(map(self._weigh, self._happened))
        left = ((tag, places[bisect_left(places, self._start) :]) for tag, places in self._places.items())
        self._places = {tag: places for tag, places in left if places}
