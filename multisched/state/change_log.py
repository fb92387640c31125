"""ChangeLog: which rows changed since a given moment; decides which cached masks and scores are renewed."""

from __future__ import annotations

import numpy as np

from multisched.framework.node_view import Rows

CHANGES_KEPT = 1 << 16
"""Changes kept; a reader that is further behind renews everything."""

_NONE: Rows = np.zeros(0, np.intp)


class ChangeLog:
    """A ring of changed rows. `sequence` counts all changes ever made."""

    __slots__ = ("_before", "_latest", "_repeated", "_ring", "sequence")

    def __init__(self) -> None:
        self._ring = np.zeros(CHANGES_KEPT, np.intp)
        self._before = np.zeros(CHANGES_KEPT, np.intp)
        """The sequence of the change before of the same row; -1 if there was none."""
        self._latest: dict[int, int] = {}
        """Row -> the sequence of its latest change."""
        self._repeated = -1
        """The largest sequence of a change whose row has changed again since."""
        self.sequence = 0

    def note(self, row: int) -> None:
        sequence = self.sequence
        before = self._latest.get(row, -1)
        at = sequence % CHANGES_KEPT
        self._ring[at], self._before[at] = row, before
        if before > self._repeated:
            self._repeated = before
        self._latest[row] = sequence
        self.sequence = sequence + 1

    def since(self, sequence: int) -> Rows | None:
        """Returns the distinct rows changed after `sequence`, ascending; None if some changes were dropped."""
        missed = self.sequence - sequence
        if missed == 0:
            return _NONE
        if missed > CHANGES_KEPT:
            return None
        start, end = sequence % CHANGES_KEPT, self.sequence % CHANGES_KEPT
        ring, before = self._ring, self._before
        changed = ring[start:end] if start < end else np.concatenate((ring[start:], ring[:end]))
        if self._repeated < sequence:
            changed = changed.copy()
        else:  # the first change of each row
            earlier = before[start:end] if start < end else np.concatenate((before[start:], before[:end]))
            changed = changed[earlier < np.array(sequence)]
        changed.sort()
        return changed
