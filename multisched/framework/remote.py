"""Plugins whose Filter or Score needs an answer from outside."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol, runtime_checkable

from multisched.framework.node_view import Codes, Rows
from multisched.framework.points import CycleView, Plugin
from multisched.model.objects import Pod


@runtime_checkable
class RemotePlugin(Plugin, Protocol):
    """A plugin whose Filter or Score needs an answer from outside. Those must depend on `Dependency.ATTEMPT`.

    The cycle stops after all other filters. The shell awaits `response` within `response_timeout_s` while other cycles go
    on. Then this plugin's Filter and Score run with `cycle.responses[self.name]`. At commit Filter runs again on a row
    that changed meanwhile; a plugin whose answer does not cover such a row is a `RecheckingPlugin`.
    """

    response_timeout_s: float

    def request(self, cycle: CycleView, pod: Pod, rows: Rows) -> object | None:
        """The request about the rows that passed so far, self-contained (no views); None: no answer needed."""
        ...

    def response(self, request: object) -> Awaitable[object]:
        """Asks outside. An exception or timeout is this plugin's Error status for the pod."""
        ...


@runtime_checkable
class RecheckingPlugin(Plugin, Protocol):
    """A plugin that asks outside and looks itself at rows that changed since it did.

    Extension point; among those that ship, `IsolatedPlugin` alone is one.
    """

    def recheck(self, cycle: CycleView, pod: Pod, rows: Rows) -> Codes:
        """uint8[rows]: as Filter, in place of it, for rows that may have changed meanwhile."""
        ...
