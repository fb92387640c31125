"""The commit step: assumes a decided pod on its row, runs Reserve and Permit, and undoes both.

One synchronous step. If the attempt waited for remote responses, the caller passes candidate rows, and each candidate whose row has
changed since is checked again (`state/commit.py`). If the row was read in this same step, no second check is needed.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from multisched.cycle.attempt_record import AttemptRecords
from multisched.cycle.classes.cache import ClassCache
from multisched.cycle.classes.equivalence_class import EquivalenceClass
from multisched.cycle.classes.score_snapshot import ScoreSnapshot
from multisched.cycle.diagnosis import fit_error, refused_node
from multisched.cycle.preemption.nominated_pods import NominatedPodsFilter
from multisched.cycle.results import Conflicted, Placed, Result, Unplaced
from multisched.framework.ledger import NO_CHOICES, Choices
from multisched.framework.points import CycleView
from multisched.framework.registry import PluginSet
from multisched.framework.runner import Runner
from multisched.framework.status import Code, Status
from multisched.model.objects import Pod
from multisched.state.cluster_cache import Assumption, ClusterCache
from multisched.state.commit import Candidate, Conflicts, commit
from multisched.state.domain_rows import DomainRows
from multisched.state.ledgers import PodLedgers
from multisched.state.nominator import Nominator
from multisched.state.transaction import Choose, NotTaken, Transaction, assume

_OUTSIDE = Status.unresolvable("node(s) were excluded by PreFilter")


class CommitStep:
    """The commit step of one domain. Writes only to the cache, the nominator, the records and the plugins."""

    def __init__(
        self,
        plugins: PluginSet,
        runner: Runner,
        cache: ClusterCache,
        rows: DomainRows,
        nominator: Nominator,
        classes: ClassCache,
        records: AttemptRecords,
        nominated: NominatedPodsFilter,
    ) -> None:
        self.conflicts = Conflicts()
        self._plugins = plugins
        self._runner = runner
        self._cache = cache
        self._rows = rows
        self._nominator = nominator
        self._classes = classes
        self._records = records
        self._nominated = nominated
        self._has_reserve_or_permit = bool(plugins.reserve or plugins.permit)

    def commit_now(
        self, pod_class: EquivalenceClass, pod: Pod, attempt: int, at: int, within: Transaction | None = None
    ) -> Result:
        """Assumes the pod on `pod_class.rows[at]`, which was read in this same step.

        `within`: the transaction of the gang attempt that the pod belongs to.
        """
        result = self._assume_row(pod_class, pod, attempt, at, within)
        if not isinstance(result, Placed):
            return result
        self._records.placed(pod, attempt, pod_class, at, result.node)
        return self._reserve(result) if self._has_reserve_or_permit else result

    def place_if_taken(
        self, pod_class: EquivalenceClass, pod: Pod, attempt: int, at: int, pod_ledgers: PodLedgers
    ) -> Placed | None:
        """Does the same as `commit_now`, for a profile without Reserve, Permit and choosing plugins.

        Returns None and writes no attempt record if any ledger refuses the pod on that row.
        """
        assumption = assume(self._cache, pod, pod_class.rows.item(at), _nothing_to_choose, pod_ledgers)
        if isinstance(assumption, NotTaken):
            return None
        self._records.placed(pod, attempt, pod_class, at, assumption.node)
        return self._placed(pod, assumption, pod_class, pod_class.view, attempt)

    def _assume_row(
        self, pod_class: EquivalenceClass, pod: Pod, attempt: int, at: int, within: Transaction | None
    ) -> Placed | Conflicted:
        row, choose = pod_class.rows.item(at), self.chooser(pod_class.view)
        assumption = assume(self._cache, pod, row, choose) if within is None else within.assume(pod, row, choose)
        if isinstance(assumption, NotTaken):
            return self.conflicted(pod, attempt, assumption, (self._node_name(row),))
        return self._placed(pod, assumption, pod_class, pod_class.view, attempt)

    def conflicted(self, pod: Pod, attempt: int, why: NotTaken, nodes: tuple[str, ...]) -> Conflicted:
        """Records that the pod was refused on all rows that were tried. `nodes`: the nodes of these rows."""
        self._records.conflicted(pod, attempt, nodes, why.refusal)
        return Conflicted(pod, why.refusal, why.plugin, why.condition_reason)

    def commit_after_wait(
        self,
        pod_class: EquivalenceClass,
        view: CycleView,
        pod: Pod,
        attempt: int,
        candidates: Sequence[Candidate],
        snapshot: ScoreSnapshot,
    ) -> Result:
        """Assumes the pod on the best candidate where it still fits. `snapshot`: the class as this attempt read it."""

        def still_fits(pod: Pod, row: int) -> bool:
            return self._refusal(pod_class, view, pod, row) is None and self._fits_afresh(pod, attempt, row)

        assumption = commit(self._cache, self._rows, pod, candidates, still_fits, self.chooser(view), self.conflicts)
        if isinstance(assumption, NotTaken):
            return self.conflicted(pod, attempt, assumption, self._names_of(candidates))
        self._record(snapshot, pod, attempt, candidates, assumption.node)
        return self._reserve(self._placed(pod, assumption, pod_class, view, attempt))

    def chooser(self, view: CycleView) -> Choose:
        """Returns a function that calls Choose of the plugins that allocate from ledgers. `view`: the view that Score used."""

        def choose(pod: Pod, row: int) -> Choices:
            choices: dict[str, object] = {}
            for plugin in self._plugins.choosing:
                choice = self._runner.call(plugin, "Choose", plugin.choose, view, pod, row)
                if choice is not None:
                    choices[plugin.choice_ledger.name] = choice
            return choices

        return choose if self._plugins.choosing else _nothing_to_choose

    def _placed(
        self, pod: Pod, assumption: Assumption, pod_class: EquivalenceClass, view: CycleView, attempt: int
    ) -> Placed:
        nominated_node = self._nominator.remove(pod.uid)  # from now on the pod counts on the row itself
        # Reserve and later points write to a copy: the class shares the original state with other pods.
        own = CycleView(self._cache.nodes, view.state.copy(), attempt, view.responses)
        return Placed(
            pod, assumption.node, assumption.annotations, own, relates=pod_class.relates, nominated_node=nominated_node
        )

    def _record(
        self, snapshot: ScoreSnapshot, pod: Pod, attempt: int, candidates: Sequence[Candidate], node: str
    ) -> None:
        """Records a pod that was placed after remote responses, and the candidates that were passed over."""
        row = self._cache.nodes.row_of(node)
        taken = next(place for place, candidate in enumerate(candidates) if candidate.row == row)
        at = int(snapshot.rows.searchsorted(candidates[taken].row))
        self._records.placed_after_wait(pod, attempt, snapshot, at, node, self._names_of(candidates[:taken]))

    def _names_of(self, candidates: Sequence[Candidate]) -> tuple[str, ...]:
        """Returns the names of the candidates' nodes that still exist."""
        nodes = (self._cache.nodes.node_at(candidate.row) for candidate in candidates)
        return tuple(node.name for node in nodes if node is not None)

    def _reserve(self, placed: Placed) -> Result:
        pod, node = placed.pod, placed.node
        for plugin in self._plugins.reserve:
            status = self._runner.reserve(plugin, placed.view, pod, node)
            if not status.is_success:
                return self._refused(placed, status)
        waits: dict[str, float] = {}
        for gate in self._plugins.permit:
            permit = self._runner.permit(gate, placed.view, pod, node)
            if permit.status.code is Code.WAIT:
                waits[gate.name] = permit.timeout_s
            elif not permit.status.is_success:
                return self._refused(placed, permit.status)
        return msgspec.structs.replace(placed, waits=waits) if waits else placed

    def _refused(self, placed: Placed, status: Status) -> Unplaced:
        """Gives up a pod that Reserve or Permit refused.

        Restores the nomination that `_placed` removed. The nomination ends when the refusal is applied,
        which sends an event for waiting pods.
        """
        refused = self.give_up(placed, status)
        if placed.nominated_node:
            self._nominator.nominate(placed.pod, placed.nominated_node)
        return refused

    def give_up(self, placed: Placed, status: Status) -> Unplaced:
        """Unreserves in reverse order, forgets the assumption, and returns the reason."""
        for plugin in reversed(self._plugins.reserve):
            self._runner.unreserve(plugin, placed.view, placed.pod, placed.node)
        self._cache.forget(placed.pod.uid)
        self._records.given_up(placed.pod, placed.view.attempt, placed.node, status)
        found = refused_node(status)
        return Unplaced(
            placed.pod,
            fit_error(found) if status.code.is_rejection else status.message,
            rejectors=found.rejectors,
            pending=found.pending,
            is_error=not status.code.is_rejection,
            condition_reason=status.condition_reason,
        )

    def unreserve(self, placed: Placed, why: Status) -> None:
        """Unreserves a gang member that is not kept. The gang's transaction forgets its assumption."""
        for plugin in reversed(self._plugins.reserve):
            self._runner.unreserve(plugin, placed.view, placed.pod, placed.node)
        self._records.given_up(placed.pod, placed.view.attempt, placed.node, why)
        if placed.nominated_node:
            self._nominator.nominate(placed.pod, placed.nominated_node)

    def _refusal(self, pod_class: EquivalenceClass, view: CycleView, pod: Pod, row: int) -> Status | None:
        """Runs the filters again on one row. Returns the first refusal; None if the row passes."""
        if pod_class.narrowed is not None and self._node_name(row) not in pod_class.narrowed:
            return _OUTSIDE
        rows = np.array([row], np.intp)
        for plugin in self._plugins.filter:
            is_unanswered = plugin.name in self._plugins.remote_names and plugin.name not in view.responses
            if is_unanswered or plugin.name in pod_class.skipped:
                continue
            code = int(self._runner.recheck(plugin, view, pod, rows)[0])
            if code:
                return plugin.reasons.status(code)
        return None

    def _fits_afresh(self, pod: Pod, attempt: int, row: int) -> bool:
        """Runs PreFilter and Filter again for this row, without and with the pods nominated to it; reports whether both pass.

        Results from before the wait may be outdated.
        """
        alone = self._classes.alone(pod, attempt, row)
        return alone is not None and bool(alone.feasible[0]) and not self._nominated.blocked(alone, pod, attempt)

    def _node_name(self, row: int) -> str:
        return self._cache.nodes.node(row).name


def _nothing_to_choose(pod: Pod, row: int) -> Choices:
    """Chooses nothing: for a profile without choosing plugins."""
    return NO_CHOICES
