"""Needs: the capacity that pending pods of lenders need on rows where pods on loan hold it. Owned by the LoanLedger; written by PostFilter
and Reserve.
"""

from __future__ import annotations

from collections import Counter

import msgspec
import numpy as np

from multisched.framework.node_view import Int64, Rows
from multisched.model.objects import PODS, Pod


class Need(msgspec.Struct, frozen=True):
    """The capacity that one pending pod of the lender needs on a row."""

    pod: Pod
    row: int
    since_s: float
    """Epoch seconds."""
    gang: str = ""
    """Key of its gang, or of the first of several gangs that start together; empty for a single pod."""

    @property
    def is_nominated(self) -> bool:
        """False for members of gangs, which are not nominated before the whole gang can start."""
        return not self.gang


class Needs:
    """The needs by uid of the pending pod, and their sums by row."""

    def __init__(self) -> None:
        self.version = 0
        self._by_uid: dict[str, Need] = {}
        self._on_row: dict[int, dict[str, Need]] = {}
        self._sums: dict[int, Counter[str]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_uid)

    def of(self, uid: str) -> Need | None:
        return self._by_uid.get(uid)

    def all(self) -> list[Need]:
        return list(self._by_uid.values())

    def on(self, row: int) -> list[Need]:
        """Returns the needs on one row."""
        return list(self._on_row.get(row, {}).values())

    def at(self, resource: str, rows: Rows) -> Int64:
        """Returns int64[rows]: the needed amount of a resource."""
        found: Int64 = np.zeros(len(rows), np.int64)
        if self._sums:
            found[:] = [self._sums[row][resource] if row in self._sums else 0 for row in rows.tolist()]
        return found

    def add(self, pod: Pod, row: int, now_s: float, gang: str = "") -> None:
        """Records that the pod needs its requests on the row. Replaces its need on another row."""
        known = self._by_uid.get(pod.uid)
        if known is not None and known.row == row:
            return
        self.drop(pod.uid)
        need = Need(pod, row, now_s, gang)
        self._by_uid[pod.uid] = self._on_row.setdefault(row, {})[pod.uid] = need
        self._sums.setdefault(row, Counter()).update({**pod.requests, PODS: 1})
        self.version += 1

    def placed(self, uid: str, row: int | None) -> None:
        """Ends the need of a pod that was placed on the row; None if its node was deleted.

        If another member of its gang needed that row, the need of that member moves to the row that the placed pod does not use: the row
        must not be lent again before the gang has started.
        """
        known = self._by_uid.get(uid)
        self.drop(uid)
        if known is None or row is None or known.row == row or not known.gang:
            return
        members = [need for need in self.on(row) if need.gang == known.gang]
        if members:
            other = min(members, key=lambda need: need.pod.requests != known.pod.requests)
            self.add(other.pod, known.row, other.since_s, other.gang)

    def drop(self, uid: str) -> None:
        """Forgets the need of a pod; ignores pods without one."""
        known = self._by_uid.pop(uid, None)
        if known is None:
            return
        self.version += 1
        self._sums[known.row].subtract({**known.pod.requests, PODS: 1})
        del self._on_row[known.row][uid]
        if not self._on_row[known.row]:
            del self._on_row[known.row], self._sums[known.row]

    def drop_row(self, row: int) -> None:
        """Forgets the needs on a row whose node was deleted."""
        for need in self.on(row):
            self.drop(need.pod.uid)
