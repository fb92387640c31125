"""Which rows changed since when: the clock of every cached mask and score."""

from __future__ import annotations

import numpy as np

from multisched.framework.node_view import Rows, all_true

CHANGES_KEPT = 1 << 16
"""Changes remembered; a reader that falls further behind renews everything."""

_NONE: Rows = np.zeros(0, np.intp)
_FIRST = np.ones(1, np.bool_)


class ChangeLog:
    """A ring of changed rows. `sequence` counts all changes ever made."""

    __slots__ = ("_ring", "sequence")

    def __init__(self) -> None:
        self._ring = np.zeros(CHANGES_KEPT, np.intp)
        self.sequence = 0

    def note(self, row: int) -> None:
        self._ring[self.sequence % CHANGES_KEPT] = row
        self.sequence += 1

    def since(self, sequence: int) -> Rows | None:
        """Distinct rows changed after `sequence`, ascending; None when that is too long ago to know."""
        missed = self.sequence - sequence
        if missed == 0:
            return _NONE
        if missed > CHANGES_KEPT:
            return None
        start, end = sequence % CHANGES_KEPT, self.sequence % CHANGES_KEPT
        if start < end:
            changed = self._ring[start:end].copy()
        else:
            changed = np.concatenate((self._ring[start:], self._ring[:end]))
        changed.sort()
        is_new = changed[1:] != changed[:-1]
        return changed if all_true(is_new) else changed[np.concatenate((_FIRST, is_new))]
