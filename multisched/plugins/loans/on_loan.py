"""OnLoan: the pods that a pod of the lender may evict, which are borrowers' pods on loans that can be recalled, regardless of priority."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, NamedTuple

import numpy as np

from multisched.framework.node_view import Bools, Float64, Int64
from multisched.framework.preemption import ABOVE_EVERY_PRIORITY, Costs, PlacedPods
from multisched.model.objects import CPU
from multisched.plugins.disruption_budgets import DisruptionBudgets
from multisched.plugins.loans.loan_ledger import LoanLedger
from multisched.plugins.loans.recalls import saved_until_s

ROWS_AT_ONCE: Final = 16
"""Number of rows whose pods are read before other tasks run."""


class RowAnswer(NamedTuple):
    """The pods of one row, most important first."""

    versions: Hashable
    may_evict: Bools
    saved_until_s: Float64
    """Per pod: the time since which an eviction would lose work; 0 if the pod may not be evicted."""
    cores: Float64
    """Per pod: the cores that it holds; 0 if the pod may not be evicted."""


Answers = dict[int, RowAnswer]
"""Row -> the values of its pods."""


class OnLoan:
    """A `framework.preemption.DisplacementRule`: the least work lost, after budgets and whole gangs."""

    below = int(ABOVE_EVERY_PRIORITY)

    def __init__(self, ledger: LoanLedger, lender: str, budgets: DisruptionBudgets, answers: Answers) -> None:
        """`answers`: a cache that the caller keeps for the next search, because a search starts again after a pause."""
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
            known = self._known(pods, at, row)
            if known is None:
                if computed % ROWS_AT_ONCE == 0:
                    pods.pause()
                computed += 1
                known = self._read(pods, at, row)
            found[: len(known.may_evict), at] = known.may_evict
        return found

    def _known(self, pods: PlacedPods, at: int, row: int) -> RowAnswer | None:
        known = self._answers.get(row)
        return known if known is not None and known.versions == self._versions(pods, at, row) else None

    def _versions(self, pods: PlacedPods, at: int, row: int) -> Hashable:
        """Returns the versions on which the answer for a row depends. For pods on no row (-1) there is no version."""
        count = int(np.count_nonzero(pods.priority[:, at] < self.below))
        return (count, self._ledger.nodes.version(row), self._ledger.loans_version) if row >= 0 else object()

    def _read(self, pods: PlacedPods, at: int, row: int) -> RowAnswer:
        placed = [pods.pod(k, at) for k in np.flatnonzero(pods.priority[:, at] < self.below).tolist()]
        may_evict = np.array([self._may_be_evicted(pod.uid) for pod in placed], np.bool_)
        saved_s, cores = np.zeros(len(placed)), np.zeros(len(placed))
        for k in may_evict.nonzero()[0].tolist():
            saved_s[k] = saved_until_s(placed[k])
            cores[k] = self._ledger.demand(placed[k]).get(CPU, 0) / 1000.0
        answer = RowAnswer(self._versions(pods, at, row), may_evict, saved_s, cores)
        if row >= 0:
            self._answers[row] = answer
        return answer

    def _may_be_evicted(self, uid: str) -> bool:
        """Reports whether the pod may be evicted. Uses the pod's own row, because the pods of a gang are on several rows."""
        held = self._ledger.hold(uid)
        loan = None if held is None else self._ledger.loan_at(held.pool, held.row)
        return loan is not None and loan.returns is not None and loan.lender == self._lender and not loan.is_sliced

    def first(self, pods: PlacedPods, displaceable: Bools) -> Bools:
        return self._budgets.violating(pods, displaceable)

    def costs(self, pods: PlacedPods, victims: Bools, first: Bools, whole_gangs: Int64) -> Costs:
        """Returns: violated budgets, gangs evicted whole, core-seconds lost, pods."""
        lost = np.zeros(len(pods.rows), np.float64)
        for at in np.flatnonzero(victims.any(axis=0)).tolist():
            row = pods.rows.item(at)
            known = self._known(pods, at, row) or self._read(pods, at, row)
            some = victims[: len(known.cores), at]
            lost[at] = (known.cores[some] * (self._ledger.now_s - known.saved_until_s[some]).clip(0.0)).sum()
        return np.stack(
            (np.count_nonzero(victims & first, axis=0), whole_gangs, lost, np.count_nonzero(victims, axis=0))
        ).astype(np.float64)
