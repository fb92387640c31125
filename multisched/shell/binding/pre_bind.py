"""PreBind: runs the PreBind plugins of each placed pod in a separate task, before its binding is sent.

Binding volumes may take ten minutes; in a bind worker that would block other pods of the domain. So pods with work at PreBind
run here, at most `PRE_BINDS_MAX` at a time, and go to the bind workers afterwards. Pods without such work (no PreBind plugin,
or PreBindPreFlight returns Skip) go there directly. Owned by `BindingCycle`.

If the bind of a pod is cancelled (`Bind.cancelled`), its wait or plugin call is cancelled and no further plugin runs.
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
"""Timeout of one plugin's PreBind, unless the plugin sets `Traits.pre_bind_timeout_s`."""

PRE_BINDS_MAX = 4_096
"""Maximum number of pods at PreBind at the same time; others wait."""

CLOSING_S = 3.0
"""Time that PreBind calls in progress may still take when the scheduler stops. No binding of these pods has been sent."""

_STOPPED: Final = Status.error("the scheduler stopped while the pod waited at PreBind")


class PreBindStage:
    """The PreBind stage of one domain."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._places = asyncio.Semaphore(PRE_BINDS_MAX)
        self._scopes: dict[str, anyio.CancelScope] = {}
        """uid of each pod that waits for a slot or runs a plugin -> the scope that cancels it."""
        self._is_closing = False

    def work_for(self, bind: Bind) -> Sequence[PreBindPlugin] | Status:
        """Returns the plugins that have work for the pod, in order, or the status of a failed PreBindPreFlight."""
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
        """Runs the plugins. Returns the first status that is not success, or the status with which the bind was cancelled."""
        if bind.cancelled is not None:  # before this task ran for the first time
            return bind.cancelled
        with self._endable(bind, CLOSING_S if self._is_closing else math.inf) as scope:
            await self._places.acquire()
        if scope.cancelled_caught:
            return bind.cancelled or _STOPPED
        try:
            for plugin in plugins:
                if bind.cancelled is not None:
                    return bind.cancelled
                status = await self._run_one(bind, plugin)
                if not status.is_success:
                    return status
        finally:
            self._places.release()
        return Status()

    def close(self) -> None:
        """Handles the stop of the scheduler: cancels PreBind calls that do not end within `CLOSING_S`; their pods are requeued."""
        self._is_closing = True
        deadline_s = anyio.current_time() + CLOSING_S
        for scope in self._scopes.values():
            scope.deadline = min(scope.deadline, deadline_s)

    def end(self, uid: str) -> None:
        """Cancels the wait or the plugin call of a pod whose bind was cancelled."""
        scope = self._scopes.get(uid)
        if scope is not None:
            scope.cancel()

    @contextmanager
    def _endable(self, bind: Bind, timeout_s: float) -> Iterator[anyio.CancelScope]:
        """Cancels its body after the timeout, when the bind is cancelled, or `CLOSING_S` after the scheduler stops."""
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
            except Exception as error:  # noqa: BLE001 - plugin errors are contained here
                failure = self._runner.failure(plugin, "PreBind", error).status
        ended = bind.cancelled
        if ended is not None:  # overrides the plugin's result of the cancelled call
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
