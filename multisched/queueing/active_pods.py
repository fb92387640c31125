"""The active pods of one domain in QueueSort's order, with a fair share of attempts per namespace for retries.

Owns the order of active pods and the shares of namespaces. A retry is a pod whose earlier attempt was refused or
failed by an error. First attempts keep QueueSort's order, except in namespaces whose attempts take long
(`first_attempts`). The README.md of this folder explains the shares, their bounds and the reasons.

Attempts are counted in units: one per UNIT_S that an attempt takes, at least one. Of the first attempts that are ahead of another,
long ones count only up to what their namespaces may use beyond their share. This is start-time fair queueing. Virtual
time advances by units / k, where k namespaces have retries. Each namespace has a mark, the virtual time at which its
next retry is due; its own attempts advance it. Used by `PodQueue` only.
"""

from __future__ import annotations

from typing import Any

from multisched.queueing.first_attempts import FirstAttempts
from multisched.queueing.transitions import QueueInvariantError
from multisched.queueing.uid_heap import UidHeap

LEAD_UNITS = 16.0
"""How far QueueSort's order may deviate from the shares before the shares apply."""
UNIT_S = 0.0005
"""A longer attempt counts as proportionally more units. A plain pod takes a tenth to a third of a millisecond. With a
unit of one millisecond, a thousand pods with fifty affinity terms (1.1 ms each) delayed other pods for a second.
"""
COST_UNITS_MAX = 200.0
"""Most units that one attempt counts: a stall of the machine must not be charged to a namespace."""
MARKS_MAX = 10_000
"""Namespaces without active retries whose marks are kept; beyond this, their shares restart."""


class ActivePods:
    """uid -> position in the order. Each uid at most once."""

    __slots__ = (
        "_ahead",
        "_behind",
        "_best",
        "_due",
        "_first",
        "_home",
        "_lead",
        "_marks",
        "_retries",
        "_tenants",
        "_time",
        "passed_over",
    )

    def __init__(self) -> None:
        self._first = FirstAttempts()
        self._retries: dict[str, UidHeap] = {}
        self._home: dict[str, str] = {}
        """uid of each active retry -> its namespace."""
        self._best: dict[str, str] = {}
        """Namespace -> its first retry in QueueSort's order."""
        self._due = UidHeap()
        """Namespaces with retries, except those in `_ahead`, ordered by their first retry."""
        self._ahead = UidHeap()
        """Namespaces beyond their share, ordered by their mark."""
        self._behind = UidHeap()
        """All namespaces with retries, ordered by their mark."""
        self._tenants: dict[str, int] = {}
        """Namespace -> number of its active pods."""
        self._marks: dict[str, float] = {}
        self._time = 0.0
        self._lead = LEAD_UNITS / 2
        """Half the units that retries may still use before first attempts take precedence."""
        self.passed_over = 0
        """Number of attempts given to other pods while retries waited for their share."""

    def __len__(self) -> int:
        return len(self._first) + len(self._home)

    def __contains__(self, uid: object) -> bool:
        return uid in self._home or uid in self._first

    @property
    def items(self) -> int:
        """Heap items held, including dead ones."""
        heaps = [self._due, self._ahead, self._behind, *self._retries.values()]
        return self._first.items + sum(heap.items for heap in heaps)

    @property
    def retrying_namespaces(self) -> int:
        return len(self._retries)

    @property
    def namespaces_ahead(self) -> int:
        """Number of namespaces whose retries wait because they are ahead of their share."""
        return len(self._ahead)

    def push_first(self, uid: str, namespace: str, key: tuple[Any, ...], order: int) -> None:
        """Adds a pod without an earlier refusal or error. It must not be active yet."""
        self._tenants[namespace] = self._tenants.get(namespace, 0) + 1
        self._first.push(uid, namespace, key, order)

    def push_retry(self, uid: str, namespace: str, key: tuple[Any, ...], order: int) -> None:
        """Adds a pod with an earlier refusal or error. It must not be active yet."""
        self._tenants[namespace] = self._tenants.get(namespace, 0) + 1
        heap = self._retries.get(namespace)
        if heap is None:
            heap = self._retries[namespace] = UidHeap()
            self._enter(namespace)
        heap.push(uid, key, order)
        self._home[uid] = namespace
        self._rank(namespace, heap)

    def discard(self, uid: str, namespace: str) -> None:
        """Removes the pod."""
        left = self._tenants[namespace] - 1
        if left:
            self._tenants[namespace] = left
        else:
            del self._tenants[namespace]
        if self._home.pop(uid, None) is None:
            self._first.discard(uid)
            return
        heap = self._retries[namespace]
        heap.discard(uid)
        if self._best[namespace] == uid:
            self._rank(namespace, heap)

    def head(self) -> str | None:
        """Returns the uid of the next pod without removing it; None if there is none."""
        if not self._retries:
            first = self._first.top()
            return None if first is None else first[2]
        namespace = self._turn()
        retry = self._retries[namespace].top()
        first_attempt = self._first.top()
        if first_attempt is None or retry is None:
            return self._best[namespace]
        is_retry_first = retry[:2] < first_attempt[:2] and (self._lead > 0 or len(self._tenants) == 1)
        return retry[2] if is_retry_first else first_attempt[2]

    def charge(self, uid: str) -> None:
        """Charges one unit for the head's attempt, before the pod is removed from here."""
        namespace = self._home.get(uid)
        if namespace is None:
            self._first.pass_time(1.0, len(self._tenants))
        if not self._retries:
            return
        if len(self._ahead) or (namespace is None and self._lead <= 0):
            self.passed_over += 1
        if namespace is None:
            self._earn(1.0)
        else:
            self._pay(namespace, 1.0)

    def charge_cost(self, namespace: str, seconds: float, *, is_retry: bool) -> None:
        """Charges the duration of an attempt whose first unit was already charged."""
        units = min(seconds / UNIT_S, COST_UNITS_MAX) - 1.0
        if units <= 0:
            return
        if is_retry:
            self._pay(namespace, units)
        else:
            self._earn(units)
            self._first.owe(namespace, units + 1.0, len(self._tenants))
            self._first.pass_time(units, len(self._tenants))

    def validate(self) -> None:
        """Raises QueueInvariantError if two indices disagree. O(pods)."""
        held = {uid: namespace for namespace, heap in self._retries.items() for uid in heap}
        if held != self._home or not all(len(heap) for heap in self._retries.values()):
            raise QueueInvariantError(f"{len(self._home)} retries known, {len(held)} indexed")
        if sum(self._tenants.values()) != len(self) or not all(self._tenants.values()):
            raise QueueInvariantError(f"{len(self)} pods active, {sum(self._tenants.values())} counted by namespace")
        if sorted([*self._due, *self._ahead]) != sorted(self._retries) or set(self._behind) != set(self._retries):
            raise QueueInvariantError("a namespace with retries is not in exactly one of due and ahead")
        for namespace, heap in self._retries.items():
            if (head := heap.head()) is None or head[1] != self._best[namespace]:
                raise QueueInvariantError(f"the first retry of namespace {namespace} is not {self._best[namespace]}")
        if len(self._marks) > MARKS_MAX + len(self._retries):
            raise QueueInvariantError(f"{len(self._marks)} shares kept (I10)")

    def _turn(self) -> str:
        """Returns the namespace whose retry is next: one far behind its share, else the first due one in QueueSort's order."""
        if len(self._retries) == 1:
            return next(iter(self._retries))
        behind = self._behind.head()
        slack = LEAD_UNITS / len(self._retries)
        if behind is not None and behind[0] <= self._time - slack:
            return behind[1]
        while (back := self._ahead.head()) is not None and back[0] < self._time + slack:
            self._ahead.discard(back[1])
            self._make_due(back[1])
        while (due := self._due.head()) is not None:
            mark = self._marks[due[1]]
            if mark < self._time + slack:
                return due[1]
            self._due.discard(due[1])
            self._ahead.push(due[1], mark, 0)
        if behind is None:
            raise QueueInvariantError("retries are active, but no namespace has any")
        return behind[1]

    def _enter(self, namespace: str) -> None:
        """Adds a namespace that has retries again. Its unused share is lost, its debt remains."""
        mark = self._marks[namespace] = max(self._marks.get(namespace, self._time), self._time)
        self._behind.push(namespace, mark, 0)

    def _rank(self, namespace: str, heap: UidHeap) -> None:
        """Updates the indices after the namespace's first retry may have changed."""
        head = heap.head()
        if head is None:
            del self._retries[namespace], self._best[namespace]
            for index in (self._due, self._ahead, self._behind):
                index.discard(namespace)
            return
        if self._best.get(namespace) != head[1]:
            self._best[namespace] = head[1]
            if namespace not in self._ahead:
                self._make_due(namespace)

    def _make_due(self, namespace: str) -> None:
        top = self._retries[namespace].top()
        if top is not None:
            self._due.push(namespace, top[0], top[1])

    def _pay(self, namespace: str, units: float) -> None:
        if len(self._first) and len(self._tenants) > 1:
            self._lead = max(self._lead - units / 2, -COST_UNITS_MAX / 2)
        if len(self._retries) == 1 and namespace in self._retries:
            return  # its mark and the virtual time would advance equally
        is_waiting = namespace in self._retries
        mark = self._marks.get(namespace, self._time)
        mark = self._marks[namespace] = (mark if is_waiting else max(mark, self._time)) + units
        if is_waiting:
            self._behind.push(namespace, mark, 0)
            if namespace in self._ahead:
                self._ahead.push(namespace, mark, 0)
        self._time += units / (len(self._retries) + (not is_waiting))
        if len(self._marks) > MARKS_MAX + len(self._retries):
            self._marks = {name: self._marks[name] for name in self._retries}

    def _earn(self, units: float) -> None:
        """Accounts for a first attempt made while retries wait."""
        if len(self._tenants) > 1:
            self._lead = min(self._lead + units / 2, LEAD_UNITS / 2)
