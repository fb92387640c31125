"""Gang attempts: the members that wait are decided one after the other, on the table itself.

Each member is decided as a single pod is, by what those before it have left. If every gang gets as many as it needs, they stand;
members beyond the minimum that found no node wait on. Otherwise everything is taken back in reverse order: nothing is held
while a gang waits.

An attempt pauses when a step has lasted long enough (`Pause`). The members placed so far stay assumed meanwhile, so nobody
else takes their room. Closing the attempt during a pause undoes it.

Where members ask outside, all are asked before the first is assumed; a node that was not asked about is then left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec
import numpy as np
from msgspec.structs import replace

from multisched.cycle.attempt_record import AttemptRecords
from multisched.cycle.classes.cache import ClassCache
from multisched.cycle.classes.equivalence_class import EquivalenceClass
from multisched.cycle.classes.scores import NOWHERE
from multisched.cycle.commit_step import CommitStep
from multisched.cycle.diagnosis import diagnose, fit_error
from multisched.cycle.effort import PAUSES_MAX, Effort
from multisched.cycle.gang_topology import GangTopology, Need, lacking
from multisched.cycle.preemption.group_ground import GroupOfPods
from multisched.cycle.preemption.nominated_pods import NominatedPodsFilter
from multisched.cycle.preemption.post_filter import CLEARED, Aftermath
from multisched.cycle.remote_responses import Choice, RemoteResponses
from multisched.cycle.results import (
    Conflicted,
    GangAttempt,
    GangResult,
    Pause,
    Placed,
    RemoteRequest,
    Result,
    Unplaced,
)
from multisched.framework.gangs import GANG_PLUGIN, Reserving
from multisched.framework.node_view import Bools, Rows, any_true
from multisched.framework.points import QueuedGang, QueuedPod
from multisched.framework.runner import PluginFailure, Runner
from multisched.framework.status import Status
from multisched.framework.step_budget import StepBudget
from multisched.model.objects import Pod
from multisched.state.cluster_cache import ClusterCache
from multisched.state.domain_rows import DomainRows
from multisched.state.transaction import Transaction

ROOM_FROM: Final = 16
"""Members that must start together from which on their room is looked at before the first is placed."""

PLACEMENTS_MAX: Final = 20_000
"""Members that one attempt gives a node and takes back before it tries no further domain, nor another order."""

TOO_LONG: Final = (
    f"the search for nodes was given up for now after {PAUSES_MAX} steps; it is shorter if members are alike, or have fewer"
    " affinity terms, or the gang has fewer topology levels"
)

R = TypeVar("R")

Best = Callable[[Choice, Pod, int, int], list[int]]
"""Positions of the best rows of a choice (`SchedulingCycle`)."""
Answers = Mapping[str, object | PluginFailure]
Paused = Generator[Pause, Any, R]
"""Pauses, and ends with a result."""


class Refused(msgspec.Struct, frozen=True):
    """Why a member found no node beside those that did."""

    entry: QueuedPod
    message: str
    rejectors: frozenset[str] = frozenset()
    pending: frozenset[str] = frozenset()
    is_error: bool = False
    condition_reason: str = ""


class _Asked(msgspec.Struct, frozen=True):
    """What was asked outside about one member."""

    requests: Sequence[RemoteRequest]
    rows: Rows
    generation: int


class _Try:
    """Who stands, and who does not, within one topology domain and in one order."""

    def __init__(self, members: Sequence[QueuedPod], allowed: Bools | None, transaction: Transaction) -> None:
        self.members = members
        self.allowed = allowed
        self.transaction = transaction
        self.placed: list[Placed] = []
        self.refused: dict[str, Refused] = {}
        self.hopeless: dict[Hashable, bool] = {}
        """Signatures of classes that no node takes, as things stand in this round -> a node may once others have theirs."""
        self.curable: set[str] = set()
        """uids of such members."""
        self.is_kept = False


class GangAttempts:
    """Of one domain."""

    def __init__(
        self,
        runner: Runner,
        cache: ClusterCache,
        rows: DomainRows,
        classes: ClassCache,
        nominated: NominatedPodsFilter,
        remote: RemoteResponses,
        commit: CommitStep,
        records: AttemptRecords,
        best: Best,
        as_nominated: Callable[[Pod], Pod],
        make_room: Callable[[GroupOfPods, Effort], Generator[None, None, Aftermath]],
        budget: StepBudget,
    ) -> None:
        """`as_nominated`: the pod with the node that is promised to it. `make_room`: asks PostFilter for those that must start."""
        self._budget = budget
        self._runner = runner
        self._cache = cache
        self._rows = rows
        self._classes = classes
        self._nominated = nominated
        self._remote = remote
        self._commit = commit
        self._records = records
        self._best = best
        self._as_nominated = as_nominated
        self._make_room = make_room

    def attempt(self, gang: QueuedGang) -> GangAttempt:
        """Decides all members. Never raises for what a plugin does."""
        self._runner.begin_attempt()
        effort = Effort(self._budget)
        why_not = _why_incomplete(gang)
        if why_not:
            return _none_of(gang, None, why_not)
        why_not = yield from self._why_no_room(gang, effort)
        if why_not:
            return (yield from self._with_room(gang, _none_of(gang, None, why_not)))
        asked = yield from self._asked_outside(gang, effort)
        requests = [one for each in asked.values() for one in each.requests]
        answers = (yield requests) if requests else {}
        topology = (yield from self._topology(gang, effort)) if gang.topology else None
        furthest: _Try | None = None
        taken_back = 0
        for allowed in (None,) if topology is None else topology.masks():
            for members in _orders(gang):
                found = yield from self._try(gang, members, allowed, asked, answers, effort)
                if found.is_kept:
                    return _some_of(gang, found)
                taken_back += len(found.placed)
                if furthest is None or len(found.placed) > len(furthest.placed):
                    furthest = found
                if effort.is_exhausted:
                    return _none_of(gang, furthest, TOO_LONG)
            if taken_back > PLACEMENTS_MAX:
                break
        if furthest is None and topology is not None:
            return (yield from self._with_room(gang, _none_of(gang, None, topology.shortage())))
        return (yield from self._with_room(gang, _none_of(gang, furthest, _why_stuck(gang, furthest))))

    def _with_room(self, gang: QueuedGang, result: GangResult) -> Paused[GangResult]:
        """The refusal with whom PostFilter would remove for those that must start: each hears of its nominated node.

        For a gang that must stay in one topology domain, one domain is cleared.
        """
        effort = Effort(self._budget)
        domains: tuple[Bools, ...] = ()
        if any(level.is_required for level in gang.topology):
            domains = (yield from self._topology(gang, effort, is_loose=True)).to_clear()
            if not domains:
                return result
        pods = tuple(self._as_nominated(entry.pod) for entry in _needed(gang))
        key = gang.gang_of[gang.members[0].pod.uid]
        search = self._make_room(GroupOfPods(gang.name, pods, gang.members[0].attempts, domains=domains), effort)
        try:
            while True:
                next(search)
                yield Pause()
        except StopIteration as ended:
            after: Aftermath = ended.value
        finally:
            search.close()
        if after.nominated_node is None and self._cache.gangs.reserving(key) is Reserving.ENDED:
            after = replace(after, nominated_node=CLEARED)
        return GangResult((), tuple(_with_aftermath(one, after) for one in result.unplaced))

    def _try(
        self,
        gang: QueuedGang,
        members: Sequence[QueuedPod],
        allowed: Bools | None,
        asked: Mapping[str, _Asked],
        answers: Answers,
        effort: Effort,
    ) -> Paused[_Try]:
        """All who must stand do so afterwards, or nothing has happened, also where the attempt is closed during a pause."""
        with Transaction(self._cache) as transaction:
            found = _Try(members, allowed, transaction)
            try:
                yield from self._place_all(gang, found, asked, answers, effort)
                if _lacking(gang, found) is None:
                    transaction.keep()
                    found.is_kept = True
            finally:
                if not found.is_kept:
                    why = Status.unschedulable(f"its gang could not start: {_why_stuck(gang, found)}")
                    not_started = replace(why, plugin=GANG_PLUGIN)
                    for placed in reversed(found.placed):
                        self._commit.unreserve(placed, not_started)
        return found

    # -- outside ---------------------------------------------------------------------------------------------------

    def _asked_outside(self, gang: QueuedGang, effort: Effort) -> Paused[Mapping[str, _Asked]]:
        """By the uid of each member about which somebody outside is asked."""
        asked: dict[str, _Asked] = {}
        for entry in gang.members if self._remote.are_any else ():
            if effort.is_pause_due():
                yield Pause()
            try:
                pod_class = self._classes.find(entry.pod, entry.attempts)
                if pod_class.refusal is None and any_true(pod_class.feasible):
                    requests = self._remote.requests(pod_class, entry.pod)
                    if requests:
                        named = [replace(one, uid=entry.pod.uid) for one in requests]
                        rows = pod_class.rows[pod_class.feasible]
                        asked[entry.pod.uid] = _Asked(named, rows, self._rows.generation)
            except PluginFailure:
                continue  # the member hears of it when it is decided
        return asked

    # -- room and topology -----------------------------------------------------------------------------------------

    def _why_no_room(self, gang: QueuedGang, effort: Effort) -> Paused[str]:
        """Why the nodes are too full for the gang however it is spread, found without placing anybody; else empty."""
        if sum(gang.needs.values()) < ROOM_FROM:
            return ""
        needs = yield from self._needs(_needed(gang), effort, is_loose=True)
        short = lacking(self._cache.nodes, self._rows.rows, needs)
        if short is None:
            return ""
        need, room = short
        return f"the nodes have room for {room} of the {need.count} members that are alike and must start together"

    def _topology(self, gang: QueuedGang, effort: Effort, *, is_loose: bool = False) -> Paused[GangTopology]:
        """`is_loose`: as `_needs` has it."""
        needs = yield from self._needs(_needed(gang), effort, is_loose=is_loose)
        is_elastic = len(gang.members) > sum(gang.needs.values())
        waiting = (yield from self._needs(gang.members, effort, is_loose=is_loose)) if is_elastic else ()
        nodes = self._cache.nodes
        standing = np.array([row for row in map(nodes.row_of, gang.standing) if row is not None], np.intp)
        return GangTopology(nodes, self._rows.rows, gang.topology, needs, standing, waiting)

    def _needs(self, members: Iterable[QueuedPod], effort: Effort, *, is_loose: bool) -> Paused[list[Need]]:
        """Members that are alike, with where one could go now; `is_loose`: anywhere, for others may make it possible."""
        alike: dict[Hashable, list[QueuedPod]] = {}
        for entry in members:
            try:
                signature = self._classes.signature(entry.pod)
            except PluginFailure:
                continue
            alike.setdefault(entry.pod.uid if signature is None else signature, []).append(entry)
        needs = []
        for entries in alike.values():
            if effort.is_pause_due():
                yield Pause()
            entry = entries[0]
            try:
                pod_class = self._classes.find(entry.pod, entry.attempts)
            except PluginFailure:
                continue
            is_anywhere = is_loose or pod_class.relates or pod_class.refusal is not None
            rows = self._rows.rows if is_anywhere else pod_class.rows[pod_class.feasible]
            needs.append(Need(len(entries), entry.pod.requests, rows))
        return needs

    # -- placing ---------------------------------------------------------------------------------------------------

    def _place_all(
        self, gang: QueuedGang, found: _Try, asked: Mapping[str, _Asked], answers: Answers, effort: Effort
    ) -> Paused[None]:
        """Who wants to be where others are is tried once more after others have found their nodes. Nobody else gains by those."""
        left: Sequence[QueuedPod] = found.members
        spare = Counter(_keys(gang, left))
        spare.subtract(gang.needs)
        while left:
            found.hopeless = {}
            before, again = len(found.placed), list[QueuedPod]()
            for entry in left:
                if effort.is_exhausted:
                    return
                if effort.is_pause_due():
                    yield Pause(found.placed)
                if self._place(entry, found, asked.get(entry.pod.uid), answers):
                    continue
                if entry.pod.uid in found.curable:
                    again.append(entry)
                    continue
                key = gang.gang_of[entry.pod.uid]
                spare[key] -= 1
                if spare[key] < 0:
                    return  # too few are left
            if len(found.placed) == before:
                return
            left = again

    def _place(self, entry: QueuedPod, found: _Try, asked: _Asked | None, answers: Answers) -> bool:
        """One member beside those that stand. What one of a class was refused, the others of it are spared."""
        self._runner.begin_attempt()
        pod, attempt = self._as_nominated(entry.pod), entry.attempts
        found.curable.discard(pod.uid)
        try:
            pod_class = self._classes.find(pod, attempt)
            is_curable = found.hopeless.get(pod_class.signature)
            if is_curable is None or pod_class.signature is None:
                result = self._decide(pod, attempt, pod_class, found, asked, answers)
                is_curable = isinstance(result, Unplaced) and pod_class.relates
            else:
                result = None
        except PluginFailure as failure:
            status = failure.status
            rejectors = frozenset({status.plugin}) if status.code.is_rejection else frozenset[str]()
            is_error = not status.code.is_rejection
            refused = Refused(entry, status.message, rejectors, frozenset(), is_error, status.condition_reason)
            found.refused.setdefault(pod.uid, refused)
            return False
        if isinstance(result, Placed):
            found.placed.append(result)
            found.refused.pop(pod.uid, None)
            return True
        if is_curable:
            found.curable.add(pod.uid)
        if result is not None:
            found.refused.setdefault(pod.uid, _refusal(entry, result))
        return False

    def _decide(
        self,
        pod: Pod,
        attempt: int,
        pod_class: EquivalenceClass,
        found: _Try,
        asked: _Asked | None,
        answers: Answers,
    ) -> Result:
        """Raises PluginFailure."""
        if pod_class.refusal is not None:
            return self._refused(pod, attempt, pod_class, found)
        blocked = self._nominated.blocked(pod_class, pod, attempt)
        feasible = pod_class.feasible
        if blocked:
            feasible = feasible.copy()
            feasible[list(blocked)] = False
            if any_true(feasible):
                pod_class = self._classes.reduced(pod_class, feasible)
        if found.allowed is not None:
            feasible = feasible & found.allowed.take(pod_class.rows)
        at = self._chosen(pod, attempt, pod_class, feasible, asked, answers) if any_true(feasible) else None
        if at is None:
            return self._refused(pod, attempt, pod_class, found)
        return self._commit.at_once(pod_class, pod, attempt, at, found.transaction)

    def _chosen(
        self,
        pod: Pod,
        attempt: int,
        pod_class: EquivalenceClass,
        feasible: Bools,
        asked: _Asked | None,
        answers: Answers,
    ) -> int | None:
        """Position of the best row that is left; None if what was asked outside leaves none.

        Scores are normalised over all feasible rows of the class, whatever the topology leaves of them.
        """
        if asked is None:
            if pod_class.is_of_one_row:
                return 0
            self._classes.score(pod_class)
            total = pod_class.total
            if feasible is not pod_class.feasible:
                total = np.where(feasible, total, NOWHERE).astype(total.dtype)
            return self._best(Choice(pod_class.rows, feasible, total), pod, attempt, 1)[0]
        feasible = feasible & np.isin(pod_class.rows, asked.rows)
        if asked.generation != self._rows.generation:
            feasible &= self._rows.stayed_since(pod_class.rows, asked.generation)
        self._classes.score(pod_class)
        choice = Choice(pod_class.rows, feasible, np.where(feasible, pod_class.total, NOWHERE).astype(np.int32))
        said = {one.plugin.name: answers[one.key] for one in asked.requests if one.key in answers}
        view = replace(pod_class.view, responses=self._remote.settled(asked.requests, said))
        self._remote.refuse(choice, view, pod)
        if not any_true(choice.feasible):
            return None
        self._remote.add_scores(choice, view, pod)
        return self._best(choice, pod, attempt, 1)[0]

    def _refused(self, pod: Pod, attempt: int, pod_class: EquivalenceClass, found: _Try) -> Unplaced:
        """Says why, as things stand at this moment: the members before it have their places."""
        if pod_class.signature is not None:
            found.hopeless[pod_class.signature] = pod_class.relates
        blocked = self._nominated.blocked(pod_class, pod, attempt, everywhere=True)
        why = diagnose(pod_class, self._cache.nodes, blocked=blocked)
        message = fit_error(why)
        if found.allowed is not None and why.pre_filter is None:
            message = f"{message.rstrip('.')}, in the topology domain that was tried."
        self._records.refused(
            pod,
            attempt,
            pod_class,
            replace(why, nodes=(), verdicts=None, blocked={}),
            blocked=why.blocked,
            late=(),
            post_filter="",
            nominated_node="",
            preemption=None,
            message=message,
        )
        reason = "" if why.pre_filter is None else why.pre_filter.condition_reason
        return Unplaced(pod, message, why.rejectors, why.pending, condition_reason=reason)


# -- who, and in which order --------------------------------------------------------------------------------------------


def _keys(gang: QueuedGang, entries: Sequence[QueuedPod]) -> Iterator[str]:
    return (gang.gang_of[entry.pod.uid] for entry in entries)


def _needed(gang: QueuedGang) -> Iterator[QueuedPod]:
    """As many of each gang as have to start, the most important."""
    left = Counter(gang.needs)
    for entry in gang.members:
        key = gang.gang_of[entry.pod.uid]
        if left[key] > 0:
            left[key] -= 1
            yield entry


def _is_alike(gang: QueuedGang) -> bool:
    return len({id(entry.pod.spec) for entry in gang.members}) == 1


def _orders(gang: QueuedGang) -> Iterator[Sequence[QueuedPod]]:
    """By importance; and of equal ones the largest first, where that is another order and the first one led to nothing."""
    yield gang.members
    if not _is_alike(gang):
        by_size = sorted(gang.members, key=_importance_and_size)
        if by_size != list(gang.members):
            yield by_size


def _importance_and_size(entry: QueuedPod) -> tuple[int, ...]:
    requests = entry.pod.requests
    return -entry.pod.spec.priority, *(-requests[resource] for resource in sorted(requests))


# -- what came of it ------------------------------------------------------------------------------------------------------


def _lacking(gang: QueuedGang, found: _Try) -> tuple[str, int] | None:
    """A gang of which too few stand, and how many do."""
    counts = Counter(gang.gang_of[placed.pod.uid] for placed in found.placed)
    return next(((key, counts[key]) for key, need in gang.needs.items() if counts[key] < need), None)


def _why_incomplete(gang: QueuedGang) -> str:
    """Fewer members wait in the queue than have to start: the others are held there by a plugin; empty: enough do."""
    counts = Counter(_keys(gang, gang.members))
    for key, need in gang.needs.items():
        if counts[key] < need:
            whose = f"gang {key}: " if len(gang.needs) > 1 else ""
            return f"{whose}{counts[key]} of the {need} members that must start together can be tried"
    return ""


def _why_stuck(gang: QueuedGang, found: _Try | None) -> str:
    short = None if found is None else _lacking(gang, found)
    if found is None or short is None:
        return "nobody could be tried"
    key, count = short
    if len(gang.members) == 1 and found.refused:
        return next(iter(found.refused.values())).message
    whose = f"gang {key}: " if len(gang.needs) > 1 else ""
    text = f"{whose}{count} of the {gang.needs[key]} members that must start together fit"
    first = next((one for uid, one in found.refused.items() if gang.gang_of[uid] == key), None)
    if first is None or len({entry.pod.namespace for entry in gang.members}) > 1:
        return text  # all members get the same text, and nothing is told about pods of another namespace
    return f"{text}; {first.entry.pod.name}: {first.message}"


def _none_of(gang: QueuedGang, found: _Try | None, why: str) -> GangResult:
    """None stands. All hear how far the gang came, and who had no node, and why; that one comes first."""
    late = f" {gang.overdue}" if gang.overdue else ""
    text = f"gang {gang.name}{late}: {why}"
    first = None if found is None else _first_refused(gang, found)
    rejectors = frozenset({GANG_PLUGIN}) if first is None or not _is_alike(gang) else frozenset[str]()
    order = list(gang.members)
    if first is not None:
        order.sort(key=lambda entry: entry is not first.entry)
    return GangResult((), tuple(_unplaced(entry, first, text, rejectors) for entry in order))


def _some_of(gang: QueuedGang, found: _Try) -> GangResult:
    """Those that stand, and those beyond the minimum that wait on."""
    standing = {placed.pod.uid for placed in found.placed}
    some = next(iter(found.refused.values()), None)
    rest = [(entry, found.refused.get(entry.pod.uid, some)) for entry in gang.members if entry.pod.uid not in standing]
    unplaced = (_unplaced(entry, why, "" if why is None else why.message, frozenset()) for entry, why in rest)
    return GangResult(tuple(found.placed), tuple(unplaced))


def _first_refused(gang: QueuedGang, found: _Try) -> Refused | None:
    short = _lacking(gang, found)
    own = [one for uid, one in found.refused.items() if short is None or gang.gang_of[uid] == short[0]]
    return own[0] if own else next(iter(found.refused.values()), None)


def _refusal(entry: QueuedPod, result: Unplaced | Conflicted) -> Refused:
    if isinstance(result, Conflicted):
        by = frozenset({result.rejector or GANG_PLUGIN})
        return Refused(entry, result.refusal or "its node was taken", by)
    return Refused(entry, result.message, result.rejectors, result.pending, result.is_error, result.condition_reason)


def _with_aftermath(refused: Unplaced, after: Aftermath) -> Unplaced:
    message = f"{refused.message.rstrip('.')}. {after.sentence}" if after.sentence else refused.message
    if after.preemption is None:
        return replace(
            refused,
            message=message,
            rejectors=refused.rejectors | after.rejectors,
            nominated_node=after.nominated_node,
        )
    node = after.preemption.node_of(refused.pod.uid)
    return replace(refused, message=message, nominated_node=node, preemption=after.preemption if node else None)


def _unplaced(entry: QueuedPod, refused: Refused | None, text: str, rejectors: frozenset[str]) -> Unplaced:
    """`rejectors`: those besides the ones that refused."""
    if refused is None:
        return Unplaced(entry.pod, text, rejectors)
    return Unplaced(
        entry.pod,
        text,
        refused.rejectors | rejectors,
        refused.pending,
        is_error=refused.is_error,
        condition_reason=refused.condition_reason,
    )
