"""The gangs of placed pods as columns, and a rule that takes no more pods of a gang than it can spare.

Owns the numbers of gangs, and caches those of the pods on each row until the row changes.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, cast

import numpy as np

from multisched.framework.node_view import Bools, Int32, Int64
from multisched.framework.placed_gang_members import PlacedGangMembers
from multisched.framework.preemption import Costs, DisplacementRule, PlacedPods
from multisched.state.pods_by_priority import Order, PodColumns

NUMBERS_MAX: Final = 65_536
"""Maximum number of numbered gangs, or twice the number of existing gangs if that is more. Beyond it, all gangs are renumbered."""
NO_GANG: Final = -1
ROWS_AT_ONCE: Final = 256
"""Rows whose pods' gangs are looked up in one part."""


class GangColumns:
    """Gang numbers of one cluster. A pod that is being deleted or evicted belongs to no gang here."""

    def __init__(self, gangs: PlacedGangMembers) -> None:
        self._gangs = gangs
        self._numbers: dict[str, int] = {}
        self._keys: list[str] = []
        self._rows: dict[int, tuple[Order, Int32 | None]] = {}
        """Row -> its pods, and the number of each pod's gang; None if no pod has one."""
        self._surplus: Int64 = np.zeros(0, np.int64)
        self._version = -1

    def beyond_surplus(self, pods: PodColumns, displaceable: Bools) -> Bools:
        """Returns bool[k, rows]: pods that exceed the surplus of their gang. Less important ones on the same row use it first."""
        found = np.zeros_like(displaceable)
        gang = self.of(pods)
        k, i = np.nonzero(displaceable & (gang != NO_GANG))
        if not len(k):
            return found
        number = gang[k, i]
        order = np.lexsort((-k, number, i))  # per row and gang, the least important first
        k, i, number = k[order], i[order], number[order]
        begins = np.ones(len(k), np.bool_)
        begins[1:] = (number[1:] != number[:-1]) | (i[1:] != i[:-1])
        starts = np.maximum.accumulate(np.where(begins, np.arange(len(k)), 0))
        is_beyond = np.arange(len(k)) - starts >= self._surpluses()[number]
        found[k[is_beyond], i[is_beyond]] = True
        return found

    def of(self, pods: PodColumns) -> Int32:
        """Returns int32[k, rows]: a number for each gang; NO_GANG for a pod without one."""
        self._renew()
        gang = np.full(pods.priority.shape, NO_GANG, np.int32)
        if not len(self._gangs):
            return gang
        looked_up = 0
        for i, row in enumerate(pods.rows.tolist()):
            order = pods.order(i)
            known = self._rows.get(row)
            if known is None or known[0] is not order:
                if looked_up % ROWS_AT_ONCE == 0:
                    pods.pause()
                looked_up += 1
                known = self._rows[row] = order, self._numbered(order)
            if known[1] is not None:
                gang[: len(order), i] = known[1]
        return gang

    def key(self, number: int) -> str:
        """Returns the gang with this number; valid until the next call of `of`."""
        return self._keys[number]

    def _numbered(self, order: Order) -> Int32 | None:
        keys = [None if pod.is_leaving else self._gangs.key_of(pod.uid) for pod in order]
        if not any(keys):
            return None
        return np.array([NO_GANG if key is None else self._number(key) for key in keys], np.int32)

    def _number(self, key: str) -> int:
        number = self._numbers.setdefault(key, len(self._keys))
        if number == len(self._keys):
            self._keys.append(key)
        return number

    def _renew(self) -> None:
        if len(self._numbers) > max(NUMBERS_MAX, 2 * len(self._gangs)):
            self._numbers.clear()
            self._keys.clear()
            self._rows.clear()
            self._version = -1

    def _surpluses(self) -> Int64:
        """Returns the surplus of each gang: int64[numbers]."""
        if self._version != self._gangs.version or len(self._surplus) != len(self._numbers):
            self._surplus = np.fromiter(map(self._gangs.surplus, self._numbers), np.int64, len(self._numbers))
            self._version = self._gangs.version
        return self._surplus


class SparingGangs:
    """A displacement rule, restricted so that each gang keeps its minimum."""

    def __init__(self, rule: DisplacementRule, columns: GangColumns, gangs: PlacedGangMembers) -> None:
        self.rule = rule
        self.below = rule.below
        self.mark: Hashable = rule.mark, gangs.version
        self._columns = columns

    def displaceable(self, pods: PlacedPods) -> Bools:
        may_evict = self.rule.displaceable(pods)
        return may_evict & ~self._columns.beyond_surplus(cast(PodColumns, pods), may_evict)

    def first(self, pods: PlacedPods, displaceable: Bools) -> Bools:
        return self.rule.first(pods, displaceable)

    def costs(self, pods: PlacedPods, victims: Bools, first: Bools, whole_gangs: Int64) -> Costs:
        return self.rule.costs(pods, victims, first, whole_gangs)
