"""Raw scores that classes share, and what is made of them. Owned by `SharedAnswers`; columns of classes read them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from multisched.framework.node_view import Bools, Rows, Scores, any_true
from multisched.framework.normalize import MAX_SCORE, ByLargest

Finals = NDArray[np.uint8]
"""Normalised scores, 0..MAX_SCORE. Small on purpose: what a decision reads of 50 classes has to fit into a CPU's cache."""

FINALS_MAX = 4
"""Normalised scores kept for one answer, by the largest raw score among the feasible rows; a byte a row each."""

TOPS_MAX = 64
"""Rows of the largest raw score that are looked at, before all are."""


class SharedScores:
    """Raw scores of all the domain's rows that classes share, and the final ones: as they are, or normalised by the largest."""

    __slots__ = ("_finals", "_plain", "_top", "_tops", "raw")

    def __init__(self, raw: Scores) -> None:
        self.raw = raw
        """Read only."""
        self._top = -1
        self._tops: Rows | None = None
        self._finals: dict[int, Finals] = {}
        self._plain: Finals | None = None

    def plain(self) -> Finals | None:
        """uint8[rows], read only: raw scores that count as they are; None where some row's is out of range."""
        if self._plain is None and not any_true(self.raw.view(np.uint64) > MAX_SCORE):  # what is below zero is large so
            self._plain = self.raw.astype(np.uint8)
        return self._plain

    def largest(self, feasible: Bools) -> int:
        """The largest raw score among the feasible rows."""
        if self._tops is None:
            self._top = int(self.raw.max(initial=0))
            self._tops = (self.raw == self._top).nonzero()[0][:TOPS_MAX]
        if not self._top or any_true(feasible.take(self._tops)):
            return self._top
        return int((self.raw * feasible).max(initial=0))

    def normalized(self, normalizer: ByLargest, largest: int) -> Finals:
        """uint8[rows], read only."""
        final = self._finals.get(largest)
        if final is None:
            if len(self._finals) >= FINALS_MAX:
                self._finals.clear()
            final = self._finals[largest] = normalizer.apply(self.raw, largest).astype(np.uint8)
        return final
