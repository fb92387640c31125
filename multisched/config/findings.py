"""Findings of a conversion: settings that were lost or changed, with position, severity and reason."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

import msgspec

from multisched.config.document import Document, Path, render_path


class Severity(Enum):
    """The severity of a finding."""

    WARNING = "warning"
    """A setting of the file is lost or changed."""
    NOTE = "note"
    """Nothing is lost; a default differs, or a setting has no effect here."""


class Finding(msgspec.Struct, frozen=True):
    """One finding."""

    file: str
    line: int
    column: int
    path: str
    severity: Severity
    message: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}: {self.severity.value}: {self.text}"

    @property
    def text(self) -> str:
        """Path and message."""
        return f"{self.path}: {self.message}"

    def as_data(self) -> dict[str, object]:
        return {
            "severity": self.severity.value,
            "path": self.path,
            "line": self.line,
            "column": self.column,
            "message": self.message,
        }


class Findings:
    """All findings of one conversion, in file order."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._found: list[Finding] = []

    def warn(self, path: Path, message: str) -> None:
        self._add(path, Severity.WARNING, message)

    def note(self, path: Path, message: str) -> None:
        self._add(path, Severity.NOTE, message)

    def __iter__(self) -> Iterator[Finding]:
        return iter(sorted(self._found, key=lambda found: (found.line, found.column, found.path)))

    @property
    def has_warnings(self) -> bool:
        return any(found.severity is Severity.WARNING for found in self._found)

    def _add(self, path: Path, severity: Severity, message: str) -> None:
        at = self._document.position(path, of_key=True)
        finding = Finding(self._document.file, at.line, at.column, render_path(path), severity, message)
        if finding not in self._found:
            self._found.append(finding)
