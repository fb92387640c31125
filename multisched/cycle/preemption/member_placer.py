"""Places one member of a group on the node table, as any pod is placed: by its class, its scores and the ledgers.

Works within a `Trial`, which undoes it. Plugins with remote requests are not evaluated: the caller leaves out the rows that they
have not allowed. Reserve and Permit do not run either.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from multisched.cycle.classes.cache import ClassCache
from multisched.cycle.classes.columns import Totals
from multisched.cycle.classes.equivalence_class import EquivalenceClass
from multisched.cycle.classes.scores import NOWHERE
from multisched.cycle.preemption.nominated_pods import NominatedPodsFilter
from multisched.framework.node_view import Bools, Rows, any_true
from multisched.framework.points import CycleView
from multisched.model.objects import Pod
from multisched.state.transaction import Choose
from multisched.state.trial import Trial, TrialPlacement

ROWS_TRIED_MAX: Final = 8
"""Rows that pass all filters but are refused by a ledger, before the pod counts as refused."""

Best = Callable[[Rows, Bools, Totals, Pod, int], int]
"""(rows, feasible, totals, pod, attempt) -> position of the best row (`SchedulingCycle`)."""


class MemberPlacer:
    """Placement of members in one domain."""

    def __init__(
        self,
        classes: ClassCache,
        nominated: NominatedPodsFilter,
        best: Best,
        chooser: Callable[[CycleView], Choose],
    ) -> None:
        """`chooser`: returns the function that chooses from ledgers for the profile's plugins."""
        self._classes = classes
        self._nominated = nominated
        self._best = best
        self.chooser = chooser

    def class_of(self, pod: Pod, attempt: int) -> EquivalenceClass:
        """Returns the pod's class as of now. Raises PluginFailure."""
        return self._classes.find(pod, attempt)

    def place(self, pod: Pod, attempt: int, allowed: Bools | None, trial: Trial) -> TrialPlacement | None:
        """Places the pod on its best row; None if no row takes it. `allowed`: bool[rows of the table].

        Raises PluginFailure.
        """
        pod_class = self._classes.find(pod, attempt)
        if pod_class.refusal is not None:
            return None
        feasible = self._feasible(pod_class, pod, attempt, allowed)
        if not any_true(feasible):
            return None
        choose = self.chooser(pod_class.view)
        if pod_class.is_of_one_row:
            return trial.place(pod, pod_class.rows.item(0), choose)
        self._classes.score(pod_class)
        total = np.where(feasible, pod_class.total, NOWHERE).astype(np.int64)
        for _ in range(ROWS_TRIED_MAX):
            at = self._best(pod_class.rows, feasible, total, pod, attempt)
            stand = trial.place(pod, pod_class.rows.item(at), choose)
            if stand is not None:
                return stand
            feasible[at], total[at] = False, NOWHERE
            if not any_true(feasible):
                return None
        return None

    def _feasible(self, pod_class: EquivalenceClass, pod: Pod, attempt: int, allowed: Bools | None) -> Bools:
        feasible = pod_class.feasible.copy()
        feasible[list(self._nominated.blocked(pod_class, pod, attempt))] = False
        if allowed is not None:
            feasible &= allowed.take(pod_class.rows)
        return feasible
