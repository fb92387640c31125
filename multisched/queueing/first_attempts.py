"""The active pods that nobody has refused yet: QueueSort's order, but for namespaces whose attempts take long.

A pod with fifty affinity terms takes a hundred times as long as a plain one. Ten thousand of them would hold up
everybody behind them for minutes. So an attempt of more than one unit is a debt of its namespace. The debt is paid off
as units go by; each of k namespaces pays one in k. A namespace with more than DEBT_UNITS stands back while others have
first attempts. Attempts of one unit make no debt, so pods like most others are never reordered. Owned by `ActivePods`.
"""

from __future__ import annotations

from typing import Any, Final

from multisched.queueing.uid_heap import UidHeap

DEBT_UNITS: Final = 16.0
"""What a namespace may have had beyond its share before it stands back."""

HELD_BACK_MAX: Final = 256
"""Namespaces that stand back at once; of others the debts are not asked."""

Top = tuple[Any, int, str]
"""Key, order and uid."""


class FirstAttempts:
    """uid -> place in the order. Each uid at most once."""

    __slots__ = ("_free", "_held", "_homes", "_marks", "_time")

    def __init__(self) -> None:
        self._free = UidHeap()
        self._held: dict[str, UidHeap] = {}
        """Pods of namespaces that stand back, or did until lately."""
        self._homes: dict[str, str] = {}
        """uid -> namespace."""
        self._marks: dict[str, float] = {}
        """Namespace with debts -> the time at which they are paid."""
        self._time = 0.0
        """Goes on by one for each of k units, where k namespaces have pods."""

    def __len__(self) -> int:
        return len(self._homes)

    def __contains__(self, uid: object) -> bool:
        return uid in self._homes

    @property
    def items(self) -> int:
        """Heap items held, dead ones included."""
        return self._free.items + sum(heap.items for heap in self._held.values())

    def push(self, uid: str, namespace: str, key: tuple[Any, ...], order: int) -> None:
        self._homes[uid] = namespace
        self._held.get(namespace, self._free).push(uid, key, order)

    def discard(self, uid: str) -> None:
        namespace = self._homes.pop(uid)
        heap = self._held.get(namespace)
        if heap is None or not heap.discard(uid):
            self._free.discard(uid)
        elif not len(heap):
            del self._held[namespace]

    def top(self) -> Top | None:
        """The pod whose turn it is among them, left in place."""
        if not self._marks and not self._held:
            return self._free.top()
        self._hold_back()
        found = [self._free.top()]
        found += [heap.top() for namespace, heap in self._held.items() if not self._owes(namespace)]
        due = [top for top in found if top is not None]
        if due:
            return min(due, key=lambda top: top[:2])
        if not self._held:
            return None
        return self._held[min(self._held, key=lambda namespace: (self._marks.get(namespace, 0.0), namespace))].top()

    def pass_time(self, units: float, namespaces: int) -> None:
        """Attempts went on for so long; so many namespaces have active pods."""
        if self._marks:
            self._time += units / max(namespaces, 1)
            if len(self._marks) > HELD_BACK_MAX or namespaces <= 1:
                self._marks = {name: mark for name, mark in self._marks.items() if mark > self._time}

    def owe(self, namespace: str, units: float, namespaces: int) -> None:
        """An attempt of this namespace took so long. Where nobody else waits, that is nobody's loss."""
        if namespaces > 1:
            self._marks[namespace] = max(self._marks.get(namespace, self._time), self._time) + units

    def _hold_back(self) -> None:
        """Takes the pods of namespaces with debts that stand in front of all others out of the way."""
        while (top := self._free.top()) is not None:
            namespace = self._homes[top[2]]
            if not self._owes(namespace) or (namespace not in self._held and len(self._held) >= HELD_BACK_MAX):
                return
            self._free.discard(top[2])
            heap = self._held.get(namespace)
            if heap is None:
                heap = self._held[namespace] = UidHeap()
            heap.push(top[2], top[0], top[1])

    def _owes(self, namespace: str) -> bool:
        mark = self._marks.get(namespace)
        return mark is not None and mark > self._time + DEBT_UNITS
