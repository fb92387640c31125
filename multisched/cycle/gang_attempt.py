"""Gang attempts: decides the pending members of a gang one after the other, on the node table itself.

Each member is decided as a single pod is, after the members before it were assumed. If enough members of every gang find a
node, they are kept; members beyond the minimum without a node stay pending. Otherwise all assumptions are undone in reverse
order: a gang that waits holds nothing.

An attempt pauses when a step has lasted long enough (`Pause`). The members placed so far stay assumed meanwhile, so no other
pod takes their room. Closing the attempt during a pause undoes it.

If plugins have remote requests about members, no member is assumed before these have been answered (`gang_requests.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Sequence
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
from multisched.cycle.gang_requests import NOT_ASKED, Asked, GangRequests, Late
from multisched.cycle.gang_topology import GangTopology, Need, lacking
from multisched.cycle.preemption.group_trial import GroupOfPods
from multisched.cycle.preemption.nominated_pods import NominatedPodsFilter
from multisched.cycle.preemption.post_filter import CLEARED, PostFilterOutcome
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
from multisched.framework.node_view import Bools, any_true
from multisched.framework.points import QueuedGang, QueuedPod
from multisched.framework.runner import PluginFailure, Runner
from multisched.framework.status import Status
from multisched.framework.step_budget import StepBudget
from multisched.model.objects import Pod
from multisched.state.cluster_cache import ClusterCache
from multisched.state.domain_rows import DomainRows
from multisched.state.transaction import Transaction

ROOM_FROM: Final = 16
"""If at least this many members must start together, free resources are checked before the first one is placed."""

PLACEMENTS_MAX: Final = 20_000
"""Placements that one attempt may undo before it tries no further topology domain or order."""

TOO_LONG: Final = (
    f"the search for nodes was given up for now after {PAUSES_MAX} steps; it is shorter if members are identical, or have fewer"
    " affinity terms, or the gang has fewer topology levels"
)

R = TypeVar("R")

Best = Callable[[Choice, Pod, int, int], list[int]]
"""Returns positions of the best rows of a choice (`SchedulingCycle`)."""
Paused = Generator[Sequence[RemoteRequest] | Pause, Any, R]
"""Yields pauses and remote requests, and returns a result."""


class Refused(msgspec.Struct, frozen=True):
    """Why a member of the gang found no node."""

    entry: QueuedPod
    message: str
    rejectors: frozenset[str] = frozenset()
    pending: frozenset[str] = frozenset()
    is_error: bool = False
    condition_reason: str = ""


class _Try:
    """Placed and refused members of one try: within one topology domain and in one order."""

    def __init__(self, members: Sequence[QueuedPod], allowed: Bools | None, transaction: Transaction) -> None:
        self.members = members
        self.allowed = allowed
        self.transaction = transaction
        self.placed: list[Placed] = []
        self.refused: dict[str, Refused] = {}
        self.hopeless: dict[Hashable, bool] = {}
        """Signature of a class that no node takes in this round -> whether a node may once other members are placed."""
        self.curable: set[str] = set()
        """uids of members without a node that may get one once other members are placed."""
        self.unasked: list[QueuedPod] = []
        """Members that some node would take in this round, but remote plugins were not asked about them."""
        self.is_kept = False

    def forget_refusals(self, entries: Iterable[QueuedPod]) -> None:
        for entry in entries:
            self.refused.pop(entry.pod.uid, None)


class GangAttempts:
    """Gang attempts of one domain."""

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
        make_room: Callable[[GroupOfPods, Effort], Generator[None, None, PostFilterOutcome]],
        budget: StepBudget,
    ) -> None:
        """`as_nominated`: returns the pod with its nominated node.

        `make_room`: runs PostFilter for the members that must start.
        """
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
        """Decides all members. Never raises for a plugin's failure."""
        self._runner.begin_attempt()
        effort = Effort(self._budget)
        why_not = _why_incomplete(gang)
        if why_not:
            return _none_of(gang, None, why_not)
        why_not = yield from self._why_no_room(gang, effort)
        if why_not:
            return (yield from self._with_room(gang, _none_of(gang, None, why_not)))
        requests = GangRequests(self._cache, self._rows, self._classes, self._nominated, self._remote)
        yield from requests.before_all(gang.members, effort.is_pause_due)
        topology = (yield from self._topology(gang, effort)) if gang.topology else None
        furthest: _Try | None = None
        undone = 0
        for allowed in (None,) if topology is None else topology.masks():
            for members in _orders(gang):
                found = yield from self._try(gang, members, allowed, requests, effort)
                if found.is_kept:
                    return _some_of(gang, found)
                undone += len(found.placed)
                if furthest is None or len(found.placed) > len(furthest.placed):
                    furthest = found
                if effort.is_exhausted:
                    return _none_of(gang, furthest, TOO_LONG)
            if undone > PLACEMENTS_MAX:
                break
        if furthest is None and topology is not None:
            return (yield from self._with_room(gang, _none_of(gang, None, topology.shortage())))
        return (yield from self._with_room(gang, _none_of(gang, furthest, _why_stuck(gang, furthest))))

    def _with_room(self, gang: QueuedGang, result: GangResult) -> Paused[GangResult]:
        """Runs PostFilter for the members that must start, and returns the refusal with its nominated nodes and victims.

        If the gang must stay in one topology domain, room is made in one domain only.
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
            after: PostFilterOutcome = ended.value
        finally:
            search.close()
        if after.nominated_node is None and self._cache.gangs.reserving(key) is Reserving.ENDED:
            after = replace(after, nominated_node=CLEARED)
        refused = tuple(_with_aftermath(one, after) for one in result.unplaced)
        self._complete_records(gang, refused, after)
        return GangResult((), refused)

    def _complete_records(self, gang: QueuedGang, refused: Iterable[Unplaced], after: PostFilterOutcome) -> None:
        """Adds to the members' records that PostFilter ran for all of them together."""
        attempts = {entry.pod.uid: entry.attempts for entry in gang.members}
        for one in refused:
            kept = self._as_nominated(one.pod).nominated_node
            self._records.gang_refused(
                one.pod,
                attempts[one.pod.uid],
                post_filter=after.sentence,
                nominated_node=kept if one.nominated_node is None else one.nominated_node,
                preemption=one.preemption,
                message=one.message,
            )

    def _try(
        self,
        gang: QueuedGang,
        members: Sequence[QueuedPod],
        allowed: Bools | None,
        requests: GangRequests,
        effort: Effort,
    ) -> Paused[_Try]:
        """Places all members that must start, or none: undoes everything if too few fit or the attempt is closed in a pause."""
        requests.forget_later()
        with Transaction(self._cache) as transaction:
            found = _Try(members, allowed, transaction)
            try:
                yield from self._place_all(gang, found, requests, effort)
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

    # -- room and topology -----------------------------------------------------------------------------------------

    def _why_no_room(self, gang: QueuedGang, effort: Effort) -> Paused[str]:
        """Returns why the nodes have too little room for the gang in any distribution, without placing a member; else ""."""
        if sum(gang.needs.values()) < ROOM_FROM:
            return ""
        needs = yield from self._needs(_needed(gang), effort, is_loose=True)
        short = lacking(self._cache.nodes, self._rows.rows, needs)
        if short is None:
            return ""
        need, room = short
        return f"the nodes have room for {room} of the {need.count} identical members that must start together"

    def _topology(self, gang: QueuedGang, effort: Effort, *, is_loose: bool = False) -> Paused[GangTopology]:
        """Builds the topology of the gang. `is_loose`: see `_needs`."""
        needs = yield from self._needs(_needed(gang), effort, is_loose=is_loose)
        is_elastic = len(gang.members) > sum(gang.needs.values())
        waiting = (yield from self._needs(gang.members, effort, is_loose=is_loose)) if is_elastic else ()
        nodes = self._cache.nodes
        placed_rows = np.array([row for row in map(nodes.row_of, gang.member_nodes) if row is not None], np.intp)
        return GangTopology(nodes, self._rows.rows, gang.topology, needs, placed_rows, waiting)

    def _needs(self, members: Iterable[QueuedPod], effort: Effort, *, is_loose: bool) -> Paused[list[Need]]:
        """Groups identical members, with the rows feasible for one now; `is_loose`: all rows, as other pods may change that."""
        by_signature: dict[Hashable, list[QueuedPod]] = {}
        for entry in members:
            if effort.is_pause_due():
                yield Pause()
            try:
                signature = self._classes.signature(entry.pod)
            except PluginFailure:
                continue
            by_signature.setdefault(entry.pod.uid if signature is None else signature, []).append(entry)
        needs = []
        for entries in by_signature.values():
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

    def _place_all(self, gang: QueuedGang, found: _Try, requests: GangRequests, effort: Effort) -> Paused[None]:
        """Places all members. Members with affinity to other members are retried after others were placed; no others are.

        Members that no node took when the remote plugins were asked are asked about after the round.
        """
        left: Sequence[QueuedPod] = found.members
        spare = Counter(_keys(gang, left))
        spare.subtract(gang.needs)
        while left:
            found.hopeless = {}
            found.unasked = []
            before, again = len(found.placed), list[QueuedPod]()
            for entry in left:
                if effort.is_exhausted:
                    return
                if effort.is_pause_due():
                    yield Pause(found.placed)
                if self._place(entry, found, requests):
                    continue
                if entry.pod.uid in found.curable:
                    again.append(entry)
                    continue
                key = gang.gang_of[entry.pod.uid]
                spare[key] -= 1
                if spare[key] < 0:
                    return  # too few are left
            has_answers = bool(found.unasked) and (yield from requests.later(found.unasked, found.placed))
            if has_answers:
                found.forget_refusals(found.unasked)
            if len(found.placed) == before and not has_answers:
                return
            left = again

    def _place(self, entry: QueuedPod, found: _Try, requests: GangRequests) -> bool:
        """Decides one member, with those placed before it assumed. Skips the search if its class was refused in this round."""
        self._runner.begin_attempt()
        pod, attempt = self._as_nominated(entry.pod), entry.attempts
        found.curable.discard(pod.uid)
        try:
            pod_class = self._classes.find(pod, attempt)
            is_curable = found.hopeless.get(pod_class.signature)
            if is_curable is None or pod_class.signature is None:
                result = self._decide(entry, pod, pod_class, found, requests)
                is_unasked = bool(found.unasked) and found.unasked[-1] is entry
                is_curable = isinstance(result, Unplaced) and (pod_class.relates or is_unasked)
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
            found.refused.setdefault(pod.uid, _refusal(entry, result, requests.of(pod.uid)))
        return False

    def _decide(
        self,
        entry: QueuedPod,
        pod: Pod,
        pod_class: EquivalenceClass,
        found: _Try,
        requests: GangRequests,
    ) -> Result:
        """Decides a member of a class. `pod`: with its nominated node. Raises PluginFailure."""
        attempt = entry.attempts
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
        if not any_true(feasible):
            return self._refused(pod, attempt, pod_class, found)
        asked = requests.of(pod.uid)
        if asked is None and requests.are_any:
            found.unasked.append(entry)
            names = map(self._cache.nodes.node, pod_class.rows[feasible].tolist())
            refused = self._refused(pod, attempt, pod_class, found, [(node.name, NOT_ASKED) for node in names])
            found.hopeless.pop(pod_class.signature, None)  # other members of the class are asked about, too
            return refused
        at = self._chosen(pod, attempt, pod_class, feasible, requests)
        if not isinstance(at, int):
            return self._refused(pod, attempt, pod_class, found, at)
        return self._commit.commit_now(pod_class, pod, attempt, at, found.transaction)

    def _chosen(
        self,
        pod: Pod,
        attempt: int,
        pod_class: EquivalenceClass,
        feasible: Bools,
        requests: GangRequests,
    ) -> int | Late:
        """Returns the position of the best remaining row; the late refusals if the remote responses leave none.

        Scores are normalised over all feasible rows of the class, whatever the topology leaves of them.
        """
        asked = requests.of(pod.uid)
        if asked is None or not asked.requests:
            if pod_class.is_of_one_row:
                return 0
            self._classes.score(pod_class)
            total = pod_class.total
            if feasible is not pod_class.feasible:
                total = np.where(feasible, total, NOWHERE).astype(total.dtype)
            return self._best(Choice(pod_class.rows, feasible, total), pod, attempt, 1)[0]
        choice, late = requests.choice(pod, pod_class, feasible, asked)
        return self._best(choice, pod, attempt, 1)[0] if any_true(choice.feasible) else late

    def _refused(self, pod: Pod, attempt: int, pod_class: EquivalenceClass, found: _Try, late: Late = ()) -> Unplaced:
        """Records and returns the refusal as of this moment, with the members before it placed. `late`: refused after asking."""
        if pod_class.signature is not None:
            found.hopeless[pod_class.signature] = pod_class.relates
        blocked = self._nominated.blocked(pod_class, pod, attempt, everywhere=True)
        why = diagnose(pod_class, self._cache.nodes, blocked=blocked).with_more(late)
        message = fit_error(why)
        if found.allowed is not None and why.pre_filter is None:
            message = f"{message.rstrip('.')}, in the topology domain that was tried."
        self._records.refused(
            pod,
            attempt,
            pod_class,
            replace(why, nodes=(), verdicts=None, blocked={}),
            blocked=why.blocked,
            late=[one for one in late if one[1] is not NOT_ASKED],
            post_filter="",
            nominated_node="",
            preemption=None,
            message=message,
        )
        reason = "" if why.pre_filter is None else why.pre_filter.condition_reason
        return Unplaced(pod, message, why.rejectors, why.pending, condition_reason=reason)


# -- members and their order -------------------------------------------------------------------------------------------


def _keys(gang: QueuedGang, entries: Sequence[QueuedPod]) -> Iterator[str]:
    return (gang.gang_of[entry.pod.uid] for entry in entries)


def _needed(gang: QueuedGang) -> Iterator[QueuedPod]:
    """Yields the members that must start: as many of each gang as it needs, those of highest priority first."""
    left = Counter(gang.needs)
    for entry in gang.members:
        key = gang.gang_of[entry.pod.uid]
        if left[key] > 0:
            left[key] -= 1
            yield entry


def _is_alike(gang: QueuedGang) -> bool:
    return len({id(entry.pod.spec) for entry in gang.members}) == 1


def _orders(gang: QueuedGang) -> Iterator[Sequence[QueuedPod]]:
    """Yields the members by priority; then, if that differs and the first order failed, by priority and size, largest first."""
    yield gang.members
    if not _is_alike(gang):
        by_size = sorted(gang.members, key=_importance_and_size)
        if by_size != list(gang.members):
            yield by_size


def _importance_and_size(entry: QueuedPod) -> tuple[int, ...]:
    requests = entry.pod.requests
    return -entry.pod.spec.priority, *(-requests[resource] for resource in sorted(requests))


# -- results ---------------------------------------------------------------------------------------------------------------


def _lacking(gang: QueuedGang, found: _Try) -> tuple[str, int] | None:
    """Returns a gang of which too few members are placed, and how many are; None if there is none."""
    counts = Counter(gang.gang_of[placed.pod.uid] for placed in found.placed)
    return next(((key, counts[key]) for key, need in gang.needs.items() if counts[key] < need), None)


def _why_incomplete(gang: QueuedGang) -> str:
    """Returns why the gang is incomplete: a plugin holds members in the queue, so fewer are pending than must start; else ""."""
    counts = Counter(_keys(gang, gang.members))
    for key, need in gang.needs.items():
        if counts[key] < need:
            whose = f"gang {key}: " if len(gang.needs) > 1 else ""
            return f"{whose}{counts[key]} of the {need} members that must start together can be tried"
    return ""


def _why_stuck(gang: QueuedGang, found: _Try | None) -> str:
    short = None if found is None else _lacking(gang, found)
    if found is None or short is None:
        return "no member could be tried"
    key, count = short
    if len(gang.members) == 1 and found.refused:
        return next(iter(found.refused.values())).message
    whose = f"gang {key}: " if len(gang.needs) > 1 else ""
    text = f"{whose}{count} of the {gang.needs[key]} members that must start together fit"
    first = next((one for uid, one in found.refused.items() if gang.gang_of[uid] == key), None)
    if first is None or len({entry.pod.namespace for entry in gang.members}) > 1:
        return text  # all members get the same text, which must not reveal pods of another namespace
    return f"{text}; {first.entry.pod.name}: {first.message}"


def _none_of(gang: QueuedGang, found: _Try | None, why: str) -> GangResult:
    """Returns the result with no member placed. All get the text with the progress and the first refusal; that member is first."""
    late = f" {gang.overdue}" if gang.overdue else ""
    text = f"gang {gang.name}{late}: {why}"
    first = None if found is None else _first_refused(gang, found)
    rejectors = frozenset({GANG_PLUGIN}) if first is None or not _is_alike(gang) else frozenset[str]()
    order = list(gang.members)
    if first is not None:
        order.sort(key=lambda entry: entry is not first.entry)
    return GangResult((), tuple(_unplaced(entry, first, text, rejectors) for entry in order))


def _some_of(gang: QueuedGang, found: _Try) -> GangResult:
    """Returns the result with the placed members; the others, beyond the minimum, stay pending."""
    placed_uids = {placed.pod.uid for placed in found.placed}
    some = next(iter(found.refused.values()), None)
    rest = [
        (entry, found.refused.get(entry.pod.uid, some)) for entry in gang.members if entry.pod.uid not in placed_uids
    ]
    unplaced = (_unplaced(entry, why, "" if why is None else why.message, frozenset()) for entry, why in rest)
    return GangResult(tuple(found.placed), tuple(unplaced))


def _first_refused(gang: QueuedGang, found: _Try) -> Refused | None:
    short = _lacking(gang, found)
    own = [one for uid, one in found.refused.items() if short is None or gang.gang_of[uid] == short[0]]
    return own[0] if own else next(iter(found.refused.values()), None)


def _refusal(entry: QueuedPod, result: Unplaced | Conflicted, asked: Asked | None) -> Refused:
    if isinstance(result, Conflicted):
        by = frozenset({result.rejector or GANG_PLUGIN})
        return Refused(entry, result.refusal or "its node was taken", by)
    rejectors = result.rejectors if asked is None or not asked.requests else result.rejectors | asked.rejectors
    return Refused(entry, result.message, rejectors, result.pending, result.is_error, result.condition_reason)


def _with_aftermath(refused: Unplaced, after: PostFilterOutcome) -> Unplaced:
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
    """Builds the refusal of one member. `rejectors`: further ones, in addition to those of `refused`."""
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
