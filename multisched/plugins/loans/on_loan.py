"""OnLoan: which pods a pod of the lender displaces: those of borrowers whose loan can be recalled, whatever their priority."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from multisched.framework.node_view import Bools, Int64
from multisched.framework.preemption import ABOVE_EVERY_PRIORITY, Costs, PlacedPods
from multisched.model.objects import CPU
from multisched.plugins.disruption_budgets import DisruptionBudgets
from multisched.plugins.loans.loan_ledger import LoanLedger
from multisched.plugins.loans.recalls import lost_core_s


class OnLoan:
    """A `framework.preemption.DisplacementRule`: the least work lost, after budgets and whole gangs."""

    below = int(ABOVE_EVERY_PRIORITY)

    def __init__(self, ledger: LoanLedger, lender: str, budgets: DisruptionBudgets) -> None:
        self._ledger = ledger
        self._lender = lender
        self._budgets = budgets
        self.mark: Hashable = ledger.loans_version, budgets.version

    def displaceable(self, pods: PlacedPods) -> Bools:
        found: Bools = np.zeros(pods.priority.shape, np.bool_)
        for at, row in enumerate(pods.rows.tolist()):
            if row >= 0 and not self._ledger.has_borrowers(row):
                continue
            for k in np.flatnonzero(pods.priority[:, at] < self.below).tolist():
                found[k, at] = self._may_go(pods.pod(k, at).uid)
            pods.pause()
        return found

    def _may_go(self, uid: str) -> bool:
        """Asks about the pod's own row: the pods of a gang are on several."""
        held = self._ledger.hold(uid)
        loan = None if held is None else self._ledger.loan_at(held.pool, held.row)
        return loan is not None and loan.returns is not None and loan.lender == self._lender

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
