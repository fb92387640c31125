"""Reads a plugin's args from a configuration mapping: all that is wrong is told at once, each with its path and the fix.

Reading goes on with the default in the place of what is refused. What follows from a problem is not told beside it: nothing
is told at, above or beneath a field that is refused already.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

_TYPE_META = ("apiVersion", "kind")


class ArgsProblem(msgspec.Struct, frozen=True):
    """What is wrong with one field, and what to write there."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class PluginArgsError(ValueError):
    """Arguments that a plugin cannot use; a line for each problem: the field's path, a colon and what to write there."""

    def __init__(self, problems: Sequence[ArgsProblem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = tuple(problems)


class Fields:
    """A mapping of the configuration with its path.

    As a context manager it raises PluginArgsError at the end if anything was refused, in mappings read out of it too.
    """

    def __init__(
        self, document: object, path: str, known: Sequence[str], problems: list[ArgsProblem] | None = None
    ) -> None:
        self.path = path
        self._problems: list[ArgsProblem] = [] if problems is None else problems
        self._document: Mapping[str, Any] = document if isinstance(document, Mapping) else {}
        if not isinstance(document, Mapping):
            self.refuse(path, f"is {_kind(document)}; write a mapping with {_either(known)}")
        for name in self._document:
            if name not in known and name not in _TYPE_META:
                near = difflib.get_close_matches(str(name), known, n=1)
                hint = f"did you mean {near[0]}?" if near else f"remove it; known here: {_either(known)}"
                self.refuse(self.at(name), f"unknown field; {hint}")

    def __enter__(self) -> Fields:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        if kind is None and self._problems:
            raise PluginArgsError(self._problems)

    def refuse(self, path: str, reason: str) -> None:
        """Notes a problem, unless it may follow from one that is noted."""
        if not any(_is_within(path, told.path) or _is_within(told.path, path) for told in self._problems):
            self._problems.append(ArgsProblem(path, reason))

    def is_refused(self, name: str = "") -> bool:
        """True if something is wrong with the field, or without a name with anything here."""
        path = self.at(name) if name else self.path
        return any(_is_within(told.path, path) for told in self._problems)

    def has(self, name: str) -> bool:
        """True if the field is there and not null."""
        return self._document.get(name) is not None

    def value(self, name: str) -> Any:
        return self._document.get(name)

    def at(self, name: str) -> str:
        return f"{self.path}.{name}"

    def below(self, name: str, known: Sequence[str]) -> Fields:
        """The mapping in a field."""
        return Fields(self._document.get(name), self.at(name), known, self._problems)

    def entries(self, name: str, known: Sequence[str]) -> list[Fields]:
        """The mappings in a list; empty where the field is missing."""
        return [Fields(item, path, known, self._problems) for path, item in self._items(name)]

    def text(self, name: str, default: str = "") -> str:
        found = self._document.get(name)
        if found is None:
            return default
        if isinstance(found, str):
            return found
        self.refuse(self.at(name), f"is {_kind(found)}; write a text")
        return default

    def integer(self, name: str, default: int, low: int, high: int) -> int:
        found = self._document.get(name)
        if found is None:
            return default
        if isinstance(found, bool) or not isinstance(found, int):
            self.refuse(self.at(name), f"is {_kind(found)}; write a whole number of {low}..{high}")
        elif low <= found <= high:
            return found
        else:
            self.refuse(self.at(name), f"{found} is not within {low}..{high}")
        return default

    def flag(self, name: str, *, default: bool) -> bool:
        found = self._document.get(name)
        if found is None or isinstance(found, bool):
            return default if found is None else found
        self.refuse(self.at(name), f"is {_kind(found)}; write true or false")
        return default

    def choice(self, name: str, default: str, choices: Sequence[str]) -> str:
        found = self.text(name, default)
        if found in choices:
            return found
        near = difflib.get_close_matches(found, choices)
        hint = f"did you mean {near[0]}?" if near else f"write one of {', '.join(choices)}"
        self.refuse(self.at(name), f"{found!r} is not known; {hint}")
        return default

    def texts(self, name: str) -> list[tuple[str, str]]:
        """(path, text) of a list of texts."""
        found = self._items(name)
        for path, item in found:
            if not isinstance(item, str):
                self.refuse(path, f"is {_kind(item)}; write a text")
        return [(path, item) for path, item in found if isinstance(item, str)]

    def _items(self, name: str) -> list[tuple[str, Any]]:
        found = self._document.get(name)
        if found is None:
            return []
        if isinstance(found, str | bytes) or not isinstance(found, Sequence):
            self.refuse(self.at(name), f"is {_kind(found)}; write a list")
            return []
        return [(f"{self.at(name)}[{index}]", item) for index, item in enumerate(found)]


def _is_within(path: str, whole: str) -> bool:
    return path.startswith(whole) and path[len(whole) : len(whole) + 1] in ("", ".", "[")


def _kind(value: object) -> str:
    names = {type(None): "nothing", bool: "true or false", int: "a number", float: "a number", str: "a text"}
    return names.get(type(value), "a list" if isinstance(value, Sequence) else "a mapping")


def _either(known: Sequence[str]) -> str:
    return ", ".join(known) if known else "nothing in it"
