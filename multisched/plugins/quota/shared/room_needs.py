"""RoomNeeds: pods of the lender that wait for room which is offered to borrowers, or held by them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import msgspec

from multisched.plugins.quota.pod_amounts import Items
from multisched.plugins.quota.quota_ledger import Level

NEED_S: Final = 30.0
"""A need that is not noted again in this time ends: its pod may not fit on any node."""
NO_VICTIMS: Final[Collection[str]] = ()


class RoomNeed(msgspec.Struct, frozen=True):
    """The amounts that one pod needs."""

    levels: tuple[Level, ...]
    items: Items
    until_s: float
    victims: Collection[str]
    """uids of pods of borrowers that are being evicted for it: what they use is returned, too."""


class RoomNeeds:
    """The needs by uid of the waiting pod."""

    def __init__(self) -> None:
        self.version = 0
        """Rises when a need is added."""
        self.now_s = 0.0
        """Epoch seconds, of the last look."""
        self._by_uid: dict[str, RoomNeed] = {}

    def add(self, uid: str, levels: tuple[Level, ...], items: Items, victims: Collection[str] = NO_VICTIMS) -> None:
        known = self._by_uid.get(uid)
        if known is None or known.levels is not levels or (victims and known.victims != victims):
            self.version += 1
        if not victims and known is not None:
            victims = known.victims
        self._by_uid[uid] = RoomNeed(levels, items, self.now_s + NEED_S, victims)

    def drop(self, uid: str) -> None:
        """Forgets the need of a pod; ignores pods without one."""
        self._by_uid.pop(uid, None)

    def look(self, now_s: float, levels: Sequence[Level]) -> list[tuple[str, RoomNeed]]:
        """Returns the needs that have not ended. `levels`: of the tree in force; needs of another tree end."""
        self.now_s = now_s
        for uid, need in list(self._by_uid.items()):
            leaf = need.levels[0]
            if need.until_s < now_s or leaf.at >= len(levels) or levels[leaf.at] is not leaf:
                del self._by_uid[uid]
        return list(self._by_uid.items())
