"""Gang attempts: schedules the pending members of a gang one after the other, on the node table itself.

Each member is decided like a single pod, with the members before it already assumed. If every gang reaches its minimum, the
assumptions are kept, and members beyond the minimum without a node stay pending. Otherwise all assumptions are undone in
reverse order, so that a waiting gang holds no capacity.

An attempt pauses when a step has lasted long enough (`Pause`). The members placed so far stay assumed during the pause, so
that no other pod takes their capacity. Closing the attempt during a pause undoes it.

Remote requests of plugins are sent before the first member is assumed. If a member gets a feasible node only after other members
have been assumed, its requests are sent then (`gang_requests.py`).
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
from multisched.cycle.gang_requests import NOT_ASKED, Asked, GangRequests, RemoteRefusals
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

CAPACITY_CHECK_MIN_MEMBERS: Final = 16
"""If at least this many members must start together, free resources are checked before the first member is placed."""

UNDONE_PLACEMENTS_MAX: Final = 20_000
"""After this many undone placements, an attempt tries no further topology domain."""

TOO_LONG: Final = (
    f"the search for nodes was stopped after {PAUSES_MAX} steps and will be retried; identical members, fewer affinity terms or"
    " fewer topology levels make it shorter"
)

R = TypeVar("R")

Best = Callable[[Choice, Pod, int, int], list[int]]
"""(choice, pod, number of its attempt, count) -> positions of the `count` best rows of the choice (`SchedulingCycle`)."""
Pausable = Generator[Sequence[RemoteRequest] | Pause, Any, R]
"""A search that yields pauses and remote requests, and returns a result."""


class Refused(msgspec.Struct, frozen=True):
    """A member without a feasible node, and the reason."""

    entry: QueuedPod
    message: str
    rejectors: frozenset[str] = frozenset()
    pending: frozenset[str] = frozenset()
    is_error: bool = False
    condition_reason: str = ""


class _Try:
    """The placed and refused members of one try, which uses one topology domain and one order of the members."""

    def __init__(self, members: Sequence[QueuedPod], allowed: Bools | None, transaction: Transaction) -> None:
        self.members = members
        self.allowed = allowed
        """bool[rows of the table]: the rows of the topology domain; None: all rows."""
        self.transaction = transaction
        self.placed: list[Placed] = []
        self.refused: dict[str, Refused] = {}
        self.infeasible_classes: dict[Hashable, bool] = {}
        """Signature of a class without a feasible node in this round -> whether placing other members may make a node feasible."""
        self.retriable: set[str] = set()
        """UIDs of refused members for which placing other members may make a node feasible."""
        self.unasked: list[QueuedPod] = []
        """Members with a feasible node in this round, about which no remote request has been sent."""
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
        run_post_filter: Callable[[GroupOfPods, Effort], Generator[None, None, PostFilterOutcome]],
        budget: StepBudget,
    ) -> None:
        """`as_nominated`: returns the pod with its nominated node.

        `run_post_filter`: runs PostFilter for all members that must start together.
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
        self._run_post_filter = run_post_filter

    def attempt(self, gang: QueuedGang) -> GangAttempt:
        """Decides all members. A plugin failure becomes a refusal of the member, and is not raised."""
        self._runner.begin_attempt()
        effort = Effort(self._budget)
        why_not = _why_incomplete(gang)
        if why_not:
            return _result_without_placements(gang, None, why_not)
        why_not = yield from self._why_no_capacity(gang, effort)
        if why_not:
            return (yield from self._with_post_filter(gang, _result_without_placements(gang, None, why_not)))
        requests = GangRequests(self._cache, self._rows, self._classes, self._nominated, self._remote)
        yield from requests.before_all(gang.members, effort.is_pause_due)
        topology = (yield from self._topology(gang, effort)) if gang.topology else None
        furthest: _Try | None = None
        undone = 0
        for allowed in (None,) if topology is None else topology.masks():
            for members in _orders(gang):
                found = yield from self._try(gang, members, allowed, requests, effort)
                if found.is_kept:
                    return _result_with_placements(gang, found)
                undone += len(found.placed)
                if furthest is None or len(found.placed) > len(furthest.placed):
                    furthest = found
                if effort.is_exhausted:
                    return _result_without_placements(gang, furthest, TOO_LONG)
            if undone > UNDONE_PLACEMENTS_MAX:
                break
        if furthest is None and topology is not None:
            return (
                yield from self._with_post_filter(gang, _result_without_placements(gang, None, topology.shortage()))
            )
        return (
            yield from self._with_post_filter(
                gang, _result_without_placements(gang, furthest, _why_stuck(gang, furthest))
            )
        )

    def _with_post_filter(self, gang: QueuedGang, result: GangResult) -> Pausable[GangResult]:
        """Runs PostFilter for the members that must start, and adds its nominated nodes and victims to their refusals.

        If the gang must stay in one topology domain, all victims are in one domain.
        """
        effort = Effort(self._budget)
        domains: tuple[Bools, ...] = ()
        if any(level.is_required for level in gang.topology):
            domains = (yield from self._topology(gang, effort, uses_all_rows=True)).to_clear()
            if not domains:
                return result
        pods = tuple(self._as_nominated(entry.pod) for entry in _needed(gang))
        key = gang.gang_of[gang.members[0].pod.uid]
        search = self._run_post_filter(GroupOfPods(gang.name, pods, gang.members[0].attempts, domains=domains), effort)
        try:
            while True:
                next(search)
                yield Pause()
        except StopIteration as ended:
            outcome: PostFilterOutcome = ended.value
        finally:
            search.close()
        if outcome.nominated_node is None and self._cache.gangs.reserving(key) is Reserving.ENDED:
            outcome = replace(outcome, nominated_node=CLEARED)
        refused = tuple(_with_outcome(one, outcome) for one in result.unplaced)
        self._complete_records(gang, refused, outcome)
        return GangResult((), refused)

    def _complete_records(self, gang: QueuedGang, refused: Iterable[Unplaced], outcome: PostFilterOutcome) -> None:
        """Adds the outcome of PostFilter, which ran once for the whole gang, to the record of each refused member."""
        attempts = {entry.pod.uid: entry.attempts for entry in gang.members}
        for one in refused:
            kept = self._as_nominated(one.pod).nominated_node
            self._records.gang_refused(
                one.pod,
                attempts[one.pod.uid],
                post_filter=outcome.sentence,
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
    ) -> Pausable[_Try]:
        """Places the members, and undoes all placements if too few members fit or the attempt is closed during a pause."""
        requests.forget_later()
        with Transaction(self._cache) as transaction:
            found = _Try(members, allowed, transaction)
            try:
                yield from self._place_all(gang, found, requests, effort)
                if _gang_below_minimum(gang, found) is None:
                    transaction.keep()
                    found.is_kept = True
            finally:
                if not found.is_kept:
                    why = Status.unschedulable(f"its gang could not start: {_why_stuck(gang, found)}")
                    not_started = replace(why, plugin=GANG_PLUGIN)
                    for placed in reversed(found.placed):
                        self._commit.unreserve(placed, not_started)
        return found

    # -- capacity and topology --------------------------------------------------------------------------------------

    def _why_no_capacity(self, gang: QueuedGang, effort: Effort) -> Pausable[str]:
        """Returns why the free resources are too few however the members are distributed; "" if they may suffice. Places no member."""
        if sum(gang.needs.values()) < CAPACITY_CHECK_MIN_MEMBERS:
            return ""
        needs = yield from self._needs(_needed(gang), effort, uses_all_rows=True)
        short = lacking(self._cache.nodes, self._rows.rows, needs)
        if short is None:
            return ""
        need, room = short
        return f"the nodes have room for {room} of the {need.count} identical members that must start together"

    def _topology(self, gang: QueuedGang, effort: Effort, *, uses_all_rows: bool = False) -> Pausable[GangTopology]:
        """Builds the topology of the gang. `uses_all_rows`: see `_needs`."""
        needs = yield from self._needs(_needed(gang), effort, uses_all_rows=uses_all_rows)
        is_elastic = len(gang.members) > sum(gang.needs.values())
        waiting = (yield from self._needs(gang.members, effort, uses_all_rows=uses_all_rows)) if is_elastic else ()
        nodes = self._cache.nodes
        placed_rows = np.array([row for row in map(nodes.row_of, gang.member_nodes) if row is not None], np.intp)
        return GangTopology(nodes, self._rows.rows, gang.topology, needs, placed_rows, waiting)

    def _needs(self, members: Iterable[QueuedPod], effort: Effort, *, uses_all_rows: bool) -> Pausable[list[Need]]:
        """Groups identical members. Each group has the rows that are feasible for one member now.

        `uses_all_rows`: each group has all rows of the domain instead, because evictions or other members may make them feasible.
        """
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
            has_all_rows = uses_all_rows or pod_class.relates or pod_class.refusal is not None
            rows = self._rows.rows if has_all_rows else pod_class.rows[pod_class.feasible]
            needs.append(Need(len(entries), entry.pod.requests, rows))
        return needs

    # -- placing ---------------------------------------------------------------------------------------------------

    def _place_all(self, gang: QueuedGang, found: _Try, requests: GangRequests, effort: Effort) -> Pausable[None]:
        """Places the members in rounds, until a round places none or too few members remain.

        A refused member is retried in the next round only if its filters depend on other pods, or if it had no feasible node when
        the remote requests of the attempt were sent but has one now. Its remote requests are sent at the end of the round.
        """
        left: Sequence[QueuedPod] = found.members
        spare = Counter(_keys(gang, left))
        spare.subtract(gang.needs)
        while left:
            found.infeasible_classes = {}
            found.unasked = []
            before, again = len(found.placed), list[QueuedPod]()
            for entry in left:
                if effort.is_exhausted:
                    return
                if effort.is_pause_due():
                    yield Pause(found.placed)
                if self._place(entry, found, requests):
                    continue
                if entry.pod.uid in found.retriable:
                    again.append(entry)
                    continue
                key = gang.gang_of[entry.pod.uid]
                spare[key] -= 1
                if spare[key] < 0:
                    return  # too few members remain for the gang's minimum
            has_answers = bool(found.unasked) and (yield from requests.later(found.unasked, found.placed))
            if has_answers:
                found.forget_refusals(found.unasked)
            if len(found.placed) == before and not has_answers:
                return
            left = again

    def _place(self, entry: QueuedPod, found: _Try, requests: GangRequests) -> bool:
        """Decides one member on top of the assumed ones. Skips the search if its class was already refused in this round."""
        self._runner.begin_attempt()
        pod, attempt = self._as_nominated(entry.pod), entry.attempts
        found.retriable.discard(pod.uid)
        try:
            pod_class = self._classes.find(pod, attempt)
            is_retriable = found.infeasible_classes.get(pod_class.signature)
            if is_retriable is None or pod_class.signature is None:
                result = self._decide(entry, pod, pod_class, found, requests)
                is_unasked = bool(found.unasked) and found.unasked[-1] is entry
                is_retriable = isinstance(result, Unplaced) and (pod_class.relates or is_unasked)
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
        if is_retriable:
            found.retriable.add(pod.uid)
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
        """Decides one member. `pod`: the member's pod with its nominated node. `pod_class`: its class. Raises PluginFailure."""
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
            # `_refused` has noted the class as infeasible. Other members of the class are not skipped: they need requests, too.
            found.infeasible_classes.pop(pod_class.signature, None)
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
    ) -> int | RemoteRefusals:
        """Returns the position of the best feasible row; if the remote plugins refused all of them, these refusals.

        Scores are normalised over all feasible rows of the class, also those outside the topology domain.
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
        choice, remote_refusals = requests.choice(pod, pod_class, feasible, asked)
        return self._best(choice, pod, attempt, 1)[0] if any_true(choice.feasible) else remote_refusals

    def _refused(
        self,
        pod: Pod,
        attempt: int,
        pod_class: EquivalenceClass,
        found: _Try,
        remote_refusals: RemoteRefusals = (),
    ) -> Unplaced:
        """Records and returns the refusal. The placed members stay assumed."""
        if pod_class.signature is not None:
            found.infeasible_classes[pod_class.signature] = pod_class.relates
        blocked = self._nominated.blocked(pod_class, pod, attempt, everywhere=True)
        why = diagnose(pod_class, self._cache.nodes, blocked=blocked).with_more(remote_refusals)
        message = fit_error(why)
        if found.allowed is not None and why.pre_filter is None:
            message = f"{message.rstrip('.')}, in the topology domain that was tried."
        self._records.refused(
            pod,
            attempt,
            pod_class,
            replace(why, nodes=(), verdicts=None, blocked={}),
            blocked=why.blocked,
            remote_refusals=[one for one in remote_refusals if one[1] is not NOT_ASKED],
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


def _are_identical(gang: QueuedGang) -> bool:
    return len({id(entry.pod.spec) for entry in gang.members}) == 1


def _orders(gang: QueuedGang) -> Iterator[Sequence[QueuedPod]]:
    """Yields the members by priority; then, if the result is another order, by priority and size, the largest first."""
    yield gang.members
    if not _are_identical(gang):
        by_size = sorted(gang.members, key=_importance_and_size)
        if by_size != list(gang.members):
            yield by_size


def _importance_and_size(entry: QueuedPod) -> tuple[int, ...]:
    requests = entry.pod.requests
    return -entry.pod.spec.priority, *(-requests[resource] for resource in sorted(requests))


# -- results ---------------------------------------------------------------------------------------------------------------


def _gang_below_minimum(gang: QueuedGang, found: _Try) -> tuple[str, int] | None:
    """Returns (key of the first gang with fewer placed members than it needs, number of its placed members); None if all have enough."""
    counts = Counter(gang.gang_of[placed.pod.uid] for placed in found.placed)
    return next(((key, counts[key]) for key, need in gang.needs.items() if counts[key] < need), None)


def _why_incomplete(gang: QueuedGang) -> str:
    """Returns why too few members can be tried, because plugins hold some of them in the queue; "" if there are enough."""
    counts = Counter(_keys(gang, gang.members))
    for key, need in gang.needs.items():
        if counts[key] < need:
            whose = f"gang {key}: " if len(gang.needs) > 1 else ""
            return f"{whose}{counts[key]} of the {need} members that must start together can be tried"
    return ""


def _why_stuck(gang: QueuedGang, found: _Try | None) -> str:
    short = None if found is None else _gang_below_minimum(gang, found)
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


def _result_without_placements(gang: QueuedGang, found: _Try | None, why: str) -> GangResult:
    """Returns the result without placed members. All members get the same text; the member whose refusal it quotes is first."""
    overdue = f" {gang.overdue}" if gang.overdue else ""
    text = f"gang {gang.name}{overdue}: {why}"
    first = None if found is None else _first_refused(gang, found)
    rejectors = frozenset({GANG_PLUGIN}) if first is None or not _are_identical(gang) else frozenset[str]()
    order = list(gang.members)
    if first is not None:
        order.sort(key=lambda entry: entry is not first.entry)
    return GangResult((), tuple(_unplaced(entry, first, text, rejectors) for entry in order))


def _result_with_placements(gang: QueuedGang, found: _Try) -> GangResult:
    """Returns the result with the placed members. Members beyond the minimum that found no node stay pending."""
    placed_uids = {placed.pod.uid for placed in found.placed}
    some = next(iter(found.refused.values()), None)
    rest = [
        (entry, found.refused.get(entry.pod.uid, some)) for entry in gang.members if entry.pod.uid not in placed_uids
    ]
    unplaced = (_unplaced(entry, why, "" if why is None else why.message, frozenset()) for entry, why in rest)
    return GangResult(tuple(found.placed), tuple(unplaced))


def _first_refused(gang: QueuedGang, found: _Try) -> Refused | None:
    short = _gang_below_minimum(gang, found)
    own = [one for uid, one in found.refused.items() if short is None or gang.gang_of[uid] == short[0]]
    return own[0] if own else next(iter(found.refused.values()), None)


def _refusal(entry: QueuedPod, result: Unplaced | Conflicted, asked: Asked | None) -> Refused:
    if isinstance(result, Conflicted):
        by = frozenset({result.rejector or GANG_PLUGIN})
        return Refused(entry, result.refusal or "its node was taken", by)
    rejectors = result.rejectors if asked is None or not asked.requests else result.rejectors | asked.rejectors
    return Refused(entry, result.message, rejectors, result.pending, result.is_error, result.condition_reason)


def _with_outcome(refused: Unplaced, outcome: PostFilterOutcome) -> Unplaced:
    message = f"{refused.message.rstrip('.')}. {outcome.sentence}" if outcome.sentence else refused.message
    if outcome.preemption is None:
        return replace(
            refused,
            message=message,
            rejectors=refused.rejectors | outcome.rejectors,
            nominated_node=outcome.nominated_node,
        )
    node = outcome.preemption.node_of(refused.pod.uid)
    return replace(refused, message=message, nominated_node=node, preemption=outcome.preemption if node else None)


def _unplaced(entry: QueuedPod, refused: Refused | None, text: str, rejectors: frozenset[str]) -> Unplaced:
    """Builds the refusal of one member. `rejectors`: added to those of `refused`."""
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
