"""Reads one mapping of the configuration after the other: all that is wrong is told at once, each with its path and the fix.

Reading goes on with the default in the place of what is refused.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from typing import Any

from domains.forecast.curves.capacity import SettingError

PAIRS_MAX = 64
QUANTILE_MAX = 0.999
"""The largest sample of all is no quantile."""
WEIGHT_MAX = 100
"""Of a dimension, wherever it is said."""


class Settings:
    """A mapping with its path. Mappings read out of it tell their problems to the same list; `done` raises them."""

    def __init__(self, document: object, path: str, known: Sequence[str], problems: list[str] | None = None) -> None:
        self.path = path
        self._problems: list[str] = [] if problems is None else problems
        self._begun = len(self._problems)
        self._document: Mapping[str, Any] = document if isinstance(document, Mapping) else {}
        if document is not None and not isinstance(document, Mapping):
            self._problems.append(f"{path}: write a mapping with {', '.join(known)}")
        for name in self._document:
            if name not in known:
                near = difflib.get_close_matches(str(name), known, n=1)
                hint = f"did you mean {near[0]}?" if near else f"known here: {', '.join(known)}"
                self.refuse(str(name), f"unknown; {hint}")

    def refuse(self, name: str, reason: str) -> None:
        """Notes what is wrong with a field."""
        self._problems.append(f"{self.path}.{name}: {reason}")

    def refuse_at(self, problem: str) -> None:
        """Notes what another reader has refused, a line each, which name the path themselves."""
        self._problems += problem.splitlines()

    @property
    def is_good(self) -> bool:
        """True if nothing has been refused since this mapping is read."""
        return len(self._problems) == self._begun

    @property
    def problems(self) -> Sequence[str]:
        """What has been refused so far."""
        return self._problems

    def done(self) -> None:
        """Raises SettingError if anything was refused."""
        if self._problems:
            raise SettingError("\n".join(self._problems))

    def has(self, name: str) -> bool:
        return self._document.get(name) is not None

    def value(self, name: str) -> Any:
        return self._document.get(name)

    def text(self, name: str, default: str = "") -> str:
        found = self._document.get(name)
        if found is None or isinstance(found, str):
            return default if found is None else found
        self.refuse(name, f"{found!r} is no text; put it in quotes")
        return default

    def choice(self, name: str, default: str, choices: Sequence[str]) -> str:
        found = self.text(name, default)
        if found in choices:
            return found
        near = difflib.get_close_matches(found, choices, n=1)
        hint = f"did you mean {near[0]}?" if near else f"write one of {', '.join(filter(None, choices))}"
        self.refuse(name, f"{found!r} is not known; {hint}")
        return default

    def integer(self, name: str, default: int, low: int, high: int) -> int:
        found = self._document.get(name, default)
        if found is None:
            return default
        if isinstance(found, bool) or not isinstance(found, int) or not low <= found <= high:
            self.refuse(name, _no_number(found, f"is no whole number of {low}..{high}"))
            return default
        return found

    def number(self, name: str, default: float, low: float, high: float) -> float:
        found = self._document.get(name)
        if found is None:
            return default
        if not _is_number(found) or not low <= found <= high:
            self.refuse(name, _no_number(found, f"is no number of {low:g}..{high:g}"))
            return default
        return float(found)

    def above_zero(self, name: str, default: float, high: float) -> float:
        """A number, however small."""
        found = self._document.get(name)
        if found is None:
            return default
        if not _is_number(found) or not 0 < found <= high:
            self.refuse(name, _no_number(found, f"is not above 0 and at most {high:g}"))
            return default
        return float(found)

    def flag(self, name: str, *, default: bool) -> bool:
        found = self._document.get(name)
        if found is None or isinstance(found, bool):
            return default if found is None else found
        self.refuse(name, f"{found!r} is neither true nor false")
        return default

    def texts(self, name: str, most: int) -> list[str]:
        """A list of texts."""
        found = self._list(name, most)
        for number, item in enumerate(found):
            if not (isinstance(item, str) and item):
                self.refuse(f"{name}[{number}]", f"{item!r} is no text; put it in quotes")
        return [item for item in found if isinstance(item, str) and item]

    def names(self, name: str, most: int) -> tuple[str, ...]:
        """A list of texts, each of which stands there once."""
        found = self.texts(name, most)
        for number, item in enumerate(found):
            if item in found[:number]:
                self.refuse(f"{name}[{number}]", f"names {item} twice; remove one")
        return tuple(dict.fromkeys(found))

    def pairs(self, name: str) -> dict[str, str]:
        """A mapping from text to text: headers, parameters."""
        found = self._document.get(name)
        if found is None:
            return {}
        if not isinstance(found, Mapping) or len(found) > PAIRS_MAX:
            self.refuse(name, f"write a mapping from name to text, of at most {PAIRS_MAX}")
            return {}
        for key, value in found.items():
            if not (isinstance(key, str) and isinstance(value, str) and key and f"{key}{value}".isprintable()):
                self.refuse(f"{name}.{key}", "is no text of one line; put it in quotes")
        return {str(key): str(value) for key, value in found.items()}

    def by_dimension(self, name: str, dimensions: Sequence[str], most: int) -> Mapping[str, Any]:
        """The mapping in a field, from dimension to what is the caller's to read.

        Where the dimensions are named, another one is a slip: what is said of it would count for nothing.
        """
        found = self._document.get(name)
        if found is None:
            return {}
        if not isinstance(found, Mapping) or not all(isinstance(key, str) and key for key in found):
            self.refuse(name, "write a mapping by dimension, such as {cpu: 2}; names that are numbers in quotes")
            return {}
        if len(found) > most:
            self.refuse(name, f"has {len(found)} entries, more than {most}; leave some out")
            return {}
        for key in found if dimensions else ():
            if key not in dimensions:
                near = difflib.get_close_matches(key, dimensions, n=1)
                hint = f"did you mean {near[0]}?" if near else f"known here: {', '.join(dimensions)}"
                self.refuse(f"{name}.{key}", f"no dimension is called so; {hint}")
        return found

    def below(self, name: str, known: Sequence[str]) -> Settings:
        """The mapping in a field."""
        return Settings(self._document.get(name), f"{self.path}.{name}", known, self._problems)

    def entries(self, name: str, known: Sequence[str], most: int) -> list[Settings]:
        """The mappings in a list."""
        found = self._list(name, most)
        return [Settings(item, f"{self.path}.{name}[{n}]", known, self._problems) for n, item in enumerate(found)]

    def variants(self, name: str, key: str, kinds: Mapping[str, Sequence[str]], most: int) -> list[Settings]:
        """The mappings in a list, each with the fields of the kind it names under `key`."""
        found = []
        for number, item in enumerate(self._list(name, most)):
            kind = item.get(key) if isinstance(item, Mapping) else None
            known = kinds.get(kind) if isinstance(kind, str) else None
            if known is None:
                self.refuse(f"{name}[{number}].{key}", f"{kind!r} is not known; write one of {', '.join(kinds)}")
                continue
            found.append(Settings(item, f"{self.path}.{name}[{number}]", known, self._problems))
        return found

    def _list(self, name: str, most: int) -> Sequence[Any]:
        found = self._document.get(name)
        if found is None:
            return ()
        if isinstance(found, str) or not isinstance(found, Sequence):
            self.refuse(name, "write a list")
            return ()
        if len(found) > most:
            self.refuse(name, f"has {len(found)} entries, more than {most}; leave some out")
            return ()
        return found


def _is_number(found: object) -> bool:
    return isinstance(found, int | float) and not isinstance(found, bool) and math.isfinite(found)


def _no_number(found: object, why: str) -> str:
    """What is wrong with what should be a number; of one in quotes, that they are the fault."""
    try:
        is_quoted = isinstance(found, str) and math.isfinite(float(found))
    except ValueError:
        is_quoted = False
    return f"{found!r} is text; write the number without quotes" if is_quoted else f"{found!r} {why}"
