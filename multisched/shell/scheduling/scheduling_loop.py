"""The scheduling loop of one domain: takes a pod or a gang from the queue, drives its attempt, and hands the result on.

The attempt is a generator of the synchronous core. It yields requests to plugins that answer from outside; this loop
waits for the answers. Loops of one domain interleave there alone, and between slices. An attempt that pauses goes on in a
task of its own (`LongAttempts`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import anyio
import anyio.abc

from multisched.cycle.results import GangResult, Pause, RemoteRequest, Result
from multisched.cycle.scheduling_cycle import SchedulingCycle
from multisched.framework.isolation import IsolatedError
from multisched.framework.points import Queued, QueuedPod
from multisched.framework.ports import ExtenderError
from multisched.framework.runner import PluginFailure, Runner
from multisched.framework.status import Status
from multisched.model.objects import Pod
from multisched.queueing.pod_queue import PodQueue
from multisched.queueing.transitions import Place
from multisched.shell.binding.send_check import SendCheck
from multisched.shell.scheduling.intake import Intake
from multisched.shell.scheduling.long_attempts import LongAttempts, entries_of
from multisched.shell.scheduling.ports import DomainPorts, Listeners
from multisched.shell.scheduling.settlement import Settlement
from multisched.state.cluster_cache import ClusterCache

PODS_PER_SLICE = 16
"""Pods one cycle decides before it lets the loop run: watches, binds and other domains wait no longer than that."""

SLICE_S = 0.005
"""Seconds after which a cycle lets the loop run however few pods it has decided: some pods take a hundred times as long as most."""


class SchedulingLoop:
    """Drives the attempts of one domain, by several tasks at once. Owns the count of attempts."""

    def __init__(
        self,
        queue: PodQueue,
        cycle: SchedulingCycle,
        runner: Runner,
        settlement: Settlement,
        intake: Intake,
        outside: DomainPorts,
        cache: ClusterCache,
        check: SendCheck,
        listeners: Listeners,
        *,
        cycles: int,
    ) -> None:
        """`cycles`: attempts that may wait for answers from outside at once."""
        self.attempts = 0
        self.cycle = cycle
        """Of the profile in force; an attempt under way ends by the one that began it."""
        self.cycles = cycles
        self._queue = queue
        self._tasks: anyio.abc.TaskGroup | None = None
        self._running = 0
        self._runner = runner
        self._settlement = settlement
        self._intake = intake
        self._outside = outside
        self.long = LongAttempts(
            queue, cache, settlement, check, intake, listeners, outside, lambda: self.cycle, self._ask
        )
        """Attempts that have paused."""

    def start(self, tasks: anyio.abc.TaskGroup) -> None:
        """Pops and decides by tasks of this group until they are cancelled."""
        self._tasks = self.long.tasks = tasks
        self.adjust()

    def adjust(self) -> None:
        """As many tasks as `cycles` says. Where no plugin asks outside, a decision waits for nothing: a second task would
        only take the loop twice a turn."""
        if self._tasks is None:
            return
        while self._running < self._wanted:
            self._running += 1
            self._tasks.start_soon(self._run)

    @property
    def _wanted(self) -> int:
        return self.cycles if self.cycle.plugins.remote else 1

    async def _run(self) -> None:
        now = self._outside.clock.monotonic
        slice_left, slice_began_s = PODS_PER_SLICE, now()
        while self._running <= self._wanted:
            queued = self._next(now()) if self._intake.is_open else None
            if queued is None:
                await self._intake.sleep()
                slice_left, slice_began_s = PODS_PER_SLICE, now()
                continue
            if self._queue.has_ready:
                self._intake.wake()
            await self._decide(queued)
            slice_left -= 1
            took_s = now() - slice_began_s
            if not slice_left or took_s > SLICE_S:
                await self._outside.news.pause(took_s)
                slice_left, slice_began_s = PODS_PER_SLICE, now()
        self._running -= 1
        self._intake.wake()  # what woke this task is for another one

    def _next(self, now_s: float) -> Queued | None:
        moved = self._queue.regroup(now_s)
        if moved.gated:
            self._settlement.report_gated(moved)
        self._settlement.release_gated()
        return self._queue.pop(now_s)

    async def _decide(self, queued: Queued) -> None:
        started = self._outside.clock.monotonic()
        entries = entries_of(queued)
        for entry in entries:
            if entry.pod.gates:  # they came back with a restored backup: its way back to the queue asks for them
                self._settlement.decide_anew(entries, "the pod was gated again", 0.0)
                return
        self.attempts += len(entries)
        cycle = self.cycle
        attempt = cycle.attempt(queued)
        self._outside.steps.begin()
        answers: Mapping[str, object | PluginFailure] | None = None
        while True:
            try:
                asked = next(attempt) if answers is None else attempt.send(answers)
            except StopIteration as ended:
                result: Result | GangResult = ended.value
                break
            if isinstance(asked, Pause):
                self.long.go_on(queued, cycle, attempt, asked, self._outside.clock.monotonic() - started)
                return
            answers = await self._ask(asked)
            self._outside.steps.begin()
            if any(map(self._has_changed, entries)):
                attempt.close()
                seconds = self._outside.clock.monotonic() - started
                self._settlement.decide_anew(entries, "the pod changed while a plugin was asked about it", seconds)
                return
        self._settlement.settle(queued, result, self._outside.clock.monotonic() - started, cycle)

    def _has_changed(self, entry: QueuedPod) -> bool:
        """Deleted, bound by another process, or no longer as it was, while a plugin was asked."""
        uid, pod = entry.pod.uid, entry.pod
        latest: Pod = self._queue.pod(uid) or pod
        return self._queue.where(uid) is Place.LEAVING or latest.spec is not pod.spec or bool(latest.gates)

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
