"""PreBind: what plugins do for a placed pod before its binding is sent, each pod in a task of its own.

Binding volumes may take ten minutes; a bind worker that waited for it would hold up every other pod of the domain. So
pods with work at PreBind wait here, at most `PRE_BINDS_MAX` at a time, and go to the bind workers when it is done. Pods
without such work never come here: PreBindPreFlight says Skip, or no plugin has the point. Owned by `BindingCycle`.

A pod that is turned back (`Bind.turned_back`) waits for no place any more, and no further plugin begins with it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import anyio

from multisched.framework.points import PreBindPlugin
from multisched.framework.runner import Runner, in_full
from multisched.framework.status import Code, Status
from multisched.framework.traits import traits_of
from multisched.shell.binding.bind import Bind

PRE_BIND_MAX_S = 900.0
"""For one plugin's PreBind, unless the plugin itself says otherwise by `Traits.pre_bind_timeout_s`."""

PRE_BINDS_MAX = 4_096
"""Pods at PreBind at the same time; more wait their turn."""

CLOSING_S = 3.0
"""What is under way gets so long to end when the scheduler stops; nothing has been sent for these pods."""

_STOPPED: Final = Status.error("the scheduler stopped while the pod waited at PreBind")


class PreBindStage:
    """The PreBind plugins of one domain at work."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._places = asyncio.Semaphore(PRE_BINDS_MAX)
        self._scopes: dict[str, anyio.CancelScope] = {}
        """uid of the pod that waits for a place or is at a plugin -> what ends that."""
        self._is_closing = False

    def work_for(self, bind: Bind) -> Sequence[PreBindPlugin] | Status:
        """The plugins that have something to do for the pod, in order; or why it cannot be bound."""
        placed, plugins, found = bind.placed, bind.seen.cycle.plugins, []
        for plugin in plugins.pre_bind:
            flier = plugins.pre_flight.get(plugin.name)
            if flier is not None:
                flight = self._runner.status(
                    flier, "PreBindPreFlight", flier.pre_bind_pre_flight, placed.view, placed.pod, placed.node
                )
                if flight.code is Code.SKIP:
                    continue
                if not flight.is_success:
                    return flight
            found.append(plugin)
        return found

    async def run(self, bind: Bind, plugins: Sequence[PreBindPlugin]) -> Status:
        """The first status that is no success, or success when all are done; or why the pod was turned back."""
        if bind.turned_back is not None:  # between its decision and the first step of this task
            return bind.turned_back
        with self._endable(bind, CLOSING_S if self._is_closing else math.inf) as scope:
            await self._places.acquire()
        if scope.cancelled_caught:
            return bind.turned_back or _STOPPED
        try:
            for plugin in plugins:
                if bind.turned_back is not None:
                    return bind.turned_back
                status = await self._run_one(bind, plugin)
                if not status.is_success:
                    return status
        finally:
            self._places.release()
        return Status()

    def close(self) -> None:
        """The scheduler stops: what waits for long gives up, and its pods go back to the queue."""
        self._is_closing = True
        deadline_s = anyio.current_time() + CLOSING_S
        for scope in self._scopes.values():
            scope.deadline = min(scope.deadline, deadline_s)

    def end(self, uid: str) -> None:
        """Cancels what is under way for a pod that has been turned back."""
        scope = self._scopes.get(uid)
        if scope is not None:
            scope.cancel()

    @contextmanager
    def _endable(self, bind: Bind, timeout_s: float) -> Iterator[anyio.CancelScope]:
        """What is done in it ends when its time is up, when the pod is turned back, or soon after the scheduler stops."""
        uid = bind.placed.pod.uid
        with anyio.move_on_after(timeout_s) as scope:
            self._scopes[uid] = scope
            try:
                yield scope
            finally:
                del self._scopes[uid]

    async def _run_one(self, bind: Bind, plugin: PreBindPlugin) -> Status:
        placed = bind.placed
        timeout_s = CLOSING_S if self._is_closing else traits_of(plugin).pre_bind_timeout_s or PRE_BIND_MAX_S
        status: Status | None = None
        failure: Status | None = None
        with self._endable(bind, timeout_s) as scope:
            try:
                status = await plugin.pre_bind(placed.view, placed.pod, placed.node)
            except Exception as error:  # noqa: BLE001 - a plugin ends here
                failure = self._runner.failure(plugin, "PreBind", error).status
        ended = bind.turned_back
        if ended is not None:  # whatever the plugin made of being ended
            return in_full(plugin, "PreBind", ended).by(ended.plugin)
        if failure is not None:
            return failure
        if scope.cancelled_caught:
            if self._is_closing:
                return _STOPPED
            return self._runner.failure(plugin, "PreBind", f"not done within {timeout_s:.0f} s").status
        if not isinstance(status, Status):
            return self._runner.failure(plugin, "PreBind", f"returned {type(status).__name__}, not Status").status
        return in_full(plugin, "PreBind", status)
