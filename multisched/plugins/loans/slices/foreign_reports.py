"""Reports of the leader of a sliced loan about pods of other schedulers on lent nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from multisched.framework.ports import ObjectRef
from multisched.plugins.loans.loan_ledger import LoanLedger
from multisched.plugins.loans.slices.lender_side import LenderSide
from multisched.plugins.slices.sides import LendingSide, LoanKey
from multisched.plugins.slices.slice_reports import SliceReports

EVENTS_MAX: Final = 16
"""Maximum number of newly found nodes with foreign pods that are reported per call of `look` and loan."""


class ForeignReports(SliceReports):
    """The reports of one domain."""

    def __init__(self, ledger: LoanLedger) -> None:
        super().__init__()
        self._ledger = ledger
        self._foreign: dict[LoanKey, dict[str, list[str]]] = {}
        """uid of a node with foreign pods -> their schedulers, when the node was reported."""

    def look(self, sides: Sequence[LendingSide]) -> None:
        """Records nodes on which more foreign pods have appeared than the terms of the loan allow for."""
        found = (self._foreign_of(side) for side in sides if isinstance(side, LenderSide))
        self.problem = "; ".join(filter(None, found))

    def _foreign_of(self, side: LenderSide) -> str:
        """Returns a sentence about the nodes of one loan; empty if there are none."""
        nodes, borrower = self._ledger.nodes, side.key[1]
        before, known = self._foreign.get(side.key, {}), dict[str, list[str]]()
        rows, recorded = side.rows_with_foreign().tolist(), 0
        for row in rows:
            node = nodes.node(row)
            if node.uid in before:
                known[node.uid] = before[node.uid]
            elif recorded < EVENTS_MAX:  # the next look reports the others
                recorded += 1
                names = known[node.uid] = self._ledger.foreign.schedulers_of(nodes.pods_on(row))
                note = (
                    f"pods of {', '.join(names)} are on this node, which is lent to {borrower}: what they use is not offered; "
                    "keep them off with a taint, or set foreignReservePercent of the loan"
                )
                self.record(ObjectRef("Node", "", node.name, node.uid), "ForeignPodsOnLoan", note)
        self._foreign[side.key] = known
        if not rows:
            return ""
        schedulers = ", ".join(sorted(set().union(*known.values())))
        return f"pods of {schedulers} are on {len(rows)} nodes of the loan to {borrower}, for instance {nodes.node(rows[0]).name}"
