"""What the leader of a sliced loan reports as events, each once: a missing definition, and pods of other schedulers on lent nodes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from multisched.framework.moving import Mover
from multisched.framework.ports import ObjectRef
from multisched.framework.slice_writes import SliceRequest
from multisched.model.object_kinds import ObjectKind
from multisched.plugins.loans.loan_ledger import LoanLedger
from multisched.plugins.loans.slices.lender_side import LenderSide
from multisched.plugins.loans.slices.slice_rows import LoanKey

ACTION: Final = "Lending"
EVENTS_MAX: Final = 16
"""New nodes with foreign pods per look and loan."""


class SliceReports:
    """The reports of one domain."""

    def __init__(self, ledger: LoanLedger) -> None:
        self._ledger = ledger
        self.mover: Mover | None = None
        """None: nothing can be recorded."""
        self._is_unserved = False
        self._foreign: dict[LoanKey, dict[str, list[str]]] = {}
        """uid of a node with foreign pods -> their schedulers, when the node was reported."""
        self.problem = ""
        """Foreign pods on lent nodes, for people; empty if there are none."""

    def unserved(self, request: SliceRequest, message: str) -> None:
        """Records that SliceSets are not served, unless that is known."""
        if not self._is_unserved:
            definition, known = ObjectKind.SLICE_SET.definition, request.known
            regarding = ObjectRef(definition.name, known.namespace, known.name, "", definition.api_version)
            self._record(regarding, "SlicesNotServed", f"nothing is lent: {message}")
        self._is_unserved = True

    def served(self) -> None:
        """Notes an answer about an object: a definition that is removed later is reported again."""
        self._is_unserved = False

    def look_for_foreign(self, sides: Iterable[LenderSide]) -> None:
        """Records nodes on which more foreign pods have appeared than the terms of the loan allow for."""
        self.problem = "; ".join(filter(None, map(self._foreign_of, sides)))

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
                self._record(ObjectRef("Node", "", node.name, node.uid), "ForeignPodsOnLoan", note)
        self._foreign[side.key] = known
        if not rows:
            return ""
        schedulers = ", ".join(sorted(set().union(*known.values())))
        return f"pods of {schedulers} are on {len(rows)} nodes of the loan to {borrower}, for instance {nodes.node(rows[0]).name}"

    def _record(self, regarding: ObjectRef, reason: str, note: str) -> None:
        if self.mover is not None:
            self.mover.record_event("Warning", regarding, reason, note, action=ACTION)
