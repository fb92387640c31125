"""Views: what a plugin shows of its state, as named documents for people and tools (`/api/v1/VIEW/NAME`).

Values and one Protocol. The shell finds the plugin of a view and computes the document in a thread; the server imports
no plugin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol, runtime_checkable

import msgspec

from multisched.framework.node_view import Rows
from multisched.framework.points import Plugin
from multisched.framework.ports import Clock


class NoViewError(Exception):
    """There is nothing to show; the message says why.

    `status` as in HTTP: 404 unknown, 422 invalid query, 429 too many requests, 503 not yet available.
    """

    def __init__(self, message: str, *, status: int = 404) -> None:
        super().__init__(message)
        self.status = status


NAME_CHARS_MAX: Final = 64
NUMBER_MAX: Final = 100_000
"""Limit of a number in a query."""


def unknown_parameter(given: Iterable[str], known: Sequence[str]) -> str:
    """Returns the message for a query with an unknown parameter; empty if all are known."""
    unknown = next((name for name in given if name not in known), None)
    if unknown is None:
        return ""
    hint = f"known here: {', '.join(known)}" if known else "none is known here"
    return f"{unknown[:NAME_CHARS_MAX]}: unknown parameter; {hint}"


class ViewQuery(msgspec.Struct, frozen=True):
    """A request for one document."""

    name: str
    options: Mapping[str, str] = msgspec.field(default_factory=dict)

    def option(self, name: str) -> str:
        """Returns an option. Raises NoViewError if it is missing."""
        found = self.options.get(name, "")
        if not found:
            raise NoViewError(f"{self.name}: the parameter {name} is missing", status=422)
        return found

    def number(self, name: str, otherwise: int) -> int:
        """Returns an option that is a number, 0..NUMBER_MAX; `otherwise` without it. Raises NoViewError."""
        text = self.options.get(name, "")
        if not text:
            return otherwise
        if not (text.isascii() and text.isdigit() and len(text) <= len(str(NUMBER_MAX)) and int(text) <= NUMBER_MAX):
            raise NoViewError(f"{name}: {text[:20]} is not a number from 0 to {NUMBER_MAX}", status=400)
        return int(text)


class ViewPorts(msgspec.Struct, frozen=True):
    """The inputs of a view."""

    clock: Clock
    rows: Rows
    """The rows that the plugin's domain may use."""


Document = dict[str, Any]
"""JSON values; NaN is written as null."""


@runtime_checkable
class ViewedPlugin(Plugin, Protocol):
    """A plugin with a view of its state."""

    view: str
    """Name of the view; the same in all domains."""

    async def show(self, query: ViewQuery, ports: ViewPorts) -> Callable[[], Document]:
        """Copies the inputs on the loop, in steps of milliseconds; the returned function builds the document, in a thread.

        Both raise NoViewError.
        """
        ...
