"""The scheduling cycle: one pod, from the head of the queue to an assumption, a refusal or a conflict.

`SchedulingCycle.attempt` is a generator: it yields the questions that plugins want answered from outside, and is sent
the answers. A pod about which nobody asks is decided and committed without yielding once, and can meet no conflict.
"""

from __future__ import annotations

import zlib
from collections.abc import Generator, Mapping, Sequence
from copy import copy

import msgspec
import numpy as np
from msgspec.structs import replace

from multisched.cycle.attempt_record import AttemptRecords, Picture, ScoreCopy
from multisched.cycle.class_cache import ClassCache
from multisched.cycle.class_scores import NOWHERE
from multisched.cycle.diagnosis import Diagnosis, diagnose, fit_error, refused_node
from multisched.cycle.dry_run import DryRuns
from multisched.cycle.extender_answers import add_up, recorded, refuse
from multisched.cycle.pod_class import PodClass, Totals
from multisched.cycle.post_filter import CLEARED, Aftermath, PostFilterRuns
from multisched.cycle.promised_room import Held, PromisedRoom
from multisched.framework.extender import ExtenderPlugin, NegotiablePostFilter, Offer
from multisched.framework.node_view import Bools, Int64, Rows, any_true
from multisched.framework.plugin import (
    AskingPlugin,
    CycleView,
    PostFilterResult,
    QueuedPod,
)
from multisched.framework.preemption import Preemption
from multisched.framework.registry import PluginSet
from multisched.framework.runner import PluginFailure, Runner
from multisched.framework.status import Code, Status
from multisched.model.objects import Pod
from multisched.state.cluster_cache import Assumption, ClusterCache
from multisched.state.commit import (
    CANDIDATES_MAX,
    MOVED,
    TAKEN,
    Candidate,
    Conflicts,
    commit,
)
from multisched.state.domain_rows import DomainRows
from multisched.state.nominator import Nominator
from multisched.state.transaction import NotTaken, assume


class Asked(msgspec.Struct, frozen=True):
    """A question a plugin wants answered before the cycle goes on."""

    plugin: AskingPlugin
    question: object


class Placed(msgspec.Struct, frozen=True):
    """The pod is assumed and reserved on a node; it may have to wait at Permit, then it is bound."""

    pod: Pod
    node: str
    annotations: Mapping[str, str]
    view: CycleView
    waits: Mapping[str, float] = msgspec.field(default_factory=dict)
    """Permit plugin -> seconds it wants to wait at most."""
    relates: bool = False
    """Some filter goes by what stands on other nodes, too."""
    promised: str = ""
    """The node that was promised to it until now; empty: none."""


class Unplaced(msgspec.Struct, frozen=True):
    """The pod was refused; nothing is held for it."""

    pod: Pod
    message: str
    rejectors: frozenset[str] = frozenset()
    pending: frozenset[str] = frozenset()
    is_error: bool = False
    nominated_node: str | None = CLEARED
    """The node promised to it; empty: none, any more; None: as before."""
    preemption: Preemption | None = None
    """Whom the shell removes for it."""

    @property
    def victims(self) -> tuple[Pod, ...]:
        return () if self.preemption is None else self.preemption.victims


class Conflicted(msgspec.Struct, frozen=True):
    """The pod had rows, but none of its candidates took it any more at commit."""

    pod: Pod
    refusal: str = ""
    """The node and what a ledger has against it, where no filter said so; empty where others had taken the rows."""


Result = Placed | Unplaced | Conflicted
_OUTSIDE = Status.unresolvable("node(s) are not among those that PreFilter left")
Attempt = Generator[Sequence[Asked], Mapping[str, object | PluginFailure], Result]


class _Choice(msgspec.Struct):
    """What one attempt knows of the rows: a copy where the cycle waits, the class's own arrays where it does not."""

    rows: Rows
    feasible: Bools
    total: Totals
    versions: Int64 | None = None
    answered: list[ScoreCopy] = msgspec.field(default_factory=list)
    """Scores by plugins that asked outside."""


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
        records: AttemptRecords | None = None,
    ) -> None:
        """`records`: where attempts are remembered; None: in records of its own."""
        self.plugins = plugins
        self.classes = ClassCache(plugins, runner, cache.nodes, rows)
        self.conflicts = Conflicts()
        self.records = records if records is not None else AttemptRecords(runner.stopwatch)
        self._runner = runner
        self._cache = cache
        self._rows = self.rows = rows
        self.nominator = nominator
        self._seed = seed
        self._holds_up = bool(plugins.reserve or plugins.permit)
        self._may_refuse_late = bool(plugins.asking_filter or plugins.extenders)
        """Answers from outside may leave no row: then the refusal is told as the cycle saw it before it waited."""
        self._stamp_filters = [p for p in plugins.filter if p.depends_on.reads_stamp]
        self._promised = PromisedRoom(plugins, runner, cache.nodes, nominator)
        runs = DryRuns(plugins, runner, cache, nominator, self._promised)
        self._post_filters = PostFilterRuns(runs, rows)

    # -- one pod ---------------------------------------------------------------------------------------------------

    def attempt(self, entry: QueuedPod) -> Attempt:
        """Schedules one pod. Never raises for what a plugin does; the result says what became of it."""
        self._runner.begin_attempt()
        pod = entry.pod
        try:
            return (yield from self._attempt(pod, entry.attempts))
        except PluginFailure as failure:
            return self._failed(pod, entry.attempts, failure)

    def _attempt(self, pod: Pod, attempt: int) -> Attempt:
        pod = self._as_nominated(pod)
        if pod.nominated_node and not self.plugins.asking:
            placed = self._place_where_nominated(pod, attempt)
            if placed is not None:
                return placed
        group = self.classes.find(pod, attempt)
        if group.refusal is not None:
            found = self._diagnose(group, pod, attempt)
            return (yield from self._refused(group, group.view, pod, attempt, found, ()))
        held = self._promised.held(group, pod, attempt)
        feasible = _without(group.feasible, held)
        is_somewhere = any_true(feasible)
        if held and is_somewhere:
            group = self.classes.reduced(group, feasible)  # scores are normalised among the rows that are left
        asked = self._questions(group, pod) if is_somewhere else ()
        if not asked:
            if not is_somewhere:
                found = self._diagnose(group, pod, attempt)
                return (yield from self._refused(group, group.view, pod, attempt, found, ()))
            if group.is_of_one_row:  # as upstream, which scores no node where one alone is feasible
                return self._place_at_once(group, pod, attempt, 0)
            self.classes.score(group)
            choice = _Choice(group.rows, feasible, group.total)
            (at,) = self._best(choice, pod, attempt, 1)
            return self._place_at_once(group, pod, attempt, at)
        self.classes.score(group)
        total = np.where(feasible, group.total, NOWHERE).astype(np.int32)  # answers may weigh more than all plugins do
        choice = _Choice(group.rows, feasible.copy(), total, self._versions(pod, group.rows))
        ledgers = {r: self._cache.ledgers.versions(pod, r) for r in self._top(choice, pod, attempt, 64).tolist()}
        # While this cycle waits, others may renew the class: what this one saw is kept here. A refusal that named later
        # plugins than those of its decision would miss the events that came meanwhile, and leave the pod waiting.
        # So would filters that skipped this pod, asked with a state that they have written nothing into.
        view, generation, seen = group.view, self._rows.generation, copy(group)
        as_seen = self._diagnose(group, pod, attempt) if self._may_refuse_late else None
        picture = self.records.picture(group)
        hangs_on, promised = self.classes.hangs_on(group, pod), self.nominator.sequence
        answers = yield asked
        view = replace(view, answers=self._settled(asked, answers))
        if not self._drop_left(choice, generation):
            self.conflicts.true += 1
            return self._conflicted(pod, attempt, TAKEN, ())
        refused = self._refuse_by_answers(choice, view, pod)
        if as_seen is not None and not any_true(choice.feasible):
            return (yield from self._refused(seen, view, pod, attempt, as_seen.with_more(refused), refused))
        if refused:
            picture = self._rescore(choice, group) or picture
        self._add_answers(choice, view, pod)
        picture.add_answers(choice.total, choice.answered)
        # What other rows hold, and what was promised, may count for each row: if that moved, no row is as it was.
        is_same = self.classes.hangs_on(group, pod) == hangs_on and self.nominator.sequence == promised
        versions = choice.versions if is_same else None
        candidates = [
            Candidate(row, MOVED if versions is None else int(versions[at]), ledgers.get(row, ()))
            for at in self._best(choice, pod, attempt, CANDIDATES_MAX)
            for row in (choice.rows.item(at),)
        ]
        return self._place(seen, view, pod, attempt, candidates, picture=picture)

    # -- nominated pods --------------------------------------------------------------------------------------------

    def _as_nominated(self, pod: Pod) -> Pod:
        """The pod with the node promised to it, also where the API server has not been told yet."""
        node = self.nominator.node_of(pod.uid) if len(self.nominator) else ""
        return msgspec.structs.replace(pod, nominated_node=node) if node and node != pod.nominated_node else pod

    def _place_where_nominated(self, pod: Pod, attempt: int) -> Result | None:
        """The pod on the node promised to it, if that takes it: no other is looked at, and none is scored."""
        row = self._cache.nodes.row_of(pod.nominated_node)
        if row is None or not self._rows.has(row):
            return None
        group = self.classes.alone(pod, attempt, row)
        if group is None or not group.feasible[0] or self._promised.held(group, pod, attempt):
            return None
        result = self._place_at_once(group, pod, attempt, 0)
        return None if isinstance(result, Conflicted) else result

    def refusal_of_move(self, leaving: Pod | None, replacement: Pod, node: str) -> str:
        """Why the node would not take the replacement once `leaving` has left the node it stands on; empty: it would.

        By every Filter that asks nobody outside, and beside the pods that are nominated there.
        """
        row = self._cache.nodes.row_of(node)
        if row is None or not self._rows.has(row):
            return f"node {node} is not there for this domain"
        stands = None if leaving is None else self._cache.placed(leaving.uid)
        self._runner.begin_attempt()
        try:
            group = self.classes.alone(replacement, 1, row)
            if group is None:
                return f"PreFilter leaves out node {node}"
            left = None if stands is None or stands.row < 0 else (stands.pod, stands.row)
            refusal = self._promised.refusal_of_move(group, replacement, row, left)
        except PluginFailure as failure:
            return failure.status.message
        return "" if refusal is None else f"{refusal.plugin}: {refusal.message}"

    def is_concerned(self, placed: Placed, pod: Pod, others: Sequence[Pod]) -> bool:
        """Whether a filter may say otherwise of a placed pod's node for others that came or went on nodes elsewhere."""
        try:
            heeds = self._promised.heeds(self._stamp_filters, placed.view, pod)
        except PluginFailure:
            return True  # who asks the filters hears of it
        return heeds is None or any(heed.matters(other) for heed in heeds if not heed.is_by_row for other in others)

    # -- asking outside --------------------------------------------------------------------------------------------

    def _questions(self, group: PodClass, pod: Pod) -> list[Asked]:
        """Of the plugins that ask outside, about the feasible rows."""
        if not self.plugins.asking:
            return []
        asked = []
        rows = group.rows[group.feasible]
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
        return np.array(list(map(self._cache.nodes.version, rows.tolist())), np.int64)

    def _drop_left(self, choice: _Choice, generation: int) -> bool:
        """Leaves out rows whose node left, or gave its row to another, while the cycle waited; False if none is left."""
        if generation != self._rows.generation:
            choice.feasible &= self._rows.stayed_since(choice.rows, generation)
            choice.total[~choice.feasible] = NOWHERE
        return any_true(choice.feasible)

    def _refuse_by_answers(self, choice: _Choice, view: CycleView, pod: Pod) -> list[tuple[str, Status]]:
        """Runs Filter of the plugins that asked, on what was feasible before; returns the nodes they refused."""
        refused: list[tuple[str, Status]] = []
        for plugin in self.plugins.asking_filter:
            if plugin.name in view.answers:
                at = np.flatnonzero(choice.feasible)
                codes = self._runner.filter(plugin, view, pod, choice.rows[at])
                for position in np.flatnonzero(codes).tolist():
                    row = int(choice.rows[at[position]])
                    refused.append((self._node_name(row), plugin.reasons.status(int(codes[position]))))
                choice.feasible[at[codes != 0]] = False
        for judge in self.plugins.extenders:
            if judge.name in view.answers:
                late = refuse(self._runner, judge, view, pod, choice.rows, choice.feasible)
                refused += [(self._node_name(int(choice.rows[position])), status) for position, status in late]
        choice.total[~choice.feasible] = NOWHERE
        return refused

    def _rescore(self, choice: _Choice, group: PodClass) -> Picture | None:
        """Scores among the rows that the answers left: NormalizeScore goes by those, as upstream, which scores after asking.

        None where other nodes have come or gone meanwhile: then what was scored before stands.
        """
        if group.generation != self._rows.generation or not np.array_equal(group.rows, choice.rows):
            return None
        fewer = self.classes.reduced(group, choice.feasible.copy())
        self.classes.score(fewer)
        choice.total = np.where(choice.feasible, fewer.total, NOWHERE).astype(np.int32)
        return self.records.picture(fewer)

    def _add_answers(self, choice: _Choice, view: CycleView, pod: Pod) -> None:
        """Adds the scores of the plugins that asked."""
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
                final = np.zeros(len(choice.rows), np.uint8)
                final[at] = scores
                choice.answered.append(ScoreCopy(scorer.name, self.plugins.weight(scorer), final))
        for judge in self.plugins.extenders:
            if judge.name in view.answers:
                before = choice.total
                choice.total = add_up(self._runner, judge, view, pod, choice.rows, choice.feasible, before)
                choice.answered += recorded(judge.name, before, choice.total, choice.feasible)

    # -- choosing --------------------------------------------------------------------------------------------------

    def _top(self, choice: _Choice, pod: Pod, attempt: int, count: int) -> Rows:
        return choice.rows[self._best(choice, pod, attempt, count)]

    def _best(self, choice: _Choice, pod: Pod, attempt: int, count: int) -> list[int]:
        """Positions of the best rows, best first; the pod's own nominated node goes before all."""
        own = self._own_nominated(choice, pod)
        if own is not None:
            return [own]
        total = choice.total
        best = total.item(total.argmax())
        ties = (total == best).nonzero()[0]
        # Ties go by chance upstream; here by a hash, so that the same seed gives the same placement (I12).
        turn = self._turn(pod, attempt) % len(ties)
        if count == 1:
            return [ties.item(turn)]
        ordered = np.concatenate((ties[turn:], ties[:turn]))
        if len(ordered) < count:
            rest = (choice.feasible & (total < best)).nonzero()[0]
            ordered = np.concatenate((ordered, rest[(-total[rest]).argsort(kind="stable")]))
        best_first: list[int] = ordered[:count].tolist()
        return best_first

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

    def _fits_afresh(self, pod: Pod, attempt: int, row: int) -> bool:
        """Whether the row passes for plugins that begin at PreFilter, and beside the pods nominated there: what was found
        before the wait may be outdated."""
        alone = self.classes.alone(pod, attempt, row)
        return alone is not None and bool(alone.feasible[0]) and not self._promised.held(alone, pod, attempt)

    def _node_name(self, row: int) -> str:
        return self._cache.nodes.node(row).name

    # -- ending ----------------------------------------------------------------------------------------------------

    def _place_at_once(self, group: PodClass, pod: Pod, attempt: int, at: int) -> Result:
        """The pod on the class's row number `at`, which was read in this very step."""
        result = self._assume_at_once(group, pod, attempt, at)
        if not isinstance(result, Placed):
            return result
        self.records.placed(pod, attempt, group, at, result.node)
        return self._reserve(result) if self._holds_up else result

    def _assume_at_once(self, group: PodClass, pod: Pod, attempt: int, at: int) -> Placed | Conflicted:
        row = group.rows.item(at)
        assumption = assume(self._cache, pod, row)
        if isinstance(assumption, NotTaken):
            return self._conflicted(pod, attempt, assumption, (self._node_name(row),))
        return self._placed(pod, assumption, group, group.view, attempt)

    def _conflicted(self, pod: Pod, attempt: int, why: NotTaken, nodes: tuple[str, ...]) -> Conflicted:
        self.records.conflicted(pod, attempt, nodes, why.refusal)
        return Conflicted(pod, why.refusal)

    def _place(
        self,
        group: PodClass,
        view: CycleView,
        pod: Pod,
        attempt: int,
        candidates: Sequence[Candidate],
        picture: Picture,
    ) -> Result:
        """The pod on the best candidate that still takes it. `picture`: the class as this cycle has seen it."""

        def still_fits(pod: Pod, row: int) -> bool:
            return self._refusal(group, view, pod, row) is None and self._fits_afresh(pod, attempt, row)

        assumption = commit(self._cache, self._rows, pod, candidates, still_fits, self.conflicts)
        if isinstance(assumption, NotTaken):
            return self._conflicted(pod, attempt, assumption, self._names_of(candidates))
        self._record(picture, pod, attempt, candidates, assumption.node)
        return self._reserve(self._placed(pod, assumption, group, view, attempt))

    def _placed(self, pod: Pod, assumption: Assumption, group: PodClass, view: CycleView, attempt: int) -> Placed:
        promised = self.nominator.node_of(pod.uid)
        self.nominator.remove(pod.uid)  # from now on it counts on the row itself
        # What Reserve and later points write belongs to this pod alone; the class shares the state they start from.
        own = CycleView(self._cache.nodes, view.state.copy(), attempt, view.answers)
        return Placed(pod, assumption.node, assumption.annotations, own, relates=group.relates, promised=promised)

    def _record(self, picture: Picture, pod: Pod, attempt: int, candidates: Sequence[Candidate], node: str) -> None:
        """Leaves word of a pod that was placed after answers, and of the candidates that were passed over."""
        row = self._cache.nodes.row_of(node)
        taken = next(place for place, candidate in enumerate(candidates) if candidate.row == row)
        at = int(picture.rows.searchsorted(candidates[taken].row))
        self.records.placed_after_answers(pod, attempt, picture, at, node, self._names_of(candidates[:taken]))

    def _names_of(self, candidates: Sequence[Candidate]) -> tuple[str, ...]:
        """Of those that are still there."""
        nodes = (self._cache.nodes.node_at(candidate.row) for candidate in candidates)
        return tuple(node.name for node in nodes if node is not None)

    def _failed(self, pod: Pod, attempt: int, failure: PluginFailure) -> Unplaced:
        """What a plugin that failed, or refused where it can only say so by raising, makes of its pod's attempt."""
        status = failure.status
        self.records.failed(pod, attempt, status)
        is_error = status.code is Code.ERROR
        names = frozenset({status.plugin})
        return Unplaced(pod, status.message, rejectors=frozenset() if is_error else names, is_error=is_error)

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
        return msgspec.structs.replace(placed, waits=waits) if waits else placed

    def give_up(self, placed: Placed, status: Status) -> Unplaced:
        """Unreserves in reverse order, forgets the assumption, and says why."""
        for plugin in reversed(self.plugins.reserve):
            self._runner.unreserve(plugin, placed.view, placed.pod, placed.node)
        self._cache.forget(placed.pod.uid)
        self.records.given_up(placed.pod, placed.view.attempt, placed.node, status)
        found = refused_node(status)
        return Unplaced(
            placed.pod,
            fit_error(found) if status.code.is_rejection else status.message,
            rejectors=found.rejectors,
            pending=found.pending,
            is_error=not status.code.is_rejection,
        )

    def _diagnose(self, group: PodClass, pod: Pod, attempt: int) -> Diagnosis:
        held = self._promised.held(group, pod, attempt, everywhere=True)
        return diagnose(group, self._cache.nodes, held=held, with_verdicts=bool(self.plugins.post_filter))

    def _negotiated(
        self, group: PodClass, view: CycleView, pod: Pod, found: Diagnosis
    ) -> Generator[Sequence[Asked], Mapping[str, object | PluginFailure], Mapping[str, PostFilterResult]]:
        """Has extenders look at the candidates of a preemption: plugin -> its result, where they did."""
        settled: dict[str, PostFilterResult] = {}
        for judge in self.plugins.extenders:
            if not judge.negotiates(pod):
                continue
            for plugin, offers in self._post_filters.offers(pod, view, group, found):
                if isinstance(offers, PostFilterResult):
                    settled[plugin.name] = offers
                    continue
                question = self._runner.call(judge, "Ask", judge.show, view, pod, offers)
                answers = yield [Asked(judge, question)]
                settled[plugin.name] = _settle(self._runner, judge, plugin, view, offers, answers.get(judge.name))
        return settled

    def _refused(
        self,
        group: PodClass,
        view: CycleView,
        pod: Pod,
        attempt: int,
        found: Diagnosis,
        late: Sequence[tuple[str, Status]],
    ) -> Generator[Sequence[Asked], Mapping[str, object | PluginFailure], Unplaced]:
        """`late`: nodes refused by plugins that asked outside."""
        settled = (yield from self._negotiated(group, view, pod, found)) if self.plugins.extenders else {}
        after = self._post_filters.run(pod, view, group, found, settled)
        message = fit_error(found, after.sentence)
        self.records.refused(
            pod,
            attempt,
            group,
            replace(found, nodes=(), verdicts=None, held={}),
            held=found.held,
            late=late,
            post_filter=after.sentence,
            nominated_node=after.nominated_node or "",
            preemption=after.preemption,
            message=message,
        )
        return _unplaced(pod, message, found, after)


def _settle(
    runner: Runner,
    judge: ExtenderPlugin,
    plugin: NegotiablePostFilter,
    view: CycleView,
    offers: Sequence[Offer],
    answer: object,
) -> PostFilterResult:
    """What PostFilter comes to once the extenders have answered, or failed."""
    try:
        if isinstance(answer, PluginFailure):
            return runner.call(plugin, "PostFilter", plugin.spoiled, answer.status.message)
        # Without an answer (a rehearsal asks nobody) nobody has looked at them.
        left = offers if answer is None else runner.call(judge, "PostFilter", judge.left, view, offers, answer)
        return runner.call(plugin, "PostFilter", plugin.accept, left)
    except PluginFailure as failure:
        return PostFilterResult(failure.status)


def _without(feasible: Bools, held: Held) -> Bools:
    if not held:
        return feasible
    left = feasible.copy()
    left[list(held)] = False
    return left


def _unplaced(pod: Pod, message: str, found: Diagnosis, after: Aftermath) -> Unplaced:
    return Unplaced(
        pod,
        message,
        found.rejectors,
        found.pending,
        nominated_node=after.nominated_node,
        preemption=after.preemption,
    )
