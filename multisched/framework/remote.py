"""Plugins whose Filter or Score needs an external response."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol, runtime_checkable

from multisched.framework.node_view import Codes, Rows
from multisched.framework.points import CycleView, Plugin
from multisched.model.objects import Pod


@runtime_checkable
class RemotePlugin(Plugin, Protocol):
    """A plugin whose Filter or Score needs an external response. Both must depend on `Dependency.ATTEMPT`.

    The cycle pauses after all other filters. The shell awaits `response` for at most `response_timeout_s` while other
    cycles run. Then this plugin's Filter and Score run with `cycle.responses[self.name]`. At commit, Filter runs again
    on rows that changed meanwhile; a plugin whose response does not cover such a row implements `RecheckingPlugin`.
    """

    response_timeout_s: float

    def request(self, cycle: CycleView, pod: Pod, rows: Rows) -> object | None:
        """Returns the request about the rows that passed so far, self-contained (no views); None: no response needed."""
        ...

    def response(self, request: object) -> Awaitable[object]:
        """Sends the request. An exception or timeout becomes this plugin's Error status for the pod."""
        ...


@runtime_checkable
class RecheckingPlugin(Plugin, Protocol):
    """A remote plugin with its own check of rows that changed since its request.

    Extension point; of the in-tree plugins only `IsolatedPlugin` implements it.
    """

    def recheck(self, cycle: CycleView, pod: Pod, rows: Rows) -> Codes:
        """Returns uint8[rows] like Filter; called instead of Filter for rows that may have changed since the request."""
        ...
