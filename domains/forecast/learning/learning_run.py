"""LearningRun: the computation of a refit. Reads the sources, merges their readings, and learns profiles from them.

Owns the sources, which cache what they have read. Runs in the background process (`process.py`) if available, else in
threads of the program, with the same code and results. Called by `refit`, one request at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import anyio
import msgspec
import numpy as np

from domains.forecast.curves.node_usage import LoadRequest, MeasuredLoads
from domains.forecast.history.coverage import profile_notes, reading_notes, weight_notes
from domains.forecast.history.source import LoadMeasuringSource, Reading, Source, SourceError, merged
from domains.forecast.history.spikes import USUAL_RATIO, without_spikes
from domains.forecast.service_names import PodName
from multisched.forecasting.profiles import Profiles
from multisched.framework.background import InThread
from multisched.framework.measures import Grid
from multisched.model.plural import counted, verb

Learn = Callable[[Reading, int, float], Profiles]
"""(reading, version, now in epoch seconds); runs in a worker thread."""
Keep = Callable[[Profiles], str]
"""Saves profiles for the next start; returns an error text, or "". Runs in a worker thread."""


class LearningRequest(msgspec.Struct, frozen=True):
    """Request to learn profiles. Picklable."""

    grid: Grid
    version: int
    """Version of the new profiles."""
    now_s: float
    deadline_s: float
    """Deadline for reading, and again for learning."""
    covered: frozenset[str] = frozenset()
    """Dimensions that had samples before; the refit fails if one has none now."""
    pods: Mapping[PodName, str] = msgspec.field(default_factory=dict)
    """Existing pods -> service."""
    readings: Mapping[int, Reading] = msgspec.field(default_factory=dict)
    """Readings of polling sources, by index of the source; `LearningRun` reads the other sources."""


class LearningResult(msgspec.Struct, frozen=True):
    """Result of a `LearningRequest`. Picklable."""

    profiles: Profiles
    covered: frozenset[str]
    notes: tuple[str, ...]
    """Messages about what was skipped or guessed."""
    capacities: Mapping[str, Mapping[str, float]]
    """Dimension -> node -> capacity in plain units, for capacities measured by a query."""
    unkept: str = ""
    """Why the profiles were not saved; empty if they were, or no file is configured."""


class LearningRefusal(msgspec.Struct, frozen=True):
    """Failure of a request because of a source; caches of sources are unchanged."""

    text: str


class LearningRun:
    """Reads the sources of history, and learns profiles from them."""

    def __init__(self, sources: Mapping[int, Source], learn: Learn, keep: Keep | None = None) -> None:
        """`sources`: by index in the configuration, which is their precedence."""
        self._sources = dict(sources)
        self._learn = learn
        self._keep = keep

    async def run(self, order: LearningRequest, in_thread: InThread) -> LearningResult | LearningRefusal:
        """Reads the sources and learns profiles. Raises TimeoutError if learning takes too long, and errors of the fit."""
        try:
            with anyio.fail_after(order.deadline_s):
                reading = await self._read(order, in_thread)
            refuse_empty(reading, order.covered)
        except SourceError as error:
            return LearningRefusal(str(error))
        except TimeoutError:
            return LearningRefusal(f"not read within {order.deadline_s:g} s")
        try:
            with anyio.fail_after(order.deadline_s):
                profiles, unkept = await in_thread(lambda: self._learned(reading, order))
        except TimeoutError as error:  # an exception makes the caller replace a process that never finishes
            raise TimeoutError(f"not learned within {order.deadline_s:g} s") from error
        note_groups = (
            reading_notes(reading, order.grid.steps),
            profile_notes(profiles),
            weight_notes(reading, profiles),
        )
        notes = (*reading.notes, *(note for notes in note_groups for note in notes))
        return LearningResult(profiles, covered_by(reading), notes, reading.capacities, unkept)

    def _learned(self, reading: Reading, order: LearningRequest) -> tuple[Profiles, str]:
        """Learns and saves profiles; returns them, and the error text of saving."""
        profiles = self._learn(reading, order.version, order.now_s)
        return profiles, "" if self._keep is None else self._keep(profiles)

    @property
    def looks(self) -> bool:
        """Reports whether a source can return the current load."""
        return any(isinstance(one, LoadMeasuringSource) for one in self._sources.values())

    async def look(self, request: LoadRequest) -> MeasuredLoads | LearningRefusal:
        """Returns the current load; for each dimension from the first source that measures it."""
        found = MeasuredLoads()
        try:
            with anyio.fail_after(request.deadline_s):
                for source in reversed(list(self._sources.values())):
                    if isinstance(source, LoadMeasuringSource):
                        seen = await source.look(request)
                        found.by_row |= seen.by_row
                        found.by_node |= seen.by_node
        except SourceError as error:
            return LearningRefusal(str(error))
        except TimeoutError:
            return LearningRefusal(f"no answer within {request.deadline_s:g} s")
        return found

    async def _read(self, order: LearningRequest, in_thread: InThread) -> Reading:
        found = dict(order.readings)
        for index, source in self._sources.items():
            found[index] = await source.read(order.grid, in_thread)
        readings = [found[index] for index in sorted(found)]
        return await in_thread(lambda: _cleaned(readings, order.grid.steps))


def _cleaned(readings: list[Reading], steps: int) -> Reading:
    """Merges the readings and removes spikes."""
    reading = readings[0] if len(readings) == 1 else merged(readings, steps)
    usage, count = without_spikes(reading.usage)
    if not count:
        return reading
    samples = f"{counted(count, 'single sample')} {verb(count, 'is', 'are')}"
    series = f"{verb(count, 'its', 'their')} series usually is"
    gaps = verb(count, "it counts as a gap", "they count as gaps")
    note = f"{samples} over {USUAL_RATIO:g} times as high as {series}; {gaps}"
    return msgspec.structs.replace(reading, usage=usage, notes=(*reading.notes, note))


def refuse_empty(reading: Reading, covered: frozenset[str]) -> None:
    """Raises SourceError if a dimension of `covered` has no samples, or no dimension has any.

    Otherwise a server that lost its data, or a renamed label, would replace good profiles by empty ones.
    """
    now = covered_by(reading)
    lost = sorted(covered - now)
    if lost:
        raise SourceError(f"dimension {lost[0]} had samples before and has none now; its last profiles stay active")
    if not now:
        notes = f" ({reading.notes[0]})" if reading.notes else ""
        raise SourceError(f"the sources have no sample in the window{notes}")


def covered_by(reading: Reading) -> frozenset[str]:
    """Returns the dimensions with at least one sample."""
    usage, totals = reading.usage, reading.totals
    found = {name for number, name in enumerate(usage.dimensions) if not np.isnan(usage.values[:, number]).all()}
    if totals is not None:
        found |= {name for n, name in enumerate(totals.dimensions) if not np.isnan(totals.values[:, n]).all()}
    return frozenset(found)
