"""The refit: periodically learns profiles from history and activates them.

Owns the schedule and the state of refits. After a failure the last good profiles stay active. Reading and learning run
in the background process (`learning/process.py`), not on the event loop; if that process dies, one refit fails. Polling
sources run here, because a restart of the process would lose their samples. Run by the plugin's `run`; its state is
read by metrics and `/readyz`.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

import anyio
import msgspec

from domains.forecast.curves.node_usage import LoadRequest, MeasuredLoads
from domains.forecast.history.source import PollingSource, Source, SourceError
from domains.forecast.learning.learning_run import (
    Keep,
    Learn,
    LearningRefusal,
    LearningRequest,
    LearningResult,
    LearningRun,
)
from domains.forecast.ledger.node_loads import NodeLoads
from domains.forecast.service_names import PodName
from multisched.forecasting.profiles import NO_PROFILES, Profiles, duration_text, profiles_text
from multisched.framework.background import BackgroundPorts, BackgroundProcess, BackgroundProcessError
from multisched.framework.measures import Grid

logger = logging.getLogger(__name__)

RETRY_S: Final = 30.0
"""Wait after the first failed refit; doubled with each further failure, up to the interval."""
JITTER: Final = 0.1
"""Random extension of each wait, as a share, so that the replicas of a Deployment do not query at the same time."""
ERROR_CHARS_MAX: Final = 1_000
LOOK_S: Final = 60.0
"""Shortest interval between measurements of node loads; it is also at least a step."""

PROCESS_GRACE_S: Final = 60.0
"""Time for process start and transfer of results, added to the deadlines of reading and learning."""

Measured = Callable[[Mapping[str, Mapping[str, float]]], None]
"""Dimension -> node -> capacity in plain units."""


class BackgroundStudy(msgspec.Struct, frozen=True):
    """How the `LearningRun` is created in the background process."""

    factory: str
    settings: object
    pods: Callable[[], Awaitable[Mapping[PodName, str]]]
    """Returns existing pods -> service, which the process does not know."""


class RefitSettings(msgspec.Struct, frozen=True):
    """Schedule and window of refits."""

    interval_s: float
    step_s: float
    steps: int
    """Number of steps of the window."""
    deadline_s: float = 1_800.0
    """Deadline for reading, and again for learning."""


class RefitState(msgspec.Struct):
    """State of the refits; handed out as a copy."""

    refits: int = 0
    """Number of successful refits."""
    failures: int = 0
    failures_in_a_row: int = 0
    last_error: str = ""
    """Why the last refit failed; empty if it succeeded."""
    last_error_s: float = 0.0
    """Time of the last failure, in epoch seconds."""
    version: int = 0
    """Version of the active profiles; 0: none."""
    made_s: float = 0.0
    newest_s: float = 0.0
    """Time of their newest sample, in epoch seconds."""
    duration_s: float = 0.0
    """Duration of the last successful refit."""
    polls_failed: int = 0
    notes: tuple[str, ...] = ()
    """Messages about what the last reading skipped or guessed."""
    unkept: str = ""
    """Why the active profiles were not saved to the profiles file; empty if they were, or no file is configured."""

    def age_s(self, now_s: float) -> float:
        """Returns the age of the newest sample in the active profiles; NaN without profiles."""
        return now_s - self.newest_s if self.version else math.nan

    def detail(self, now_s: float) -> str:
        """Returns the state as a sentence, for `/readyz`."""
        words = profiles_text(self.version, self.age_s(now_s)) if self.version else NO_PROFILES
        if self.last_error:
            since = duration_text(now_s - self.last_error_s)
            refits = "1 refit" if self.failures_in_a_row == 1 else f"{self.failures_in_a_row} refits"
            words += f"; {refits} failed, the last {since} ago: {self.last_error}"
        if self.unkept:
            words += f"; not saved for the next start: {self.unkept}"
        return words


class Refit:
    """Runs the refits of one plugin."""

    def __init__(
        self,
        sources: Sequence[Source],
        learn: Learn,
        adopt: Callable[[Profiles], None],
        settings: RefitSettings,
        in_force: Profiles | None = None,
        *,
        background: BackgroundStudy | None = None,
        keep: Keep | None = None,
        measured: Measured | None = None,
        loads: NodeLoads | None = None,
        covered: frozenset[str] = frozenset(),
    ) -> None:
        """`adopt` is called on the loop, between cycles; `measured` is called before it if capacities are queried.

        `in_force`: saved profiles of an earlier run, already adopted by the caller. `background`: if None, learning runs in
        threads. `loads`: receives measured loads, if a source can return the current load. `covered`: dimensions with
        values in `in_force` that are still configured.
        """
        self._polled = {index: one for index, one in enumerate(sources) if isinstance(one, PollingSource)}
        rest = {index: one for index, one in enumerate(sources) if index not in self._polled}
        self._study = LearningRun(rest, learn, keep)
        self._background = background
        self._process: BackgroundProcess | None = None
        self._is_under_way = False
        self._measured = measured
        self.loads = loads
        self._adopt = adopt
        self._settings = settings
        self._state = RefitState()
        self._covered = covered
        """Dimensions that had samples at the last successful refit."""
        if in_force is not None:
            self._note_in_force(in_force)

    def state(self) -> RefitState:
        """Returns a copy of the state."""
        return msgspec.structs.replace(self._state)

    async def run(self, ports: BackgroundPorts) -> None:
        """Runs refits, polls and load measurements until cancelled. Errors of sources and fits are recorded, not raised."""
        async with anyio.create_task_group() as tasks:
            for source in self._polled.values():
                tasks.start_soon(self._poll, source, ports)
            self._process = None  # a process of an earlier run of the background task has ended with that run
            if self.loads is not None and self._study.looks:
                tasks.start_soon(self._look_at, self.loads, ports)
            while True:
                await self.once(ports)
                await asyncio.sleep(self._wait_s(ports))

    async def once(self, ports: BackgroundPorts) -> bool:
        """Runs one refit; returns whether its profiles were activated."""
        self._is_under_way = True
        try:
            return await self._once(ports)
        finally:
            self._is_under_way = False

    async def _once(self, ports: BackgroundPorts) -> bool:
        began_s = ports.clock.monotonic()
        try:
            found = await self._found(ports)
            if self._measured is not None:
                self._measured(found.capacities)
            self._adopt(found.profiles)
        except (SourceError, BackgroundProcessError) as error:
            self._note_failure(str(error), ports)
            return False
        except TimeoutError as error:
            self._note_failure(str(error) or f"not finished within {self._settings.deadline_s:g} s", ports)
            return False
        except Exception as error:
            logger.exception("refit failed")
            self._note_failure(f"{type(error).__name__}: {error}", ports)
            return False
        self._note_in_force(found.profiles)
        self._covered = found.covered
        self._state.refits += 1
        self._state.failures_in_a_row, self._state.last_error = 0, ""
        self._report(found.notes)
        self._report_unkept(found.unkept)
        self._state.duration_s = ports.clock.monotonic() - began_s
        logger.info(
            "profiles in force", extra={"version": found.profiles.version, "services": len(found.profiles.services)}
        )
        return True

    async def _found(self, ports: BackgroundPorts) -> LearningResult:
        """Reads and learns. Raises SourceError, TimeoutError and BackgroundProcessError; without a process, also any error of
        the fit."""
        settings, now_s = self._settings, ports.clock.now().timestamp()
        # Excludes the current, unfinished step.
        end = math.floor(now_s / settings.step_s)
        grid = Grid((end - settings.steps) * settings.step_s, settings.step_s, settings.steps)
        order = LearningRequest(grid, self._state.version + 1, now_s, settings.deadline_s, self._covered)
        with anyio.fail_after(settings.deadline_s):
            readings = {index: await one.read(grid, ports.in_thread) for index, one in self._polled.items()}
        order = msgspec.structs.replace(order, readings=readings)
        process = self._opened(ports)
        if process is None or self._background is None:
            found = await self._study.run(order, ports.in_thread)
        else:
            order = msgspec.structs.replace(order, pods=await self._background.pods())
            with anyio.fail_after(2 * order.deadline_s + PROCESS_GRACE_S):
                found = await process.ask(order)
            if isinstance(found, LearningResult):
                found.profiles.freeze()
        if isinstance(found, LearningRefusal):
            raise SourceError(found.text)
        return found

    def _opened(self, ports: BackgroundPorts) -> BackgroundProcess | None:
        """Returns the background process, started on first use; None if processes are not available."""
        if self._process is None and self._background is not None and ports.process is not None:
            self._process = ports.process(self._background.factory, self._background.settings)
        return self._process

    async def _look_at(self, loads: NodeLoads, ports: BackgroundPorts) -> None:
        """Measures node loads periodically, except during a refit."""
        every_s = max(LOOK_S, self._settings.step_s)
        while True:
            await asyncio.sleep(every_s)
            if not self._is_under_way:
                await self._look(loads, ports, every_s)

    async def _look(self, loads: NodeLoads, ports: BackgroundPorts, deadline_s: float) -> None:
        now_s = ports.clock.now().timestamp()
        request = LoadRequest(now_s, self._settings.step_s, deadline_s, await loads.rows_of_pods())
        process = self._opened(ports)
        seen: MeasuredLoads | LearningRefusal
        try:
            if process is None:
                seen = await self._study.look(request)
            else:
                with anyio.fail_after(deadline_s + PROCESS_GRACE_S):
                    seen = await process.ask(request)
        except (BackgroundProcessError, TimeoutError) as error:
            seen = LearningRefusal(str(error) or "no answer in time")
        if isinstance(seen, LearningRefusal):
            self._note_poll("history", seen.text)
        else:
            loads.note(now_s, seen)

    def _note_poll(self, source: str, text: str) -> None:
        self._state.polls_failed += 1
        logger.warning("the load was not read", extra={"source": source, "error": text[:ERROR_CHARS_MAX]})

    async def _poll(self, source: PollingSource, ports: BackgroundPorts) -> None:
        while True:
            try:
                with anyio.fail_after(source.interval_s):
                    await source.poll(ports.clock.now().timestamp())
            except (SourceError, TimeoutError) as error:
                self._note_poll(source.name, str(error))
            await asyncio.sleep(source.interval_s)

    def _wait_s(self, ports: BackgroundPorts) -> float:
        failures, interval_s = self._state.failures_in_a_row, self._settings.interval_s
        wait_s = interval_s if not failures else min(interval_s, RETRY_S * 2.0 ** min(failures - 1, 20))
        return wait_s * (1 + JITTER * ports.rng.random())

    def _report(self, notes: tuple[str, ...]) -> None:
        """Stores the notes, and logs those that are new since the last reading."""
        for note in sorted(set(notes) - set(self._state.notes), key=notes.index):
            logger.warning("history is incomplete", extra={"note": note[:ERROR_CHARS_MAX]})
        self._state.notes = notes

    def _report_unkept(self, why: str) -> None:
        """Logs a failure to save the profiles file, once per distinct reason."""
        if why and why != self._state.unkept:
            logger.warning("profiles not saved; the next start will not have them", extra={"profilesFile": why})
        self._state.unkept = why

    def _note_failure(self, text: str, ports: BackgroundPorts) -> None:
        state = self._state
        state.failures += 1
        state.failures_in_a_row += 1
        state.last_error, state.last_error_s = text[:ERROR_CHARS_MAX], ports.clock.now().timestamp()
        logger.warning("refit failed; the last profiles stay in force", extra={"error": state.last_error})

    def _note_in_force(self, profiles: Profiles) -> None:
        self._state.version, self._state.made_s = profiles.version, profiles.made_s
        self._state.newest_s = profiles.newest_s
