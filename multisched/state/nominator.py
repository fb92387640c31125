"""Nominator: pods with nominated nodes, whose capacity there pods of lower priority must respect.

Owns the nominations: those in the API server, and those decided here that are not written yet. Each has a rank, usually
the pod's priority: pods of lower priority respect the nomination. For each rank it keeps the requests of the nominated
pods, node by node, so a cycle evaluates a thousand nominated pods in a few vector operations. Written by the shell
(`set`, `nominate`, `remove`) and by the cycle that assumes a nominated pod; all synchronous.

A rank that differs from the priority is not in the API: after a restart the pod's rank is its priority.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from multisched.framework.node_view import Int64, Rows
from multisched.model.objects import PODS, Pod
from multisched.state.node_table import NodeTable

SLOTS_INITIAL = 16
CHANGES_KEPT = 4_096
"""Changes kept; a reader that is further behind evaluates everything again."""
_NONE: Rows = np.zeros(0, np.intp)


class _Level:
    """The requests of the nominated pods of one rank, by slot."""

    __slots__ = ("pods", "size", "sums")

    def __init__(self, capacity: int) -> None:
        self.size = 0
        self.pods: Int64 = np.zeros(capacity, np.int64)
        self.sums: dict[str, Int64] = {}

    def account(self, slot: int, pod: Pod, sign: int) -> None:
        self.size += sign
        self.pods[slot] += sign
        for name, amount in pod.requests.items():
            column = self.sums.get(name)
            if column is None:
                column = self.sums[name] = np.zeros(len(self.pods), np.int64)
            column[slot] += sign * amount

    def grow(self, capacity: int) -> None:
        self.pods = _grown(self.pods, capacity)
        self.sums = {name: _grown(column, capacity) for name, column in self.sums.items()}


class NominatedRequests(msgspec.Struct, frozen=True):
    """The rows of other nominated pods, and their requests there. Valid until the next nomination."""

    rows: Rows
    """Unordered; each once."""
    _slots: Rows
    _levels: Sequence[_Level]
    _own: tuple[int, Pod] | None

    def amounts(self, resource: str) -> Int64:
        """Returns int64[rows]: like `NodeView.requested`, for the nominated pods only."""
        total = np.zeros(len(self._slots), np.int64)
        for level in self._levels:
            column = level.pods if resource == PODS else level.sums.get(resource)
            if column is not None:
                total += column[self._slots]
        if self._own is not None:
            slot, pod = self._own
            total[self._slots == slot] -= 1 if resource == PODS else pod.requests.get(resource, 0)
        return total


class Nominator:
    """Pending pods by nominated node, over all domains."""

    def __init__(self) -> None:
        self._by_node: dict[str, dict[str, Pod]] = {}
        self._known: dict[str, Pod] = {}
        """uid -> the pod, with its nominated node."""
        self._ranks: dict[str, int] = {}
        """uid -> its rank, if it differs from its priority."""
        self._slots: dict[str, int] = {}
        self._free: list[int] = []
        self._capacity = SLOTS_INITIAL
        self._levels: dict[int, _Level] = {}
        self._rows: Rows = _NONE
        self._rows_mark: tuple[int, int] = (-1, -1)
        self._nodes_named = 0
        self.sequence = 0
        """Number of changes of nominations."""
        self._changed: deque[str] = deque(maxlen=CHANGES_KEPT)

    # -- changes ---------------------------------------------------------------------------------------------------

    def set(self, pod: Pod, before: Pod | None = None) -> None:
        """Updates the nomination of a pending pod from its current and previous version in the API server.

        A nomination decided here is missing in versions of the pod written before it. It is kept as long as neither
        version names a node (source: kube-scheduler 1.36, backend/queue/nominator.go).
        """
        node = pod.nominated_node
        if not node and before is not None and not before.nominated_node:
            known = self._known.get(pod.uid)
            node = known.nominated_node if known is not None else ""
        if node or pod.uid in self._known:
            self.nominate(pod, node)

    def nominate(self, pod: Pod, node: str, rank: int | None = None) -> None:
        """Nominates the pod to this node; an empty name ends its nomination.

        `rank`: None keeps the rank it has on this node, initially its priority.
        """
        if rank is None and node and self.node_of(pod.uid) == node:
            rank = self._ranks.get(pod.uid)
        self.remove(pod.uid)
        if not node:
            return
        if rank is not None and rank != pod.spec.priority:
            self._ranks[pod.uid] = rank
        if pod.nominated_node != node:
            pod = msgspec.structs.replace(pod, nominated_node=node)
        self._known[pod.uid] = pod
        self._by_node.setdefault(node, {})[pod.uid] = pod
        slot = self._slot(node)
        rank = self.rank_of(pod)
        level = self._levels.get(rank)
        if level is None:
            level = self._levels[rank] = _Level(self._capacity)
        level.account(slot, pod, 1)
        self._note(node)

    def remove(self, uid: str) -> str:
        """Ends the pod's nomination. Returns its node; empty if there was none."""
        pod = self._known.pop(uid, None)
        if pod is None:
            return ""
        node, rank = pod.nominated_node, self.rank_of(pod)
        self._ranks.pop(uid, None)
        level = self._levels[rank]
        level.account(self._slots[node], pod, -1)
        self._note(node)
        if not level.size:
            del self._levels[rank]
        del self._by_node[node][uid]
        if not self._by_node[node]:
            del self._by_node[node]
            self._free.append(self._slots.pop(node))
        return node

    def _note(self, node: str) -> None:
        self.sequence += 1
        self._changed.append(node)

    # -- reading ---------------------------------------------------------------------------------------------------

    def pods(self) -> Sequence[Pod]:
        """Returns all nominated pods, each with its nominated node."""
        return tuple(self._known.values())

    def node_of(self, uid: str) -> str:
        """Returns the pod's nominated node; empty if there is none."""
        pod = self._known.get(uid)
        return "" if pod is None else pod.nominated_node

    def rank_of(self, pod: Pod) -> int:
        """Returns the pod's rank: pods of a lower priority respect its nomination."""
        return self._ranks.get(pod.uid, pod.spec.priority)

    def on(self, node: str) -> Sequence[Pod]:
        """Returns the pods nominated to a node."""
        return tuple(self._by_node.get(node, {}).values())

    def ahead_on(self, node: str, pod: Pod) -> list[Pod]:
        """Returns the other pods nominated to this node whose rank is not below the pod's priority."""
        pods = self._by_node.get(node)
        if not pods:
            return []
        return [p for p in pods.values() if self.rank_of(p) >= pod.spec.priority and p.uid != pod.uid]

    def ahead_of(self, pod: Pod) -> Iterator[tuple[str, list[Pod]]]:
        """Yields the nodes with other nominated pods that this pod must respect: their rank is not below its priority."""
        if not any(rank >= pod.spec.priority for rank in self._levels):
            return
        for node in self._by_node:
            ahead = self.ahead_on(node, pod)
            if ahead:
                yield node, ahead

    def requests(self, pod: Pod, table: NodeTable) -> NominatedRequests | None:
        """Returns the same as `ahead_of`, in columns over the rows of `table`; None if there are no such pods."""
        levels = [level for rank, level in self._levels.items() if rank >= pod.spec.priority]
        if not levels:
            return None
        known = self._known.get(pod.uid)
        own = None if known is None else (self._slots[known.nominated_node], known)
        pods = levels[0].pods if len(levels) == 1 else np.sum([level.pods for level in levels], axis=0)
        if own is not None and known is not None and self.rank_of(known) >= pod.spec.priority:
            pods = pods.copy()
            pods[own[0]] -= 1
        else:
            own = None
        rows = self._rows_of_slots(table)
        slots = np.flatnonzero((pods > 0) & (rows >= 0))
        return NominatedRequests(rows[slots], slots, levels, own) if len(slots) else None

    def changed_since(self, sequence: int) -> frozenset[str] | None:
        """Returns the nodes whose nominations changed after `sequence`; None if some changes were dropped."""
        missed = self.sequence - sequence
        if missed > len(self._changed):
            return None
        return frozenset(self._changed[-1 - i] for i in range(missed))

    def __len__(self) -> int:
        return len(self._known)

    # -- internal --------------------------------------------------------------------------------------------------

    def _slot(self, node: str) -> int:
        slot = self._slots.get(node)
        if slot is not None:
            return slot
        if self._free:
            slot = self._free.pop()
        else:
            slot = len(self._slots)
            if slot == self._capacity:
                self._capacity *= 2
                for level in self._levels.values():
                    level.grow(self._capacity)
        self._slots[node] = slot
        self._nodes_named += 1
        return slot

    def _rows_of_slots(self, table: NodeTable) -> Rows:
        """Returns intp[slots]: the row of each slot's node; -1 if there is no such node."""
        mark = (table.nodes_version, self._nodes_named)
        if self._rows_mark != mark:
            self._rows = np.full(self._capacity, -1, np.intp)
            for node, slot in self._slots.items():
                row = table.row_of(node)
                if row is not None:
                    self._rows[slot] = row
            self._rows_mark = mark
        return self._rows


def _grown(column: Int64, capacity: int) -> Int64:
    grown = np.zeros(capacity, np.int64)
    grown[: len(column)] = column
    return grown
