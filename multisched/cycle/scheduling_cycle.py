"""The scheduling cycle of one pod: from the head of the queue to an assumption, a refusal or a conflict.

`SchedulingCycle.attempt` is a generator: it yields the remote requests of plugins and resumes with their responses. It also
yields to pause a search for victims. Without remote requests, a row is chosen and committed in one step.
"""

from __future__ import annotations

import zlib
from collections.abc import Generator, Mapping, Sequence
from copy import copy
from typing import Final, overload

import msgspec
import numpy as np
from msgspec.structs import replace

from multisched.cycle.attempt_record import AttemptRecords
from multisched.cycle.classes.cache import ClassCache
from multisched.cycle.classes.columns import Totals
from multisched.cycle.classes.equivalence_class import EquivalenceClass
from multisched.cycle.classes.scores import NOWHERE
from multisched.cycle.commit_step import CommitStep
from multisched.cycle.diagnosis import Diagnosis, diagnose, fit_error
from multisched.cycle.effort import Effort, PauseDue, RowResults
from multisched.cycle.gang_attempt import GangAttempts
from multisched.cycle.pod_runs import PodRuns
from multisched.cycle.preemption.dry_run_parts import DryRuns
from multisched.cycle.preemption.member_placer import MemberPlacer
from multisched.cycle.preemption.nominated_pods import Blocked, NominatedPodsFilter
from multisched.cycle.preemption.post_filter import GroupPostFilters, PostFilterOutcome, PostFilterRuns
from multisched.cycle.remote_responses import Choice, RemoteResponses
from multisched.cycle.results import Attempt, Conflicted, GangAttempt, Pause, Placed, RemoteRequest, Result, Unplaced
from multisched.framework.node_view import Bools, Int64, Rows, any_true
from multisched.framework.points import CycleView, PostFilterResult, Queued, QueuedGang, QueuedPod
from multisched.framework.registry import PluginSet
from multisched.framework.runner import PluginFailure, Runner
from multisched.framework.status import Code, Status
from multisched.framework.step_budget import UNLIMITED, StepBudget
from multisched.framework.traits import traits_of
from multisched.model.objects import Pod
from multisched.state.cluster_cache import ClusterCache
from multisched.state.commit import CANDIDATES_MAX, FITS_NOW, MOVED, TAKEN, TRIED_AGAIN, Candidate, Conflicts
from multisched.state.domain_rows import DomainRows
from multisched.state.nominator import Nominator

LEDGER_ROWS_MAX: Final = 64
"""Best rows whose ledger versions are noted before a wait. A candidate outside them is checked again if the pod uses a ledger."""


class SchedulingCycle:
    """The scheduling cycles of one domain."""

    def __init__(
        self,
        plugins: PluginSet,
        runner: Runner,
        cache: ClusterCache,
        rows: DomainRows,
        nominator: Nominator,
        *,
        seed: int = 0,
        before: SchedulingCycle | None = None,
        budget: StepBudget = UNLIMITED,
    ) -> None:
        """`before`: the cycle of the previous profile, whose records and counters this one continues.

        `budget`: decides when a long attempt pauses.
        """
        self.plugins = plugins
        self.classes = ClassCache(plugins, runner, cache.nodes, rows)
        self.records: AttemptRecords = AttemptRecords(runner.stopwatch) if before is None else before.records
        self._runner = runner
        self._cache = cache
        self._rows = self.rows = rows
        self.nominator = nominator
        self._seed = seed
        self._budget = budget
        self._prefers_first_row = any(traits_of(plugin).prefers_first_row for plugin in plugins.score)
        self._may_refuse_remotely = bool(plugins.remote_filter or plugins.extenders)
        """True if remote responses may leave no feasible row. The pod is then refused with the diagnosis made before the wait."""
        self._keyed_filters = [p for p in plugins.filter if p.depends_on.reads_cache_key]
        self._nominated = NominatedPodsFilter(plugins, runner, cache.nodes, nominator)
        dry_runs = DryRuns(plugins, runner, cache, nominator, self._nominated)
        self._post_filters = PostFilterRuns(dry_runs, rows)
        self._remote = RemoteResponses(plugins, runner, cache, rows, self.classes, self.records, self._post_filters)
        self._commit = CommitStep(plugins, runner, cache, rows, nominator, self.classes, self.records, self._nominated)
        if before is not None:
            self.classes.continue_counters(before.classes)
            self._commit.conflicts = before.conflicts
        member_placer = MemberPlacer(self.classes, self._nominated, self._best_row, self._commit.chooser)
        self.group_post_filters = GroupPostFilters(dry_runs, rows, member_placer)
        """PostFilter for pods that must start together."""
        self._gangs = GangAttempts(
            runner,
            cache,
            rows,
            self.classes,
            self._nominated,
            self._remote,
            self._commit,
            self.records,
            self._best,
            self._as_nominated,
            self.group_post_filters.run,
            budget,
        )
        self.conflicts: Conflicts = self._commit.conflicts
        self._pod_runs = PodRuns(plugins, cache, self.classes, nominator, self._commit, self.records, self._tie_break)

    # -- runs ------------------------------------------------------------------------------------------------------

    def run_length(self, pod: Pod) -> int:
        """Returns how many pods with this pod's spec `attempt_run` accepts now; 1: the pod must be attempted alone."""
        return self._pod_runs.length(pod)

    def attempt_run(self, entries: Sequence[QueuedPod]) -> Sequence[Result]:
        """Schedules the first of these pods together, with the same results as if each were passed to `attempt` in turn.

        `entries`: at most as many as `run_length` returns for the first pod. Returns results for a prefix of them; the other pods
        are unchanged. If there are no results, the caller must attempt the first pod alone.
        """
        self._runner.begin_attempt()
        try:
            return self._pod_runs.decide(entries)
        except PluginFailure as failure:
            return [self._failed(entries[0].pod, entries[0].attempts, failure)]

    # -- one pod ---------------------------------------------------------------------------------------------------

    @overload
    def attempt(self, queued: QueuedPod) -> Attempt: ...

    @overload
    def attempt(self, queued: QueuedGang) -> GangAttempt: ...

    def attempt(self, queued: Queued) -> Attempt | GangAttempt:
        """Schedules one pod, or the members of gangs that start together: at least as many as must start, or none.

        Never raises for a plugin's failure; the result contains it.
        """
        return self._gangs.attempt(queued) if isinstance(queued, QueuedGang) else self._attempt_pod(queued)

    def _attempt_pod(self, entry: QueuedPod) -> Attempt:
        self._runner.begin_attempt()
        pod = entry.pod
        try:
            return (yield from self._attempt(pod, entry.attempts))
        except PluginFailure as failure:
            return self._failed(pod, entry.attempts, failure)

    def _attempt(self, pod: Pod, attempt: int) -> Attempt:
        pod = self._as_nominated(pod)
        node = pod.nominated_node or pod.spec.affinity.named_node
        if node and not self.plugins.remote:
            result = self._place_on(node, pod, attempt)
            if result is not None:
                return result
        pod_class = self.classes.find(pod, attempt)
        if pod_class.refusal is not None:
            found = self._diagnose(pod_class, pod, attempt)
            return (yield from self._refused(pod_class, pod_class.view, pod, attempt, found, ()))
        blocked = self._nominated.blocked(pod_class, pod, attempt)
        feasible = _without(pod_class.feasible, blocked)
        has_feasible = any_true(feasible)
        if blocked and has_feasible:
            pod_class = self.classes.reduced(pod_class, feasible)  # scores are normalised among the rows that are left
        asked = self._remote.requests(pod_class, pod) if has_feasible else ()
        if not asked:
            if not has_feasible:
                found = self._diagnose(pod_class, pod, attempt)
                return (yield from self._refused(pod_class, pod_class.view, pod, attempt, found, ()))
            if pod_class.is_of_one_row:  # as upstream, which does not score a single feasible node
                return self._commit.commit_now(pod_class, pod, attempt, 0)
            self.classes.score(pod_class)
            choice = Choice(pod_class.rows, feasible, pod_class.total)
            (at,) = self._best(choice, pod, attempt, 1)
            return self._commit.commit_now(pod_class, pod, attempt, at)
        self.classes.score(pod_class)
        # int64, because scores of extenders may exceed the type of the class's totals
        total = np.where(feasible, pod_class.total, NOWHERE).astype(np.int64)
        choice = Choice(pod_class.rows, feasible.copy(), total, self._versions(pod_class.rows))
        ledgers = {
            r: self._cache.ledgers.versions(pod, r) for r in self._top(choice, pod, attempt, LEDGER_ROWS_MAX).tolist()
        }
        # Other cycles may renew the class during the wait, so this attempt keeps what it saw. If its refusal named rejectors of
        # the renewed class, events for the actual rejectors would be missed, and the pod would stay parked. And if PreFilter
        # skipped a filter in this attempt, but not for the renewed class, that filter would run without its cycle state.
        view, generation, seen = pod_class.view, self._rows.generation, copy(pod_class)
        as_seen = self._diagnose(pod_class, pod, attempt) if self._may_refuse_remotely else None
        snapshot = self.records.snapshot(pod_class)
        dependency_versions, nominations = self.classes.dependency_versions(pod_class, pod), self.nominator.sequence
        answers = yield asked
        view = replace(view, responses=self._remote.settled(asked, answers))
        if not self._remote.drop_removed_rows(choice, generation):
            self._commit.conflicts.true += 1
            return self._commit.conflicted(pod, attempt, TAKEN, ())
        refused = self._remote.refuse(choice, view, pod)
        if as_seen is not None and not any_true(choice.feasible):
            return (yield from self._refused(seen, view, pod, attempt, as_seen.with_more(refused), refused))
        if refused:
            snapshot = self._remote.rescore(choice, pod_class) or snapshot
        self._remote.add_scores(choice, view, pod)
        snapshot.add_answers(choice.total, choice.answered)
        # A change of pods on other rows, or of nominations, may matter to every row: all candidates are then checked again.
        is_same = (
            self.classes.dependency_versions(pod_class, pod) == dependency_versions
            and self.nominator.sequence == nominations
        )
        versions = choice.versions if is_same else None
        candidates = [
            Candidate(row, MOVED if versions is None else int(versions[at]), ledgers.get(row, ()))
            for at in self._best(choice, pod, attempt, CANDIDATES_MAX)
            for row in (choice.rows.item(at),)
        ]
        return self._commit.commit_after_wait(seen, view, pod, attempt, candidates, snapshot=snapshot)

    # -- nominated pods --------------------------------------------------------------------------------------------

    def _as_nominated(self, pod: Pod) -> Pod:
        """Returns the pod with its nominated node, also if the API server does not have the nomination yet."""
        node = self.nominator.node_of(pod.uid) if len(self.nominator) else ""
        return msgspec.structs.replace(pod, nominated_node=node) if node and node != pod.nominated_node else pod

    def _place_on(self, node: str, pod: Pod, attempt: int) -> Result | None:
        """Places the pod on its nominated node, or on the only node that PreFilter leaves; None if the pod does not fit there.

        Filters no other node, scores none, and caches no equivalence class: it would contain only this pod. If a ledger refuses
        the pod at commit, the attempt ends: a search over all nodes would choose the same node again.
        """
        row = self._cache.nodes.row_of(node)
        if row is None or not self._rows.has(row):
            return None
        pod_class = self.classes.alone(pod, attempt, row, is_sole=not pod.nominated_node)
        if pod_class is None or not pod_class.feasible[0] or self._nominated.blocked(pod_class, pod, attempt):
            return None
        return self._commit.commit_now(pod_class, pod, attempt, 0)

    def refusal_of_move(self, leaving: Pod | None, replacement: Pod, node: str) -> str:
        """Returns why the node would refuse `replacement` once `leaving` has left its node; empty if it would take it.

        Runs every Filter that sends no remote requests, with the pods nominated to the node counted.
        """
        row = self._cache.nodes.row_of(node)
        if row is None or not self._rows.has(row):
            return f"node {node} does not exist in this domain"
        leaving_entry = None if leaving is None else self._cache.placed(leaving.uid)
        self._runner.begin_attempt()
        try:
            pod_class = self.classes.unfiltered(replacement, 1, row)
            if pod_class is None:
                return f"PreFilter excludes node {node}"
            left = None if leaving_entry is None or leaving_entry.row < 0 else (leaving_entry.pod, leaving_entry.row)
            refusal = self._nominated.refusal_of_move(pod_class, replacement, row, left)
        except PluginFailure as failure:
            return failure.status.message
        return "" if refusal is None else f"{refusal.plugin}: {refusal.message}"

    def is_affected(self, placed: Placed, pod: Pod, others: Sequence[Pod]) -> bool:
        """Reports whether `others`, which were added to or removed from other nodes, may change a filter's result for the placed pod."""
        try:
            sensitivities = self._nominated.sensitivities(self._keyed_filters, placed.view, pod)
        except PluginFailure:
            return True  # the caller then runs the filters, which report the failure
        return sensitivities is None or any(
            sensitivity.matters(other) for sensitivity in sensitivities if not sensitivity.is_by_row for other in others
        )

    def _versions(self, rows: Rows) -> Int64:
        return np.array(list(map(self._cache.nodes.version, rows.tolist())), np.int64)

    # -- choosing --------------------------------------------------------------------------------------------------

    def _top(self, choice: Choice, pod: Pod, attempt: int, count: int) -> Rows:
        return choice.rows[self._best(choice, pod, attempt, count)]

    def _best(self, choice: Choice, pod: Pod, attempt: int, count: int) -> list[int]:
        """Returns positions of the best rows, best first; the pod's nominated node alone if it is feasible."""
        own = self._own_nominated(choice, pod)
        if own is not None:
            return [own]
        total = choice.total
        first = int(total.argmax())
        # Upstream breaks ties at random; a hash is used here, so that the same seed gives the same placement (I12).
        tie_break = self._tie_break(pod, attempt)
        if count == 1 and not tie_break:
            return [first]
        best = total.item(first)
        ties = (total == np.array(best, total.dtype)).nonzero()[0]
        tie_break %= len(ties)
        if count == 1:
            return [ties.item(tie_break)]
        ordered = np.concatenate((ties[tie_break:], ties[:tie_break]))
        if len(ordered) < count:
            others = choice.feasible & (total < best)
            if self.plugins.outranking is not None:
                # Rows to which this plugin gives a lower score are not candidates. A pod that loses all its candidates is attempted again.
                unit = choice.outranking_weight or self.plugins.outranking_weight
                others &= total // unit == best // unit
            rest = others.nonzero()[0]
            ordered = np.concatenate((ordered, rest[(-total[rest]).argsort(kind="stable")]))
        best_first: list[int] = ordered[:count].tolist()
        return best_first

    def _best_row(self, rows: Rows, feasible: Bools, total: Totals, pod: Pod, attempt: int) -> int:
        """Returns the position of the best of these rows, chosen as in `_best`."""
        return self._best(Choice(rows, feasible, total), pod, attempt, 1)[0]

    def _tie_break(self, pod: Pod, attempt: int) -> int:
        """Returns the number that selects one of equally good rows for this attempt."""
        if self._prefers_first_row:
            return attempt - 1  # a later attempt takes another row, for example after a failed bind
        return zlib.crc32(f"{self._seed}/{pod.uid}/{attempt}".encode())

    def _own_nominated(self, choice: Choice, pod: Pod) -> int | None:
        row = self._cache.nodes.row_of(pod.nominated_node) if pod.nominated_node else None
        if row is None:
            return None
        at = int(np.searchsorted(choice.rows, row))
        is_there = at < len(choice.rows) and int(choice.rows[at]) == row and bool(choice.feasible[at])
        return at if is_there else None

    # -- ending ----------------------------------------------------------------------------------------------------

    def _failed(self, pod: Pod, attempt: int, failure: PluginFailure) -> Unplaced:
        """Returns the result of an attempt that a PluginFailure ended: an error or a rejection."""
        status = failure.status
        self.records.failed(pod, attempt, status)
        is_error = status.code is Code.ERROR
        names = frozenset({status.plugin})
        return Unplaced(
            pod,
            status.message,
            rejectors=frozenset() if is_error else names,
            is_error=is_error,
            condition_reason=status.condition_reason,
        )

    def give_up(self, placed: Placed, status: Status) -> Unplaced:
        """Undoes a placement that a later extension point or the API server rejected."""
        return self._commit.give_up(placed, status)

    def _diagnose(self, pod_class: EquivalenceClass, pod: Pod, attempt: int) -> Diagnosis:
        blocked = self._nominated.blocked(pod_class, pod, attempt, everywhere=True)
        return diagnose(pod_class, self._cache.nodes, blocked=blocked, with_verdicts=bool(self.plugins.post_filter))

    def _refused(
        self,
        pod_class: EquivalenceClass,
        view: CycleView,
        pod: Pod,
        attempt: int,
        found: Diagnosis,
        remote_refusals: Sequence[tuple[str, Status]],
    ) -> Generator[Sequence[RemoteRequest] | Pause, Mapping[str, object | PluginFailure], Unplaced | Conflicted]:
        """Runs PostFilter and records the refusal. `remote_refusals`: nodes refused by plugins with remote requests.

        After a pause, PostFilter runs again on the current state. The refusal still reports the diagnosis `found` from before the
        pause, and the preemption candidates of a plugin are not sent to extenders again.
        """
        results, current, settled = RowResults(Effort(self._budget)), pod_class, dict[str, PostFilterResult]()
        while True:
            try:
                if self.plugins.extenders:
                    yield from self._remote.negotiate(current, view, pod, found, results, settled)
                outcome = self._post_filters.run(pod, view, current, found, settled, results)
                break
            except PauseDue:
                pod_class = copy(pod_class)  # other cycles may renew the class during the pause
                yield Pause()
            current = self.classes.find(pod, attempt)
            view = replace(current.view, responses=view.responses)
            if (
                not remote_refusals
                and current.refusal is None
                and any_true(_without(current.feasible, self._nominated.blocked(current, pod, attempt)))
            ):
                return self._commit.conflicted(pod, attempt, FITS_NOW, ())
        if outcome.is_tried_again:
            return self._commit.conflicted(pod, attempt, TRIED_AGAIN, ())
        message = fit_error(found, outcome.sentence)
        self.records.refused(
            pod,
            attempt,
            pod_class,
            replace(found, nodes=(), verdicts=None, blocked={}),
            blocked=found.blocked,
            remote_refusals=remote_refusals,
            post_filter=outcome.sentence,
            nominated_node=outcome.nominated_node or "",
            preemption=outcome.preemption,
            message=message,
        )
        return _unplaced(pod, message, found, outcome)


def _without(feasible: Bools, blocked: Blocked) -> Bools:
    if not blocked:
        return feasible
    left = feasible.copy()
    left[list(blocked)] = False
    return left


def _unplaced(pod: Pod, message: str, found: Diagnosis, outcome: PostFilterOutcome) -> Unplaced:
    return Unplaced(
        pod,
        message,
        found.rejectors | outcome.rejectors,
        found.pending,
        nominated_node=outcome.nominated_node,
        preemption=outcome.preemption,
        condition_reason=found.pre_filter.condition_reason
        if found.pre_filter is not None
        else outcome.condition_reason,
    )
