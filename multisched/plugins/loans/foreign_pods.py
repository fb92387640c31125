"""ForeignPods: the requests of pods of schedulers outside this program, per row.

Lenders report these pods, and may keep a reserve for them. Their schedulers do not know loans: they treat capacity that is offered to a
borrower as free. Pods of DaemonSets and static pods are not foreign:
every node has them, and they count as the lender's own use.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from multisched.framework.node_view import Int64, Rows
from multisched.model.objects import PODS, Node, Pod
from multisched.plugins.loans.pools import at_rows, grown_to
from multisched.plugins.loans.terms import Borrower, LoanTerms

OF_NODES: Final = frozenset({"DaemonSet", "Node"})
"""Kinds of the owners of pods that each node has."""


class ForeignHold(msgspec.Struct, frozen=True):
    """The requests of one pod; compared by the audit."""

    row: int
    amounts: Mapping[str, int]


class ForeignPods:
    """Implements `SummingLedger` of `framework.ledger`. Stores nothing if no loan needs it."""

    name = "foreign pods"

    def __init__(self, borrowers: Sequence[Borrower]) -> None:
        self._borrowers = borrowers
        loans = [loan for one in borrowers for loan in one.loans if loan.is_sliced or loan.foreign_percent]
        self._own = frozenset[str]().union(*(loan.schedulers for loan in loans))
        self._resources = frozenset[str]().union(*(loan.resources for loan in loans)) - {PODS}
        self._held: dict[str, ForeignHold] = {}
        self._columns: dict[str, Int64] = {}
        """Resource -> int64[rows]: the requested amount; for the resource `pods`, the number of pods."""

    def __bool__(self) -> bool:
        return bool(self._own)

    # -- Ledger ----------------------------------------------------------------------------------------------------

    def is_used_by(self, pod: Pod) -> bool:
        """Reports whether the pod is foreign."""
        owner = pod.owner
        return pod.spec.scheduler_name not in self._own and (owner is None or owner.kind not in OF_NODES)

    def version(self, row: int) -> int:
        return 0

    def fits(self, pod: Pod, row: int) -> str:
        return ""

    def take(self, pod: Pod, row: int) -> Mapping[str, str]:
        self.restore(pod, row)
        return {}

    def restore(self, pod: Pod, row: int) -> None:
        amounts = {name: amount for name, amount in pod.requests.items() if amount and name in self._resources}
        hold = ForeignHold(row, amounts)
        if self._held.get(pod.uid) != hold:
            self.release(pod.uid)
            self._held[pod.uid] = hold
            self._count(hold, 1)

    def release(self, uid: str) -> None:
        known = self._held.pop(uid, None)
        if known is not None:
            self._count(known, -1)

    def set_node(self, row: int, node: Node | None) -> None:
        """Does nothing: requests of pods do not depend on nodes."""

    def held(self) -> Mapping[str, object]:
        return self._held

    def empty_copy(self) -> ForeignPods:
        return ForeignPods(self._borrowers)

    def sums(self, row: int) -> object:
        return [
            (name, amount)
            for name, column in sorted(self._columns.items())
            if row < len(column) and (amount := column.item(row))
        ]

    def recount(self, row: int) -> None:
        for column in self._columns.values():
            column[row : row + 1] = 0
        for hold in self._held.values():
            if hold.row == row:
                self._count(hold, 1)

    def _count(self, hold: ForeignHold, sign: int) -> None:
        for name, amount in {**hold.amounts, PODS: 1}.items():
            column = grown_to(self._columns.get(name, np.zeros(0, np.int64)), hold.row)
            self._columns[name] = column
            column[hold.row] += sign * amount

    # -- what loans read -------------------------------------------------------------------------------------------

    def at(self, resource: str, rows: Rows) -> Int64:
        """Returns int64[rows]: the amount that foreign pods request; for the resource `pods`, their number."""
        return at_rows(self._columns.get(resource), rows)

    def kept(self, loan: LoanTerms, resource: str, rows: Rows, allocatable: Int64) -> Int64:
        """Returns int64[rows]: the amount that the loan keeps free for further foreign pods."""
        kept: Int64 = np.maximum(0, allocatable * loan.foreign_percent // 100 - self.at(resource, rows))
        return kept

    def beyond(self, loan: LoanTerms, rows: Rows, allocatable: Mapping[str, Int64]) -> Rows:
        """Returns the rows whose foreign pods request more than the loan keeps for them. `allocatable`: resource -> int64[rows]."""
        is_beyond = np.zeros(len(rows), np.bool_)
        for resource, amounts in allocatable.items():
            is_beyond |= self.at(resource, rows) > amounts * loan.foreign_percent // 100
        found: Rows = rows[is_beyond]
        return found

    def schedulers_of(self, pods: Iterable[Pod]) -> list[str]:
        """Returns the schedulerNames of those pods that are foreign."""
        return sorted({pod.spec.scheduler_name for pod in pods if self.is_used_by(pod)})
