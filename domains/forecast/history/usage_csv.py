"""Usage from CSV files with the columns `timestamp`, `service` or `pod`, `dimension`, `value`, and optionally `unit`.

Reads the files again on each call. Raises `SourceError` for an unusable file. Invalid lines, and lines with the same
time, name and dimension as an earlier one, are skipped and reported with file, line and column. Lines may be in any
order. Steps without a line are gaps. Limits: LINE_BYTES_MAX per line, SAMPLES_MAX over all files.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from domains.forecast.csv_lines import (
    DIMENSION_COLUMNS,
    BadField,
    LineProblem,
    epoch_seconds,
    lines_of,
    plain_amount,
    split_line,
)
from domains.forecast.history.source import (
    NOTES_MAX,
    SERVICES_MAX,
    Reading,
    SourceError,
    Table,
    first_step,
    joined,
    usage_of,
)
from domains.forecast.service_names import stripped
from domains.forecast.settings.sources import DIMENSIONS_MAX, Aggregation, CsvSettings, Dimension
from multisched.forecasting.time_units import DAY_S
from multisched.forecasting.usage import Usage
from multisched.framework.background import InThread
from multisched.framework.measures import Grid

SAMPLES_MAX: Final = 20_000_000
"""Limit of lines over all files; each takes 32 bytes during reading."""
CELLS_MAX: Final = 200_000_000
"""Limit of names times dimensions times steps in `read_recorded`, 4 bytes each."""
STEP_S_MIN: Final = 60.0
STEP_S_ALONE: Final = 3_600.0
"""Step used if no series has two samples."""
COLUMNS: Final = (("timestamp",), ("service", "pod"), DIMENSION_COLUMNS, ("value",), ("unit",))
"""Accepted names of each column; the last column is optional."""


class CsvSource:
    """Implements `Source`. A reading ends with the newest line and not at the end of the grid, because files may be old."""

    def __init__(self, settings: CsvSettings, dimensions: Sequence[Dimension]) -> None:
        self.name = f"csv {settings.files[0]}" + (
            f" and {len(settings.files) - 1} more" if len(settings.files) > 1 else ""
        )
        self._files = settings.files
        self._dimensions = {dimension.name: dimension for dimension in dimensions}

    async def read(self, grid: Grid, in_thread: InThread) -> Reading:
        """See `Source`."""
        return await in_thread(lambda: read_usage(self._files, self._dimensions, grid))


class _Lines(msgspec.Struct):
    """Valid lines of all files, and the problems of invalid ones."""

    names: dict[str, int] = msgspec.field(default_factory=dict)
    dimensions: dict[str, int] = msgspec.field(default_factory=dict)
    units: dict[str, str] = msgspec.field(default_factory=dict)
    """Dimension -> unit of its lines, set by the first line with a unit."""
    seconds: array[float] = msgspec.field(default_factory=lambda: array("d"))
    values: array[float] = msgspec.field(default_factory=lambda: array("d"))
    keys: array[int] = msgspec.field(default_factory=lambda: array("q"))
    """name * DIMENSIONS_MAX + dimension"""
    positions: array[int] = msgspec.field(default_factory=lambda: array("q"))
    """file * 2**32 + line"""
    problems: list[LineProblem] = msgspec.field(default_factory=list)
    problem_count: int = 0
    is_pods: bool = False
    """True if a file has the column `pod`."""

    def refuse(self, problem: LineProblem) -> None:
        self.problem_count += 1
        if len(self.problems) < NOTES_MAX:
            self.problems.append(problem)


class Recorded(msgspec.Struct, frozen=True):
    """The content of files, with all dimensions in them."""

    usage: Usage
    samples: int
    problems: tuple[LineProblem, ...]
    """The first skipped lines, at most NOTES_MAX."""
    problem_count: int


def read_recorded(files: Sequence[str], window_days: float) -> Recorded:
    """Reads all dimensions; the step is the median distance of samples of a series.

    Raises SourceError as `read_usage`, and for more than CELLS_MAX samples.
    """
    lines = _lines(files, {})
    steps_s = np.diff(np.frombuffer(lines.seconds))[np.diff(np.frombuffer(lines.keys, np.int64)) == 0]
    step_s = max(STEP_S_MIN, float(np.rint(np.median(steps_s)))) if len(steps_s) else STEP_S_ALONE
    seconds = np.frombuffer(lines.seconds)
    span_s = min(window_days * DAY_S, float(np.ptp(seconds)) + step_s)
    steps = math.ceil(span_s / step_s)
    if steps * len(lines.names) * len(lines.dimensions) > CELLS_MAX:
        raise SourceError(
            f"history file {files[0]}: {steps} steps of {step_s:.0f} s of {len(lines.names)} names in {len(lines.dimensions)}"
            f" dimensions are more than {CELLS_MAX} samples; give a shorter window, or coarser samples"
        )
    dimensions = {name: Dimension(name) for name in sorted(lines.dimensions)}
    tables, own = _tables(lines, dimensions, Grid(0.0, step_s, steps))
    return Recorded(usage_of(tables, own), len(seconds), tuple(lines.problems), lines.problem_count)


def read_usage(files: Sequence[str], dimensions: dict[str, Dimension], grid: Grid) -> Reading:
    """Reads the configured dimensions, with as many steps as the grid has. Raises SourceError for a file that is unreadable,
    lacks a column or has no sample."""
    units = {name: dimension.unit for name, dimension in dimensions.items() if dimension.unit}
    lines = _lines(files, units)
    tables, own = _tables(lines, dimensions, grid)
    notes = [str(problem) for problem in lines.problems]
    if lines.problem_count > len(notes):
        notes.append(f"{lines.problem_count - len(notes)} more lines skipped")
    unknown = sorted(set(lines.dimensions) - set(dimensions))
    if unknown:
        notes.append(f"dimensions {', '.join(unknown)} are in the files and not configured; they are skipped")
    if lines.is_pods:
        notes.append("the files name pods; their services are guessed from their names")
    return Reading(usage_of(tables, own), notes=tuple(notes[: NOTES_MAX + 3]))


def _lines(files: Sequence[str], units: dict[str, str]) -> _Lines:
    """Reads all files; returns lines sorted by name, dimension and time, without duplicates."""
    lines = _Lines(units=units)
    for number, name in enumerate(files):
        try:
            with Path(name).open("rb") as file:
                _read_file(number, name, file, lines)
        except OSError as error:
            raise SourceError(f"history file {name}: {error.strerror}; name a readable CSV file") from error
    if not lines.seconds:
        first = f"; the first bad line: {lines.problems[0]}" if lines.problems else ""
        raise SourceError(f"history file {files[0]}: has no sample{first}")
    _drop_doubles(lines, files)
    return lines


def _read_file(number: int, name: str, file: BinaryIO, lines: _Lines) -> None:
    found = lines_of(file)
    _, header = next(found, (1, ""))
    order, names_pods = _columns(name, header)
    lines.is_pods |= names_pods
    for line_number, line in found:
        try:
            if line is None:
                lines.refuse(LineProblem(name, line_number, "", "is too long; each line has one sample"))
            elif line.strip():
                _add(lines, split_line(line, order[-1]), order, names_pods=names_pods)
                lines.positions.append((number << 32) + line_number)
        except BadField as error:
            lines.refuse(LineProblem(name, line_number, error.column, str(error)))


def _columns(name: str, header: str | None) -> tuple[list[int], bool]:
    """Returns (index of each of COLUMNS or -1, then the number of columns; True if the file names pods, not services)."""
    found = [] if header is None else [part.strip().strip('"').lower() for part in header.split(",")]
    order = [next((found.index(name) for name in names if name in found), -1) for names in COLUMNS]
    missing = [" or ".join(names) for names, position in zip(COLUMNS[:-1], order, strict=False) if position < 0]
    if missing:
        fix = "begin the file with timestamp,service,dimension,value"
        raise SourceError(f"history file {name}, line 1: no column {', '.join(missing)}; {fix}")
    return [*order, len(found)], "service" not in found


def _add(lines: _Lines, parts: list[str], order: list[int], *, names_pods: bool) -> None:
    seconds, value = epoch_seconds(parts[order[0]]), plain_amount(parts[order[3]])
    name, dimension = parts[order[1]], parts[order[2]]
    for column, text in (("pod" if names_pods else "service", name), ("dimension", dimension)):
        if not text or "\ufffd" in text:
            raise BadField(column, "is not UTF-8; save the file as UTF-8" if text else "is empty; name it")
    unit = parts[order[4]] if order[4] >= 0 else ""
    if unit and unit != lines.units.setdefault(dimension, unit):
        raise BadField(
            "unit", f"is {unit}, and {dimension} is in {lines.units[dimension]}; write all of it in one unit"
        )
    if len(lines.seconds) >= SAMPLES_MAX:
        raise BadField("", f"exceeds the limit of {SAMPLES_MAX} samples; give fewer files or coarser samples")
    if dimension not in lines.dimensions and len(lines.dimensions) >= DIMENSIONS_MAX:
        raise BadField("dimension", f"exceeds the limit of {DIMENSIONS_MAX} dimensions; is it misspelt?")
    # Pods are mapped to services after all lines are read, so duplicates are found per pod, not per service.
    key = f"pod:{name}" if names_pods else name
    if key not in lines.names and len(lines.names) >= 4 * SERVICES_MAX:
        raise BadField("", f"exceeds the limit of {4 * SERVICES_MAX} names; give fewer files")
    position = lines.names.setdefault(key, len(lines.names)) * DIMENSIONS_MAX
    lines.keys.append(position + lines.dimensions.setdefault(dimension, len(lines.dimensions)))
    lines.seconds.append(seconds)
    lines.values.append(value)


def _drop_doubles(lines: _Lines, files: Sequence[str]) -> None:
    """Sorts lines by name, dimension and time; keeps the first of lines equal in all three."""
    keys, seconds = np.frombuffer(lines.keys, np.int64), np.frombuffer(lines.seconds)
    positions, values = np.frombuffer(lines.positions, np.int64), np.frombuffer(lines.values)
    order = np.lexsort((positions, seconds, keys))
    keys, seconds, positions, values = keys[order], seconds[order], positions[order], values[order]
    is_double = np.zeros(len(keys), bool)
    is_double[1:] = (np.diff(keys) == 0) & (np.diff(seconds) == 0)
    for position in np.sort(positions[is_double])[:NOTES_MAX].tolist():
        lines.refuse(
            LineProblem(files[position >> 32], position & 0xFFFFFFFF, "", "repeats an earlier line; the first counts")
        )
    lines.problem_count += max(0, int(np.count_nonzero(is_double)) - NOTES_MAX)
    kept = ~is_double
    lines.keys, lines.seconds = array("q", keys[kept].tobytes()), array("d", seconds[kept].tobytes())
    lines.values, lines.positions = array("d", values[kept].tobytes()), array("q", positions[kept].tobytes())


def _tables(lines: _Lines, dimensions: dict[str, Dimension], grid: Grid) -> tuple[dict[str, Table], Grid]:
    """Returns one table per configured dimension, over the window that ends with the newest sample, and its grid."""
    keys, values = np.frombuffer(lines.keys, np.int64), np.frombuffer(lines.values)
    steps = np.floor(np.frombuffer(lines.seconds) / grid.step_s).astype(np.int64)
    newest = int(steps.max())
    first = newest + 1 - grid.steps
    own = Grid(first * grid.step_s, grid.step_s, grid.steps)
    assert first_step(own) == first
    is_in = steps >= first
    keys, values, steps = keys[is_in], values[is_in], steps[is_in] - first
    tables = {}
    for name, dimension in dimensions.items():
        number = lines.dimensions.get(name, -1)
        mask = keys % DIMENSIONS_MAX == number
        table = _table(
            keys[mask] // DIMENSIONS_MAX, steps[mask], values[mask], lines, grid.steps, dimension.aggregation
        )
        tables[name] = joined(None, msgspec.structs.replace(table, first=first), first, grid.steps)
    return tables, own


def _table(
    rows: NDArray[np.int64],
    steps: NDArray[np.int64],
    values: NDArray[np.float64],
    lines: _Lines,
    width: int,
    aggregation: Aggregation,
) -> Table:
    """Aggregates the samples of a name within a step, then averages the pods of a service."""
    cells, positions = np.unique(rows * width + steps, return_inverse=True)
    if aggregation is Aggregation.MAX:
        samples = np.full(len(cells), -np.inf)
        np.maximum.at(samples, positions, values)
    else:
        samples = np.bincount(positions, values, len(cells)) / np.bincount(positions, minlength=len(cells))
    services: dict[str, int] = {}
    names = np.array([services.setdefault(_service(name), len(services)) for name in lines.names], np.int64)
    if len(services) > SERVICES_MAX:
        raise SourceError(f"the files name more than {SERVICES_MAX} services; write pods under the column pod")
    targets, size = names[cells // width] * width + cells % width, len(services) * width
    counts = np.bincount(targets, minlength=size)
    means = np.full(size, np.nan)
    np.divide(np.bincount(targets, samples, size), counts, out=means, where=counts > 0)
    return Table(0, tuple(services), means.astype(np.float32).reshape(-1, width))


def _service(name: str) -> str:
    """Returns the service of a name: the name itself, or for a pod its name without generated suffixes."""
    if not name.startswith("pod:"):
        return name
    namespace, slash, pod = name.removeprefix("pod:").rpartition("/")
    return f"{namespace}{slash}{stripped(pod)}"
