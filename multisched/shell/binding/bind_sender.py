"""Drives one bind from its first POST to a definite outcome, as decided by `cycle.bind_outcome.BindMachine`.

Checks right before each POST that the lease, the node and the decision are still valid. After a bind without an answer, the bind
is retried or the pod is read until the outcome is known. If the sending task is cancelled, no state changes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial

import anyio
from msgspec.structs import replace

from multisched.client.binder import READ_TIMEOUT_S
from multisched.cycle.bind_outcome import BindMachine, Outcome, Step
from multisched.framework.ports import (
    BindAnswer,
    Binder,
    BindReply,
    BindRequest,
    ExtenderError,
    LeaseHolder,
    UnreachableError,
)
from multisched.framework.registry import PluginSet
from multisched.framework.runner import PluginFailure, Runner, sentence
from multisched.framework.status import SUCCESS, Status
from multisched.framework.traits import traits_of
from multisched.shell.binding.bind import Bind
from multisched.shell.binding.bind_limit import BindLimit
from multisched.shell.binding.send_check import SendCheck

logger = logging.getLogger(__name__)

BIND_GRACE_S = 5.0
"""Time that a Bind plugin may take beyond its deadline before it is cancelled."""

NOT_NOW = "no bind may be sent: the lease was lost, or the cluster state is uncertain"
_NO_LABELS: Mapping[str, str] = {}
_DENIALS = frozenset({BindAnswer.DENIED, BindAnswer.REJECTED})


class BindSender:
    """Sender of one domain's binds. Owns the count of binds whose outcome is currently unknown."""

    def __init__(
        self,
        domain: str,
        runner: Runner,
        *,
        binder: Binder,
        lease: LeaseHolder,
        check: SendCheck,
        timed_annotations: Callable[[Mapping[str, str]], Mapping[str, str]],
        labels: Callable[[Mapping[str, str]], Mapping[str, str]],
        limit: BindLimit,
        monotonic: Callable[[], float],
        timeout_s: float,
    ) -> None:
        """`timed_annotations`, `labels`: see the functions of `LedgerRegistry`. `limit` observes each answer. `timeout_s`: of one POST."""
        self.unknown = 0
        self._domain = domain
        self._runner = runner
        self._binder = binder
        self._lease = lease
        self._check = check
        self._timed_annotations = timed_annotations
        self._labels = labels
        self._limit = limit
        self._monotonic = monotonic
        self._timeout_s = timeout_s

    async def send(self, bind: Bind) -> tuple[Outcome, Status]:
        """Drives the bind to its outcome; returns it with the reason. If the task is cancelled (lease lost, exit), changes no state."""
        placed, pod = bind.placed, bind.placed.pod
        machine = BindMachine(pod.uid, placed.node, bind_deadline_s=self._timeout_s)
        annotations, labels = placed.annotations, _NO_LABELS
        if annotations:
            try:
                annotations = {**annotations, **self._timed_annotations(annotations)}
                labels = self._labels(placed.annotations)
            except PluginFailure as failure:
                return Outcome.REFUSED, failure.status
        is_void = partial(self._is_void, bind)
        request = BindRequest(pod.namespace, pod.name, pod.uid, placed.node, annotations, is_void, labels)
        action = machine.first()
        counted = is_denied = False
        try:
            while action.step is not Step.END:
                if action.pause_s:
                    await anyio.sleep(action.pause_s)
                if action.step is Step.READ:
                    try:
                        truth = await self._binder.read(pod.namespace, pod.name, timeout_s=READ_TIMEOUT_S)
                    except UnreachableError:
                        action = machine.on_unreachable()
                    else:
                        action = machine.on_read(truth)
                    continue
                refusal = self._check.refusal(placed, bind.seen)
                if refusal is not None:
                    action = machine.withdraw(refusal.message)
                    bind.is_withdrawn = not machine.is_unknown
                    continue
                if not self._lease.may_bind():
                    if machine.is_unknown:
                        await anyio.sleep(self._timeout_s)
                        continue
                    return Outcome.REFUSED, Status.error(NOT_NOW)
                sent_s = self._monotonic()
                reply = await self._post(request, bind.seen.cycle.plugins)
                if isinstance(reply, PluginFailure):
                    action = machine.on_failure(reply.status.message)
                else:
                    self._limit.observe(reply.answer, sent_s, self._monotonic())
                    action = machine.on_reply(reply)
                    is_denied = action.step is Step.END and reply.answer in _DENIALS
                if machine.is_unknown and not counted:
                    counted = True
                    self.unknown += 1
                    logger.warning(
                        "no answer to a bind; retrying until its outcome is known", extra=bind.named(self._domain)
                    )
        finally:
            if counted:
                self.unknown -= 1
        if action.outcome is None:
            raise AssertionError("the bind machine ended without an outcome")
        if action.outcome is Outcome.BOUND:
            return Outcome.BOUND, SUCCESS
        message = action.message or "the API server refused the binding"
        return action.outcome, Status.denied(message) if is_denied else Status.error(message)

    def _is_void(self, bind: Bind) -> bool:
        """Reports whether the bind became invalid while the write limit delayed it."""
        return not self._lease.may_bind() or self._check.refusal(bind.placed, bind.seen) is not None

    async def _post(self, request: BindRequest, plugins: PluginSet) -> BindReply | PluginFailure:
        """Returns the reply of the first Bind plugin that handles the pod. A plugin that failed may have sent the binding."""
        for plugin in plugins.bind:
            try:
                if traits_of(plugin).keeps_deadline:
                    reply = await plugin.bind(self._binder, request, timeout_s=self._timeout_s)
                else:
                    async with asyncio.timeout(self._timeout_s + BIND_GRACE_S):  # a third of the cost of anyio's
                        reply = await plugin.bind(self._binder, request, timeout_s=self._timeout_s)
            except (
                ExtenderError
            ) as error:  # the message has no plugin prefix: upstream's extenders are not Bind plugins
                self._runner.failure(plugin, "Bind", error)
                return PluginFailure(Status.error(str(error)).by(plugin.name))
            except Exception as error:  # noqa: BLE001 - plugin errors are contained here
                return self._runner.failure(plugin, "Bind", error)
            if isinstance(reply, BindReply):
                is_bare = not reply.message or any(plugin.name == extender.name for extender in plugins.extenders)
                return reply if is_bare else replace(reply, message=sentence(plugin, "Bind", reply.message))
            if reply is not None:
                return self._runner.failure(plugin, "Bind", f"returned {type(reply).__name__}, not BindReply")
        return await self._binder.post(request, timeout_s=self._timeout_s)
