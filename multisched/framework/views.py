"""Views: what a plugin shows of what it knows, as named documents for people and tools (`/api/v1/VIEW/NAME`).

Values and one Protocol. The shell finds who has a view and computes in a thread; the server knows no plugin.
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

    `status` as in HTTP: 404 not known, 422 the question itself is wrong, 429 too many ask, 503 not yet.
    """

    def __init__(self, message: str, *, status: int = 404) -> None:
        super().__init__(message)
        self.status = status


NAME_CHARS_MAX: Final = 64


def unknown_parameter(given: Iterable[str], known: Sequence[str]) -> str:
    """What to answer where a query names what nobody reads; empty where it does not."""
    unknown = next((name for name in given if name not in known), None)
    if unknown is None:
        return ""
    hint = f"known here: {', '.join(known)}" if known else "there are no parameters here"
    return f"{unknown[:NAME_CHARS_MAX]}: unknown; {hint}"


class ViewQuery(msgspec.Struct, frozen=True):
    """Which document."""

    name: str
    options: Mapping[str, str] = msgspec.field(default_factory=dict)

    def option(self, name: str) -> str:
        """Raises NoViewError where it is not there."""
        found = self.options.get(name, "")
        if not found:
            raise NoViewError(f"{self.name}: say which {name}", status=422)
        return found


class ViewPorts(msgspec.Struct, frozen=True):
    """What a view is made with."""

    clock: Clock
    rows: Rows
    """The rows that the plugin's domain may use."""


Document = dict[str, Any]
"""Of what JSON knows; NaN stands for null."""


@runtime_checkable
class ViewedPlugin(Plugin, Protocol):
    """A plugin that shows what it knows."""

    view: str
    """Under which name; the same in all domains."""

    async def show(self, query: ViewQuery, ports: ViewPorts) -> Callable[[], Document]:
        """Copies on the loop what the document is made of, in pieces of milliseconds; what is returned makes it, in a thread.

        Both raise NoViewError.
        """
        ...
