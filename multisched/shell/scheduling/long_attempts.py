"""Attempts that last longer than one step: each continues in a separate task, while its domain schedules other pods.

An attempt yields a `Pause` once a step has lasted long enough. The members placed so far stay assumed during the pause. After
the pause the attempt continues only if its inputs are unchanged: its members are still in flight and unchanged, as are the objects
that define its gang, other members of the gang keep their nodes, the profile is the same, the domain still takes pods, and (for a
gang with a topology) the domain has the same nodes in the same topology domains. Otherwise the attempt is closed, which undoes it,
and its members are requeued. Before the result is applied, members that were assumed during a pause are checked like a bind before
it is sent (`binding/send_check.py`).

Only one paused attempt per domain holds capacity. Further ones are undone and wait in line: two attempts that hold half of the
capacity each would both fail. When an attempt is undone, pods that were parked since it began to hold capacity are requeued.
Pods that were parked before are not: two attempts that cannot succeed would requeue each other forever.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

import anyio.abc
import numpy as np
from msgspec.structs import replace

from multisched.cycle.results import NO_PAUSE, Attempt, GangAttempt, GangResult, Pause, Placed, RemoteRequest, Result
from multisched.cycle.scheduling_cycle import SchedulingCycle
from multisched.framework.events import ATTEMPT_UNDONE
from multisched.framework.node_view import Int32
from multisched.framework.points import Queued, QueuedGang, QueuedPod
from multisched.framework.runner import PluginFailure
from multisched.model.objects import Pod, have_equal_demands
from multisched.queueing.active_pods import UNIT_S
from multisched.queueing.entry import ParkedPodFilter
from multisched.queueing.pod_queue import PodQueue
from multisched.queueing.transitions import QueueState
from multisched.shell.binding.send_check import DecisionState, SendCheck
from multisched.shell.scheduling.intake import Intake
from multisched.shell.scheduling.ports import DomainPorts, Listeners
from multisched.shell.scheduling.result_applier import ResultApplier
from multisched.state.cluster_cache import ClusterCache

WAITING_MAX: Final = 16
"""Maximum number of attempts that wait in line until another one has ended. Members of further ones are requeued."""
TURNS_MAX: Final = 256
"""Maximum number of turns of the event loop in one pause, even if its time is not over."""

CallPlugins = Callable[[Sequence[RemoteRequest]], Awaitable[Mapping[str, object | PluginFailure]]]


class _LongAttempt:
    """State of the attempt in progress."""

    def __init__(self, queued: Queued, cycle: SchedulingCycle, running: Attempt | GangAttempt, seconds: float) -> None:
        """`seconds`: duration of its steps so far."""
        self.queued = queued
        self.cycle = cycle
        self.running = running
        self.entries = entries_of(queued)
        self.seconds = self.step_s = seconds
        self.why_undone = ""
        self.held: dict[str, tuple[Placed, DecisionState]] = {}
        """uid -> member that is assumed during the current pause, and the state that its placement was based on."""
        self.has_held = False
        """True once members were assumed during a pause."""
        self.held_since_s = 0.0
        """When the first of the `held` members was assumed. Pods that were parked earlier were not refused because of them."""
        self.freed: list[tuple[Pod, str, float]] = []
        """(pod, node, when it was assumed) of members that were assumed in an earlier pause and no longer are."""
        self.placed: Sequence[Placed] = ()
        """Placements of the latest pause."""
        self.changes = 0
        """Change counter of the queue when the members were last compared. -1: they must be compared in any case."""
        self.generation = cycle.rows.generation
        self.topology: Sequence[tuple[str, Int32]] = ()
        """Per topology level: label key, and its codes of all rows when the attempt began."""


def entries_of(queued: Queued) -> Sequence[QueuedPod]:
    return queued.members if isinstance(queued, QueuedGang) else (queued,)


class LongAttempts:
    """The paused attempts of one domain."""

    def __init__(
        self,
        queue: PodQueue,
        cache: ClusterCache,
        results: ResultApplier,
        check: SendCheck,
        intake: Intake,
        listeners: Listeners,
        ports: DomainPorts,
        current: Callable[[], SchedulingCycle],
        ask: CallPlugins,
    ) -> None:
        """`current`: returns the cycle of the current profile. `ask`: requests answers of remote plugins."""
        self._queue = queue
        self._cache = cache
        self._results = results
        self._check = check
        self._intake = intake
        self._listeners = listeners
        self._ports = ports
        self._current = current
        self._ask = ask
        self._now = ports.clock.monotonic
        self._running: _LongAttempt | None = None
        self._line: deque[Queued] = deque()
        self.tasks: anyio.abc.TaskGroup | None = None
        self.pauses = 0
        """Number of pauses so far."""
        self.undone = 0
        """Number of attempts that were undone at or after a pause."""

    @property
    def is_running(self) -> bool:
        """True while an attempt has paused and has not ended."""
        return self._running is not None

    @property
    def entries(self) -> Sequence[QueuedPod]:
        """Members of the attempt in progress; empty if there is none."""
        return () if self._running is None else self._running.entries

    def take_over(
        self, queued: Queued, cycle: SchedulingCycle, running: Attempt | GangAttempt, pause: Pause, seconds: float
    ) -> None:
        """Takes over an attempt that has just paused for the first time; must be called in the same step."""
        assert self.tasks is not None, "only a running domain decides"
        self._charge(entries_of(queued), seconds)
        if self._running is None:
            self._running = self._begun(queued, cycle, running, seconds)
            self._hold(self._running, pause)
            self.tasks.start_soon(self._work)
            return
        running.close()
        if len(self._line) < WAITING_MAX:
            self._line.append(queued)
        else:
            self._results.requeue_stale(entries_of(queued), "other long attempts are in progress", seconds)

    def cancel(self, uid: str, why: str) -> bool:
        """Undoes the attempt in progress when it resumes, if it holds capacity for the pod. Returns False if it does not."""
        running = self._running
        if running is None or uid not in running.held:
            return False
        running.why_undone = why
        return True

    # -- one attempt after another ---------------------------------------------------------------------------------

    def _begun(
        self, queued: Queued, cycle: SchedulingCycle, running: Attempt | GangAttempt, seconds: float
    ) -> _LongAttempt:
        attempt = _LongAttempt(queued, cycle, running, seconds)
        if isinstance(queued, QueuedGang):
            codes = self._cache.nodes.label_codes
            attempt.topology = [(level.key, codes(level.key).copy()) for level in queued.topology]
        return attempt

    async def _work(self) -> None:
        """Runs the attempt in progress to its end, then those in line."""
        yielded: Sequence[RemoteRequest] | Pause | None = Pause()
        while (attempt := self._running) is not None:
            try:
                await self._finish(attempt, yielded)
            finally:
                attempt.running.close()  # undoes the attempt if this task was cancelled
                self._running = None
            yielded = None
            if self._line:
                queued, cycle = self._line.popleft(), self._current()
                self._running = self._begun(queued, cycle, cycle.attempt(queued), 0.0)
                self._running.changes = -1  # its members may have changed while it waited

    async def _finish(self, attempt: _LongAttempt, yielded: Sequence[RemoteRequest] | Pause | None) -> None:
        """Drives the attempt to its end. `yielded`: its last yielded value, or None before it has begun."""
        while True:
            answers: Mapping[str, object | PluginFailure] | None = None
            if isinstance(yielded, Pause):
                await self._announce(attempt)
                await self._let_others_run(attempt.step_s)
                answers = NO_PAUSE
            elif yielded is not None:
                answers = await self._ask(yielded)
            why = self._why_undone(attempt)
            if why:
                await self._undo(attempt, why)
                return
            began_s = self._now()
            self._ports.steps.begin()
            try:
                yielded = next(attempt.running) if answers is None else attempt.running.send(answers)
            except StopIteration as ended:
                self._took(attempt, began_s)
                await self._settle(attempt, ended.value)
                return
            self._took(attempt, began_s)
            if isinstance(yielded, Pause):
                self._hold(attempt, yielded)

    async def _let_others_run(self, seconds: float) -> None:
        """Yields to watches and other tasks, and for up to `seconds` to the scheduling of ready pods."""
        ends_s = self._now() + seconds
        await self._ports.steps.rest()
        await self._ports.event_time_share.pause(seconds)
        for _ in range(TURNS_MAX):
            if not self._queue.has_ready or self._now() >= ends_s:
                return
            await asyncio.sleep(0)

    def _took(self, attempt: _LongAttempt, began_s: float) -> None:
        attempt.step_s = self._now() - began_s
        attempt.seconds += attempt.step_s
        self._charge(attempt.entries, attempt.step_s)

    def _charge(self, entries: Sequence[QueuedPod], seconds: float) -> None:
        """Charges a step to the namespace like an attempt of that length."""
        if seconds > UNIT_S:
            self._queue.charge_attempt(entries[0].pod.uid, seconds)

    # -- during a pause --------------------------------------------------------------------------------------------

    def _hold(self, attempt: _LongAttempt, pause: Pause) -> None:
        """Records the members assumed during this pause, and those of the previous pause that no longer are."""
        self.pauses += 1
        if pause.placed is not attempt.placed:
            self._release(attempt)
            attempt.placed = pause.placed
        if not attempt.held:
            attempt.held_since_s = self._now() - attempt.step_s
        attempt.has_held |= bool(pause.placed)
        for placed in pause.placed[len(attempt.held) :]:
            attempt.held[placed.pod.uid] = placed, self._check.note(placed, attempt.cycle)
        if attempt.changes >= 0:
            attempt.changes = self._queue.changes_in_flight

    @staticmethod
    def _release(attempt: _LongAttempt, kept: Mapping[str, object] | None = None) -> None:
        """Moves the held members, except the kept ones, to `freed`."""
        kept = {} if kept is None else kept
        since_s = attempt.held_since_s
        attempt.freed += [(one.pod, one.node, since_s) for uid, (one, _) in attempt.held.items() if uid not in kept]
        attempt.held = {}

    def _why_undone(self, attempt: _LongAttempt) -> str:
        """Returns the reason to undo the attempt; empty if it may continue."""
        if attempt.why_undone:
            return attempt.why_undone
        if not self._intake.is_open:
            return "the domain stopped scheduling"
        if attempt.cycle is not self._current():
            return "another profile is in force"
        if attempt.topology and (
            attempt.generation != attempt.cycle.rows.generation
            or any(not np.array_equal(codes, self._cache.nodes.label_codes(key)) for key, codes in attempt.topology)
        ):
            return "the nodes of the gang's topology changed"
        if attempt.changes != self._queue.changes_in_flight:
            attempt.changes = self._queue.changes_in_flight
            if any(map(self._has_changed, attempt.entries)):
                return "a member changed"
        if self._queue.gangs.have_specs_changed(entry.pod.uid for entry in attempt.entries):
            return "the requirements of the gang changed"
        if isinstance(attempt.queued, QueuedGang) and any(
            self._cache.gangs.needs(key) > need for key, need in attempt.queued.needs.items()
        ):
            return "other members of the gang lost their nodes"
        return ""

    def _has_changed(self, entry: QueuedPod) -> bool:
        """Reports whether the pod was deleted, bound by another client, gated or changed."""
        latest = self._queue.pod(entry.pod.uid)
        is_there = self._queue.where(entry.pod.uid) is QueueState.IN_FLIGHT
        return not is_there or latest is None or not have_equal_demands(latest, entry.pod) or bool(latest.gates)

    # -- ending ----------------------------------------------------------------------------------------------------

    async def _settle(self, attempt: _LongAttempt, result: Result | GangResult) -> None:
        """Applies the result if the placements of earlier steps are still valid; else undoes the attempt."""
        placed = result.placed if isinstance(result, GangResult) else [result] if isinstance(result, Placed) else []
        for one in placed:
            known = attempt.held.get(one.pod.uid)
            refusal = self._check.refusal(*known) if known is not None and known[0] is one else None
            if refusal is not None:
                for other in reversed(placed):
                    attempt.cycle.give_up(other, refusal)
                await self._undo(attempt, f"{one.pod.name}: {refusal.message}")
                return
        self._release(attempt, {one.pod.uid: None for one in placed})
        if attempt.has_held and not placed:
            self._queue.gangs.note_failed_while_holding(attempt.entries[0].pod.uid)
        seconds, steps = attempt.seconds, self._ports.steps
        steps.begin()
        self._results.apply(attempt.queued, result, seconds, attempt.cycle, charged_s=seconds, budget=steps)
        await self._announce(attempt)

    async def _undo(self, attempt: _LongAttempt, why: str) -> None:
        attempt.running.close()
        self._release(attempt)
        self.undone += 1
        for entry in attempt.entries:
            if self._queue.where(entry.pod.uid) is not QueueState.IN_FLIGHT:
                attempt.cycle.nominator.remove(entry.pod.uid)  # closing the attempt restored its nomination
        self._results.requeue_stale(attempt.entries, f"the attempt was undone: {why}", attempt.seconds)
        await self._announce(attempt)

    async def _announce(self, attempt: _LongAttempt) -> None:
        """Notifies queues of the released capacity. Requeues only pods that were parked while it was held, and not the gang itself."""
        self._ports.steps.begin()
        while attempt.freed:
            pod, node, since_s = attempt.freed.pop()
            freed = replace(pod, node=node)
            self._listeners.notify(ATTEMPT_UNDONE, freed, None, self._now(), ParkedPodFilter(parked_since_s=since_s))
            if self._ports.steps.is_spent():
                await self._let_others_run(0.0)
                self._ports.steps.begin()
