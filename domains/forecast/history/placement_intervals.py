"""Placement intervals: the times during which pods were on nodes, inferred from series with a sample per pod, node and step.

Holds the intervals of one window; filled in a worker thread, one piece at a time.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from domains.forecast.curves.node_usage import PlacementInterval
from domains.forecast.history.source import SourceError
from multisched.framework.measures import Grid, Piece

PLACEMENT_INTERVALS_MAX = 2_000_000
"""Limit of intervals in a window."""


class _Stretch(msgspec.Struct):
    """The interval of one pod on one node; steps are counted from the epoch, `end` is exclusive."""

    service: str
    node: str
    begin: int
    end: int


class PlacementIntervals:
    """Intervals by pod and node."""

    def __init__(self) -> None:
        self.end: int | None = None
        """The step up to which placements are known (exclusive); None: nothing was read yet."""
        self._open: dict[tuple[str, str, str], _Stretch] = {}
        """(namespace, pod, node) -> its latest interval."""
        self._closed: list[_Stretch] = []

    def __bool__(self) -> bool:
        return bool(self._open)

    def before(self, step: int) -> PlacementIntervals:
        """Returns a copy, cut off at `step`. A failed reading then does not change the original."""
        found = PlacementIntervals()
        found._closed = [_cut(stretch, step) for stretch in self._closed if stretch.begin < step]
        found._open = {key: _cut(stretch, step) for key, stretch in self._open.items() if stretch.begin < step}
        return found

    def add(self, piece: Piece, first: int, services: Sequence[str]) -> None:
        """Adds series with the labels namespace, pod and node. `first`: number of the piece's step 0 since the epoch.

        Raises SourceError for more than PLACEMENT_INTERVALS_MAX intervals.
        """
        begin = 0
        for number, end in enumerate(piece.ends.tolist()):
            labels = piece.labels[number]
            key = (labels["namespace"], labels["pod"], labels["node"])
            for low, high in _runs(piece.steps[begin:end] + first):
                self._extend(key, services[number], low, high)
            begin = end
        if len(self._open) + len(self._closed) > PLACEMENT_INTERVALS_MAX:
            raise SourceError(f"more than {PLACEMENT_INTERVALS_MAX} placements of pods; set a shorter windowDays")

    def _extend(self, key: tuple[str, str, str], service: str, low: int, high: int) -> None:
        found = self._open.get(key)
        if found is not None and low <= found.end:
            found.end = max(found.end, high)
            return
        if found is not None:
            self._closed.append(found)
        self._open[key] = _Stretch(service, key[2], low, high)

    def within(self, first: int, grid: Grid) -> tuple[PlacementInterval, ...]:
        """Returns the intervals within a grid that begins with step `first`, in epoch seconds."""
        last = first + grid.steps
        return tuple(
            PlacementInterval(s.service, s.node, max(s.begin, first) * grid.step_s, min(s.end, last) * grid.step_s)
            for s in (*self._closed, *self._open.values())
            if s.begin < last and s.end > first
        )


def _cut(stretch: _Stretch, step: int) -> _Stretch:
    return _Stretch(stretch.service, stretch.node, stretch.begin, min(stretch.end, step))


def _runs(steps: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> list[tuple[int, int]]:
    """Returns (first, last + 1) of each run of consecutive steps."""
    if not len(steps):
        return []
    breaks = np.flatnonzero(np.diff(steps) > 1)
    lows = steps[np.concatenate(([0], breaks + 1))]
    highs = steps[np.concatenate((breaks, [len(steps) - 1]))] + 1
    return list(zip(lows.tolist(), highs.tolist(), strict=True))
