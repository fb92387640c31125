"""The attempts of one domain that placed a pod: written for every pod, read for almost none.

A flat list instead of objects, for the cost: an object per pod takes twice the time, and the garbage collector would visit
all of them repeatedly. Owned and written by `attempt_record`. Keeps at least the latest PLACED_KEPT attempts and at most
twice as many: the older half is dropped as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from multisched.cycle.classes.score_snapshot import ScoreSnapshot

PLACED_KEPT = 16_384
"""The latest attempts of one domain that placed a pod: about 150 bytes each, in addition to the pod's uid."""


class Placement(NamedTuple):
    """One attempt that placed a pod."""

    uid: str
    attempt: int
    at_s: float
    """Monotonic clock."""
    node: str
    at: int
    """Position of the node's row among the rows of the class."""
    finals: bytes
    """The final scores of that row at that time, by plugins that read pods: all but the last."""
    total: int
    snapshot: ScoreSnapshot
    """The class's latest snapshot at that time."""


WIDTH = len(Placement._fields)
"""List elements per attempt."""
FULL = WIDTH * PLACED_KEPT


class PlacementLog:
    """Placements, oldest first."""

    __slots__ = ("_old", "_young")

    def __init__(self) -> None:
        self._young: list[object] = []
        self._old: list[object] = []

    def __len__(self) -> int:
        return (len(self._young) + len(self._old)) // WIDTH

    def room(self) -> list[object]:
        """Returns the list to which the next attempt's fields are appended: one `+=` of a tuple is the whole cost of a write."""
        if len(self._young) >= FULL:
            self._old, self._young = self._young, []
        return self._young

    def remove_latest(self, count: int) -> None:
        """Removes the latest placements."""
        from_young = min(count * WIDTH, len(self._young))
        del self._young[len(self._young) - from_young :]
        del self._old[len(self._old) - (count * WIDTH - from_young) :]

    def of(self, uid: str) -> Iterator[Placement]:
        """Yields the placements of one pod, oldest first. Scans the whole log: some milliseconds."""
        for half in (self._old, self._young):
            for index, known in enumerate(half[::WIDTH]):
                if known == uid:
                    yield Placement._make(half[WIDTH * index : WIDTH * (index + 1)])

    def latest(self, count: int) -> Iterator[Placement]:
        """Yields the latest placements, the newest first."""
        for half in (self._young, self._old):
            for index in range(len(half) // WIDTH - 1, -1, -1):
                if count <= 0:
                    return
                count -= 1
                yield Placement._make(half[WIDTH * index : WIDTH * (index + 1)])
