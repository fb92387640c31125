"""Reads usage from CSV files into one array on a regular time grid; reports problems of the files line by line.

Columns are `timestamp,service,dimension,value` in any order, with `pod` instead of or in addition to `service`, and an optional
`unit`; other columns are ignored. A value is what one replica of the service, or the pod, used from that moment to the next.
Lines may be in any order. Missing samples are never replaced by zero. Problems are: a line that is not a sample, a duplicate,
a second unit of a dimension, and a moment off the grid. A gap stays NaN until `filled` closes it. Bounds: LINES_MAX,
SERIES_MAX, CELLS_MAX, PROBLEMS_MAX.
"""

from __future__ import annotations

import csv
import math
from array import array
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from multisched.config.document import Problem
from multisched.simulate.scenario_time import DAY_S, format_time

Values = NDArray[np.float64]

LINES_MAX = 20_000_000
"""Maximum number of lines in all files."""
SERIES_MAX = 100_000
"""Maximum number of different pairs of a service or pod and a dimension."""
CELLS_MAX = 100_000_000
"""Maximum number of steps times services and pods times dimensions, at 8 bytes each."""
VALUE_MAX = 1e15
PROBLEMS_MAX = 20
"""Bad lines reported per file; the others are only counted."""
HEADER = "timestamp,service,dimension,value"
SECONDS_MAX = 1e11
_SHOWN = 40


class UsageTable(msgspec.Struct, frozen=True):
    """All series. A service and a pod with the same name have different series."""

    start_s: int
    """Epoch seconds of the first step."""
    step_s: int
    services: tuple[str, ...]
    pods: tuple[str, ...]
    dimensions: tuple[str, ...]
    values: Values
    """float64[services + pods, dimensions, steps]; NaN for a missing sample."""

    @property
    def steps(self) -> int:
        return int(self.values.shape[2])

    @property
    def first_day_s(self) -> int:
        """Returns the beginning of day 1 in epoch seconds."""
        return self.start_s - self.start_s % DAY_S

    @property
    def end_s(self) -> int:
        return self.start_s + self.steps * self.step_s

    def step_at(self, epoch_s: float) -> int:
        """Returns the step that contains the moment; may be outside the table."""
        return math.floor((epoch_s - self.start_s) / self.step_s)

    def missing(self, series: int, begin: int, end: int) -> str:
        """Returns a dimension of the series without any sample in steps begin..end; empty if there is none."""
        window = self.values[series, :, begin:end]
        empty = np.flatnonzero(np.isnan(window).all(1))
        return self.dimensions[empty[0]] if len(empty) else ""


class _Series(msgspec.Struct):
    seconds: array[float] = msgspec.field(default_factory=lambda: array("d"))
    values: array[float] = msgspec.field(default_factory=lambda: array("d"))
    lines: array[int] = msgspec.field(default_factory=lambda: array("q"))
    """File and line of each sample, as file * LINES_MAX + line."""


class _BadLineError(Exception):
    def __init__(self, column: str, message: str) -> None:
        super().__init__(message)
        self.column = column


Key = tuple[bool, str, str]
"""(is a pod, name, dimension)"""


class UsageReader:
    """Reads files one after the other, then builds the table. `problems` collects errors."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self._files: list[str] = []
        self._series: dict[Key, _Series] = {}
        self._times: dict[str, float] = {}
        self._units: dict[str, tuple[str, str]] = {}
        """Dimension -> its unit, and the location of the first line that names it."""
        self._count = 0

    def read(self, path: Path) -> None:
        """Adds the samples of one file."""
        self._files.append(str(path))
        try:
            with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
                self._read_lines(str(path), csv.reader(file))
        except OSError as error:
            self._report(str(path), 1, "", f"cannot be read: {error.strerror}; name a readable CSV file")
        except csv.Error as error:
            self._report(str(path), 1, "", f"is not CSV: {error}")

    def _read_lines(self, file: str, rows: Iterator[list[str]]) -> None:
        header = [name.strip().lower() for name in next(rows, [])]
        missing = [name for name in ("timestamp", "dimension", "value") if name not in header]
        if missing or not {"service", "pod"} & set(header):
            lacking = ", ".join(missing) or "service or pod"
            self._report(file, 1, "", f"no column {lacking}; begin the file with {HEADER}")
            return
        places = tuple(
            header.index(name) if name in header else -1
            for name in ("timestamp", "service", "pod", "dimension", "value", "unit")
        )
        first, bad = (len(self._files) - 1) * LINES_MAX, 0
        for line, row in enumerate(rows, 2):
            if not row:
                continue
            try:
                self._add(row, len(header), places, first + line)
            except _BadLineError as error:
                bad += 1
                if bad <= PROBLEMS_MAX:
                    self._report(file, line, error.column, str(error))
        if bad > PROBLEMS_MAX:
            self._report(file, 1, "", f"{bad - PROBLEMS_MAX} more lines are not samples")

    def _add(self, row: list[str], width: int, places: tuple[int, ...], line: int) -> None:
        if len(row) != width:
            raise _BadLineError("", f"has {len(row)} fields, the header has {width}")
        timestamp, service, pod, dimension, value, unit = places
        seconds = self._times.get(row[timestamp])
        if seconds is None:
            seconds = self._times[row[timestamp]] = _seconds(row[timestamp].strip())
        try:
            amount = float(row[value])
        except ValueError:
            raise _BadLineError(
                "value", f"{_shown(row[value])} is not a plain number such as 0.25; units are not allowed"
            ) from None
        if not 0.0 <= amount <= VALUE_MAX:
            raise _BadLineError("value", f"{_shown(row[value])} is not within 0..{VALUE_MAX:.0e}")
        if unit >= 0 and row[unit].strip():
            self._check_unit(row[dimension], row[unit].strip(), line)
        is_pod = pod >= 0 and row[pod] != ""
        name = row[pod if is_pod else service] if is_pod or service >= 0 else ""
        key = (is_pod, name, row[dimension])
        series = self._series.get(key)
        if series is None:
            series = self._series[key] = self._new_series(key)
        self._count += 1
        if self._count > LINES_MAX:
            raise _BadLineError("", f"more than {LINES_MAX} lines in all files; give coarser samples")
        series.seconds.append(seconds)
        series.values.append(amount)
        series.lines.append(line)

    def _check_unit(self, dimension: str, unit: str, line: int) -> None:
        where = f"line {line % LINES_MAX} of {self._files[line // LINES_MAX]}"
        first, at = self._units.setdefault(dimension, (unit, where))
        if unit != first:
            text = f"{_shown(unit)}, and {dimension} is in {first!r} in {at}"
            raise _BadLineError("unit", f"{text}; write all of it in one unit")

    def _new_series(self, key: Key) -> _Series:
        for column, name in (("pod" if key[0] else "service", key[1]), ("dimension", key[2])):
            if not name.strip() or name != name.strip() or "\ufffd" in name:
                raise _BadLineError(column, "is empty, has spaces around it or is not UTF-8; write a name")
        if len(self._series) >= SERIES_MAX:
            raise _BadLineError("", f"more than {SERIES_MAX} series; remove services, pods or dimensions")
        return _Series()

    def _report(self, file: str, line: int, column: str, message: str) -> None:
        self.problems.append(Problem(file, line, 1, column, message))

    # -- the table -------------------------------------------------------------------------------------------------

    def table(self) -> UsageTable | None:
        """Returns the table; None if the samples do not form a grid, with the problem reported."""
        if not self._series:
            if not self.problems:
                self._report(self._files[0] if self._files else "", 1, "", "has no samples")
            return None
        times = np.unique(np.array(sorted(set(self._times.values()))))
        step_s = _step_s(times)
        if step_s <= 0 or DAY_S % step_s:
            text = "one sample only" if len(times) < 2 else f"samples are {step_s} s apart, which does not divide a day"
            self._report(self._files[0], 1, "timestamp", f"{text}; give samples in steps such as 300 s or 900 s")
            return None
        start_s = int(times[0])
        steps = int((times[-1] - start_s) // step_s) + 1
        services, pods = (tuple(sorted({n for p, n, _ in self._series if p is is_pod})) for is_pod in (False, True))
        dimensions = tuple(sorted({dimension for _, _, dimension in self._series}))
        names = len(services) + len(pods)
        if steps * names * len(dimensions) > CELLS_MAX:
            size = f"{steps} steps of {step_s} s times {names} services and pods times {len(dimensions)} dimensions"
            text = f"{size} are more than {CELLS_MAX}; give fewer days or coarser samples"
            self._report(self._files[0], 1, "timestamp", text)
            return None
        at = {(False, name): number for number, name in enumerate(services)}
        at |= {(True, name): len(services) + number for number, name in enumerate(pods)}
        values = np.full((len(at), len(dimensions), steps), np.nan)
        for (is_pod, name, dimension), series in self._series.items():
            self._place(series, values[at[is_pod, name], dimensions.index(dimension)], start_s, step_s)
        return UsageTable(start_s, step_s, services, pods, dimensions, values)

    def _place(self, series: _Series, into: Values, start_s: int, step_s: int) -> None:
        seconds, lines = np.frombuffer(series.seconds), np.frombuffer(series.lines, np.int64)
        steps, remainders = np.divmod(seconds - start_s, step_s)
        for place in np.flatnonzero(remainders)[:1]:
            text = f"{format_time(seconds[place])} is off the grid of {step_s} s that begins at {format_time(start_s)}"
            self._report_at(lines[place], "timestamp", f"{text}; round the timestamps")
        numbers = steps.astype(np.int64)
        order = np.argsort(numbers, kind="stable")
        again = np.flatnonzero(np.diff(numbers[order]) == 0)
        for place in again[:1]:
            first, second = lines[order[place]], lines[order[place + 1]]
            where = f"line {first % LINES_MAX} of {self._files[first // LINES_MAX]}"
            more = f" (and {len(again) - 1} more)" if len(again) > 1 else ""
            self._report_at(
                second, "timestamp", f"the same service, dimension and time are in {where}{more}; remove one"
            )
        into[numbers] = np.frombuffer(series.values)

    def _report_at(self, place: int, column: str, message: str) -> None:
        file, line = divmod(int(place), LINES_MAX)
        self._report(self._files[file], line, column, message)


def read_usage(paths: Sequence[Path], problems: list[Problem]) -> UsageTable | None:
    """Reads all files into one table; appends problems to the list."""
    reader = UsageReader()
    for path in paths:
        reader.read(path)
    table = reader.table()
    problems += reader.problems
    return table


def filled(values: Values) -> tuple[Values, int]:
    """Fills gaps by linear interpolation, and gaps at the ends with the nearest sample; also returns the number of filled samples.

    float64[series, dimensions, steps]. A row without any sample stays NaN.
    """
    holes = np.isnan(values)
    rows = np.argwhere(holes.any(2) & ~holes.all(2))
    closed, made = values.copy(), 0
    steps = np.arange(values.shape[2])
    for series, dimension in rows:
        row, hole = closed[series, dimension], holes[series, dimension]
        row[hole] = np.interp(steps[hole], steps[~hole], row[~hole])
        made += int(hole.sum())
    return closed, made


def _step_s(times: Values) -> int:
    """Returns the most frequent distance of two moments, so that a single odd moment is reported as off the grid; 0 for fewer than two."""
    if len(times) < 2:
        return 0
    distances, counts = np.unique(np.diff(times), return_counts=True)
    return int(distances[counts.argmax()])


def _seconds(text: str) -> float:
    """Parses epoch seconds or ISO 8601 (UTC unless it names a zone); only whole seconds are allowed."""
    try:
        seconds = float(text)
    except ValueError:
        try:
            at = datetime.fromisoformat(text)
            seconds = (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            fix = "write epoch seconds or ISO 8601 such as 2026-01-31T18:00:00Z"
            raise _BadLineError("timestamp", f"{_shown(text)} is not a time; {fix}") from None
    if not abs(seconds) < SECONDS_MAX or seconds != int(seconds):
        raise _BadLineError("timestamp", f"{_shown(text)} is not a time; write whole epoch seconds, not milliseconds")
    return seconds


def _shown(text: str) -> str:
    return repr(text[:_SHOWN])
