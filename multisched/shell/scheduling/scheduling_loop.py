"""The scheduling loop of one domain: pops a pod or a gang, drives its attempt, and passes the result to `ResultApplier`.

An attempt is a generator of the synchronous core. It yields requests for plugins that get their answer over I/O, and this
loop awaits the answers. The scheduling tasks of one domain interleave only while they wait for answers and between slices. An
attempt that pauses continues in a separate task (`LongAttempts`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

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
from multisched.queueing.transitions import QueueState
from multisched.shell.adaptive_width import AdaptiveWidth, Bounds
from multisched.shell.binding.send_check import SendCheck
from multisched.shell.scheduling.intake import Intake
from multisched.shell.scheduling.long_attempts import LongAttempts, entries_of
from multisched.shell.scheduling.ports import DomainPorts, Listeners
from multisched.shell.scheduling.result_applier import ResultApplier
from multisched.state.cluster_cache import ClusterCache

PODS_PER_SLICE = 16
"""Maximum number of pods that one task schedules before it yields to the event loop, where watches, binds and other domains wait."""

CALM_CYCLES = 2
"""Number of attempts waiting for plugins at which the latency of a plugin's process or an extender counts as unloaded."""

SLICE_S = 0.005
"""Time after which a task yields to the event loop even before PODS_PER_SLICE, because a few pods take 100 times as long as most."""


class SchedulingLoop:
    """Driver of one domain's attempts, in one or more concurrent tasks. Owns the count of attempts."""

    def __init__(
        self,
        queue: PodQueue,
        cycle: SchedulingCycle,
        runner: Runner,
        results: ResultApplier,
        intake: Intake,
        ports: DomainPorts,
        cache: ClusterCache,
        check: SendCheck,
        listeners: Listeners,
        *,
        cycles: Bounds,
    ) -> None:
        """`cycles`: bounds of the number of attempts that may wait for remote answers concurrently."""
        self.attempts = 0
        self.cycle = cycle
        """The cycle of the current profile. An attempt in progress keeps the cycle that it began with."""
        self._width = AdaptiveWidth(cycles, CALM_CYCLES)
        self._asking = 0
        self._queue = queue
        self._tasks: anyio.abc.TaskGroup | None = None
        self._running = 0
        self._runner = runner
        self._results = results
        self._intake = intake
        self._ports = ports
        self.long = LongAttempts(queue, cache, results, check, intake, listeners, ports, lambda: self.cycle, self._ask)
        """Attempts that have paused."""

    def start(self, tasks: anyio.abc.TaskGroup) -> None:
        """Starts the scheduling tasks in this task group; they run until they are cancelled."""
        self._tasks = self.long.tasks = tasks
        self.adjust()

    def adjust(self) -> None:
        """Starts tasks up to `wanted`. Without remote plugins one task is enough: an attempt then never waits, and with a second
        task the domain would only take twice the time in each turn of the event loop."""
        if self._tasks is None:
            return
        while self._running < self.wanted:
            self._running += 1
            self._tasks.start_soon(self._run)

    def limit(self, cycles: Bounds) -> None:
        """Changes the bounds of the number of tasks. Attempts in progress continue."""
        self._width.limit(cycles)
        self.adjust()

    @property
    def wanted(self) -> int:
        """Number of tasks that should run."""
        return int(self._width.width) if self.cycle.plugins.remote else 1

    async def _run(self) -> None:
        now = self._ports.clock.monotonic
        slice_left, slice_began_s = PODS_PER_SLICE, now()
        while self._running <= self.wanted:
            queued = self._next(now()) if self._intake.is_open else None
            if queued is None:
                await self._intake.sleep()
                slice_left, slice_began_s = PODS_PER_SLICE, now()
                continue
            if self._queue.has_ready:
                self._intake.wake()
            slice_left -= await self._decide_next(queued, slice_left)
            took_s = now() - slice_began_s
            if not slice_left or took_s > SLICE_S:
                await self._ports.event_time_share.pause(took_s)
                slice_left, slice_began_s = PODS_PER_SLICE, now()
        self._running -= 1
        self._intake.wake()  # passes on a wake-up that this task may have received

    def _next(self, now_s: float) -> Queued | None:
        moved = self._queue.regroup(now_s)
        if moved.gated:
            self._results.report_gated(moved)
        self._results.release_gated()
        return self._queue.pop(now_s)

    async def _decide_next(self, queued: Queued, slice_left: int) -> int:
        """Decides the popped pod or gang. With a single pod, also decides the next pods of the same spec. Returns the number of entries."""
        if not isinstance(queued, QueuedPod) or queued.pod.gates:
            await self._decide(queued)
            return 1
        length = min(self.cycle.run_length(queued.pod), slice_left)
        run = [queued, *self._followers(queued.pod, length - 1)] if length > 1 else [queued]
        left: Sequence[QueuedPod] = run
        while len(left) > 1:
            decided = self._decide_run(left)
            left = left[decided:]
            if decided <= 1:
                break
        for one in left:
            await self._decide(one)
        return len(run)

    def _followers(self, first: Pod, count: int) -> Iterator[QueuedPod]:
        """Pops the next pods while they have the same spec."""
        now_s = self._ports.clock.monotonic()
        for _ in range(count):
            popped = self._queue.pop(now_s, first.spec)
            if popped is None:
                return
            assert isinstance(popped, QueuedPod), "there are no gangs"
            yield popped

    def _decide_run(self, run: Sequence[QueuedPod]) -> int:
        """Decides the first of these pods together. Returns their number."""
        started, cycle = self._ports.clock.monotonic(), self.cycle
        results = cycle.attempt_run(run)
        self.attempts += len(results)
        seconds = (self._ports.clock.monotonic() - started) / max(1, len(results))
        for queued, result in zip(run, results, strict=False):
            self._results.apply(queued, result, seconds, cycle)
        return len(results)

    async def _decide(self, queued: Queued) -> None:
        started = self._ports.clock.monotonic()
        entries = entries_of(queued)
        for entry in entries:
            if entry.pod.gates:  # a restored backup brought the gates back; requeueing runs PreEnqueue
                self._results.requeue_stale(entries, "the pod was gated again", 0.0)
                return
        self.attempts += len(entries)
        cycle = self.cycle
        attempt = cycle.attempt(queued)
        self._ports.steps.begin()
        answers: Mapping[str, object | PluginFailure] | None = None
        while True:
            try:
                yielded = next(attempt) if answers is None else attempt.send(answers)
            except StopIteration as ended:
                result: Result | GangResult = ended.value
                break
            if isinstance(yielded, Pause):
                self.long.take_over(queued, cycle, attempt, yielded, self._ports.clock.monotonic() - started)
                return
            answers = await self._ask(yielded)
            self._ports.steps.begin()
            if any(map(self._has_changed, entries)):
                attempt.close()
                seconds = self._ports.clock.monotonic() - started
                self._results.requeue_stale(
                    entries, "the pod changed while a remote request of a plugin was in flight", seconds
                )
                return
        self._results.apply(queued, result, self._ports.clock.monotonic() - started, cycle)

    def _has_changed(self, entry: QueuedPod) -> bool:
        """Reports whether the pod was deleted, bound by another client, gated or changed while a request to a plugin was in flight."""
        uid, pod = entry.pod.uid, entry.pod
        latest: Pod = self._queue.pod(uid) or pod
        return self._queue.where(uid) is QueueState.LEAVING or latest.spec is not pod.spec or bool(latest.gates)

    async def _ask(self, requests: Sequence[RemoteRequest]) -> Mapping[str, object | PluginFailure]:
        """Asks all plugins concurrently; takes as long as the slowest of them. Adapts the number of tasks to that time."""
        answers: dict[str, object | PluginFailure] = {}
        sent_s = self._ports.clock.monotonic()
        self._asking += 1
        try:
            await self._ask_all(requests, answers)
            self._width.answered(sent_s, self._ports.clock.monotonic(), self._asking)
        finally:
            self._asking -= 1
        self.adjust()
        return answers

    async def _ask_all(self, requests: Sequence[RemoteRequest], answers: dict[str, object | PluginFailure]) -> None:
        if len(requests) == 1:
            await self._ask_one(requests[0], answers)
            return
        async with anyio.create_task_group() as tasks:
            for one in requests:
                tasks.start_soon(self._ask_one, one, answers)

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
        except ExtenderError as error:  # the condition holds only the extender's message, as upstream
            self._runner.failure(plugin, "Response", error)
            answers[one.key] = PluginFailure(Status.error(str(error)).by(plugin.name))
        except Exception as error:  # noqa: BLE001 - plugin errors are contained here
            answers[one.key] = self._runner.failure(plugin, "Response", error)
