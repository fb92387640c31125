"""Executes the actions of one run's state machine (`repair/run.py`) and reports their outcome to it.

Owns the record during a run, and the reservation on the target. The run is stored before each action. Nothing is evicted
outside the window, without the lease, or before the run was stored. One pod moves at a time. The reservation is released
when `execute` ends, also by an exception. Called by the controller (`repair/control.py`), one run at a time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from domains.forecast.repair.record import PEERS_MAX, EvictionStart, Record, dumped
from domains.forecast.repair.run import Action, Event, Run, State, StepState, advance, should_stop
from domains.forecast.settings.windows import TroughWindows
from multisched.framework.moving import DocumentAnswer, EvictAnswer, Mover
from multisched.framework.ports import Clock, UnreachableError
from multisched.model.objects import Pod

logger = logging.getLogger(__name__)

POLL_S: Final = 1.0
"""Interval of polling for a pod or the lease."""
PAUSE_S: Final = 5.0
"""Backoff after a refusal; doubled with each refusal of the same step."""
PAUSE_MAX_S: Final = 60.0
KEEP_PAUSE_S: Final = 2.0
"""Wait before a write of the record with unknown outcome is retried."""


class RepairCounts(msgspec.Struct):
    """Counters since program start, for metrics."""

    plans: int = 0
    runs: int = 0
    finished: int = 0
    stopped: int = 0
    moves: int = 0
    evictions_refused: int = 0
    evictions_unknown: int = 0
    keep_failures: int = 0


class DocumentConflictError(Exception):
    """Another process has written the record, or the record cannot be stored: this process must not continue the run."""


class Forecasts(msgspec.Struct, frozen=True):
    """Functions of the forecast used by `RunExecutor`."""

    peaks: Callable[[str], Mapping[str, float]]
    """Node -> dimension -> predicted peak of its present pods, as a share of capacity; empty for an unknown node."""
    reserve: Callable[[Pod, str], None]
    """Adds the curve of a pod like this one to the node's predicted use."""
    withdraw: Callable[[], None]
    """Removes the reserved curve. Idempotent."""


class RunExecutor:
    """Carries out one repair run, step by step. Created for each run."""

    def __init__(
        self,
        record: Record,
        mover: Mover,
        forecasts: Forecasts,
        windows: TroughWindows,
        clock: Clock,
        counts: RepairCounts,
        ready_timeout_s: float,
    ) -> None:
        self.record = record
        self._mover = mover
        self._forecasts = forecasts
        self._windows = windows
        self._clock = clock
        self._counts = counts
        self._ready_timeout_s = ready_timeout_s
        self._todo: list[Action] = []
        self._detail = ""
        """Message of the last refusal."""

    async def execute(self, first: Event) -> Record:
        """Executes the run to its end and returns the final record. After a DocumentConflictError the run stays as it was stored."""
        try:
            await self._feed(first)
            while not self._run.is_over or self._todo:
                if not self._todo:
                    raise AssertionError(f"a run in state {self._run.state.name} has no action")
                await self._see_window()
                if not self._todo:
                    continue
                event = await self._done(self._todo.pop(0))
                if event is not None:
                    await self._feed(event)
        finally:
            self._release()
        return self.record

    @property
    def _run(self) -> Run:
        assert self.record.run is not None, "a run is in progress"
        return self.record.run

    # -- events ----------------------------------------------------------------------------------------------------

    async def _feed(self, event: Event) -> None:
        """Advances the run and stores it; resulting actions are executed afterwards."""
        before, was = self.record, self._run
        if event in (Event.WINDOW_CLOSED, Event.TARGET_GONE, Event.POD_GONE):
            self._detail = ""
        run, actions = advance(was, event)
        if run.is_over:
            self._todo = list(actions)
            self._release()
        else:
            self._todo += actions
        if run == was:
            return
        self.record = before.advanced(run)
        self._counts.moves += len(self.record.moved) - len(before.moved)
        if run.place != was.place:
            self.record = msgspec.structs.replace(self.record, begun=None)
        if run.state is State.STOPPED:
            reason = f"{run.reason}: {self._detail}" if self._detail else run.reason
            self.record = msgspec.structs.replace(self.record, stops=self.record.stops + 1, reason=reason)
        logger.info("repair", extra={"event": event.name, "state": run.state.name, "move": self.record.task.words})
        await self._keep()

    async def _see_window(self) -> None:
        run = self._run
        if not run.is_over and run.ending is None and not self._is_open(0.0):
            await self._feed(Event.WINDOW_CLOSED)

    def _is_open(self, for_s: float) -> bool:
        """Reports whether the window is open now and stays open for `for_s` seconds."""
        now_s = self._clock.now().timestamp()
        closes_s = self._windows.closes(now_s)
        return closes_s is not None and now_s + for_s < closes_s

    async def _keep(self) -> None:
        document = dumped(self.record)
        while True:
            await self._may_act()
            reply = await self._mover.write(document)
            if reply.answer is DocumentAnswer.WRITTEN:
                return
            self._counts.keep_failures += 1
            if reply.answer is not DocumentAnswer.UNKNOWN:
                raise DocumentConflictError(reply.message)
            logger.warning("a repair waits until its state is stored", extra={"error": reply.message})
            await asyncio.sleep(KEEP_PAUSE_S)

    async def _may_act(self) -> None:
        while not self._mover.may_act():  # noqa: ASYNC110 - a process that lost the lease for good is ended
            await asyncio.sleep(POLL_S)

    # -- actions ---------------------------------------------------------------------------------------------------

    async def _done(self, action: Action) -> Event | None:
        await self._may_act()
        match action:
            case Action.RESERVE:
                return self._reserve()
            case Action.LOOK:
                return await self._look()
            case Action.EVICT:
                return await self._evict()
            case Action.WATCH:
                return await self._watch()
            case Action.CHECK:
                return self._check()
            case Action.RELEASE:
                self._release()
        return None

    def _reserve(self) -> Event | None:
        task, mover, run = self.record.task, self._mover, self._run
        pod = mover.placed_pod(task.uid)
        if (
            run.state is not State.RESERVING
        ):  # after a restart the pod may be deleted; then a peer has the same requests and curve
            begun = self.record.begun
            peers = [] if begun is None else self._peers(begun)
            like = pod if pod is not None else next(iter(peers), None)
            if begun is not None and like is not None and not self._hold(like):
                mover.assign_to_replacement(frozenset(begun.known))
            return None
        if pod is None or pod.is_leaving or pod.node != task.source or pod.owner is None:
            return Event.POD_GONE
        if not mover.has_node(task.target):
            return Event.TARGET_GONE
        self._detail = self._hold(pod)
        return Event.RESERVE_REFUSED if self._detail else Event.RESERVED

    def _hold(self, like: Pod) -> str:
        """Reserves the target for a pod like this one; returns "", or why the target cannot take it."""
        task = self.record.task
        self._release()
        refusal = self._mover.reserve(task.uid, like, task.target, on_assigned=self._forecasts.withdraw)
        if not refusal:
            self._forecasts.reserve(like, task.target)
        return refusal

    def _release(self) -> None:
        self._forecasts.withdraw()
        self._mover.release()

    async def _look(self) -> Event | None:
        run, task = self._run, self.record.task
        if run.refusals and run.state is State.LOOKING:
            await self._pause(run.refusals)
            if not self._is_open(0.0):
                return Event.WINDOW_CLOSED
        try:
            exists = await self._mover.still_exists(task.ref)
        except UnreachableError as error:
            logger.warning("a repair cannot read the pod", extra={"pod": task.pod, "error": str(error)})
            await asyncio.sleep(PAUSE_S)
            self._todo.insert(0, Action.LOOK)
            return None
        pod = self._mover.placed_pod(task.uid)
        if not exists:
            return Event.POD_GONE
        if run.state is State.RESOLVING:
            return Event.MAY_LEAVE
        if pod is None or pod.owner is None:
            return Event.POD_GONE
        return self._judge(pod)

    def _judge(self, pod: Pod) -> Event:
        """Checks whether the pod, which is still on its node, may be evicted now; renews the reservation."""
        task, mover = self.record.task, self._mover
        assert pod.owner is not None, "the caller checked the owner"
        peers = mover.peers(pod.namespace, pod.owner.uid)
        missing = [one.key for one in peers if not one.node or one.is_leaving or not one.is_ready]
        self._detail = f"{missing[0]} is not ready" if missing else mover.budget_refusal(pod)
        if not self._detail and len(peers) > PEERS_MAX:
            self._detail = f"its service has {len(peers)} replicas, more than {PEERS_MAX}"
        if self._detail:
            return Event.MAY_NOT_LEAVE
        if not mover.has_node(task.target):
            return Event.TARGET_GONE
        self._detail = self._hold(pod)  # a pod of higher priority may have taken the reserved room
        if self._detail:
            return Event.RESERVE_REFUSED
        begun = EvictionStart(pod.owner.uid, tuple(one.uid for one in peers), len(peers))
        self.record = msgspec.structs.replace(self.record, begun=begun)
        return Event.MAY_LEAVE

    async def _evict(self) -> Event:
        task, begun, mover = self.record.task, self.record.begun, self._mover
        assert begun is not None, "set by LOOK, which precedes each eviction"
        if not self._is_open(mover.write_timeout_s):
            await self._feed(Event.WINDOW_CLOSED)
            return Event.EVICT_REFUSED
        if not mover.is_reserved():
            self._detail = f"its reservation on {task.target} was lost"
            return Event.EVICT_REFUSED
        mover.assign_to_replacement(frozenset(begun.known))
        reply = await mover.evict(task.ref, timeout_s=mover.write_timeout_s)
        self._detail = reply.message
        match reply.answer:
            case EvictAnswer.EVICTED:
                note = f"Evicted from {task.source}; {task.target} is reserved for its replacement"
                mover.record_event("Normal", task.ref, "Repair", note)
                return Event.EVICTED
            case EvictAnswer.GONE:
                return Event.POD_GONE
            case EvictAnswer.UNKNOWN:
                self._counts.evictions_unknown += 1
                return Event.EVICT_UNKNOWN
        self._counts.evictions_refused += 1
        if reply.retry_after_s:
            await asyncio.sleep(min(reply.retry_after_s, PAUSE_MAX_S))
        return Event.EVICT_REFUSED

    async def _watch(self) -> Event:
        """Waits until the pod no longer exists on its node and its replacement is ready."""
        task, begun = self.record.task, self.record.begun
        assert begun is not None, "set by LOOK, which precedes each eviction"
        deadline_s = self._clock.monotonic() + self._ready_timeout_s
        is_target_deleted = False
        while self._clock.monotonic() < deadline_s:
            await self._see_window()
            if not is_target_deleted and not self._mover.has_node(task.target):
                is_target_deleted = True
                await self._feed(Event.TARGET_GONE)
            if self._mover.placed_pod(task.uid) is None:
                replacement = self._replacement(begun)
                if replacement is not None and replacement.is_ready:
                    self._detail = replacement.node if replacement.node != task.target else ""
                    return Event.READY_ON_TARGET if replacement.node == task.target else Event.READY_ELSEWHERE
            await asyncio.sleep(POLL_S)
        self._detail = f"within {self._ready_timeout_s:g} s"
        return Event.NOT_READY

    def _replacement(self, begun: EvictionStart) -> Pod | None:
        """Returns the pod that took the reservation, if it has a node, else the best new replica with a node, else None."""
        known, taker = set(begun.known), self._mover.replacement()
        if taker:
            pod = self._mover.placed_pod(taker)
            if pod is not None and not pod.is_deleting:
                return pod
        new = [one for one in self._peers(begun) if one.uid not in known and not one.is_deleting]
        if any(one.uid == taker for one in new):
            return None  # it is not yet assumed or bound
        placed = [one for one in new if self._mover.placed_pod(one.uid) is not None]
        placed.sort(key=lambda one: (one.node != self.record.task.target, not one.is_ready, one.name))
        return placed[0] if placed else None

    def _peers(self, begun: EvictionStart) -> Sequence[Pod]:
        return self._mover.peers(self.record.task.ref.namespace, begun.owner)

    def _check(self) -> Event:
        task, begun = self.record.task, self.record.begun
        assert begun is not None, "set by LOOK, which precedes each eviction"
        if not self._mover.has_node(task.target):
            return Event.TARGET_GONE
        self._release()
        replacement = self._replacement(begun)
        ready = sum(one.is_ready and not one.is_deleting for one in self._peers(begun))
        before = self._found(task.source, begun.ready)
        after = self._found("" if replacement is None else replacement.node, ready)
        dimensions = self.record.dimensions
        threshold = tuple(share for _, share in self.record.threshold)
        self._detail = should_stop(task.prediction(dimensions), before, after, threshold=threshold)
        return Event.CHECK_FAILED if self._detail else Event.CHECK_PASSED

    def _found(self, node: str, ready: int) -> StepState:
        task, dimensions = self.record.task, self.record.dimensions

        def peaks(name: str, prediction: tuple[tuple[str, float], ...]) -> tuple[float, ...]:
            now, predicted = self._forecasts.peaks(name), dict(prediction)
            return tuple(now.get(one, float("nan")) if one in predicted else 0.0 for one in dimensions)

        unmeasured = tuple(float("nan") for _ in dimensions)
        return StepState(
            node, ready, peaks(task.source, task.source_peaks), peaks(task.target, task.target_peaks), unmeasured
        )

    async def _pause(self, refusals: int) -> None:
        await asyncio.sleep(min(PAUSE_S * 2.0 ** min(refusals - 1, 10), PAUSE_MAX_S))
