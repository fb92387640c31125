"""Kubernetes objects in files: every document, and every item of a list, with the line where it begins.

Owns reading. A file that cannot be read, or contains anything but objects, raises ConfigError with every problem and
its position.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from multisched.cli.dump import read_file
from multisched.config.document import ConfigError, Document, Limits, Problem, read_documents
from multisched.config.document import Path as FieldPath

FILE_BYTES_MAX: Final = 16 * 1024 * 1024
DEPTH_MAX: Final = 100
"""Levels of nesting: a tree of 32 levels has two for each."""
DOCUMENTS_MAX: Final = 20_000
LIMITS: Final = Limits(FILE_BYTES_MAX, DEPTH_MAX, DOCUMENTS_MAX)


class Manifest(msgspec.Struct, frozen=True):
    """One object."""

    location: str
    """FILE:LINE, where it begins."""
    data: Mapping[str, Any]
    document: Document
    path: FieldPath
    """Path of the object in its document, for instance of an item in a list."""

    def location_of(self, path: FieldPath) -> str:
        """Returns FILE:LINE of a field, or of the nearest existing part above it."""
        return f"{self.document.file}:{self.document.position((*self.path, *path), of_key=True).line}"


def load(files: Sequence[Path]) -> list[Manifest]:
    """Returns every object of the files, `-` for standard input. Raises ConfigError, and QueryError for a file that cannot be read."""
    found: list[Manifest] = []
    problems: list[Problem] = []
    for file in files:
        try:
            found += _objects(file)
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    return found


def _objects(file: Path) -> Iterator[Manifest]:
    documents = [one for one in read_documents(_text(file), str(file), LIMITS) if one.data is not None]
    if not documents:
        raise ConfigError([Problem(str(file), 1, 1, "", "it contains no object")])
    found = [one for document in documents for one in _parts(document)]
    problems = [problem for document in documents for problem in document.problems]
    if problems:
        raise ConfigError(problems)
    yield from found


def _text(file: Path) -> str:
    try:
        return read_file(file, FILE_BYTES_MAX).decode()
    except UnicodeDecodeError as error:
        raise ConfigError([Problem(str(file), 1, 1, "", "is not UTF-8 text")]) from error


def _parts(document: Document) -> Iterator[Manifest]:
    """Yields the object, or the items of a list; anything else is a problem of the document."""
    data = document.data
    items = data.get("items") if isinstance(data, dict) and str(data.get("kind")).endswith("List") else None
    if isinstance(items, list):
        for at, item in enumerate(items):
            yield from _object(document, ("items", at), item)
    else:
        yield from _object(document, (), data)


def _object(document: Document, path: FieldPath, data: Any) -> Iterator[Manifest]:
    if not isinstance(data, dict):
        document.add(path, "this is not an object; write apiVersion, kind, metadata and spec")
        return
    for field in ("apiVersion", "kind"):
        if not isinstance(data.get(field), str) or not data[field]:
            document.add((*path, field), "this is missing, or not a string")
    yield Manifest(f"{document.file}:{document.position(path).line}", data, document, path)
