"""Reads a plugin's args from a configuration mapping: every refusal names the field's path and the fix."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

_TYPE_META = ("apiVersion", "kind")


class PluginArgsError(ValueError):
    """An argument that a plugin cannot use; the message is the field's path, a colon and what to write there."""


class Fields:
    """A mapping of the configuration with its path."""

    def __init__(self, document: object, path: str, known: Sequence[str]) -> None:
        if not isinstance(document, Mapping):
            raise PluginArgsError(f"{path}: is {_kind(document)}; write a mapping with {_either(known)}")
        self.path = path
        self._document: Mapping[str, Any] = document
        for name in document:
            if name not in known and name not in _TYPE_META:
                near = difflib.get_close_matches(str(name), known, n=1)
                hint = f"did you mean {near[0]}?" if near else f"remove it; known here: {_either(known)}"
                raise PluginArgsError(f"{path}.{name}: unknown field; {hint}")

    def has(self, name: str) -> bool:
        """True if the field is there and not null."""
        return self._document.get(name) is not None

    def value(self, name: str) -> Any:
        return self._document.get(name)

    def at(self, name: str) -> str:
        return f"{self.path}.{name}"

    def text(self, name: str, default: str = "") -> str:
        found = self._document.get(name)
        if found is None:
            return default
        if not isinstance(found, str):
            raise PluginArgsError(f"{self.at(name)}: is {_kind(found)}; write a text")
        return found

    def integer(self, name: str, default: int, low: int, high: int) -> int:
        found = self._document.get(name)
        if found is None:
            return default
        if isinstance(found, bool) or not isinstance(found, int):
            raise PluginArgsError(f"{self.at(name)}: is {_kind(found)}; write a whole number of {low}..{high}")
        return within(found, low, high, self.at(name))

    def flag(self, name: str, *, default: bool) -> bool:
        found = self._document.get(name)
        if found is None:
            return default
        if not isinstance(found, bool):
            raise PluginArgsError(f"{self.at(name)}: is {_kind(found)}; write true or false")
        return found

    def choice(self, name: str, default: str, choices: Sequence[str]) -> str:
        found = self.text(name, default)
        if found not in choices:
            near = difflib.get_close_matches(found, choices, n=1)
            hint = f"did you mean {near[0]}?" if near else f"write one of {', '.join(choices)}"
            raise PluginArgsError(f"{self.at(name)}: {found!r} is not known; {hint}")
        return found

    def items(self, name: str) -> list[tuple[str, Any]]:
        """(path, item) of a list; empty where the field is missing."""
        found = self._document.get(name)
        if found is None:
            return []
        if isinstance(found, str | bytes) or not isinstance(found, Sequence):
            raise PluginArgsError(f"{self.at(name)}: is {_kind(found)}; write a list")
        return [(f"{self.at(name)}[{index}]", item) for index, item in enumerate(found)]

    def texts(self, name: str) -> list[tuple[str, str]]:
        """(path, text) of a list of texts."""
        found = self.items(name)
        for path, item in found:
            if not isinstance(item, str):
                raise PluginArgsError(f"{path}: is {_kind(item)}; write a text")
        return found


def within(number: int, low: int, high: int, path: str) -> int:
    if not low <= number <= high:
        raise PluginArgsError(f"{path}: {number} is not within {low}..{high}")
    return number


def _kind(value: object) -> str:
    names = {type(None): "nothing", bool: "true or false", int: "a number", float: "a number", str: "a text"}
    return names.get(type(value), "a list" if isinstance(value, Sequence) else "a mapping")


def _either(known: Sequence[str]) -> str:
    return ", ".join(known) if known else "nothing in it"
