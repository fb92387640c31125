"""PodGroup: placed pods that no query can tell apart, with their rows. Owned by `PodCounts`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


class PodGroup:
    """Pods of one namespace with equal labels, either all being deleted or none."""

    __slots__ = ("column", "is_deleting", "labels", "namespace", "row", "rows")

    def __init__(self, namespace: str, labels: Mapping[str, str], *, is_deleting: bool) -> None:
        self.namespace = namespace
        self.labels = labels
        self.is_deleting = is_deleting
        self.column = -1
        """Its number in `GroupColumns`; -1: it is not in them."""
        self.row = -1
        """The row of its pod, while there is only one: half of all groups of jobs have one pod."""
        self.rows: dict[int, int] | None = None

    def add(self, row: int) -> None:
        if self.rows is None:
            if self.row < 0:
                self.row = row
                return
            self.rows = {self.row: 1}
        self.rows[row] = self.rows.get(row, 0) + 1

    def remove(self, row: int) -> bool:
        """Removes one pod; returns True if it was the last."""
        if self.rows is None:
            self.row = -1
            return True
        left = self.rows[row] - 1
        if left:
            self.rows[row] = left
        else:
            del self.rows[row]
        return not self.rows

    def items(self) -> Iterable[tuple[int, int]]:
        return ((self.row, 1),) if self.rows is None else self.rows.items()

    def forget(self, row: int) -> bool:
        """Removes all its pods on the row; returns True if none is left."""
        if self.rows is None:
            return self.row == row
        self.rows.pop(row, None)
        return not self.rows
