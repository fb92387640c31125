"""Where running pods could be placed: the domain's real filters, evaluated in a sandbox for all rows at once.

Owned by one repair plan, in its thread. Pods of a class that no filter relates to other pods share one result, which
takes one pass over the plugins. Every other pod is removed from its row, evaluated, and put back. Resources are left
out, because the planner counts them as pods move; so is the planning plugin itself.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

import msgspec
import numpy as np

from multisched.cycle.classes.equivalence_class import EquivalenceClass
from multisched.framework.dependency import Dependency
from multisched.framework.node_view import Bools
from multisched.framework.runner import PluginFailure
from multisched.framework.status import Code
from multisched.model.objects import Pod
from multisched.model.plural import counted
from multisched.shell.domain import DomainWorker
from multisched.whatif.sandbox import SchedulerSandbox

ROOM: Final = "NodeResourcesFit"
ANSWERS_MAX: Final = 10_000
"""Limit of cached results of classes, a byte per row each."""
FAILURES_SHOWN: Final = 3
_OF_THE_ROW: Final = frozenset({Dependency.NODE, Dependency.NODES, Dependency.ROW})
"""Dependencies with which the result for a row depends on no pod elsewhere, so that all pods of the class elsewhere share it."""


class PlacedPodFits:
    """Implements `framework.repair.FitsOn`."""

    def __init__(self, sandbox: SchedulerSandbox, worker: DomainWorker, planner: str) -> None:
        """`planner`: name of the planning plugin."""
        self._sandbox = sandbox
        self._classes = worker.cycle.classes
        self._rows = sandbox.program.router.rows_of(worker)
        self._left_out = frozenset({ROOM, planner})
        self._answers: dict[Hashable, Bools] = {}
        self._relates: set[Hashable] = set()
        """Signatures of classes whose filters depend on other pods."""
        self._failures: dict[str, int] = {}

    def __call__(self, pod: Pod) -> Bools:
        """Returns bool[rows of the domain]; all False if a plugin fails for the pod."""
        asked = self._sandbox.program.pods.with_policy(msgspec.structs.replace(pod, node="", nominated_node=""))
        try:
            return self._answer(pod, asked)
        except PluginFailure as failure:
            text = f"{failure.status.plugin}: {failure.status.message}"
            self._failures[text] = self._failures.get(text, 0) + 1
            return np.zeros(len(self._rows.rows), np.bool_)

    def notes(self) -> tuple[str, ...]:
        """Returns notes about plugins that failed."""
        shown = list(self._failures.items())[:FAILURES_SHOWN]
        return tuple(
            f"for {counted(number, 'pod')} no node was found because a plugin failed: {text}" for text, number in shown
        )

    def _answer(self, pod: Pod, asked: Pod) -> Bools:
        signature = self._classes.signature(asked)
        known = None if signature is None else self._answers.get(signature)
        if known is not None:
            return known
        if signature is not None and signature not in self._relates:
            pod_class = self._classes.find(asked, 1)
            if not self._depends_on_others(pod_class):
                if len(self._answers) >= ANSWERS_MAX:
                    self._answers.clear()
                self._answers[signature] = mask = self._mask(pod_class)
                return mask
            self._relates.add(signature)
        placed_entry = self._sandbox.cache.placed(pod.uid)
        assert placed_entry is not None, f"{pod.key} is not placed"
        with self._sandbox.without_pod(placed_entry.pod):
            return self._mask(self._classes.find(asked, 1))

    def _depends_on_others(self, pod_class: EquivalenceClass) -> bool:
        columns = {
            column.plugin.name: column for column in pod_class.filters if column.plugin.name not in self._left_out
        }
        if any(column.depends_on not in _OF_THE_ROW for column in columns.values()):
            return True
        results = pod_class.pre_filtered_by_key.values()
        return any(one.nodes is not None or one.status.code not in (Code.SUCCESS, Code.SKIP) for one in results)

    def _mask(self, pod_class: EquivalenceClass) -> Bools:
        mask = np.zeros(len(self._rows.rows), np.bool_)
        if pod_class.refusal is not None:
            return mask
        passing = np.ones(len(pod_class.rows), np.bool_)
        for column in pod_class.filters:
            if column.plugin.name not in self._left_out:
                passing &= column.codes == 0
        mask[self._rows.position[pod_class.rows]] = passing
        return mask
