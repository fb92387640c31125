"""The active pods without a refusal: QueueSort's order, except in namespaces whose attempts take long.

A pod with fifty affinity terms takes a hundred times as long as a plain one. Ten thousand of them would delay
all pods behind them for minutes. So an attempt of more than one unit creates a debt of its namespace. Debts decrease
as units pass; each of k namespaces pays one unit in k. A namespace with more than DEBT_UNITS is held back while other
namespaces have first attempts. Attempts of one unit create no debt, so ordinary pods are never reordered. Owned by
`ActivePods`.
"""

from __future__ import annotations

from typing import Any, Final

from multisched.queueing.uid_heap import UidHeap

DEBT_UNITS: Final = 16.0
"""Debt above which a namespace is held back."""

HELD_BACK_MAX: Final = 256
"""Namespaces held back at once; the debts of further namespaces are ignored."""

Top = tuple[Any, int, str]
"""Key, order and uid."""


class FirstAttempts:
    """uid -> position in the order. Each uid at most once."""

    __slots__ = ("_free", "_held", "_homes", "_marks", "_time")

    def __init__(self) -> None:
        self._free = UidHeap()
        self._held: dict[str, UidHeap] = {}
        """Pods of namespaces that are held back, or recently were."""
        self._homes: dict[str, str] = {}
        """uid -> namespace."""
        self._marks: dict[str, float] = {}
        """Namespace with debts -> the virtual time at which they are paid."""
        self._time = 0.0
        """Virtual time: advances by one for each k units, where k namespaces have pods."""

    def __len__(self) -> int:
        return len(self._homes)

    def __contains__(self, uid: object) -> bool:
        return uid in self._homes

    @property
    def items(self) -> int:
        """Heap items held, including dead ones."""
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
        """Returns the next of these pods without removing it."""
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
        """Advances the virtual time by `units` of attempts. `namespaces`: how many have active pods."""
        if self._marks:
            self._time += units / max(namespaces, 1)
            if len(self._marks) > HELD_BACK_MAX or namespaces <= 1:
                self._marks = {name: mark for name, mark in self._marks.items() if mark > self._time}

    def owe(self, namespace: str, units: float, namespaces: int) -> None:
        """Adds an attempt's units to the namespace's debt, unless no other namespace has active pods."""
        if namespaces > 1:
            self._marks[namespace] = max(self._marks.get(namespace, self._time), self._time) + units

    def _hold_back(self) -> None:
        """Moves pods of namespaces with debts from the head of the order to their own heaps."""
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
