"""PodGroup: placed pods that no query can tell apart, with their rows. Owned by `PodCounts`; `GroupColumns` has its pods."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


class PodGroup:
    """Pods of one namespace with equal labels, either all being deleted or none."""

    __slots__ = ("_place", "_places", "_row", "is_deleting", "labels", "namespace", "number")

    def __init__(self, namespace: str, labels: Mapping[str, str], *, is_deleting: bool) -> None:
        self.namespace = namespace
        self.labels = labels
        self.is_deleting = is_deleting
        self.number = -1
        """Its number in `GroupColumns`; -1: it is not in them."""
        self._row = self._place = -1
        """The only row with pods of it and its entry, while there is only one: half of all groups of jobs have one pod."""
        self._places: dict[int, int] | None = None

    def place(self, row: int) -> int:
        """Returns the index of its entry for the row in `GroupColumns`; -1: it has no pods there."""
        if self._places is None:
            return self._place if self._row == row else -1
        return self._places.get(row, -1)

    def set_place(self, row: int, place: int) -> None:
        """Notes the index of its entry for the row."""
        if self._places is None:
            if self._row in (-1, row):
                self._row, self._place = row, place
                return
            self._places = {self._row: self._place}
        self._places[row] = place

    def drop_place(self, row: int) -> bool:
        """Notes that it has no pods on the row any more. Returns True if it has none at all."""
        if self._places is None:
            self._row = self._place = -1
            return True
        del self._places[row]
        return not self._places

    def places(self) -> Iterable[tuple[int, int]]:
        """Returns the rows with pods of it, each with the index of its entry."""
        if self._places is not None:
            return self._places.items()
        return () if self._row < 0 else ((self._row, self._place),)

    @property
    def size(self) -> int:
        """Measure of its memory in `GroupColumns`."""
        return 1 + len(self.labels)
