"""Raw scores that classes share, and the final scores computed from them. Owned by `SharedAnswers`; read by columns."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from multisched.framework.node_view import Bools, Rows, Scores, any_true
from multisched.framework.normalize import MAX_SCORE, ByLargest

Finals = NDArray[np.uint8]
"""Normalised scores, 0..MAX_SCORE. One byte each, so that what a decision reads of 50 classes fits into a CPU's cache."""

FINALS_MAX = 4
"""Arrays of normalised scores kept per result, by the largest raw score among the feasible rows; one byte per row each."""

TOPS_MAX = 64
"""Rows with the largest raw score that are checked for feasibility before all rows are."""


class SharedScores:
    """Shared raw scores of all rows of the domain, with their final scores: plain, or normalised by the largest."""

    __slots__ = ("_finals", "_plain", "_top", "_tops", "raw")

    def __init__(self, raw: Scores) -> None:
        self.raw = raw
        """Read only."""
        self._top = -1
        self._tops: Rows | None = None
        self._finals: dict[int, Finals] = {}
        self._plain: Finals | None = None

    def plain(self) -> Finals | None:
        """Returns uint8[rows], read only: the raw scores as final ones; None if some row's is out of range."""
        if self._plain is None and not any_true(self.raw.view(np.uint64) > MAX_SCORE):  # negative is large as uint64
            self._plain = self.raw.astype(np.uint8)
        return self._plain

    def largest(self, feasible: Bools) -> int:
        """Returns the largest raw score among the feasible rows."""
        if self._tops is None:
            self._top = int(self.raw.max(initial=0))
            self._tops = (self.raw == self._top).nonzero()[0][:TOPS_MAX]
        if not self._top or any_true(feasible.take(self._tops)):
            return self._top
        return int((self.raw * feasible).max(initial=0))

    def normalized(self, normalizer: ByLargest, largest: int) -> Finals:
        """Returns uint8[rows], read only."""
        final = self._finals.get(largest)
        if final is None:
            if len(self._finals) >= FINALS_MAX:
                self._finals.clear()
            final = self._finals[largest] = normalizer.apply(self.raw, largest).astype(np.uint8)
        return final
