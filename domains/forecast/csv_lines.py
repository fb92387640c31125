"""Parsing of history file lines: fields, timestamps, amounts, and reports of bad lines.

An unusable file raises `HistoryError`; a bad line becomes a `LineProblem`. Lines are limited to LINE_BYTES_MAX bytes.
"""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

import msgspec

LINE_BYTES_MAX = 4096
RESOURCES_MAX = 32
"""Limit of distinct resources (forecast dimensions)."""
VALUE_MAX = 1e15
"""Largest accepted sample value; larger values are rejected as mistakes."""
DIMENSION_COLUMNS = ("dimension", "resource")
"""Accepted names of the dimension column."""
SCANS_KEPT = 4
_TEXT_SHOWN = 40


class HistoryError(ValueError):
    """An unusable file; the message names the file, the problem and the fix."""


class LineProblem(msgspec.Struct, frozen=True):
    """A skipped line."""

    file: str
    line: int
    column: str
    message: str

    def __str__(self) -> str:
        column = f", column {self.column}" if self.column else ""
        return f"{self.file}, line {self.line}{column}: {self.message}"


class BadField(Exception):
    """An invalid field of a line, or an invalid line (then `column` is empty)."""

    def __init__(self, column: str, message: str) -> None:
        super().__init__(message)
        self.column = column


def history_files(directory: str) -> list[str]:
    """Returns the paths of the CSV files in a directory, sorted. Raises HistoryError."""
    try:
        found = sorted(str(path) for path in Path(directory).iterdir() if path.suffix == ".csv" and path.is_file())
    except OSError as error:
        raise HistoryError(f"historyDir {directory}: {error.strerror}; name a readable directory") from error
    return found


def lines_of(file: BinaryIO) -> Iterator[tuple[int, str | None]]:
    """Yields (line number, text); text is None for a line that is too long. Buffers at most LINE_BYTES_MAX bytes."""
    number = 0
    while chunk := file.readline(LINE_BYTES_MAX):
        number += 1
        if chunk.endswith(b"\n") or len(chunk) < LINE_BYTES_MAX:
            yield number, chunk.decode("utf-8-sig" if number == 1 else "utf-8", errors="replace")
            continue
        while chunk and not chunk.endswith(b"\n"):
            chunk = file.readline(LINE_BYTES_MAX)
        yield number, None


def split_line(line: str, width: int) -> list[str]:
    """Returns the fields. A quoted field cannot span lines, so a stray quote does not consume later lines. Raises BadField."""
    try:
        parts = next(csv.reader([line], strict=True)) if '"' in line else line.split(",")
    except csv.Error as error:
        raise BadField("", f"{error}; close the quote or remove it") from error
    if len(parts) != width:
        raise BadField("", f"has {len(parts)} fields, the header has {width}; quote fields with commas")
    return [part.strip() for part in parts]


def dimensions_in(files: Sequence[str], wanted: Collection[str]) -> frozenset[str]:
    """Returns the dimensions named in the files; stops reading when all of `wanted` are found.

    Skips invalid lines and unreadable files without a report: other readers report both.
    """
    return _dimensions_in(tuple((name, *file_version(name)) for name in files), frozenset(wanted))


def file_version(name: str) -> tuple[int, int]:
    """Returns (modification time in ns, size in bytes); zeros for an unreadable file."""
    try:
        found = Path(name).stat()
    except OSError:
        return 0, 0
    return found.st_mtime_ns, found.st_size


@lru_cache(maxsize=SCANS_KEPT)
def _dimensions_in(files: tuple[tuple[str, int, int], ...], wanted: frozenset[str]) -> frozenset[str]:
    found: set[str] = set()
    for name, *_ in files:
        try:
            with Path(name).open("rb") as file:
                for dimension in _named_in(file):
                    found.add(dimension)
                    if wanted <= found:
                        return frozenset(found)
        except OSError:
            continue
    return frozenset(found)


def _named_in(file: BinaryIO) -> Iterator[str]:
    lines = lines_of(file)
    header = [part.strip().strip('"').lower() for part in (next(lines, (1, ""))[1] or "").split(",")]
    at = next((header.index(name) for name in DIMENSION_COLUMNS if name in header), -1)
    for _, line in lines if at >= 0 else ():
        try:
            dimension = split_line(line, len(header))[at] if line and line.strip() else ""
        except BadField:
            continue
        if dimension:
            yield dimension


def epoch_seconds(text: str) -> float:
    """Parses epoch seconds or ISO 8601 (UTC by default) and returns epoch seconds. Raises BadField."""
    try:
        seconds = float(text)
    except ValueError:
        try:
            moment = datetime.fromisoformat(text)
            seconds = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            raise BadField(
                "timestamp",
                f"{_shown(text)} is not a time; write epoch seconds or ISO 8601 such as 2026-01-31T18:00:00Z",
            ) from None
    if not abs(seconds) < 1e11:
        raise BadField("timestamp", f"{_shown(text)} is not a time; write epoch seconds, not milliseconds")
    return seconds


def plain_amount(text: str) -> float:
    """Parses a number without a unit, 0..VALUE_MAX. Raises BadField."""
    try:
        value = float(text)
    except ValueError:
        raise BadField("value", f"{_shown(text)} is not a number; write a plain one such as 0.25") from None
    if not 0 <= value <= VALUE_MAX:
        raise BadField("value", f"{_shown(text)} is not within 0..{VALUE_MAX:.0e}; write what one replica uses")
    return value


def _shown(text: str) -> str:
    return repr(text[:_TEXT_SHOWN])
