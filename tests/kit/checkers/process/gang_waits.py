"""Checks how the queue of one domain handles gangs that have not started: gates, leads, retries and timeouts.

Members and terms are taken from the recounted roster (`gang_roster.py`); what follows from them is computed here in plain loops.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from multisched.framework.gangs import GANG_PLUGIN
from multisched.framework.points import Queued, QueuedGang
from multisched.model.objects import Pod
from multisched.queueing.entry import Entry, Moved, QueueEntry, QueueOutcome
from multisched.queueing.transitions import QueueState
from multisched.shell.domain import DomainWorker
from multisched.state.gang_roster import Gang, GangRoster
from tests.kit.checkers.process.gang_roster import GangReason, reason_of, recount, recount_gang_of

TRIABLE: Final = frozenset({QueueState.ACTIVE, QueueState.BACKOFF, QueueState.UNSCHEDULABLE})
"""States of an entry that leads its gang, or belongs to none."""
LATE_S: Final = 3.0
"""Tolerance of a timeout: it is checked twice a second."""
OWN: Final = ("multisched.", "domains.")
"""Modules of gates that return the same result when called twice."""

GangDemand = tuple[tuple[str, GangReason | None], ...]


@dataclass(slots=True)
class _ReserveTurns:
    """Turns to reserve capacity, as of the last look."""

    begun: int = 0
    expired: int = 0
    ended_s: float = -1.0
    """Time at which a turn was first seen to have ended without a start; negative for never, or under another policy."""


@dataclass(slots=True)
class _GangSnapshot:
    """One gang as of the last look."""

    since_s: float
    """Time since which it has lacked members."""
    timeout_s: float
    """Its shortest timeout since then."""
    queued_s: float = -1.0
    """Time since which a member has been in the queue; negative if none is."""
    is_overdue: bool = False
    doubts: set[tuple[str, str, float]] = field(default_factory=set)
    """States that may only be temporary: (what, uid, time at which the entry entered its state)."""


class GangWaits:
    """The waiting gangs of one domain in one process. Changes nothing."""

    def __init__(
        self,
        worker: DomainWorker,
        roster: GangRoster,
        report_violation: Callable[[str], None],
        is_paused: Callable[[], bool],
    ) -> None:
        self._worker, self._roster, self._report_violation, self._is_paused = (
            worker,
            roster,
            report_violation,
            is_paused,
        )
        self._snapshots: dict[str, _GangSnapshot] = {}
        self._tried: dict[str, GangDemand] = {}
        """Gang -> its demand when members were last popped."""
        self._turns = _ReserveTurns()
        self._led_since_s = -1.0
        queue = worker.queue
        self._pop, self._add, self._regroup = queue.pop, queue.add, queue.regroup
        queue.pop = self.pop  # type: ignore[method-assign]
        queue.add = self.add  # type: ignore[method-assign]
        queue.regroup = self.regroup  # type: ignore[method-assign]

    # -- attempts --------------------------------------------------------------------------------------------------

    def pop(self, *args: object, **options: object) -> Queued | None:
        """Wraps `PodQueue.pop`: all popped pods pass the gates; the demand of their gangs is recorded."""
        popped = self._pop(*args, **options)  # type: ignore[arg-type]
        if popped is None:
            return None
        members = popped.members if isinstance(popped, QueuedGang) else (popped,)
        gates = [one for one in self._worker.plugins.pre_enqueue if type(one).__module__.startswith(OWN)]
        for member in members:
            key = self._roster.key_of(member.pod.uid)
            if key is None:
                continue
            self._tried[key] = self._asked(key)
            for gate in gates:
                found = gate.pre_enqueue(member.pod)
                if not found.is_success and found.code.is_rejection:
                    text = f"{gate.name}: {found.message[:80]}"
                    self._report_violation(f"I7: {member.pod.key} is to be tried with its gang, and is gated ({text})")
        return popped

    def add(self, pod: Pod, now_s: float) -> QueueOutcome:
        """Wraps `PodQueue.add`: a new member of a parked gang causes another attempt of the gang."""
        is_new = pod.uid not in self._worker.queue
        outcome = self._add(pod, now_s)
        if is_new and outcome.state is QueueState.GANG and (key := self._roster.key_of(pod.uid)) is not None:
            for other in self._kept_of(self._roster.together_with(key)):
                if other.state is QueueState.UNSCHEDULABLE and recount_gang_of(self._roster, other.uid).needs > 0:
                    self._report_violation(
                        f"I3: {pod.key} follows {other.pod.key}, which is parked and was not woken by it"
                    )
        return outcome

    def regroup(self, now_s: float) -> Moved:
        """Wraps `PodQueue.regroup`: afterwards no gang is parked because of an earlier demand."""
        has_changed = self._worker.queue.gangs.has_changed
        moved = self._regroup(now_s)
        if has_changed and self._worker.is_leading:
            self._check_regrouped(now_s)
        return moved

    def _check_regrouped(self, now_s: float) -> None:
        for key, kept in self._worker.queue.gangs._gangs.items():
            gang = self._roster.gang(key)
            if gang is None:
                continue
            is_started = not self._roster.needs(key) and recount(gang).needs <= 0
            if is_started and kept.since_s is not None:
                self._report_violation(f"I3: gang {key} has started, and waits since {now_s - kept.since_s:.1f} s")
            parked = [one for one in kept.entries.values() if one.state is QueueState.UNSCHEDULABLE]
            if parked and key in self._tried and self._tried[key] != self._asked(key):
                self._report_violation(
                    f"I3: {parked[0].pod.key} is parked, and its gang asks for something else than when it was tried"
                )

    def _kept_of(self, keys: Sequence[str]) -> list[Entry]:
        """Returns the queue entries of these gangs."""
        gangs = self._worker.queue.gangs
        return [entry for key in keys for entry in gangs.entries_of(key)]

    def _asked(self, key: str) -> GangDemand:
        """Returns the demands of the gang and of those that start with it."""
        gangs = ((one, self._roster.gang(one)) for one in self._roster.together_with(key))
        return tuple((one, reason_of(gang)) for one, gang in gangs)

    # -- now and then ----------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Compares the queue with the gangs. A violation must be seen at two looks in a row, without a pending change."""
        worker, now_s = self._worker, asyncio.get_running_loop().time()
        if not worker.is_leading or worker.intake.is_closing or self._is_paused():
            self._snapshots.clear()
            self._turns = _ReserveTurns()
            self._led_since_s = -1.0
            return
        self._led_since_s = now_s if self._led_since_s < 0 else self._led_since_s
        self._look_at_turns(now_s)
        if worker.queue.gangs.has_changed or not worker.intake.is_open:
            return
        entries: dict[str, list[QueueEntry]] = {}
        for uid, kept in worker.queue._entries.items():
            key = self._roster.key_of(uid)
            if key is not None:
                found = worker.queue.entry(kept.uid)
                entries.setdefault(key, []).extend([] if found is None else [found])
        before, self._snapshots = self._snapshots, {}
        for gang in self._roster.gangs():
            self._look_at(gang, entries, before.get(gang.key), now_s)

    def _look_at(
        self, gang: Gang, entries: Mapping[str, Sequence[QueueEntry]], before: _GangSnapshot | None, now_s: float
    ) -> None:
        own = entries.get(gang.key, ())
        doubts = set(self._doubts(gang, own, entries)) if own else set[tuple[str, str, float]]()
        for what, uid, since_s in sorted(doubts & (before.doubts if before is not None else set())):
            entry = self._worker.queue.entry(uid)
            name = uid if entry is None else entry.pod.key
            self._report_violation(f"I3: {name} of gang {gang.key} {what}, for {now_s - since_s:.1f} s")
        if recount(gang).needs <= 0:
            return
        look = self._snapshots[gang.key] = before or _GangSnapshot(now_s, gang.timeout_s)
        look.doubts, look.timeout_s = doubts, min(look.timeout_s, gang.timeout_s)
        self._look_at_time(gang, look, own, now_s)

    def _doubts(
        self, gang: Gang, own: Sequence[QueueEntry], entries: Mapping[str, Sequence[QueueEntry]]
    ) -> list[tuple[str, str, float]]:
        """Returns states that may only be temporary."""
        if recount(gang).needs <= 0:
            found = [one for one in own if one.state is QueueState.GANG]
            found += [one for one in own if one.state is QueueState.GATED and one.plugins == (GANG_PLUGIN,)]
            return [("waits for others, and its gang has started", one.uid, one.since_s) for one in found]
        doubts = []
        together = self._roster.together_with(gang.key)
        is_held = self._is_held(gang, together)
        for one in own:
            if (
                one.state is QueueState.GATED
                and one.plugins == (GANG_PLUGIN,)
                and not is_held
                and not one.pod.malformed
            ):
                doubts.append(("is gated, and its gang is complete", one.uid, one.since_s))
            elif is_held and one.state in {*TRIABLE, QueueState.GANG}:
                doubts.append((f"is {one.state.name.lower()}, and its gang cannot start", one.uid, one.since_s))
            elif one.state is QueueState.UNSCHEDULABLE and self._tried.get(gang.key, ()) not in (
                (),
                self._asked(gang.key),
            ):
                doubts.append(("is parked, and its gang asks for something else now", one.uid, one.since_s))
        all_entries = [
            entry
            for key in together
            if (other := self._roster.gang(key)) is not None and recount(other).needs > 0
            for entry in entries.get(key, ())
        ]
        return doubts + _doubts_of_leads(all_entries)

    def _is_held(self, gang: Gang, together: Sequence[str]) -> bool:
        """Reports whether the gang, or one that starts with it, is incomplete, invalid, or starts with other gangs."""
        for key in together:
            other = self._roster.gang(key)
            if other is None or other.problem or tuple(self._roster.together_with(key)) != tuple(together):
                return True
            count, spec = recount(other), other.spec
            if spec is not None and count.needs > 0 and count.present < spec.min_members:
                return True
            if other.schedulers.keys() != gang.schedulers.keys():
                return True
        return False

    # -- time ------------------------------------------------------------------------------------------------------

    def _look_at_time(self, gang: Gang, look: _GangSnapshot, own: Sequence[QueueEntry], now_s: float) -> None:
        waited_s = now_s - look.since_s
        is_seen = now_s > look.since_s
        # `GangsBelowMinimum` handles the timeout of gangs with running members.
        is_new = gang.is_overdue and not look.is_overdue and is_seen and not gang.bound
        if is_new and waited_s < look.timeout_s - LATE_S and look.since_s > self._led_since_s:
            self._report_violation(
                f"I3: gang {gang.key} is overdue after {waited_s:.1f} s, and its timeout is {look.timeout_s:g} s"
            )
        look.is_overdue = gang.is_overdue
        is_waiting = any(one.state in (QueueState.GATED, QueueState.UNSCHEDULABLE) for one in own)
        look.queued_s = (now_s if look.queued_s < 0 else look.queued_s) if is_waiting else -1.0
        if look.queued_s >= 0 and not gang.is_overdue and now_s - look.queued_s > gang.timeout_s + LATE_S:
            self._report_violation(
                f"I3: gang {gang.key} is not overdue {now_s - look.queued_s - gang.timeout_s:.1f} s past its timeout"
            )

    def _look_at_turns(self, now_s: float) -> None:
        """Checks that a turn that ended without a start is followed by a pause of the same length."""
        policy = self._worker.queue._readmission.reservations.policy
        turns, seen = self._worker.queue.gangs.turns, self._turns
        if policy is None:
            self._turns = _ReserveTurns(turns.begun, turns.expired)
            return
        has_begun, has_expired = turns.begun > seen.begun, turns.expired > seen.expired
        ended_s = now_s if has_expired and not seen.begun == seen.expired == 0 else seen.ended_s
        if has_begun and ended_s >= 0 and now_s - ended_s < policy.for_s - LATE_S:
            self._report_violation(
                f"I13: room is reserved for gang {turns.holder} {now_s - ended_s:.1f} s after a turn that ended without a"
                f" start; the pause is {policy.for_s:g} s"
            )
        self._turns = _ReserveTurns(turns.begun, turns.expired, ended_s)


def _doubts_of_leads(all_entries: Sequence[QueueEntry]) -> list[tuple[str, str, float]]:
    """`all_entries`: entries of gangs that start together and have not started."""
    if any(one.state in (QueueState.IN_FLIGHT, QueueState.LEAVING) for one in all_entries):
        return []
    leads = [one for one in all_entries if one.state in TRIABLE]
    followers = [one for one in all_entries if one.state is QueueState.GANG]
    if not leads:
        return [("follows, and nothing leads", one.uid, one.since_s) for one in followers]
    if len(leads) > 1:
        return [("leads beside another member", one.uid, one.since_s) for one in leads[1:]]
    since_s = leads[0].since_s
    if leads[0].state is not QueueState.UNSCHEDULABLE:
        return []
    came = [one for one in followers if not one.attempts and one.since_s > since_s]
    return [("came after the last attempt, and the lead is parked", one.uid, one.since_s) for one in came]
