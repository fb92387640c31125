"""The repair controller of one domain, a background task: makes plans in each window and, in mode `apply`, runs them.

Owns the schedule, and the record between runs. Nothing is planned or moved outside a window. Budgets and stopped runs of
a window count across restarts. An unfinished run of another process is resumed first. `run` is part of PeakForecast's
background task; `status` and `request` are called on the loop by the HTTP API.
"""

from __future__ import annotations

import asyncio
import logging
import random
from datetime import UTC, datetime
from typing import Final

import msgspec

from domains.forecast.repair.record import Budget, Record, Task, dumped, loaded
from domains.forecast.repair.run import Event, Run, State
from domains.forecast.repair.run_executor import POLL_S, DocumentConflictError, Forecasts, RepairCounts, RunExecutor
from domains.forecast.settings.repair_runs import ExecutionSettings, RepairMode
from domains.forecast.settings.windows import Span
from multisched.framework.background import BackgroundPorts
from multisched.framework.moving import DocumentAnswer, Mover, RepairStatus, digest_of
from multisched.framework.ports import Clock, ObjectRef, UnreachableError
from multisched.framework.repair import RepairPlan, RepairRefusedError, RepairRequest

logger = logging.getLogger(__name__)

SLEEP_MAX_S: Final = 60.0
"""Longest sleep outside a window, so that changes of the clock or of time zone rules are noticed."""
STOPS_MAX: Final = 3
"""After this many stopped runs in a window, repair waits for the next window."""
READ_PAUSE_S: Final = 5.0
CONFLICT_PAUSE_S: Final = 30.0
"""Wait before the record is read again after a DocumentConflictError."""
JITTER: Final = 0.1


class RepairControl:
    """Decides when the repair of one domain plans and runs."""

    def __init__(self, domain: str, settings: ExecutionSettings, budget: Budget, forecasts: Forecasts) -> None:
        self._domain = domain
        self._settings = settings
        self._budget = budget
        self._forecasts = forecasts
        self._record = Record()
        self._executor: RunExecutor | None = None
        self._counts = RepairCounts()
        self._mover: Mover | None = None
        self._clock: Clock | None = None
        self._wanted: RepairPlan | None = None
        """Plan requested by a user (`request`), to be started next."""
        self._wake = asyncio.Event()
        self._planned_for_s = 0.0
        """When the window of the last preview opened, in epoch seconds."""
        self._problem = ""
        """Why the last plan failed; empty if it succeeded."""

    # -- the background task --------------------------------------------------------------------------------------------------

    async def run(self, ports: BackgroundPorts) -> None:
        """Plans and executes repairs until cancelled."""
        if ports.mover is None or self._settings.mode is RepairMode.OFF:
            await asyncio.Event().wait()
            return
        while True:
            try:
                await self._live(ports, ports.mover)
            except DocumentConflictError as error:
                logger.warning(
                    "repair suspended; its record was written by another process, or not stored",
                    extra={"domain": self._domain, "error": str(error)},
                )
                self._problem = f"its state cannot be stored: {error}"
            await asyncio.sleep(CONFLICT_PAUSE_S)

    async def _live(self, ports: BackgroundPorts, mover: Mover) -> None:
        self._clock = ports.clock
        try:
            await self._until_leading(mover)
            self._record = await self._read(mover)
            self._mover = mover
            if self._record.is_under_way:
                assert self._record.run is not None, "a run is in progress"
                is_new = self._record.run.state is State.PLANNED
                await self._execute(mover, Event.BEGIN if is_new else Event.RESTARTED)
            while True:
                await self._sleep(await self._turn(mover), ports.rng)
        finally:
            mover.release()
            self._forecasts.withdraw()
            self._executor = self._mover = None

    async def _until_leading(self, mover: Mover) -> None:
        while not mover.may_act():  # noqa: ASYNC110 - plugins get no notification of the lease
            await asyncio.sleep(POLL_S)

    async def _read(self, mover: Mover) -> Record:
        while True:
            try:
                return loaded(await mover.read())
            except UnreachableError as error:
                logger.warning("the state of repair cannot be read", extra={"error": str(error)})
                await asyncio.sleep(READ_PAUSE_S)

    async def _sleep(self, pause_s: float, rng: random.Random) -> None:
        if self._wanted is not None:
            return
        self._wake.clear()
        try:
            async with asyncio.timeout(pause_s * (1 + JITTER * rng.random())):
                await self._wake.wait()
        except TimeoutError:
            return

    async def _turn(self, mover: Mover) -> float:
        """Makes at most one plan, and runs or previews it; returns the seconds to wait afterwards."""
        span = self._span()
        wanted, self._wanted = self._wanted, None
        if span is None:
            return self._until_open_s()
        await self._until_leading(mover)
        self._record = self._record.in_window(span)
        if wanted is not None:
            await self._begin(mover, wanted)
        elif self._settings.mode is RepairMode.PREVIEW:
            if self._planned_for_s != span.opens_s:
                await self._preview(mover, span)
        elif self._record.stops < STOPS_MAX and self._budget.left(self._record.moved):
            plan = await self._plan(mover, RepairRequest(moves=self._budget.left(self._record.moved)))
            if plan is not None and self._span() is not None:
                await self._begin(mover, plan)
        return self._settings.interval_s

    def _span(self) -> Span | None:
        return None if self._settings.windows is None else self._settings.windows.span(self._now_s())

    def _now_s(self) -> float:
        assert self._clock is not None, "the background task runs"
        return self._clock.now().timestamp()

    def _until_open_s(self) -> float:
        now_s = self._now_s()
        opens_s = None if self._settings.windows is None else self._settings.windows.next_open(now_s)
        return SLEEP_MAX_S if opens_s is None else min(max(opens_s - now_s, 0.01), SLEEP_MAX_S)

    # -- plans and runs --------------------------------------------------------------------------------------------

    async def _plan(self, mover: Mover, request: RepairRequest) -> RepairPlan | None:
        """Makes a plan; logs the reason and returns None if that fails."""
        try:
            plan = await mover.plan(request)
        except RepairRefusedError as error:
            self._problem = str(error)
            logger.warning("no repair can be planned", extra={"domain": self._domain, "error": self._problem})
            return None
        self._problem = ""
        self._counts.plans += 1
        fields = {
            "domain": self._domain,
            "digest": digest_of(plan),
            "moves": len(plan.moves),
            "left": len(plan.unrepaired),
        }
        logger.info("repair planned", extra=fields)
        return plan

    async def _preview(self, mover: Mover, span: Span) -> None:
        """Makes a plan, logs its moves and stores it for `status`; moves nothing."""
        plan = await self._plan(mover, RepairRequest())
        if plan is None:
            return
        self._planned_for_s = span.opens_s
        for move in plan.moves:
            logger.info("repair would move", extra={"move": Task.of(move).words, "gain_percent": move.gain_percent})
        self._record = self._recorded(plan, None)
        reply = await mover.write(dumped(self._record))
        if reply.answer is not DocumentAnswer.WRITTEN:
            self._counts.keep_failures += 1
            logger.warning("the previewed plan was not stored", extra={"error": reply.message})

    async def _begin(self, mover: Mover, plan: RepairPlan) -> None:
        moves = self._budget.within(plan.moves, self._record.moved)
        if not moves:
            return
        cut = msgspec.structs.replace(plan, moves=moves)
        self._record = self._recorded(cut, Run(len(moves)), digest_of(plan))
        self._counts.runs += 1
        await self._execute(mover, Event.BEGIN)

    def _recorded(self, plan: RepairPlan, run: Run | None, digest: str = "") -> Record:
        return msgspec.structs.replace(
            self._record,
            digest=digest or digest_of(plan),
            threshold=tuple((name, percent / 100) for name, percent in plan.threshold_percent.items()),
            tasks=tuple(Task.of(move) for move in plan.moves),
            run=run,
            begun=None,
            reason="",
        )

    async def _execute(self, mover: Mover, first: Event) -> None:
        """Executes one run to its end."""
        windows, clock = self._settings.windows, self._clock
        assert windows is not None, "the settings require windows"
        assert clock is not None, "the background task runs"
        executor = RunExecutor(
            self._record, mover, self._forecasts, windows, clock, self._counts, self._settings.ready_timeout_s
        )
        self._executor = executor
        try:
            self._record = await executor.execute(first)
        finally:
            self._executor = None
        self._report_end(mover)

    def _report_end(self, mover: Mover) -> None:
        record = self._record
        assert record.run is not None, "a run has ended"
        is_finished = record.run.state is State.FINISHED
        self._counts.finished += is_finished
        self._counts.stopped += not is_finished
        fields = {"domain": self._domain, "digest": record.digest, "steps": len(record.tasks), "reason": record.reason}
        if is_finished:
            logger.info("repair finished", extra=fields)
            return
        logger.warning("repair stopped", extra=fields)
        task = record.task
        mover.record_event(
            "Warning", ObjectRef("Node", "", task.target, ""), "RepairStopped", f"{task.words}: {record.reason}"
        )

    # -- API -------------------------------------------------------------------------------------------------------

    def status(self) -> RepairStatus:
        """Returns the state of the repair."""
        record = self._record if self._executor is None else self._executor.record
        span, opens_s = None, None
        if self._clock is not None and self._settings.windows is not None:
            span, opens_s = self._span(), self._settings.windows.next_open(self._now_s())
        moved = record.moved if span is None or span.opens_s == record.opened_s else ()
        run = record.run
        return RepairStatus(
            domain=self._domain,
            mode=self._settings.mode.value,
            is_open=span is not None,
            opens_s=opens_s if span is None else span.opens_s,
            closes_s=None if span is None else span.closes_s,
            state="" if run is None else run.state.value,
            step=0 if run is None else run.place + 1,
            steps=len(record.tasks),
            move=record.task.words if run is not None and not run.is_over else "",
            reason=record.reason or self._problem,
            moved=len(moved),
            moves_left=self._budget.left(moved),
            counts={name: int(value) for name, value in msgspec.structs.asdict(self._counts).items()},
            digest=record.digest,
        )

    async def request(self, request: RepairRequest, digest: str) -> RepairStatus:
        """See `RepairExecutor.request_repair`."""
        mover = self._free_mover()
        plan = await mover.plan(request)
        found = digest_of(plan)
        if found != digest:
            raise RepairRefusedError(
                f"the cluster has changed since plan {digest} was made: the plan would be {found} now; review it first",
                409,
            )
        if not plan.moves:
            raise RepairRefusedError("the plan has no moves: there is nothing to do", 409)
        self._free_mover()  # checks again, because planning took time
        span = self._span()
        assert span is not None, "a window is open"
        moved = self._record.in_window(span).moved
        if len(self._budget.within(plan.moves, moved)) < len(plan.moves):
            raise RepairRefusedError(
                f"{len(plan.moves)} moves exceed the remaining budgets of this window after {len(moved)} moves; "
                f"ask for fewer (--moves), or raise movesPerWindow, movesPerNode or movesPerService",
                409,
            )
        self._wanted = plan
        self._wake.set()
        return msgspec.structs.replace(self.status(), digest=digest, state=State.PLANNED.value, steps=len(plan.moves))

    def _free_mover(self) -> Mover:
        """Returns the mover if a run can start now; raises RepairRefusedError otherwise."""
        if self._settings.mode is RepairMode.OFF:
            raise RepairRefusedError(
                f"repair of domain {self._domain} is off: set repair.mode and repair.windows in the args of PeakForecast",
                409,
            )
        if self._mover is None or not self._mover.may_act():
            raise RepairRefusedError(
                "this process does not lead the domain, or has not read the state of repair yet", 503
            )
        if self._span() is None:
            raise RepairRefusedError(f"outside the windows of repair: {self._next_window()}", 409)
        if self._executor is not None or self._wanted is not None:
            raise RepairRefusedError("a repair is in progress; see multisched repair status", 409)
        return self._mover

    def _next_window(self) -> str:
        windows = self._settings.windows
        opens_s = None if windows is None else windows.next_open(self._now_s())
        if opens_s is None:
            return "none opens within three weeks"
        return f"the next one opens at {datetime.fromtimestamp(opens_s, UTC):%Y-%m-%dT%H:%M:%SZ}"
