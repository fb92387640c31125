"""The scheduling cycle: one pod, from the head of the queue to an assumption, a refusal or a conflict.

`SchedulingCycle.attempt` is a generator: it yields the questions that plugins want answered from outside, and is sent
the answers. A pod about which nobody asks is decided and committed without yielding once, and can meet no conflict.
"""

from __future__ import annotations

import zlib
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from multisched.cycle.class_cache import NOWHERE, ClassCache
from multisched.cycle.diagnosis import Diagnosis, diagnose, fit_error, refused_node
from multisched.cycle.pod_class import PodClass, Totals
from multisched.cycle.pod_run import count_right, draw
from multisched.framework.node_view import Bools, Int64, Rows, any_true
from multisched.framework.plugin import (
    AskingPlugin,
    CycleView,
    PreFilterExtensions,
    QueuedPod,
)
from multisched.framework.registry import PluginSet
from multisched.framework.runner import PluginFailure, Runner
from multisched.framework.status import Code, Status
from multisched.model.objects import Pod
from multisched.state.cluster_cache import ClusterCache
from multisched.state.commit import CANDIDATES_MAX, Candidate, Conflicts, commit, read_candidate
from multisched.state.domain_rows import DomainRows
from multisched.state.nominator import Nominator
from multisched.state.overlay import OverlayCycle


@dataclass(frozen=True, slots=True)
class Asked:
    """A question a plugin wants answered before the cycle goes on."""

    plugin: AskingPlugin
    question: object


@dataclass(frozen=True, slots=True)
class Placed:
    """The pod is assumed and reserved on a node; it may have to wait at Permit, then it is bound."""

    pod: Pod
    node: str
    annotations: Mapping[str, str]
    view: CycleView
    waits: Mapping[str, float] = field(default_factory=dict)
    """Permit plugin -> seconds it wants to wait at most."""


@dataclass(frozen=True, slots=True)
class Unplaced:
    """The pod was refused; nothing is held for it."""

    pod: Pod
    message: str
    rejectors: frozenset[str] = frozenset()
    pending: frozenset[str] = frozenset()
    is_error: bool = False
    nominated_node: str = ""


@dataclass(frozen=True, slots=True)
class Conflicted:
    """The pod had rows, but none of its candidates took it any more at commit."""

    pod: Pod


Result = Placed | Unplaced | Conflicted
_Held = dict[int, Status]
"""Position in the class's rows -> why the row is kept for the pods nominated there."""

_OUTSIDE = Status.unresolvable("node(s) are not among those that PreFilter left")
Attempt = Generator[Sequence[Asked], Mapping[str, object | PluginFailure], Result]


@dataclass(slots=True)
class _Choice:
    """What one attempt knows of the rows: a copy where the cycle waits, the class's own arrays where it does not."""

    rows: Rows
    feasible: Bools
    total: Totals
    versions: Int64 | None = None


class SchedulingCycle:
    """The cycles of one domain. All their state is in the cache, the class cache and the plugins."""

    def __init__(
        self,
        plugins: PluginSet,
        runner: Runner,
        cache: ClusterCache,
        rows: DomainRows,
        nominator: Nominator,
        *,
        seed: int = 0,
    ) -> None:
        self.plugins = plugins
        self.classes = ClassCache(plugins, runner, cache.nodes, rows)
        self.conflicts = Conflicts()
        self._runner = runner
        self._cache = cache
        self._rows = rows
        self._nominator = nominator
        self._seed = seed
        self._extensions = [p for p in plugins.pre_filter if isinstance(p, PreFilterExtensions)]

    # -- runs ------------------------------------------------------------------------------------------------------

    def run_length(self, pod: Pod) -> int:
        """How many pods like this one `attempt_run` may take now. 1: `attempt` it, alone."""
        if self.plugins.asking or len(self._nominator) or pod.nominated_node:
            return 1
        return self.classes.run_length(pod)

    def is_alike(self, pod: Pod, other: Pod) -> bool:
        """True if both are of one class."""
        return self.classes.are_alike(pod, other)

    def attempt_run(self, entries: Sequence[QueuedPod]) -> list[Result]:
        """Schedules pods that are alike (no more than `run_length`) just as `attempt` would, one after the other.

        Returns the results of as many from the front as could be decided together, one at least; nothing is held for
        the others, which are to be attempted next. Never raises for what a plugin does.
        """
        first = entries[0]
        self._runner.begin_attempt()
        try:
            group = self.classes.find(first.pod, first.attempts)
            if group.refusal is not None or not any_true(group.feasible) or len(self._nominator):
                return [_ended(self.attempt(first))]
            self.classes.score(group)
        except PluginFailure as failure:
            return [_failed(first.pod, failure)]
        before = group.total.copy()
        ties = (before == before.max()).nonzero()[0]
        turns = [self._turn(entry.pod, entry.attempts) for entry in entries]
        chosen = draw(ties, turns, keeps=group.pace.keeps)
        results = self._assume_all(group, entries, chosen)
        placed = [result for result in results if isinstance(result, Placed)]
        right = self._count_right(group, first, before, chosen[: len(placed)]) if len(placed) > 1 else len(placed)
        group.pace.ran(len(entries), right)
        if right < len(placed):
            self._forget_all(placed[right:])
            del results[right:]
        return self._reserve_all(results)

    def _assume_all(self, group: PodClass, entries: Sequence[QueuedPod], chosen: Sequence[int]) -> list[Result]:
        """Commits each pod on its row; what is not placed is the last."""
        results: list[Result] = []
        for entry, at in zip(entries, chosen, strict=False):
            pod = entry.pod
            candidate = read_candidate(self._cache, pod, int(group.rows[at]))
            try:
                results.append(self._assume(group, group.view, pod, entry.attempts, [candidate]))
            except PluginFailure as failure:
                results.append(_failed(pod, failure))
            if not isinstance(results[-1], Placed):
                break
        return results

    def _count_right(self, group: PodClass, first: QueuedPod, before: Totals, chosen: Sequence[int]) -> int:
        """Asks the plugins about the rows that took pods, and says for how many that gives what one-by-one would have."""
        try:
            after = self.classes.find(first.pod, first.attempts)
            self.classes.score(after)
        except PluginFailure:
            return 1  # whom it concerns is the pod behind the first, in an attempt of its own
        if after is not group or len(after.total) != len(before):
            return 1
        foreseen, total = group.pace.keeps, after.total
        group.pace.keeps = bool(total[chosen[0]] == before[chosen[0]])
        return count_right(before, total, chosen, keeps=foreseen, by_feasible=group.normalizes_by_feasible)

    def _reserve_all(self, results: list[Result]) -> list[Result]:
        """Reserve and Permit, pod by pod. One that is refused there gives its row back: those behind it decide anew."""
        if not (self.plugins.reserve or self.plugins.permit):
            return results
        for index, result in enumerate(results):
            if isinstance(result, Placed):
                results[index] = self._reserve(result)
                if not isinstance(results[index], Placed):
                    self._forget_all([later for later in results[index + 1 :] if isinstance(later, Placed)])
                    return results[: index + 1]
        return results

    def _forget_all(self, placed: Sequence[Placed]) -> None:
        """Takes assumptions back that no plugin has heard of."""
        for one in reversed(placed):
            self._cache.forget(one.pod.uid)

    # -- one pod ---------------------------------------------------------------------------------------------------

    def attempt(self, entry: QueuedPod) -> Attempt:
        """Schedules one pod. Never raises for what a plugin does; the result says what became of it."""
        self._runner.begin_attempt()
        pod = entry.pod
        try:
            return (yield from self._attempt(pod, entry.attempts))
        except PluginFailure as failure:
            return _failed(pod, failure)

    def _attempt(self, pod: Pod, attempt: int) -> Attempt:
        group = self.classes.find(pod, attempt)
        if group.refusal is not None:
            return self._refused(group.view, pod, self._diagnose(group, {}))
        held = self._held_for_nominated(group, pod, attempt)
        feasible = _without(group.feasible, held)
        asked = self._questions(group, pod, feasible)
        if not asked:
            if not any_true(feasible):
                return self._refused(group.view, pod, self._diagnose(group, held))
            self.classes.score(group)
            choice = _Choice(group.rows, feasible, np.where(feasible, group.total, NOWHERE) if held else group.total)
            return self._place(group, group.view, pod, attempt, self._rank(choice, pod, attempt, 1))
        self.classes.score(group)
        total = np.where(feasible, group.total, NOWHERE)
        choice = _Choice(group.rows, feasible.copy(), total, self._versions(pod, group.rows))
        ledgers = {int(r): self._cache.ledgers.versions(pod, int(r)) for r in self._top(choice, pod, attempt, 64)}
        # While this cycle waits, others may renew the class: what this one saw is kept here. A refusal that named later
        # plugins than those of its decision would miss the events that came meanwhile, and leave the pod waiting.
        view, found, generation = group.view, self._diagnose(group, held), self._rows.generation
        answers = yield asked
        view = replace(view, answers=self._settled(asked, answers))
        if not self._drop_left(choice, generation):
            self.conflicts.true += 1
            return Conflicted(pod)
        refused = self._apply_answers(choice, view, pod)
        if not any_true(choice.feasible):
            return self._refused(view, pod, found.with_more(refused))
        candidates = [
            Candidate(
                c.row, int(choice.versions[at]) if choice.versions is not None else c.version, ledgers.get(c.row, ())
            )
            for at, c in self._rank_at(choice, pod, attempt, CANDIDATES_MAX)
        ]
        return self._place(group, view, pod, attempt, candidates)

    # -- asking outside --------------------------------------------------------------------------------------------

    def _questions(self, group: PodClass, pod: Pod, feasible: Bools) -> list[Asked]:
        if not self.plugins.asking or not any_true(feasible):
            return []
        asked = []
        rows = group.rows[feasible]
        for plugin in self.plugins.asking:
            question = self._runner.call(plugin, "Ask", plugin.ask, group.view, pod, rows)
            if question is not None:
                asked.append(Asked(plugin, question))
        return asked

    def _settled(self, asked: Sequence[Asked], answers: Mapping[str, object | PluginFailure]) -> Mapping[str, object]:
        for one in asked:
            answer = answers.get(one.plugin.name)
            if isinstance(answer, PluginFailure):
                raise answer
        return answers

    def _versions(self, pod: Pod, rows: Rows) -> Int64:
        return np.array([self._cache.nodes.version(int(row)) for row in rows], np.int64)

    def _drop_left(self, choice: _Choice, generation: int) -> bool:
        """Leaves out rows whose node left, or gave its row to another, while the cycle waited; False if none is left."""
        if generation != self._rows.generation:
            choice.feasible &= self._rows.stayed_since(choice.rows, generation)
            choice.total[~choice.feasible] = NOWHERE
        return any_true(choice.feasible)

    def _apply_answers(self, choice: _Choice, view: CycleView, pod: Pod) -> list[tuple[str, Status]]:
        """Runs Filter and Score of the plugins that asked, on what was feasible before; returns the nodes they refused."""
        refused: list[tuple[str, Status]] = []
        for plugin in self.plugins.asking_filter:
            if plugin.name in view.answers:
                at = np.flatnonzero(choice.feasible)
                codes = self._runner.filter(plugin, view, pod, choice.rows[at])
                for position in np.flatnonzero(codes).tolist():
                    row = int(choice.rows[at[position]])
                    refused.append((self._node_name(row), plugin.reasons.status(int(codes[position]))))
                choice.feasible[at[codes != 0]] = False
                choice.total[at[codes != 0]] = NOWHERE
        for scorer in self.plugins.asking_score:
            if scorer.name in view.answers:
                at = np.flatnonzero(choice.feasible)
                scores = self._runner.score(scorer, view, pod, choice.rows[at])
                normalizer = self.plugins.normalize.get(scorer.name)
                if normalizer is not None:
                    scores = self._runner.normalize(normalizer, view, pod, scores)
                else:
                    self._runner.check_range(scorer, scores)
                choice.total[at] += self.plugins.weight(scorer) * scores
        return refused

    # -- choosing --------------------------------------------------------------------------------------------------

    def _rank(self, choice: _Choice, pod: Pod, attempt: int, count: int) -> list[Candidate]:
        return [candidate for _, candidate in self._rank_at(choice, pod, attempt, count)]

    def _rank_at(self, choice: _Choice, pod: Pod, attempt: int, count: int) -> list[tuple[int, Candidate]]:
        """The best rows, best first, with their positions; the pod's own nominated node goes before all."""
        return [
            (at, read_candidate(self._cache, pod, int(choice.rows[at])))
            for at in self._best(choice, pod, attempt, count)
        ]

    def _top(self, choice: _Choice, pod: Pod, attempt: int, count: int) -> Rows:
        return choice.rows[self._best(choice, pod, attempt, count)]

    def _best(self, choice: _Choice, pod: Pod, attempt: int, count: int) -> list[int]:
        own = self._own_nominated(choice, pod)
        if own is not None:
            return [own]
        total = choice.total
        best = int(total[total.argmax()])
        ties = (total == best).nonzero()[0]
        # Ties go by chance upstream; here by a hash, so that the same seed gives the same placement (I12).
        turn = self._turn(pod, attempt) % len(ties)
        if count == 1:
            return [int(ties[turn])]
        ordered = np.roll(ties, -turn)
        if len(ordered) < count:
            rest = np.flatnonzero(choice.feasible & (total < best))
            ordered = np.concatenate((ordered, rest[np.argsort(-total[rest], kind="stable")]))
        return [int(at) for at in ordered[:count]]

    def _turn(self, pod: Pod, attempt: int) -> int:
        """Which of equally good rows a pod gets in this attempt."""
        return zlib.crc32(f"{self._seed}/{pod.uid}/{attempt}".encode())

    def _own_nominated(self, choice: _Choice, pod: Pod) -> int | None:
        row = self._cache.nodes.row_of(pod.nominated_node) if pod.nominated_node else None
        if row is None:
            return None
        at = int(np.searchsorted(choice.rows, row))
        is_there = at < len(choice.rows) and int(choice.rows[at]) == row and bool(choice.feasible[at])
        return at if is_there else None

    def _held_for_nominated(self, group: PodClass, pod: Pod, attempt: int) -> _Held:
        """Rows that take the pod only as long as the pods nominated there do not come (upstream's second pass)."""
        held: _Held = {}
        if not len(self._nominator):
            return held
        for node, ahead in self._nominator.ahead_of(pod):
            row = self._cache.nodes.row_of(node)
            if row is None:
                continue
            for at in np.flatnonzero((group.rows == row) & group.feasible).tolist():
                refusal = self._refusal_beside(group, pod, row, ahead, attempt)
                if refusal is not None:
                    held[at] = refusal
        return held

    def _refusal_beside(self, group: PodClass, pod: Pod, row: int, ahead: list[Pod], attempt: int) -> Status | None:
        """Why the pod does not fit on the row once the pods nominated there have come; None if it does."""
        overlay = OverlayCycle(self._cache.nodes, group.view.state, pod, self._extensions, self._runner, attempt)
        for other in ahead:
            status = overlay.add_pod(other, row)
            if status.code is Code.ERROR:
                raise PluginFailure(status)
            if not status.is_success:
                return status
        return self._refusal(group, overlay.view, pod, row)

    def _refusal(self, group: PodClass, view: CycleView, pod: Pod, row: int) -> Status | None:
        """The first plugin's refusal of one row, looked at anew; None if it passes."""
        if group.narrowed is not None and self._node_name(row) not in group.narrowed:
            return _OUTSIDE
        rows = np.array([row], np.intp)
        for plugin in self.plugins.filter:
            is_unanswered = plugin.name in self.plugins.asking_names and plugin.name not in view.answers
            if is_unanswered or plugin.name in group.skipped:
                continue
            code = int(self._runner.recheck(plugin, view, pod, rows)[0])
            if code:
                return plugin.reasons.status(code)
        return None

    def _node_name(self, row: int) -> str:
        return self._cache.nodes.node(row).name

    # -- ending ----------------------------------------------------------------------------------------------------

    def _place(
        self, group: PodClass, view: CycleView, pod: Pod, attempt: int, candidates: Sequence[Candidate]
    ) -> Result:
        result = self._assume(group, view, pod, attempt, candidates)
        return self._reserve(result) if isinstance(result, Placed) else result

    def _assume(
        self, group: PodClass, view: CycleView, pod: Pod, attempt: int, candidates: Sequence[Candidate]
    ) -> Placed | Conflicted:
        def still_fits(pod: Pod, row: int) -> bool:
            return self._refusal(group, view, pod, row) is None

        assumption = commit(self._cache, self._rows, pod, candidates, still_fits, self.conflicts)
        if assumption is None:
            return Conflicted(pod)
        return Placed(
            pod,
            assumption.node,
            assumption.annotations,
            # What Reserve and later points write belongs to this pod alone; the class shares the state they start from.
            CycleView(self._cache.nodes, view.state.copy(), attempt, view.answers),
        )

    def _reserve(self, placed: Placed) -> Result:
        pod, node = placed.pod, placed.node
        for plugin in self.plugins.reserve:
            status = self._runner.reserve(plugin, placed.view, pod, node)
            if not status.is_success:
                return self.give_up(placed, status)
        waits: dict[str, float] = {}
        for gate in self.plugins.permit:
            permit = self._runner.permit(gate, placed.view, pod, node)
            if permit.status.code is Code.WAIT:
                waits[gate.name] = permit.timeout_s
            elif not permit.status.is_success:
                return self.give_up(placed, permit.status)
        return replace(placed, waits=waits) if waits else placed

    def give_up(self, placed: Placed, status: Status) -> Unplaced:
        """Unreserves in reverse order, forgets the assumption, and says why."""
        for plugin in reversed(self.plugins.reserve):
            self._runner.unreserve(plugin, placed.view, placed.pod, placed.node)
        self._cache.forget(placed.pod.uid)
        found = refused_node(status)
        return Unplaced(
            placed.pod,
            fit_error(found) if status.code.is_rejection else status.message,
            rejectors=found.rejectors,
            pending=found.pending,
            is_error=not status.code.is_rejection,
        )

    def _diagnose(self, group: PodClass, held: _Held) -> Diagnosis:
        return diagnose(group, self._cache.nodes, held=held, with_names=bool(self.plugins.post_filter))

    def _refused(self, view: CycleView, pod: Pod, found: Diagnosis) -> Unplaced:
        post, nominated = self._post_filter(view, pod, found)
        return Unplaced(
            pod, fit_error(found, post), found.rejectors, found.pending, is_error=False, nominated_node=nominated
        )

    def _post_filter(self, view: CycleView, pod: Pod, found: Diagnosis) -> tuple[str, str]:
        """PostFilter plugins in order until one makes room; their sentences, and the node to nominate."""
        sentences = []
        refusals = _Refusals(found)
        for plugin in self.plugins.post_filter:
            result = self._runner.post_filter(plugin, view, pod, refusals)
            if result.status.reasons:
                sentences.append(result.status.message)
            if result.status.is_success or result.status.code is Code.ERROR:
                return ". ".join(sentences), result.nominated_node
        return ". ".join(sentences), ""


def _failed(pod: Pod, failure: PluginFailure) -> Unplaced:
    """What a plugin that failed, or refused where it can only say so by raising, makes of its pod's attempt."""
    status = failure.status
    is_error = status.code is Code.ERROR
    names = frozenset({status.plugin})
    return Unplaced(pod, status.message, rejectors=frozenset() if is_error else names, is_error=is_error)


def _ended(attempt: Attempt) -> Result:
    """The result of an attempt in which nobody asks outside."""
    try:
        next(attempt)
    except StopIteration as ended:
        result: Result = ended.value
        return result
    raise AssertionError("a profile without asking plugins asks outside")


def _without(feasible: Bools, held: _Held) -> Bools:
    if not held:
        return feasible
    left = feasible.copy()
    left[list(held)] = False
    return left


class _Refusals:
    """`plugin.Refusals` over a diagnosis."""

    def __init__(self, diagnosis: Diagnosis) -> None:
        self._by_node = dict(diagnosis.nodes)
        self._otherwise = diagnosis.pre_filter or Status(Code.UNSCHEDULABLE_AND_UNRESOLVABLE)

    def status_of(self, node: str) -> Status:
        return self._by_node.get(node, self._otherwise)

    def nodes(self) -> Sequence[str]:
        return list(self._by_node)
