"""Runs: pods of one class that follow one another in the queue and are decided together.

A single decision calls every plugin for one row, the row on which the previous pod was placed. A run chooses a row for each of its pods,
assumes all pods, and then calls every plugin once for all these rows. The results equal those of single decisions:

- No plugin's result depends on more than the row and the class, and no row is chosen twice. Each row then has the total that
  it would have had right after its own pod, and no other row's total changes.
- The signature of each pod is computed after the pods before it were assumed.
- Afterwards the totals are compared with the expected totals. The pods after the first difference are forgotten.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Sequence
from typing import Final

from multisched.cycle.attempt_record import AttemptRecords
from multisched.cycle.classes.cache import ClassCache
from multisched.cycle.classes.columns import Totals
from multisched.cycle.classes.equivalence_class import EquivalenceClass
from multisched.cycle.commit_step import CommitStep
from multisched.cycle.results import Placed
from multisched.framework.node_view import Rows, any_true
from multisched.framework.points import QueuedPod
from multisched.framework.registry import PluginSet
from multisched.framework.runner import PluginFailure
from multisched.model.objects import Pod, PodSpec, are_alike
from multisched.state.cluster_cache import ClusterCache
from multisched.state.ledgers import PodLedgers
from multisched.state.nominator import Nominator

RUN_MAX: Final = 16
"""Maximum number of pods in one run."""
RUN_FIRST: Final = 4
ALONE_FIRST: Final = 16
ALONE_MAX: Final = 1_024
"""Maximum number of pods of one spec that are decided alone after a run that kept only its first decision. The number starts at
ALONE_FIRST and doubles."""


class PodRuns:
    """Runs of one domain."""

    def __init__(
        self,
        plugins: PluginSet,
        cache: ClusterCache,
        classes: ClassCache,
        nominator: Nominator,
        commit: CommitStep,
        records: AttemptRecords,
        tie_break: Callable[[Pod, int], int],
    ) -> None:
        """`tie_break`: returns the number that selects one of equally good rows."""
        self._cache = cache
        self._classes = classes
        self._nominator = nominator
        self._commit = commit
        self._records = records
        self._tie_break = tie_break
        acting = plugins.remote or plugins.extenders or plugins.reserve or plugins.permit or plugins.choosing
        self._are_possible = not acting and not classes.has_attempt_results
        self._spec: PodSpec | None = None
        """Spec of the latest pod; the fields below are for this spec."""
        self._length = RUN_FIRST
        self._alone = 0
        """Pods to be decided alone before the next run."""
        self._rest = ALONE_FIRST
        self._keeps_total = False
        """True if, when last checked, placing a pod on a row left the row's total unchanged."""

    def length(self, pod: Pod) -> int:
        """Returns how many pods with this pod's spec may be tried as one run; 1: the pod is decided alone."""
        if pod.spec is not self._spec:
            self._spec, self._length, self._alone, self._rest = pod.spec, RUN_FIRST, 1, ALONE_FIRST
        if not self._are_possible or len(self._nominator) or pod.nominated_node or pod.spec.affinity.named_node:
            return 1
        if self._alone:
            self._alone -= 1
            return 1
        return self._length

    def decide(self, entries: Sequence[QueuedPod]) -> list[Placed]:
        """Places the first of these pods; returns their results.

        If the list is empty, the first pod must be decided alone: a ledger may refuse it, or a plugin may fail. Raises PluginFailure.
        """
        first = entries[0]
        pod_class = self._classes.find(first.pod, first.attempts)
        if not _is_by_row(pod_class):
            self._rest_alone()
            return []
        self._classes.score(pod_class)
        if not pod_class.scores_by_row:
            self._rest_alone()
            return []
        before, largest = pod_class.total.copy(), _largest_scores(pod_class)
        placed, chosen = self._place(entries, pod_class, before)
        kept = self._count_right(first, pod_class, before, largest, chosen) if len(chosen) > 1 else len(chosen)
        for one in reversed(placed[kept:]):
            self._cache.forget(one.pod.uid)
        self._records.remove_latest(pod_class, len(chosen) - kept)
        self._classes.hits += max(0, kept - 2)  # this run already looked up the class twice
        self._adapt(len(chosen), kept)
        return placed[:kept]

    def _place(
        self, entries: Sequence[QueuedPod], pod_class: EquivalenceClass, before: Totals
    ) -> tuple[list[Placed], list[int]]:
        """Assumes each pod on one of the best rows, until one is refused; returns results and positions of the rows."""
        best = before.item(before.argmax())
        ties: Rows = (before == best).nonzero()[0]
        placed: list[Placed] = []
        chosen: list[int] = []
        drawn: list[int] = []
        known = entries[0].pod
        pod_ledgers: PodLedgers | None = None
        for entry in entries[: self._records.placements_per_snapshot(pod_class)]:
            pod = entry.pod
            is_alike = are_alike(pod, known)
            if pod.gates or pod.nominated_node or (placed and not self._classes.has(pod_class, pod, is_alike=is_alike)):
                break
            at = self._draw(ties, drawn, self._tie_break(pod, entry.attempts))
            if at is None:
                break
            try:
                if pod_ledgers is None or not is_alike:
                    pod_ledgers, known = self._cache.ledgers.ledgers_for(pod), pod
                one = self._commit.place_if_taken(pod_class, pod, entry.attempts, at, pod_ledgers)
            except PluginFailure:
                break
            if one is None:
                break
            placed.append(one)
            chosen.append(at)
        return placed, chosen

    def _draw(self, ties: Rows, drawn: list[int], tie_break: int) -> int | None:
        """Returns one of the best rows that are left; None if no row is left, or if the row was drawn before.

        `drawn`: ascending indices into `ties`; the new one is added.
        """
        if self._keeps_total:
            index = tie_break % len(ties)
            if index in drawn:
                return None
        else:
            left = len(ties) - len(drawn)
            if not left:
                return None
            index = tie_break % left
            for one in drawn:
                if one > index:
                    break
                index += 1
        insort(drawn, index)
        return ties.item(index)

    def _count_right(
        self,
        first: QueuedPod,
        pod_class: EquivalenceClass,
        before: Totals,
        largest: Sequence[int] | None,
        chosen: Sequence[int],
    ) -> int:
        """Renews the class, and returns how many of the first pods would have been placed on the same rows one by one."""
        snapshots = pod_class.snapshots
        try:
            after = self._classes.find(first.pod, first.attempts)
        except PluginFailure:
            return 1  # the next pod's attempt reports it
        if after is not pod_class or after.snapshots is not snapshots or not after.is_scored:
            return 1
        total, best = after.total, before.item(chosen[0])
        totals: list[int] = total.take(chosen).tolist()
        keeps_total, self._keeps_total = self._keeps_total, totals[0] == best
        # A row that ceases to be feasible may change normalised scores of other rows.
        if min(totals) < 0 and (largest is None or largest != _largest_scores(pod_class)):
            return 1
        if not set((total != before).nonzero()[0].tolist()) <= set(chosen):
            return 1
        for count, value in enumerate(totals, 1):
            if value > best or (value == best) is not keeps_total:
                return count
        return len(totals)

    def _adapt(self, tried: int, kept: int) -> None:
        if kept == tried:
            self._length, self._rest = min(RUN_MAX, 2 * self._length), ALONE_FIRST
        elif kept > 1:
            self._length = kept
        else:
            self._rest_alone()

    def _rest_alone(self) -> None:
        self._alone, self._rest, self._length = self._rest, min(ALONE_MAX, 2 * self._rest), RUN_FIRST


def _is_by_row(pod_class: EquivalenceClass) -> bool:
    """Reports whether a pod of the class that is placed on a row changes the filters' results on that row only."""
    return (
        pod_class.signature is not None
        and pod_class.refusal is None
        and pod_class.narrowed is None
        and not pod_class.keyed_scores
        and pod_class.filters_by_row
        and any_true(pod_class.feasible)
    )


def _largest_scores(pod_class: EquivalenceClass) -> list[int] | None:
    """Returns the largest raw score of the feasible rows for each plugin with normalised scores; None if other values count, too.

    If they are equal before and after a run, they were equal during the run, since rows of a run only cease to be feasible.
    """
    normalised = [column for column in pod_class.scores if not column.is_plain and not column.is_skipped]
    return None if any(column.normalizer is None for column in normalised) else [c.largest for c in normalised]
