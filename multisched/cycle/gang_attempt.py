"""Gang attempts: the members that wait are decided one after the other, on the table itself, within one synchronous step.

Each member is decided as a single pod is, by what those before it have left. If every gang gets as many as it needs, they stand;
members beyond the minimum that found no node wait on. Otherwise everything is taken back in reverse order, and nobody has
seen anything in between: nothing is held while a gang waits.

Where members ask outside, all are asked before the first is assumed; a node that was not asked about is then left out.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence

import msgspec
import numpy as np
from msgspec.structs import replace

from multisched.cycle.classes.cache import ClassCache
from multisched.cycle.classes.equivalence_class import EquivalenceClass
from multisched.cycle.classes.scores import NOWHERE
from multisched.cycle.commit_step import CommitStep
from multisched.cycle.diagnosis import diagnose, fit_error
from multisched.cycle.gang_topology import Need, lacking, masks
from multisched.cycle.preemption.nominated_pods import NominatedPodsFilter
from multisched.cycle.remote_responses import Choice, RemoteResponses
from multisched.cycle.results import Conflicted, GangAttempt, GangResult, Placed, RemoteRequest, Unplaced
from multisched.framework.node_view import Bools, Rows, any_true
from multisched.framework.points import QueuedGang, QueuedPod
from multisched.framework.runner import PluginFailure, Runner
from multisched.model.objects import Pod, Requests
from multisched.state.cluster_cache import ClusterCache
from multisched.state.domain_rows import DomainRows
from multisched.state.transaction import Transaction

ROOM_FROM = 16
"""Members that must start together from which on their room is looked at before the first is placed."""
GANG = "GangScheduling"
"""The plugin by whose events gangs are woken."""

Best = Callable[[Choice, Pod, int, int], list[int]]
"""Positions of the best rows of a choice (`SchedulingCycle`)."""


class Refused(msgspec.Struct, frozen=True):
    """Why a member found no node beside those that did."""

    entry: QueuedPod
    message: str
    rejectors: frozenset[str] = frozenset()
    pending: frozenset[str] = frozenset()
    is_error: bool = False


class _Asked(msgspec.Struct, frozen=True):
    """What was asked outside about one member."""

    requests: Sequence[RemoteRequest]
    rows: Rows
    generation: int


class _Try:
    """Who stands, and who does not, within one topology domain."""

    def __init__(self, allowed: Bools | None, transaction: Transaction) -> None:
        self.allowed = allowed
        self.transaction = transaction
        self.placed: list[Placed] = []
        self.refused: dict[str, Refused] = {}


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
        best: Best,
    ) -> None:
        self._runner = runner
        self._cache = cache
        self._rows = rows
        self._classes = classes
        self._nominated = nominated
        self._remote = remote
        self._commit = commit
        self._best = best

    def attempt(self, gang: QueuedGang) -> GangAttempt:
        """Decides all members. Never raises for what a plugin does."""
        self._runner.begin_attempt()
        hopeless = self._without_room(gang)
        if hopeless is not None:
            return hopeless
        asked = dict(self._asked_outside(gang))
        requests = [one for each in asked.values() for one in each.requests]
        answers = (yield requests) if requests else {}
        worst: _Try | None = None
        for allowed in self._masks(gang):
            with Transaction(self._cache) as transaction:
                found = _Try(allowed, transaction)
                self._place_all(gang, found, asked, answers)
                if self._is_enough(gang, found):
                    transaction.keep()
                    return self._settled(gang, found)
                for placed in reversed(found.placed):
                    self._commit.unreserve(placed)
            if worst is None or len(found.placed) > len(worst.placed):
                worst = found
        return self._refused(gang, worst)

    # -- outside ---------------------------------------------------------------------------------------------------

    def _asked_outside(self, gang: QueuedGang) -> Iterator[tuple[str, _Asked]]:
        for entry in gang.members:
            try:
                pod_class = self._classes.find(entry.pod, entry.attempts)
                if pod_class.refusal is None and any_true(pod_class.feasible):
                    requests = self._remote.requests(pod_class, entry.pod)
                    if requests:
                        named = [replace(one, uid=entry.pod.uid) for one in requests]
                        yield entry.pod.uid, _Asked(named, pod_class.rows[pod_class.feasible], self._rows.generation)
            except PluginFailure:
                continue  # the member hears of it when it is decided

    # -- room and topology -----------------------------------------------------------------------------------------

    def _without_room(self, gang: QueuedGang) -> GangResult | None:
        """The refusal of a gang for which the nodes are too full however it is spread: found without placing anybody."""
        if sum(gang.needs.values()) < ROOM_FROM:
            return None
        short = lacking(self._cache.nodes, self._rows.rows, self._needs(gang, is_loose=True))
        if short is None:
            return None
        need, room = short
        text = (
            f"gang {gang.name}: the nodes have room for {room} of the {need.count} members"
            f" that are alike and must start together"
        )
        return GangResult((), tuple(_unplaced(entry, None, text) for entry in gang.members))

    def _masks(self, gang: QueuedGang) -> Iterator[Bools | None]:
        if not gang.topology:
            return iter((None,))
        nodes = self._cache.nodes
        standing = [row for row in map(nodes.row_of, gang.standing) if row is not None]
        return masks(nodes, self._rows.rows, gang.topology, self._needs(gang, is_loose=False), standing)

    def _needs(self, gang: QueuedGang, *, is_loose: bool) -> list[Need]:
        """Members that are alike, with where one could go now; `is_loose`: anywhere, for others may make it possible."""
        kinds: dict[Hashable, tuple[int, Requests, Rows]] = {}
        for entry in self._needed(gang):
            try:
                pod_class = self._classes.find(entry.pod, entry.attempts)
            except PluginFailure:
                continue
            key = pod_class.signature if pod_class.signature is not None else entry.pod.uid
            count = kinds[key][0] if key in kinds else 0
            is_anywhere = is_loose or pod_class.relates or pod_class.refusal is not None
            rows = self._rows.rows if is_anywhere else pod_class.rows[pod_class.feasible]
            kinds[key] = count + 1, entry.pod.requests, rows
        return [Need(*kind) for kind in kinds.values()]

    @staticmethod
    def _needed(gang: QueuedGang) -> Iterator[QueuedPod]:
        """As many of each gang as have to start, the most important."""
        left = dict(gang.needs)
        for entry in gang.members:
            key = gang.gang_of[entry.pod.uid]
            if left[key] > 0:
                left[key] -= 1
                yield entry

    # -- placing ---------------------------------------------------------------------------------------------------

    def _place_all(
        self, gang: QueuedGang, found: _Try, asked: Mapping[str, _Asked], answers: Mapping[str, object | PluginFailure]
    ) -> None:
        """Whoever finds no node is tried once more after others have found theirs: it may want to be where they are."""
        left = list(gang.members)
        while left:
            hopeless: set[Hashable] = set()
            again: list[QueuedPod] = []
            before = len(found.placed)
            for entry in left:
                if not self._place(entry, found, asked.get(entry.pod.uid), answers, hopeless):
                    again.append(entry)
                    if self._is_lost(gang, found, left, len(found.placed) - before + len(again)):
                        return
            if len(found.placed) == before:
                return
            left = again

    def _is_lost(self, gang: QueuedGang, found: _Try, left: Sequence[QueuedPod], tried: int) -> bool:
        """Nobody of this round was placed, and too few are left to be tried: nothing will change."""
        if found.placed:
            return False
        rest = [entry.pod.uid for entry in left[tried:]]
        return any(sum(gang.gang_of[uid] == key for uid in rest) < need for key, need in gang.needs.items())

    def _place(
        self,
        entry: QueuedPod,
        found: _Try,
        asked: _Asked | None,
        answers: Mapping[str, object | PluginFailure],
        hopeless: set[Hashable],
    ) -> bool:
        """One member beside those that stand. What one of a class was refused, the others of it are spared."""
        pod, attempt = entry.pod, entry.attempts
        try:
            pod_class = self._classes.find(pod, attempt)
            signature = pod_class.signature
            if signature is not None and signature in hopeless:
                return False
            if pod_class.refusal is not None:
                return self._refuse(entry, found, pod_class, hopeless)
            blocked = self._nominated.blocked(pod_class, pod, attempt)
            feasible = pod_class.feasible
            if blocked or found.allowed is not None:
                feasible = feasible.copy()
                feasible[list(blocked)] = False
                if found.allowed is not None:
                    feasible &= found.allowed.take(pod_class.rows)
            if not any_true(feasible):
                return self._refuse(entry, found, pod_class, hopeless)
            at = self._chosen(entry, pod_class, feasible, asked, answers)
            if at is None:
                return self._refuse(entry, found, pod_class, hopeless)
            result = self._commit.at_once(pod_class, pod, attempt, at, found.transaction)
        except PluginFailure as failure:
            status = failure.status
            found.refused.setdefault(pod.uid, Refused(entry, status.message, is_error=not status.code.is_rejection))
            return False
        if isinstance(result, Placed):
            found.placed.append(result)
            found.refused.pop(pod.uid, None)
            return True
        if isinstance(result, Conflicted):
            found.refused.setdefault(pod.uid, Refused(entry, result.refusal or "its node was taken", frozenset({GANG})))
        else:
            found.refused.setdefault(
                pod.uid, Refused(entry, result.message, result.rejectors, result.pending, result.is_error)
            )
        return False

    def _chosen(
        self,
        entry: QueuedPod,
        pod_class: EquivalenceClass,
        feasible: Bools,
        asked: _Asked | None,
        answers: Mapping[str, object | PluginFailure],
    ) -> int | None:
        """Position of the best row that is left; None if what was asked outside leaves none.

        Scores are normalised over all feasible rows of the class, whatever the topology leaves of them.
        """
        pod, attempt = entry.pod, entry.attempts
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

    def _refuse(self, entry: QueuedPod, found: _Try, pod_class: EquivalenceClass, hopeless: set[Hashable]) -> bool:
        """Says why, as things stand at this moment: the members before it have their places."""
        if pod_class.signature is not None:
            hopeless.add(pod_class.signature)
        blocked = self._nominated.blocked(pod_class, entry.pod, entry.attempts, everywhere=True)
        why = diagnose(pod_class, self._cache.nodes, blocked=blocked)
        message = fit_error(why)
        if found.allowed is not None and why.pre_filter is None:
            message = f"{message.rstrip('.')}, in the topology domain that was tried."
        found.refused.setdefault(entry.pod.uid, Refused(entry, message, why.rejectors, why.pending))
        return False

    # -- ending ----------------------------------------------------------------------------------------------------

    @staticmethod
    def _is_enough(gang: QueuedGang, found: _Try) -> bool:
        counts: dict[str, int] = {}
        for placed in found.placed:
            key = gang.gang_of[placed.pod.uid]
            counts[key] = counts.get(key, 0) + 1
        return all(counts.get(key, 0) >= need for key, need in gang.needs.items())

    def _settled(self, gang: QueuedGang, found: _Try) -> GangResult:
        """Those that stand, and those beyond the minimum that wait on."""
        standing = {placed.pod.uid for placed in found.placed}
        rest = [entry for entry in gang.members if entry.pod.uid not in standing]
        refusal = next(iter(found.refused.values()), None)
        unplaced = [_unplaced(entry, found.refused.get(entry.pod.uid) or refusal, "") for entry in rest]
        return GangResult(tuple(found.placed), tuple(unplaced))

    def _refused(self, gang: QueuedGang, found: _Try | None) -> GangResult:
        """None stands: each member hears how far the gang came, and who had no node, and why."""
        if found is None:
            text = f"gang {gang.name}: no topology domain has room for all that must start together"
            return GangResult((), tuple(_unplaced(entry, None, text) for entry in gang.members))
        first = next(iter(found.refused.values()), None)
        need = sum(gang.needs.values())
        text = f"gang {gang.name}: {len(found.placed)} of the {need} members that must start together have a node"
        if first is not None:
            text = f"{text}; {first.entry.pod.name}: {first.message}"
        return GangResult((), tuple(_unplaced(entry, first, text) for entry in gang.members))


def _unplaced(entry: QueuedPod, refused: Refused | None, text: str) -> Unplaced:
    """`text`: what all members hear; empty: each hears its own refusal."""
    rejectors = frozenset({GANG}) if refused is None else refused.rejectors | {GANG}
    message = text or ("" if refused is None else refused.message)
    return Unplaced(
        entry.pod,
        message,
        rejectors,
        frozenset() if refused is None else refused.pending,
        is_error=refused is not None and refused.is_error,
    )
