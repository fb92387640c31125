"""Reads history from CSV files, line by line: good lines become samples, bad ones are told and cost nothing else.

Pure but for reading the files it is given, once, at start. A file that cannot be used at all raises `HistoryError`; a
bad line is a `LineProblem`. Bounds: LINE_BYTES_MAX per line, SAMPLES_MAX over all files.
"""

from __future__ import annotations

import csv
import math
from array import array
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

import msgspec

COLUMNS = ("timestamp", "service", "resource", "value")

LINE_BYTES_MAX = 4096
SAMPLES_MAX = 4_000_000
"""Lines that are kept over all files, at 16 bytes each while they are read: 64 MB."""
SERIES_MAX = 100_000
"""Distinct (service, resource) pairs."""
RESOURCES_MAX = 32
"""Distinct resources, the dimensions of a forecast."""
PROBLEMS_KEPT = 100
"""Bad lines that are kept word for word; the others are only counted."""
VALUE_MAX = 1e15
"""Largest value of a sample; what is beyond is taken for a mistake."""
_TEXT_SHOWN = 40


class HistoryError(ValueError):
    """A file that cannot be used at all; the message names it, what is wrong and the fix."""


class LineProblem(msgspec.Struct, frozen=True):
    """A line that was left out."""

    file: str
    line: int
    column: str
    message: str

    def __str__(self) -> str:
        column = f", column {self.column}" if self.column else ""
        return f"{self.file}, line {self.line}{column}: {self.message}"


class Series(msgspec.Struct):
    """Samples of one resource of one service, in the order of the files."""

    seconds: array[float] = msgspec.field(default_factory=lambda: array("d"))
    values: array[float] = msgspec.field(default_factory=lambda: array("d"))


class Samples(msgspec.Struct):
    """Everything read so far. Filled by `read_history` only."""

    series: dict[tuple[str, str], Series] = msgspec.field(default_factory=dict)
    """By (service, resource)."""
    resources: set[str] = msgspec.field(default_factory=set)
    count: int = 0
    newest_s: float = -math.inf
    problems: list[LineProblem] = msgspec.field(default_factory=list)
    """The first PROBLEMS_KEPT bad lines."""
    problem_count: int = 0


class BadField(Exception):
    """One field of one line."""

    def __init__(self, column: str, message: str) -> None:
        super().__init__(message)
        self.column = column


def history_files(directory: str) -> list[str]:
    """The CSV files of a directory, by name. Raises HistoryError."""
    try:
        found = sorted(str(path) for path in Path(directory).iterdir() if path.suffix == ".csv" and path.is_file())
    except OSError as error:
        raise HistoryError(f"historyDir {directory}: {error.strerror}; name a readable directory") from error
    return found


def read_history(files: Sequence[str]) -> Samples:
    """All samples of the files. Raises HistoryError for a file that cannot be read or lacks a column."""
    samples = Samples()
    for name in files:
        try:
            with Path(name).open("rb") as file:
                _read_file(name, file, samples)
        except OSError as error:
            raise HistoryError(f"history file {name}: {error.strerror}; name a readable CSV file") from error
    return samples


def _read_file(name: str, file: BinaryIO, samples: Samples) -> None:
    lines = lines_of(file)
    _, header = next(lines, (1, ""))
    order = _columns(name, header)
    for number, line in lines:
        try:
            _read_line(line, order, samples)
        except BadField as error:
            samples.problem_count += 1
            if len(samples.problems) < PROBLEMS_KEPT:
                samples.problems.append(LineProblem(name, number, error.column, str(error)))


def _read_line(line: str | None, order: tuple[int, ...], samples: Samples) -> None:
    if line is None:
        raise BadField("", f"longer than {LINE_BYTES_MAX} bytes; each line has one sample")
    if line.strip():
        _add(samples, _fields(line, order))


def lines_of(file: BinaryIO) -> Iterator[tuple[int, str | None]]:
    """(number, line); None for a line that is too long. Never holds more than LINE_BYTES_MAX of it."""
    number = 0
    while chunk := file.readline(LINE_BYTES_MAX):
        number += 1
        if chunk.endswith(b"\n") or len(chunk) < LINE_BYTES_MAX:
            yield number, chunk.decode("utf-8-sig" if number == 1 else "utf-8", errors="replace")
            continue
        while chunk and not chunk.endswith(b"\n"):
            chunk = file.readline(LINE_BYTES_MAX)
        yield number, None


def _columns(name: str, header: str | None) -> tuple[int, ...]:
    """Where each of COLUMNS stands."""
    found = [] if header is None else [part.strip().strip('"').lower() for part in header.split(",")]
    missing = [column for column in COLUMNS if column not in found]
    if missing:
        raise HistoryError(
            f"history file {name}, line 1: no column {', '.join(missing)}; begin the file with {','.join(COLUMNS)}"
        )
    return (*(found.index(column) for column in COLUMNS), len(found))


def _fields(line: str, order: tuple[int, ...]) -> tuple[str, str, str, str]:
    """The four fields."""
    *places, width = order
    parts = split_line(line, width)
    timestamp, service, resource, value = (parts[place] for place in places)
    return timestamp, service, resource, value


def split_line(line: str, width: int) -> list[str]:
    """The fields. A quote never spans lines, so that one stray quote cannot swallow the samples after it. Raises BadField."""
    try:
        parts = next(csv.reader([line], strict=True)) if '"' in line else line.split(",")
    except csv.Error as error:
        raise BadField("", f"{error}; close the quote or remove it") from error
    if len(parts) != width:
        raise BadField("", f"has {len(parts)} fields, the header has {width}; quote fields with commas")
    return [part.strip() for part in parts]


def _add(samples: Samples, fields: tuple[str, str, str, str]) -> None:
    timestamp, service, resource, value = fields
    seconds, amount = epoch_seconds(timestamp), plain_amount(value)
    for column, name in (("service", service), ("resource", resource)):
        if not name or "\ufffd" in name:
            raise BadField(column, "is not UTF-8; save the file as UTF-8" if name else "is empty; name it")
    if samples.count >= SAMPLES_MAX:
        raise BadField("", f"beyond the {SAMPLES_MAX} samples that are kept; give fewer files or coarser samples")
    key = (service, resource)
    series = samples.series.get(key)
    if series is None:
        if resource not in samples.resources and len(samples.resources) >= RESOURCES_MAX:
            raise BadField("resource", f"beyond the {RESOURCES_MAX} resources that are kept; is it misspelt?")
        if len(samples.series) >= SERIES_MAX:
            raise BadField("service", f"beyond the {SERIES_MAX} series (service and resource) that are kept")
        series = samples.series[key] = Series()
        samples.resources.add(resource)
    series.seconds.append(seconds)
    series.values.append(amount)
    samples.count += 1
    samples.newest_s = max(samples.newest_s, seconds)


def epoch_seconds(text: str) -> float:
    """Epoch seconds, or ISO 8601 (UTC where it names no zone). Raises BadField."""
    try:
        seconds = float(text)
    except ValueError:
        try:
            moment = datetime.fromisoformat(text)
            seconds = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            raise BadField(
                "timestamp", f"{_shown(text)} is no time; write epoch seconds or ISO 8601 such as 2026-01-31T18:00:00Z"
            ) from None
    if not abs(seconds) < 1e11:
        raise BadField("timestamp", f"{_shown(text)} is no time; write epoch seconds, not milliseconds")
    return seconds


def plain_amount(text: str) -> float:
    """A number without a unit, not below zero. Raises BadField."""
    try:
        value = float(text)
    except ValueError:
        raise BadField("value", f"{_shown(text)} is not a number; write a plain one such as 0.25") from None
    if not 0 <= value <= VALUE_MAX:
        raise BadField("value", f"{_shown(text)} is not within 0..{VALUE_MAX:.0e}; write what one replica uses")
    return value


def _shown(text: str) -> str:
    return repr(text[:_TEXT_SHOWN])
