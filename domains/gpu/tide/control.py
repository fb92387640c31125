"""The background task of the tide: takes a snapshot, calls the planner, and carries out its plan.

Every process plans, so that the limit of training is known when it takes over; only the leader writes. A gang is evicted when all of its
members have had the notice for the configured time. It is evicted whole: refused evictions of members are retried until all members are
deleted. The state is stored on the pods (`notices.py`), so the next leader continues. The hook runs concurrently and delays nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

from domains.gpu.dialects.own import TIDE_HOOK, TIDE_NOTICE
from domains.gpu.tide.gang_notices import GangNotices, Given
from domains.gpu.tide.hold_back import OPEN, HoldBack, Limits, limits_of
from domains.gpu.tide.hook import CALLS_MAX, Hook, HookOutcome, HookReply
from domains.gpu.tide.losses import Losses
from domains.gpu.tide.notices import FOR_CHARS_MAX, Notice
from domains.gpu.tide.planner import plan
from domains.gpu.tide.settings import TideSettings
from domains.gpu.tide.snapshot import RunningGang, Snapshot, TideSnapshots
from domains.gpu.tide.state import DueEviction, NewNotice, TidePlan, TideState, Withdrawal
from domains.gpu.tide.tide_demand import TideDemand
from multisched.framework.background import BackgroundPorts
from multisched.framework.moving import EvictAnswer, Mover
from multisched.framework.ports import Clock, ObjectRef, UnreachableError, WriteAnswer, pod_ref
from multisched.model.api_time import timestamp
from multisched.model.objects import Pod

logger = logging.getLogger(__name__)

PERIOD_S: Final = 1.0
"""Interval of plans."""
PAUSE_MIN_S: Final = 0.02
LOOP_SHARE: Final = 50.0
"""The pause after a slow snapshot is this many times as long as the snapshot took, because the event loop is shared."""
UNWRITABLE_S: Final = 600.0
"""A gang whose annotation the API server refuses gets no notice for this time."""
REPORT_S: Final = 60.0
"""Interval at which an eviction that keeps failing is reported."""
WRITES_MAX: Final = 16
"""Annotations of one gang that are written at once."""
EVENTS_MAX: Final = 32
"""Members of one gang that get an event."""
ACTION: Final = "Tide"
NO_NOTICE: Final[dict[str, str | None]] = {TIDE_NOTICE: None, TIDE_HOOK: None}


class TideControl:
    """The tide of one domain."""

    def __init__(
        self,
        settings: TideSettings,
        snapshots: TideSnapshots,
        hold_back: HoldBack,
        demand: TideDemand,
        losses: Losses,
        on_growth: Callable[[], None],
    ) -> None:
        """`on_growth`: requeues pods that were held back."""
        self._settings = settings
        self._snapshots = snapshots
        self._hold_back = hold_back
        self._demand = demand
        self._on_growth = on_growth
        self.losses = losses
        self.notices = GangNotices(settings.notice_s)
        self.last: tuple[TideState, TidePlan] | None = None
        """The last plan and its input, for views and metrics."""
        self.snapshot: Snapshot | None = None
        self._unwritable: dict[str, float] = {}
        """Gang -> time until which its annotation is not written again."""
        self._calls = asyncio.Semaphore(CALLS_MAX)
        self._looked_in_s = self._planned_in_s = 0.0

    async def run(self, ports: BackgroundPorts) -> None:
        """Plans and carries out plans until cancelled. When it ends, training is no longer held back."""
        hook = None
        try:
            if self._settings.hook is not None and ports.open_extender is not None:
                hook = Hook(self._settings.hook, ports.open_extender)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._demand.run(ports))
                while True:
                    await self._turn(ports, hook, tasks)
                    await asyncio.sleep(
                        max(self._pause_s(ports.clock), LOOP_SHARE * self._looked_in_s, self._planned_in_s)
                    )
        finally:
            self._hold_back.set(OPEN)
            self._on_growth()
            if hook is not None:
                await hook.close()

    def _pause_s(self, clock: Clock) -> float:
        now_s = clock.now().timestamp()
        deadlines = (given.may_be_ready_s(self._settings.notice_s) for given in self.notices.given.values())
        left = min((at_s - now_s for at_s in deadlines if at_s > now_s), default=PERIOD_S)
        return min(PERIOD_S, max(PAUSE_MIN_S, left))

    async def _turn(self, ports: BackgroundPorts, hook: Hook | None, tasks: asyncio.TaskGroup) -> None:
        now_s, mover = ports.clock.now().timestamp(), ports.mover
        is_leading = mover is not None and mover.may_act()
        if is_leading and self.notices.led_since_s is None:
            self.notices.led_since_s = now_s
        began_s = ports.clock.monotonic()
        snapshot, state = self._look(now_s)
        counted, self._looked_in_s = self._hold_back.reserved, ports.clock.monotonic() - began_s
        decided = await ports.in_thread(lambda: plan(state, self._settings))
        self._planned_in_s = ports.clock.monotonic() - began_s - self._looked_in_s
        self._adopt(snapshot, state, decided, counted)
        if mover is None or not is_leading:
            return
        turn = _Turn(self, snapshot, mover, ports.clock)
        await turn.remove_foreign()
        if decided.is_frozen:
            await turn.finish(is_frozen=True)
            return
        await turn.withdraw(decided.withdrawals)
        await turn.give(decided.notices)
        await turn.complete()
        if hook is not None:
            turn.start_calls(hook, tasks, self._calls)
        await turn.finish(is_frozen=False)
        await turn.evict(decided.evictions)

    def plan_now(self, now_s: float) -> tuple[Snapshot, TidePlan]:
        """Takes a snapshot and plans in one step. For views; the background task plans in a thread."""
        snapshot, state = self._look(now_s)
        decided = plan(state, self._settings)
        self._adopt(snapshot, state, decided)
        return snapshot, decided

    def _look(self, now_s: float) -> tuple[Snapshot, TideState]:
        """Returns the input of the planner, in one step, so that each pod is counted exactly once."""
        snapshot = self._snapshots.take(now_s)
        inference = self._demand.state(snapshot, now_s)
        gangs = []
        for key, running in snapshot.gangs.items():
            given = self.notices.see(key, running.pods, now_s)
            shown = None if given is None or given.is_withdrawn else given
            gangs.append(
                msgspec.structs.replace(
                    running.gang,
                    notice=None if shown is None else shown.shown(running.pods, now_s, self._settings.notice_s),
                    is_protected=running.gang.is_protected or self._is_kept(key, given, now_s),
                    returned_after_eviction_s=self.losses.returned_s(key, running.gang.started_s),
                )
            )
        for key in self.notices.drop_ended((*snapshot.gangs, *snapshot.leaving)):
            logger.info("tide: gang ended", extra={"gang": key})
        state = TideState(
            now_s=now_s,
            nodes=snapshot.nodes,
            inference=inference,
            gangs=tuple(gangs),
            waiting_gangs=snapshot.waiting_gangs,
            previous_limit_cards=self._hold_back.limits.limit_cards,
            evicted_last_hour_cards=self.losses.last_hour_cards(now_s),
        )
        return snapshot, state

    def _adopt(
        self, snapshot: Snapshot, state: TideState, decided: TidePlan, counted: frozenset[str] | None = None
    ) -> None:
        """Puts the limits of a plan in force. `counted`: see `HoldBack.set`."""
        self.last, self.snapshot = (state, decided), snapshot
        self.losses.see(snapshot)
        limits = limits_of(decided, snapshot.waiting_gangs, snapshot.models, has_outside=snapshot.has_outside)
        if self._hold_back.set(limits, counted):
            self._on_growth()

    def _is_kept(self, gang: str, given: Given | None, now_s: float) -> bool:
        """Reports whether the gang can get no notice now: the API server refused one, or its last one is still being removed."""
        is_withdrawn = given is not None and given.is_withdrawn
        return is_withdrawn or self._unwritable.get(gang, 0.0) > now_s

    def refuse(self, gang: str, now_s: float) -> None:
        """Records that the API server refuses the annotation of a member."""
        self._unwritable = {key: until_s for key, until_s in self._unwritable.items() if until_s > now_s}
        self._unwritable[gang] = now_s + UNWRITABLE_S
        self.losses.counts.notices_refused += 1

    def protection(self, pods: Sequence[Pod]) -> str:
        """Returns why the gang of these pods must not be evicted now; empty if it may be."""
        return self._snapshots.protection(pods)

    @property
    def limits(self) -> Limits:
        """The limits of training, by the last plan."""
        return self._hold_back.limits

    @property
    def settings(self) -> TideSettings:
        return self._settings


class _Turn:
    """The writes of one turn."""

    def __init__(self, control: TideControl, snapshot: Snapshot, mover: Mover, clock: Clock) -> None:
        self._control = control
        self._snapshot = snapshot
        self._mover = mover
        self._clock = clock
        self._notices = control.notices
        self._losses = control.losses

    def _now_s(self) -> float:
        return self._clock.now().timestamp()

    # -- annotations -----------------------------------------------------------------------------------------------------

    async def _annotate(
        self, pods: Iterable[Pod], annotations: dict[str, str | None]
    ) -> list[tuple[Pod, WriteAnswer, str]]:
        """Writes the annotations of all pods; returns each answer."""
        gate, mover = asyncio.Semaphore(WRITES_MAX), self._mover

        async def one(pod: Pod) -> tuple[Pod, WriteAnswer, str]:
            async with gate:
                reply = await mover.annotate(pod_ref(pod), annotations, timeout_s=mover.write_timeout_s)
            return pod, reply.answer, reply.message

        return list(await asyncio.gather(*map(one, pods)))

    async def remove_foreign(self) -> None:
        """Removes annotations that are malformed or were written by another client."""
        for uid, ref in list(self._notices.foreign.items()):
            reply = await self._mover.annotate(ref, NO_NOTICE, timeout_s=self._mover.write_timeout_s)
            if reply.answer in (WriteAnswer.THROTTLED, WriteAnswer.UNKNOWN):
                return
            del self._notices.foreign[uid]
            self._losses.counts.notices_ignored += 1
            note = f"annotation {TIDE_NOTICE} was ignored and removed: only the scheduler writes it"
            self._record("Warning", ref, "TideNoticeIgnored", note)

    async def withdraw(self, withdrawals: Sequence[Withdrawal]) -> None:
        """Removes the notices of these gangs, and of gangs whose removal is not complete."""
        for one in withdrawals:
            given = self._notices.given.get(one.gang)
            running = self._snapshot.gangs.get(one.gang)
            if given is None or running is None or given.is_withdrawn or given.is_evicting:
                continue
            given.is_withdrawn = True
            self._losses.counts.notices_withdrawn += 1
            self._record_all("Normal", running.pods, "TideNoticeWithdrawn", f"not evicted: {one.reason}")
        for gang, given in list(self._notices.given.items()):
            if given.is_withdrawn:
                await self._remove(gang, given)

    async def _remove(self, gang: str, given: Given) -> None:
        running = self._snapshot.gangs.get(gang)
        answers = await self._annotate(
            self._snapshot.leaving.get(gang, ()) if running is None else running.pods, NO_NOTICE
        )
        if all(answer not in (WriteAnswer.THROTTLED, WriteAnswer.UNKNOWN) for _, answer, _ in answers):
            self._notices.withdrawn(given, self._now_s())

    async def give(self, notices: Sequence[NewNotice]) -> None:
        """Writes new notices."""
        for new in notices:
            running = self._snapshot.gangs[new.gang]
            notice = Notice(
                gang=new.gang,
                issued_s=self._now_s(),
                deadline_s=self._now_s() + self._control.settings.notice_s,
                for_demand=new.for_demand[:FOR_CHARS_MAX],
                pods=len(running.pods),
                overrides_min_run_time=new.overrides_min_run_time,
            )
            given = self._notices.give(notice)
            self._losses.counts.notices += 1
            self._losses.counts.overridden += new.overrides_min_run_time
            logger.info("tide: notice", extra={"gang": new.gang, "cards": new.cards, "for": new.for_demand})
            if await self._write(running, given):
                until = timestamp(datetime.fromtimestamp(notice.deadline_s, UTC))
                note = f"gang {new.gang} will be evicted at {until} for {new.for_demand}; {new.reason}"
                self._record_all("Normal", running.pods, "TideNotice", note)

    async def complete(self) -> None:
        """Writes notices on members without one: an earlier write failed, the former leader died, or the member is new."""
        for gang, given in list(self._notices.given.items()):
            running = self._snapshot.gangs.get(gang)
            if running is not None and not given.is_withdrawn and not given.is_evicting and given.lacking(running.pods):
                self._notices.for_late_members(given, running.pods, self._now_s())
                await self._write(running, given)

    async def _write(self, running: RunningGang, given: Given) -> bool:
        """Writes the notice on the members without it. Returns False if the API server refuses it; the notice is then withdrawn."""
        text = given.notice.text
        for pod, answer, message in await self._annotate(given.lacking(running.pods), {TIDE_NOTICE: text}):
            if answer is WriteAnswer.DONE:
                given.written_s[pod.uid] = self._now_s()
            elif answer is WriteAnswer.REFUSED:
                given.refused = f"{pod.key}: {message}"
        if not given.refused:
            return True
        given.is_withdrawn = True
        self._control.refuse(given.notice.gang, self._now_s())
        note = f"annotation {TIDE_NOTICE} cannot be written, so that the gang is not evicted: {given.refused}"
        self._record("Warning", pod_ref(running.pods[0]), "TideNoticeFailed", note)
        logger.warning("tide: a notice cannot be written", extra={"gang": given.notice.gang, "error": given.refused})
        return False

    # -- the hook --------------------------------------------------------------------------------------------------------

    def start_calls(self, hook: Hook, tasks: asyncio.TaskGroup, gate: asyncio.Semaphore) -> None:
        """Starts the call of the hook for each notice that all members have."""
        for gang, given in self._notices.given.items():
            running = self._snapshot.gangs.get(gang)
            is_new = not (given.is_hook_done or given.is_hook_running or given.is_withdrawn)
            if running is not None and is_new and not given.lacking(running.pods):
                given.is_hook_running = True
                tasks.create_task(self._call(hook, running, given, gate))

    async def _call(self, hook: Hook, running: RunningGang, given: Given, gate: asyncio.Semaphore) -> None:
        """Calls the hook until it has received the request, at most until the deadline, and records the call in an annotation of a pod."""
        reply = HookReply(HookOutcome.NOT_SENT, "no answer before the deadline")
        try:
            async with asyncio.timeout(max(0.0, given.notice.deadline_s - self._now_s())), gate:
                while reply.outcome is HookOutcome.NOT_SENT and not given.is_withdrawn:
                    reply = await hook.call(given.notice, running.pods)
                    if reply.outcome is HookOutcome.NOT_SENT:
                        await asyncio.sleep(PERIOD_S)
        except TimeoutError:
            logger.info("tide: the deadline passed before the hook answered", extra={"gang": given.notice.gang})
        given.is_hook_done, given.is_hook_running = True, False
        self._losses.counts.hook_calls[reply.outcome.value] += 1
        if reply.outcome is not HookOutcome.ANSWERED:
            note = f"the checkpoint hook was called without success; the deadline does not change: {reply.message}"
            self._record("Warning", pod_ref(running.pods[0]), "TideHookFailed", note)
            logger.warning("tide: hook failed", extra={"gang": given.notice.gang, "error": reply.message})
        await self._annotate(running.pods[:1], {TIDE_HOOK: given.notice.id})

    # -- evictions -------------------------------------------------------------------------------------------------------

    async def evict(self, evictions: Sequence[DueEviction]) -> None:
        """Evicts gangs whose deadline has passed."""
        for due in evictions:
            running, given = self._snapshot.gangs.get(due.gang), self._notices.given.get(due.gang)
            if running is None or given is None or given.is_withdrawn or given.is_evicting:
                continue
            now_s = self._now_s()
            is_ready = now_s >= given.ready_s(running.pods, now_s, self._control.settings.notice_s)
            # Another gang that was evicted in this turn may have used up a budget that the snapshot saw.
            if not is_ready or self._control.protection(running.pods):
                continue
            if await self._evict_all(running.pods, given):
                self._losses.evicted(due, given.notice, now_s)
                logger.info("tide: evicted", extra={"gang": due.gang, "cards": due.cards})

    async def finish(self, *, is_frozen: bool) -> None:
        """Evicts the remaining members of gangs of which some members were evicted: no gang stays in part.

        A new leader recognizes such a gang by its expired notice. While the tide is frozen, only evictions that this process began are
        finished.
        """
        for gang, pods in self._snapshot.leaving.items():
            given = self._notices.see(gang, pods, self._now_s())
            is_due = given is not None and pods and self._now_s() >= given.notice.deadline_s
            if given is not None and is_due and not (is_frozen or given.is_withdrawn or given.lacking(pods)):
                given.is_evicting = True
        for gang, given in list(self._notices.given.items()):
            if not given.is_evicting:
                continue
            running = self._snapshot.gangs.get(gang)
            pods = self._snapshot.leaving.get(gang, () if running is None else running.pods)
            left = [pod for pod in pods if pod.uid in given.written_s]
            if left:
                await self._evict_all(left, given)
            elif gang not in self._snapshot.leaving:
                self._notices.withdrawn(given, self._now_s())  # its members with the notice are deleted

    async def _evict_all(self, pods: Sequence[Pod], given: Given) -> bool:
        """Evicts the pods one after the other. Stops if an eviction is refused before any succeeded; returns True if one was evicted
        now.
        """
        began = False
        for pod in pods:
            ref = pod_ref(pod)
            reply = await self._mover.evict_member(ref, timeout_s=self._mover.write_timeout_s)
            match reply.answer:
                case EvictAnswer.GONE:
                    continue
                case EvictAnswer.EVICTED | EvictAnswer.UNKNOWN:
                    began = began or not given.is_evicting
                    given.is_evicting = True
                    if reply.answer is EvictAnswer.EVICTED:
                        self._record("Normal", ref, "TideEvicted", f"evicted for {given.notice.for_demand}")
                    else:
                        await self._resolve(ref)
                case _:
                    self._losses.counts.evictions_refused += 1
                    self._report_stuck(ref, given, reply.message)
                    if not given.is_evicting:
                        break
        return began

    async def _resolve(self, ref: ObjectRef) -> None:
        """Finds the outcome of an eviction without an answer. A pod that still exists is evicted again in the next turn."""
        try:
            await self._mover.still_exists(ref)
        except UnreachableError:
            self._mover.release()

    def _report_stuck(self, ref: ObjectRef, given: Given, message: str) -> None:
        now_s = self._now_s()
        if now_s < given.reported_s + REPORT_S:
            return
        given.reported_s = now_s
        state = "in part" if given.is_evicting else "not yet"
        note = f"gang {given.notice.gang} was evicted {state}, and is tried again: {message}"
        self._record("Warning", ref, "TideEvictionRefused", note)
        logger.warning("tide: eviction refused", extra={"gang": given.notice.gang, "error": message, "state": state})

    def _record(self, kind: str, ref: ObjectRef, reason: str, note: str) -> None:
        self._mover.record_event(kind, ref, reason, note, action=ACTION)

    def _record_all(self, kind: str, pods: Sequence[Pod], reason: str, note: str) -> None:
        for pod in pods[:EVENTS_MAX]:
            self._record(kind, pod_ref(pod), reason, note)
