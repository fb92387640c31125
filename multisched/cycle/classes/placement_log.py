"""The attempts of one domain that placed a pod: every pod leaves one, and nearly none is ever read.

One flat list stands in for objects because of what a record costs. An object per pod costs twice as much, and the
garbage collector would visit all of them again and again. Owned and written by `attempt_record`; the latest PLACED_KEPT
are kept at least, twice as many at most: the older half goes at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from multisched.cycle.classes.score_snapshot import ScoreSnapshot

PLACED_KEPT = 16_384
"""Attempts of one domain that placed a pod, the latest: some 150 bytes each, besides the pod's uid."""


class Placement(NamedTuple):
    """One attempt that placed a pod."""

    uid: str
    attempt: int
    at_s: float
    """Monotonic."""
    node: str
    at: int
    """Position of the node's row among the rows of the class."""
    finals: bytes
    """The final scores of that row, then, by the plugins that read pods: all but the last."""
    total: int
    snapshot: ScoreSnapshot
    """The class's latest at that time."""


WIDTH = len(Placement._fields)
"""Places that one attempt takes up in the list."""
FULL = WIDTH * PLACED_KEPT


class PlacementLog:
    """Placements in the order in which they were made."""

    __slots__ = ("_old", "_young")

    def __init__(self) -> None:
        self._young: list[object] = []
        self._old: list[object] = []

    def __len__(self) -> int:
        return (len(self._young) + len(self._old)) // WIDTH

    def room(self) -> list[object]:
        """Where the next attempts are to be added, field by field: plain extension with a tuple is all that writing costs."""
        if len(self._young) >= FULL:
            self._old, self._young = self._young, []
        return self._young

    def of(self, uid: str) -> Iterator[Placement]:
        """Those of one pod, oldest first. Looks at all: some milliseconds."""
        for half in (self._old, self._young):
            for index, known in enumerate(half[::WIDTH]):
                if known == uid:
                    yield Placement._make(half[WIDTH * index : WIDTH * (index + 1)])
