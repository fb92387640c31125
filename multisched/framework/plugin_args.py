"""Reads a plugin's args from a configuration mapping. All problems are reported together, each with its path and the fix.

    with Fields(args, "args", ("timeout", "files")) as fields:
        return Settings(fields.duration_s("timeout", 5.0), fields.names("files"))

After a refused value, reading continues with the default. Problems that may follow from a reported one are not reported:
nothing at, above or below a field that was refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from multisched.model.go_duration import parse_go_duration
from multisched.model.near_names import did_you_mean

ENTRIES_MAX: Final = 10_000
"""Entries of a list, unless the reader sets a lower limit."""
PAIRS_MAX: Final = 64
"""Entries of a mapping from text to text."""
_TYPE_META: Final = ("apiVersion", "kind")

ArgsReader = Callable[[Mapping[str, Any], str], object]
"""Reads (args, path). Raises PluginArgsError."""
ArgsNotes = Callable[[Mapping[str, Any]], Iterable[str]]
"""Returns remarks about valid args: those that have no effect, or may not work."""
ClassChooser = Callable[[Mapping[str, Any]], type]
"""Returns the plugin's class for these args. Raises PluginArgsError."""


class ArgsProblem(msgspec.Struct, frozen=True):
    """The error in one field, and the fix."""

    path: str
    reason: str
    is_key: bool = False
    """The name of the field is wrong, not its value."""

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class PluginArgsError(ValueError):
    """Invalid arguments of a plugin; one line for each problem: the field's path, a colon and what to write there."""

    def __init__(self, problems: Iterable[ArgsProblem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))

    def __reduce__(self) -> tuple[type[PluginArgsError], tuple[object, ...]]:
        return PluginArgsError, (self.problems,)

    @classmethod
    def at(cls, path: str, reason: str) -> PluginArgsError:
        """Returns the error of one problem."""
        return cls([ArgsProblem(path, reason)])


class Fields:
    """A mapping of the configuration with its path.

    As a context manager it raises PluginArgsError at the end if any value was refused, including in nested mappings.
    """

    def __init__(
        self, document: object, path: str, known: Sequence[str], problems: list[ArgsProblem] | None = None
    ) -> None:
        self.path = path
        is_whole = problems is None
        self._problems: list[ArgsProblem] = [] if problems is None else problems
        self._document: Mapping[str, Any] = document if isinstance(document, Mapping) else {}
        if not isinstance(document, Mapping):
            self.refuse_at(path, f"is {_kind(document)}; write a mapping with {_either(known)}")
        for name in self._document:
            if name not in known and not (is_whole and name in _TYPE_META):
                hint = did_you_mean(str(name), known, f"remove it; known here: {_either(known)}")
                self.refuse_at(self.at(name), f"unknown field; {hint}", is_key=True)

    def __enter__(self) -> Fields:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        if kind is None and self._problems:
            raise PluginArgsError(self._problems)

    # -- problems --------------------------------------------------------------------------------------------------

    def refuse(self, name: str, reason: str) -> None:
        """Records a problem of a field, unless it may follow from a recorded one."""
        self.refuse_at(self.at(name), reason)

    def refuse_at(self, path: str, reason: str, *, is_key: bool = False) -> None:
        """Like `refuse`, with the full path."""
        if not any(_is_within(path, other.path) or _is_within(other.path, path) for other in self._problems):
            self._problems.append(ArgsProblem(path, reason, is_key))

    def take(self, error: PluginArgsError) -> None:
        """Records the problems that another reader found."""
        for problem in error.problems:
            self.refuse_at(problem.path, problem.reason, is_key=problem.is_key)

    def is_refused(self, name: str = "") -> bool:
        """Reports whether the field has a problem; without a name, whether anything in this mapping has."""
        path = self.at(name) if name else self.path
        return any(_is_within(other.path, path) for other in self._problems)

    # -- structure -------------------------------------------------------------------------------------------------

    def has(self, name: str) -> bool:
        """Reports whether the field is present and not null."""
        return self._document.get(name) is not None

    def value(self, name: str) -> Any:
        return self._document.get(name)

    def at(self, name: str) -> str:
        return f"{self.path}.{name}"

    def below(self, name: str, known: Sequence[str]) -> Fields:
        """Returns the mapping in a field; an empty one if the field is missing."""
        return Fields(self._document.get(name) if self.has(name) else {}, self.at(name), known, self._problems)

    def entries(self, name: str, known: Sequence[str], most: int = ENTRIES_MAX) -> list[Fields]:
        """Returns the mappings in a list; empty if the field is missing."""
        return [Fields(item, path, known, self._problems) for path, item in self._items(name, most)]

    def variants(self, name: str, key: str, kinds: Mapping[str, Sequence[str]], most: int) -> list[Fields]:
        """Returns the mappings in a list, each with the fields of the kind it names under `key`."""
        found = []
        for path, item in self._items(name, most):
            kind = item.get(key) if isinstance(item, Mapping) else None
            known = kinds.get(kind) if isinstance(kind, str) else None
            if known is None:
                self.refuse_at(f"{path}.{key}", f"{kind!r} is not known; write one of {', '.join(kinds)}")
                continue
            found.append(Fields(item, path, known, self._problems))
        return found

    # -- values ----------------------------------------------------------------------------------------------------

    def text(self, name: str, default: str = "") -> str:
        found = self._document.get(name)
        if found is None:
            return default
        if isinstance(found, str):
            return found
        self.refuse(name, _no_text(found))
        return default

    def choice(self, name: str, default: str, choices: Sequence[str]) -> str:
        found = self.text(name, default)
        if found in choices:
            return found
        hint = did_you_mean(found, choices, f"write one of {', '.join(filter(None, choices))}")
        self.refuse(name, f"{found!r} is not known; {hint}")
        return default

    def flag(self, name: str, *, default: bool) -> bool:
        found = self._document.get(name)
        if found is None or isinstance(found, bool):
            return default if found is None else found
        self.refuse(name, f"is {_kind(found)}; write true or false")
        return default

    def integer(self, name: str, default: int, low: int, high: int) -> int:
        found = self._document.get(name)
        if found is None:
            return default
        if isinstance(found, bool) or not isinstance(found, int):
            self.refuse(name, _no_number(found, f"a whole number of {low}..{high}"))
        elif low <= found <= high:
            return found
        else:
            self.refuse(name, f"{found} is not within {low}..{high}")
        return default

    def number(self, name: str, default: float, low: float, high: float) -> float:
        return self._number(name, default, f"within {low:g}..{high:g}", lambda found: low <= found <= high)

    def above_zero(self, name: str, default: float, high: float) -> float:
        """Returns a number in (0, `high`]."""
        return self._number(name, default, f"above 0 and at most {high:g}", lambda found: 0 < found <= high)

    def duration_s(self, name: str, default_s: float, low_s: float = 0.0) -> float:
        """Returns seconds, written as a Go duration."""
        if not self.has(name):
            return default_s
        try:
            found_s = parse_go_duration(self.text(name))
        except ValueError as error:
            self.refuse(name, str(error))
            return default_s
        if found_s < low_s:
            self.refuse(name, f"{self.text(name)} is too short; write at least {low_s:g}s")
        return found_s

    def texts(self, name: str, most: int = ENTRIES_MAX) -> list[tuple[str, str]]:
        """Returns (path, text) for each entry of a list of non-empty texts."""
        found = []
        for path, item in self._items(name, most):
            if isinstance(item, str) and item:
                found.append((path, item))
            else:
                self.refuse_at(path, "is empty; write a text" if item == "" else _no_text(item))
        return found

    def names(self, name: str, most: int = ENTRIES_MAX) -> tuple[str, ...]:
        """Returns a list of texts without duplicates."""
        found: dict[str, None] = {}
        for path, item in self.texts(name, most):
            if item in found:
                self.refuse_at(path, f"names {item} twice; remove one")
            found[item] = None
        return tuple(found)

    def pairs(self, name: str) -> dict[str, str]:
        """Returns a mapping from text to text, for example headers or parameters."""
        found = self._document.get(name)
        if found is None:
            return {}
        if not isinstance(found, Mapping) or len(found) > PAIRS_MAX:
            self.refuse(name, f"write a mapping from name to text with at most {PAIRS_MAX} entries")
            return {}
        for key, value in found.items():
            if not (isinstance(key, str) and isinstance(value, str) and key and f"{key}{value}".isprintable()):
                self.refuse(f"{name}.{key}", "is not one line of text; put it in quotes")
        return {str(key): str(value) for key, value in found.items()}

    # -- internal --------------------------------------------------------------------------------------------------

    def _number(self, name: str, default: float, range_: str, is_good: Callable[[float], bool]) -> float:
        found = self._document.get(name)
        if found is None:
            return default
        if isinstance(found, bool) or not isinstance(found, int | float):
            self.refuse(name, _no_number(found, f"a number {range_}"))
        elif is_good(found):
            return float(found)
        else:
            self.refuse(name, f"{found} is not {range_}")
        return default

    def _items(self, name: str, most: int) -> list[tuple[str, Any]]:
        found = self._document.get(name)
        if found is None:
            return []
        if isinstance(found, str | bytes) or not isinstance(found, Sequence):
            self.refuse(name, f"is {_kind(found)}; write a list")
            return []
        if len(found) > most:
            self.refuse(name, f"has {len(found)} entries, more than {most}; leave some out")
            return []
        return [(f"{self.at(name)}[{index}]", item) for index, item in enumerate(found)]


def _is_within(path: str, whole: str) -> bool:
    return path.startswith(whole) and path[len(whole) : len(whole) + 1] in ("", ".", "[")


def _kind(value: object) -> str:
    names = {type(None): "nothing", bool: "true or false", int: "a number", float: "a number", str: "a text"}
    return names.get(type(value), "a list" if isinstance(value, Sequence) else "a mapping")


def _no_text(value: object) -> str:
    """Returns the reason for a value that is not a string. YAML reads yes, 1.20 and 7 as other types than may be intended."""
    if isinstance(value, bool | int | float):
        return f"{value!r} is not text; put it in quotes"
    return f"is {_kind(value)}; write a text"


def _no_number(value: object, wanted: str) -> str:
    """Returns the reason for a value that is not a number; names the quotes if they are the cause."""
    try:
        is_quoted = isinstance(value, str) and math.isfinite(float(value))
    except ValueError:
        is_quoted = False
    if is_quoted:
        return f"{value!r} is text; write the number without quotes"
    if isinstance(value, float):
        return f"{value!r} is not whole; write {wanted}"
    return f"is {_kind(value)}; write {wanted}"


def _either(known: Sequence[str]) -> str:
    return ", ".join(known) if known else "nothing in it"
