"""RowLocks: the locks of nodes as the API server has them, by row. Owned by the ledger, which reports nodes and holds to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from domains.gpu.card_row import CardRow
from domains.gpu.cards import Mode
from domains.gpu.dialect import Dialect
from domains.gpu.node_lock import NodeLock, NodeLockKey, read_lock
from multisched.model.objects import Node


class RowLocks:
    """Locks of nodes in modes that have one."""

    def __init__(self, dialects: Iterable[Dialect]) -> None:
        self.keys = {mode: one.node_lock for one in dialects if one.node_lock for mode in one.modes}
        self.of: dict[int, NodeLock] = {}
        """Row -> lock, without rows of nodes that are not locked."""
        self.pod_keys: dict[str, str] = {}
        """uid of each pod with a hold -> NAMESPACE/NAME."""
        self._on_unmatched: dict[str, Callable[[], None]] = {}

    def key(self, mode: Mode) -> NodeLockKey | None:
        """Returns the lock of nodes of this mode; None if they have none."""
        return self.keys.get(mode)

    def text(self, node: Node) -> str:
        """Returns the lock in the node's annotations; empty if there is none."""
        texts = (node.annotations.get(key.annotation, "") for key in self.keys.values())
        return next((text for text in texts if text), "")

    def watch(self, domain: str, on_unmatched: Callable[[], None]) -> None:
        """Sets a domain's callback for unmatched locks; it must not call this object."""
        self._on_unmatched[domain] = on_unmatched

    def read(self, row: int, node: Node | None, mode: Mode) -> bool:
        """Reads the lock of the row's node, and reports whether it has changed."""
        before, key = self.of.pop(row, None), self.keys.get(mode)
        text = "" if node is None or key is None else node.annotations.get(key.annotation, "")
        if text:
            self.of[row] = read_lock(text)
        return before != self.of.get(row)

    def renew(self, row: int, cards: CardRow) -> None:
        """Records in `cards` whether the row's lock, if there is one, names no pod that waits there for the device plugin."""
        lock = self.of.get(row)
        cards.is_locked = lock is not None and not self._is_used(lock, cards)
        if cards.is_locked:
            for wake in self._on_unmatched.values():
                wake()

    def _is_used(self, lock: NodeLock, cards: CardRow) -> bool:
        key = self.keys[cards.node.mode]
        return any(
            self.pod_keys[uid] == lock.pod_key and not key.held_while.isdisjoint(hold.awaits)
            for uid, hold in cards.holds.items()
        )
