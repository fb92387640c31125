"""The attempts of one domain that placed a pod, as columns: every pod leaves one, and nearly none is ever read.

Columns because of what a record costs: appending to each is a third of what an object per pod costs, which the garbage
collector would go through again and again. Owned and written by `attempt_record`; the latest PLACED_KEPT are kept at
least, twice as many at most: the older half goes at once.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

if TYPE_CHECKING:
    from multisched.cycle.attempt_record import Picture
    from multisched.cycle.pod_class import Finals
    from multisched.framework.plugin import QueuedPod

PLACED_KEPT = 16_384
"""Attempts of one domain that placed a pod, the latest: some 70 bytes each, besides the pod's uid."""


class Placement(NamedTuple):
    """One attempt that placed a pod."""

    attempt: int
    at_s: float
    """Monotonic."""
    node: str
    at: int
    """Position of the node's row among the rows of the class."""
    finals: bytes
    """The final scores of that row, then, by the plugins that read pods."""
    total: int
    picture: Picture
    """The class's latest at that time."""


class HasFinals(Protocol):
    """One plugin's scores over the rows of a class."""

    @property
    def final(self) -> Finals: ...


class _Half:
    """Column by column; `ends` tells where the final scores of each attempt end."""

    __slots__ = ("at", "at_s", "attempts", "ends", "finals", "nodes", "pictures", "totals", "uids")

    def __init__(self) -> None:
        self.uids: list[str] = []
        self.attempts = array("q")
        self.at_s = array("d")
        self.nodes: list[str] = []
        self.at = array("i")
        self.totals = array("q")
        self.pictures: list[Picture] = []
        self.finals = bytearray()
        self.ends = array("q")

    def placement(self, index: int) -> Placement:
        finals = bytes(self.finals[self.ends[index - 1] if index else 0 : self.ends[index]])
        where = self.nodes[index], self.at[index]
        return Placement(
            self.attempts[index], self.at_s[index], *where, finals, self.totals[index], self.pictures[index]
        )


class PlacementLog:
    """Placements in the order in which they were made."""

    def __init__(self) -> None:
        self._young = _Half()
        self._old = _Half()

    def __len__(self) -> int:
        return len(self._young.uids) + len(self._old.uids)

    def add(
        self,
        uid: str,
        attempt: int,
        now_s: float,
        node: str,
        at: int,
        moving: Sequence[HasFinals],
        total: int,
        picture: Picture,
    ) -> None:
        """`moving`: the class's scores that read pods; those of row `at` are kept as they are now."""
        young = self._young
        if len(young.uids) >= PLACED_KEPT:
            young = self._turn_over()
        young.uids.append(uid)
        young.attempts.append(attempt)
        young.at_s.append(now_s)
        young.nodes.append(node)
        young.at.append(at)
        young.totals.append(total)
        young.pictures.append(picture)
        finals = young.finals
        for column in moving:
            finals.append(column.final.item(at))
        young.ends.append(len(finals))

    def add_run(
        self,
        entries: Sequence[QueuedPod],
        now_s: float,
        nodes: Sequence[str],
        ats: Sequence[int],
        moving: Sequence[HasFinals],
        totals: Sequence[int],
        picture: Picture,
    ) -> None:
        """As `add`, for as many pods as there are nodes."""
        young = self._young
        if len(young.uids) >= PLACED_KEPT:
            young = self._turn_over()
        count, width, began = len(nodes), len(moving), len(young.finals)
        young.uids += [entry.pod.uid for entry in entries[:count]]
        young.attempts.extend([entry.attempts for entry in entries[:count]])
        young.at_s.extend([now_s] * count)
        young.nodes += nodes
        young.at.extend(ats)
        young.totals.extend(totals)
        young.pictures += [picture] * count
        if width:
            young.finals += np.stack([column.final.take(ats) for column in moving], axis=1).tobytes()
        young.ends.extend([began + width * number for number in range(1, count + 1)])

    def take_back(self, count: int) -> None:
        """Removes the last so many; they were added since the older half was last dropped."""
        young = self._young
        left = len(young.uids) - count
        del young.finals[young.ends[left - 1] if left else 0 :]
        for column in (young.uids, young.attempts, young.at_s, young.nodes, young.at, young.totals, young.pictures):
            del column[left:]
        del young.ends[left:]

    def of(self, uid: str) -> Iterator[Placement]:
        """Those of one pod, oldest first. Looks at all: some milliseconds."""
        for half in (self._old, self._young):
            for index, known in enumerate(half.uids):
                if known == uid:
                    yield half.placement(index)

    def _turn_over(self) -> _Half:
        self._old = self._young
        self._young = _Half()
        return self._young
