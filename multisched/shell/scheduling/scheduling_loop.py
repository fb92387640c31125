"""The scheduling loop of one domain: takes a pod from the queue, drives its attempt, and hands the result on.

The attempt is a generator of the synchronous core. It yields requests to plugins that answer from outside; this loop
waits for the answers. Loops of one domain interleave there alone, and between slices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import anyio

from multisched.cycle.results import GangResult, RemoteRequest, Result
from multisched.cycle.scheduling_cycle import SchedulingCycle
from multisched.framework.isolation import IsolatedError
from multisched.framework.points import QueuedGang, QueuedPod
from multisched.framework.ports import ExtenderError
from multisched.framework.runner import PluginFailure, Runner
from multisched.framework.status import Status
from multisched.model.objects import Pod
from multisched.queueing.pod_queue import PodQueue
from multisched.queueing.transitions import Place
from multisched.shell.scheduling.intake import Intake
from multisched.shell.scheduling.ports import DomainPorts
from multisched.shell.scheduling.settlement import Settlement

PODS_PER_SLICE = 16
"""Pods one cycle decides before it lets the loop run: watches, binds and other domains wait no longer than that."""

SLICE_S = 0.005
"""Seconds after which a cycle lets the loop run however few pods it has decided: some pods take a hundred times as long as most."""


class SchedulingLoop:
    """Drives the attempts of one domain. `run` may be run several times at once. Owns the count of attempts."""

    def __init__(
        self,
        queue: PodQueue,
        cycle: SchedulingCycle,
        runner: Runner,
        settlement: Settlement,
        intake: Intake,
        outside: DomainPorts,
    ) -> None:
        self.attempts = 0
        self._queue = queue
        self._cycle = cycle
        self._runner = runner
        self._settlement = settlement
        self._intake = intake
        self._outside = outside

    async def run(self) -> None:
        """Pops and decides until cancelled."""
        now = self._outside.clock.monotonic
        slice_left, slice_began_s = PODS_PER_SLICE, now()
        while True:
            entry = self._queue.pop(now()) if self._intake.is_open else None
            if entry is None:
                await self._intake.sleep()
                slice_left, slice_began_s = PODS_PER_SLICE, now()
                continue
            if self._queue.has_ready:
                self._intake.wake()
            await self._decide_one(entry)
            slice_left -= 1
            took_s = now() - slice_began_s
            if not slice_left or took_s > SLICE_S:
                await self._outside.news.pause(took_s)
                slice_left, slice_began_s = PODS_PER_SLICE, now()

    async def _decide_one(self, entry: QueuedPod) -> None:
        started = self._outside.clock.monotonic()
        if entry.pod.gates:  # they came back with a restored backup: its way back to the queue asks for them
            self._settlement.decide_anew(entry, "the pod was gated again", 0.0)
            return
        if entry.gang is not None:
            await self._decide_gang(entry.gang)
            return
        self.attempts += 1
        attempt = self._cycle.attempt(entry)
        answers: Mapping[str, object | PluginFailure] | None = None
        while True:
            try:
                asked = next(attempt) if answers is None else attempt.send(answers)
            except StopIteration as ended:
                result: Result = ended.value
                break
            answers = await self._ask(asked)
            if self._queue.where(entry.pod.uid) is Place.LEAVING:
                # Deleted, or bound by another process, while the plugin was asked: there is nothing left to decide.
                attempt.close()
                self._queue.done(entry.pod.uid)
                return
            latest: Pod = self._queue.pod(entry.pod.uid) or entry.pod
            if latest.spec is not entry.pod.spec or latest.gates:
                attempt.close()
                seconds = self._outside.clock.monotonic() - started
                self._settlement.decide_anew(entry, "the pod changed while a plugin was asked about it", seconds)
                return
        self._settlement.settle(entry, result, self._outside.clock.monotonic() - started)

    async def _decide_gang(self, gang: QueuedGang) -> None:
        """All members in one attempt. One that changed meanwhile makes all of them be decided anew."""
        started = self._outside.clock.monotonic()
        self.attempts += len(gang.members)
        attempt = self._cycle.attempt_gang(gang)
        answers: Mapping[str, object | PluginFailure] | None = None
        while True:
            try:
                asked = next(attempt) if answers is None else attempt.send(answers)
            except StopIteration as ended:
                result: GangResult = ended.value
                break
            answers = await self._ask(asked)
            if any(map(self._has_changed, gang.members)):
                attempt.close()
                seconds = self._outside.clock.monotonic() - started
                for entry in gang.members:
                    self._settlement.decide_anew(entry, "a member changed while a plugin was asked", seconds)
                return
        self._settlement.settle_gang(gang, result, self._outside.clock.monotonic() - started)

    def _has_changed(self, entry: QueuedPod) -> bool:
        latest = self._queue.pod(entry.pod.uid) or entry.pod
        is_leaving = self._queue.where(entry.pod.uid) is Place.LEAVING
        return is_leaving or latest.spec is not entry.pod.spec or bool(latest.gates)

    async def _ask(self, asked: Sequence[RemoteRequest]) -> Mapping[str, object | PluginFailure]:
        """All plugins at once: the pod waits as long as the slowest of them."""
        answers: dict[str, object | PluginFailure] = {}
        if len(asked) == 1:
            await self._ask_one(asked[0], answers)
            return answers
        async with anyio.create_task_group() as tasks:
            for one in asked:
                tasks.start_soon(self._ask_one, one, answers)
        return answers

    async def _ask_one(self, one: RemoteRequest, answers: dict[str, object | PluginFailure]) -> None:
        plugin = one.plugin
        try:
            with anyio.fail_after(plugin.response_timeout_s):
                answers[one.key] = await plugin.response(one.request)
        except TimeoutError:
            text = f"no answer within {plugin.response_timeout_s} s"
            answers[one.key] = self._runner.failure(plugin, "Response", text)
        except IsolatedError as error:
            answers[one.key] = self._runner.failure(plugin, error.point, error.text)
        except ExtenderError as error:  # the pod's condition has the extender's words and no more, as upstream
            self._runner.failure(plugin, "Response", error)
            answers[one.key] = PluginFailure(Status.error(str(error)).by(plugin.name))
        except Exception as error:  # noqa: BLE001 - a plugin ends here
            answers[one.key] = self._runner.failure(plugin, "Response", error)
