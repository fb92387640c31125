"""OnLoan: which pods a pod of the lender displaces: those of borrowers whose loan can be recalled, whatever their priority."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

import numpy as np

from multisched.framework.node_view import Bools, Int64
from multisched.framework.preemption import ABOVE_EVERY_PRIORITY, Costs, PlacedPods
from multisched.model.objects import CPU
from multisched.plugins.disruption_budgets import DisruptionBudgets
from multisched.plugins.loans.loan_ledger import LoanLedger
from multisched.plugins.loans.recalls import lost_core_s

ROWS_AT_ONCE: Final = 16
"""Rows whose pods are looked up between two pauses."""

Answers = dict[int, tuple[Hashable, Bools]]
"""Row -> versions, and bool[k]: the pods of the row that may be displaced."""


class OnLoan:
    """A `framework.preemption.DisplacementRule`: the least work lost, after budgets and whole gangs."""

    below = int(ABOVE_EVERY_PRIORITY)

    def __init__(self, ledger: LoanLedger, lender: str, budgets: DisruptionBudgets, answers: Answers) -> None:
        """`answers`: kept by the caller from one search to the next, since a search begins anew after a pause."""
        self._ledger = ledger
        self._answers = answers
        self._lender = lender
        self._budgets = budgets
        self.mark: Hashable = ledger.loans_version, budgets.version

    def displaceable(self, pods: PlacedPods) -> Bools:
        found: Bools = np.zeros(pods.priority.shape, np.bool_)
        computed = 0
        for at, row in enumerate(pods.rows.tolist()):
            if row >= 0 and not self._ledger.has_borrowers(row):
                continue
            placed = np.flatnonzero(pods.priority[:, at] < self.below)
            key = (len(placed), self._ledger.nodes.version(row), self._ledger.loans_version) if row >= 0 else None
            known = self._answers.get(row)
            if key is None or known is None or known[0] != key:
                if computed % ROWS_AT_ONCE == 0:
                    pods.pause()
                computed += 1
                known = key, np.array([self._may_go(pods.pod(k, at).uid) for k in placed.tolist()], np.bool_)
                if key is not None:
                    self._answers[row] = known
            found[placed, at] = known[1]
        return found

    def _may_go(self, uid: str) -> bool:
        """Asks about the pod's own row: the pods of a gang are on several."""
        held = self._ledger.hold(uid)
        loan = None if held is None else self._ledger.loan_at(held.pool, held.row)
        return loan is not None and loan.returns is not None and loan.lender == self._lender and not loan.is_sliced

    def first(self, pods: PlacedPods, displaceable: Bools) -> Bools:
        return self._budgets.violating(pods, displaceable)

    def costs(self, pods: PlacedPods, victims: Bools, first: Bools, whole_gangs: Int64) -> Costs:
        """Returns: violated budgets, gangs evicted whole, core-seconds lost, pods."""
        lost = np.zeros(len(pods.rows), np.float64)
        for k, at in zip(*victims.nonzero(), strict=True):
            pod = pods.pod(int(k), int(at))
            lost[at] += lost_core_s(pod, self._ledger.demand(pod).get(CPU, 0), self._ledger.now_s)
        return np.stack(
            (np.count_nonzero(victims & first, axis=0), whole_gangs, lost, np.count_nonzero(victims, axis=0))
        ).astype(np.float64)
