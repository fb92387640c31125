"""Compares masks and scores of equivalence classes with a fresh evaluation: cached results must equal it (I12).

A stale mask or score places a pod on a possible node, but not on the one that an uncached evaluation would choose. Some classes are
therefore evaluated again when a cycle uses them, and compared row by row.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import partial

import numpy as np

from multisched.cycle.classes.cache import ClassCache
from multisched.cycle.classes.equivalence_class import EquivalenceClass
from multisched.framework.runner import PluginFailure
from multisched.model.objects import Pod
from multisched.shell.domain import DomainWorker
from multisched.state.domain_rows import DomainRows
from multisched.state.node_table import NodeTable
from tests.kit.checkers.process.sandbox import SandboxChecker
from tests.kit.checkers.process.scores import ScoreChecker

COMPARED_EVERY, SANDBOXED_EVERY = 24, 384
"""Every n-th class is evaluated again, and compared with a rebuilt program."""


class ClassChecker:
    """Wraps the class cache of one domain."""

    def __init__(
        self,
        worker: DomainWorker,
        table: NodeTable,
        rows: DomainRows,
        scores: ScoreChecker,
        sandbox: SandboxChecker,
        report_violation: Callable[[str], None],
    ) -> None:
        self._scores = scores
        self._sandbox = sandbox
        self._worker = worker
        self._runner = copy(worker.runner)
        """A runner of its own: a fresh evaluation does not count as work of the process (`StepCost`)."""
        self._table = table
        self._rows = rows
        self._report_violation = report_violation
        self._followed: ClassCache | None = None
        self._found = 0
        self.checks_all = False
        """Each class is compared in both ways."""
        self._asked: tuple[Pod, int] | None = None
        """The pod and its attempt of the latest `find`: the class keeps an earlier pod, which may have changed since."""
        self.follow()

    def follow(self) -> None:
        """Wraps the class cache of the cycle now in force."""
        classes, self._scores.plugins = self._worker.cycle.classes, self._worker.plugins
        if classes is not self._followed:
            self._followed = classes
            classes.find = partial(self.find, classes.find)  # type: ignore[method-assign]
            classes.score = partial(self.score, classes.score)  # type: ignore[method-assign]

    def find(self, find: Callable[[Pod, int], EquivalenceClass], pod: Pod, attempt: int) -> EquivalenceClass:
        """Wraps `ClassCache.find`."""
        pod_class = find(pod, attempt)
        self._asked = pod, attempt
        self._found += 1
        if self._is_due(COMPARED_EVERY):
            self._compare(pod_class, pod, attempt)
        if self._is_due(SANDBOXED_EVERY) and not self._sandbox.is_in_trial:
            self._sandbox.compare(pod_class, pod)
        return pod_class

    def score(self, score: Callable[[EquivalenceClass], None], pod_class: EquivalenceClass) -> None:
        """Wraps `ClassCache.score`."""
        score(pod_class)
        if self._is_due(COMPARED_EVERY) and self._asked is not None:
            self._compare_scores(pod_class, self._rebuilt(*self._asked))
            if self._sandbox.is_in_trial:
                return  # classes use the hypothetical state, not the observed one
            self._scores.check(pod_class, self._asked[0])
        if self._is_due(SANDBOXED_EVERY) and self._asked is not None:
            self._sandbox.compare(pod_class, self._asked[0])

    def _is_due(self, every: int) -> bool:
        return self.checks_all or not self._found % every

    def _rebuilt(self, pod: Pod, attempt: int) -> tuple[ClassCache, EquivalenceClass] | None:
        classes = ClassCache(self._worker.cycle.plugins, self._runner, self._table, self._rows)
        try:
            return classes, classes.find(pod, attempt)
        except PluginFailure:
            return None

    def _compare(self, pod_class: EquivalenceClass, pod: Pod, attempt: int) -> None:
        made = self._rebuilt(pod, attempt)
        if made is None:
            self._report_violation(f"I12: a filter fails for {pod.key} where it is asked anew")
            return
        _, fresh = made
        if pod_class.refusal != fresh.refusal:
            self._report_violation(
                f"I12: {pod.key} is refused by {pod_class.refusal}, and asked anew by {fresh.refusal}"
            )
        elif pod_class.refusal is None and pod_class.rows.tolist() != fresh.rows.tolist():
            self._report_violation(f"I12: {pod.key} is looked at on other rows than where it is asked anew")
        elif pod_class.refusal is None and (pod_class.feasible != fresh.feasible).any():
            names = [
                self._table.node(row).name for row in pod_class.rows[pod_class.feasible != fresh.feasible].tolist()
            ]
            self._report_violation(f"I12: {pod.key} is answered otherwise on {names[:3]} than where it is asked anew")
        elif pod_class.is_scored:
            self._compare_scores(pod_class, made)

    def _compare_scores(self, pod_class: EquivalenceClass, made: tuple[ClassCache, EquivalenceClass] | None) -> None:
        if made is None or pod_class.refusal is not None or not pod_class.feasible.any():
            return
        classes, fresh = made
        if fresh.refusal is not None or pod_class.rows.tolist() != fresh.rows.tolist():
            return  # the masks show it
        fresh = classes.reduced(fresh, pod_class.feasible.copy())
        try:
            classes.score(fresh)
        except PluginFailure:
            return
        if not np.array_equal(pod_class.total, fresh.total):
            at = int((pod_class.total != fresh.total).argmax())
            name = self._table.node(int(pod_class.rows[at])).name
            scores = f"{int(pod_class.total[at])} on {name}, and {int(fresh.total[at])} where it is asked anew"
            self._report_violation(f"I12: {pod_class.pod.key} scores {scores}")
