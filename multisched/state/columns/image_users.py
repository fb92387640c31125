"""Images on nodes: which rows have an image, and its size. Used by `NodeTable` only."""

from __future__ import annotations

from collections.abc import Mapping

from multisched.model.objects import Node

_NO_SIZES: Mapping[int, int] = {}


class ImageUsers:
    """Owns image name -> row -> size in bytes.

    On all nodes an image counts with the size that its first node reported, as long as any node has it (as upstream).
    """

    __slots__ = ("_by_name",)

    def __init__(self) -> None:
        self._by_name: dict[str, dict[int, int]] = {}

    def of(self, name: str) -> Mapping[int, int]:
        """Returns row -> size in bytes."""
        return self._by_name.get(name, _NO_SIZES)

    def write(self, row: int, before: Node | None, after: Node | None) -> None:
        """Replaces the row's node object; None: no node."""
        for image in before.images if before else ():
            for name in image.names:
                users = self._by_name.get(name)
                if users is not None and row in users:
                    del users[row]
                    if not users:
                        del self._by_name[name]
        for image in after.images if after else ():
            for name in image.names:
                users = self._by_name.setdefault(name, {})
                users.setdefault(row, next(iter(users.values()), image.size_bytes))
