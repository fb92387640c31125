"""One running domain: its queue, scheduling tasks, pods at Permit and bind workers.

Builds the parts of `scheduling/` and `binding/` over one queue, and starts, pauses and stops them. The synchronous core
decides; these parts wait for remote plugins, Permit, the API server and the lease.
"""

from __future__ import annotations

import asyncio
from collections import deque

import anyio
import anyio.abc
import msgspec

from multisched.cycle.scheduling_cycle import SchedulingCycle
from multisched.cycle.waiting_pods import WaitingPodTable
from multisched.framework.registry import PluginSet
from multisched.framework.runner import Runner
from multisched.framework.status import Status
from multisched.queueing.pod_queue import PodQueue
from multisched.shell.adaptive_width import Bounds
from multisched.shell.binding.bind_limit import BindLimit
from multisched.shell.binding.bind_sender import BindSender
from multisched.shell.binding.pre_bind import PreBindStage
from multisched.shell.binding.send_check import SendCheck
from multisched.shell.preemptor import Preemptor
from multisched.shell.scheduling.bind_outcomes import BindOutcomes
from multisched.shell.scheduling.binding_cycle import BindingCycle
from multisched.shell.scheduling.failure_handler import FailureHandler
from multisched.shell.scheduling.intake import Intake
from multisched.shell.scheduling.long_attempts import LongAttempts
from multisched.shell.scheduling.nominations import DomainNominations
from multisched.shell.scheduling.ports import DomainPorts, Listeners
from multisched.shell.scheduling.result_applier import ResultApplier
from multisched.shell.scheduling.scheduling_loop import SchedulingLoop
from multisched.shell.scheduling.wait_group import WaitGroup
from multisched.state.cluster_cache import ClusterCache

IDLE_WAKEUP_MAX_S = 30.0


class Sizes(msgspec.Struct, frozen=True):
    """Concurrency limits of a domain."""

    cycles: Bounds
    """Attempts that may wait for remote plugins concurrently."""
    binds: Bounds
    """Binds in flight."""


class DomainCounters(msgspec.Struct, frozen=True):
    """Counters of a domain since the start."""

    bound: int
    refused: int
    attempts: int
    unknown: int
    """Binds whose outcome is currently unknown."""


class DomainWorker:
    """The running part of a domain. `Program` builds it from the configuration and starts `run`.

    Ingest and `Router` call its parts directly. All methods except `run` and `drained` are synchronous.
    """

    def __init__(
        self,
        name: str,
        *,
        cycle: SchedulingCycle,
        queue: PodQueue,
        waiting: WaitingPodTable,
        runner: Runner,
        cache: ClusterCache,
        ports: DomainPorts,
        sizes: Sizes,
        bind_timeout_s: float,
        listeners: Listeners,
        preemptor: Preemptor,
    ) -> None:
        self.name = name
        self.queue = queue
        self.waiting = waiting
        self.runner = runner
        self.lease = ports.lease
        self.write_timeout_s = bind_timeout_s
        self.limit = BindLimit(sizes.binds)
        self.intake = Intake()
        self._cache = cache
        self._clock = ports.clock
        self._in_progress = WaitGroup()
        self.nominations = DomainNominations(
            cycle,
            queue,
            runner,
            cache,
            preemptor,
            self.intake,
            self._in_progress,
            ports,
            listeners,
            write_timeout_s=bind_timeout_s,
        )
        self.failures = FailureHandler(queue, self.nominations, self.intake, ports)
        check = SendCheck(cache, cycle.rows)
        self.sender = BindSender(
            name,
            runner,
            binder=ports.binder,
            lease=ports.lease,
            check=check,
            timed_annotations=lambda annotations: cache.ledgers.timed_annotations(annotations, ports.clock.now()),
            labels=cache.ledgers.binding_labels,
            limit=self.limit,
            monotonic=ports.clock.monotonic,
            timeout_s=bind_timeout_s,
        )
        self.outcomes = BindOutcomes(name, queue, runner, cache, self.failures, self._in_progress, ports, listeners)
        self.binding = BindingCycle(
            name,
            waiting,
            cache,
            PreBindStage(runner),
            check,
            self.limit,
            self.sender,
            self.outcomes,
            self._in_progress,
            ports,
        )
        self.results = ResultApplier(queue, self.nominations, self.failures, self.binding, ports.observer)
        shared = ports, cache, check, listeners
        self._loop = SchedulingLoop(queue, cycle, runner, self.results, self.intake, *shared, cycles=sizes.cycles)

    @property
    def cycle(self) -> SchedulingCycle:
        """The cycle of the current profile."""
        return self._loop.cycle

    @property
    def plugins(self) -> PluginSet:
        return self.cycle.plugins

    @property
    def long_attempts(self) -> LongAttempts:
        """The attempts that last longer than one step."""
        return self._loop.long

    @property
    def cycle_limit(self) -> int:
        """Number of attempts that may wait for remote plugins now; 1 without such plugins, because an attempt then never waits."""
        return self._loop.wanted

    @property
    def counters(self) -> DomainCounters:
        return DomainCounters(self.outcomes.bound, self.failures.refused, self._loop.attempts, self.sender.unknown)

    @property
    def latencies_s(self) -> deque[float]:
        """See `BindOutcomes.latencies_s`."""
        return self.outcomes.latencies_s

    @property
    def is_leading(self) -> bool:
        return self.intake.is_leading

    # -- from start to stop ----------------------------------------------------------------------------------------

    def lead(self) -> None:
        """Starts scheduling. Called when this process has taken over the domain."""
        self.nominations.rank_all()
        self.intake.is_leading = True
        self.intake.wake()

    def pause_scheduling(self) -> None:
        """Pauses scheduling until `resume_scheduling`, because the cache may be out of date."""
        self.intake.is_held = True

    def resume_scheduling(self, cancel_binds: str = "") -> None:
        """Resumes scheduling. `cancel_binds`: reason to cancel all binds that have not been sent; empty to continue them."""
        if cancel_binds:
            self.binding.cancel_all(Status.error(cancel_binds))
        self.intake.is_held = False
        self.intake.wake()

    def wake_if_ready(self) -> None:
        """Wakes the scheduling loop if the queue has a pod for it."""
        if self.queue.has_ready:
            self.intake.wake()

    def close_intake(self) -> None:
        """Stops new attempts and requeues pods at Permit. Binds in flight continue."""
        self.intake.is_closing = True
        for pod in self.waiting.waiting():
            self.waiting.end(pod.uid, Status.error("the scheduler stopped while the pod waited for others"))
        self.nominations.close()
        self.binding.close()

    @property
    def is_drained(self) -> bool:
        """True if no binding cycle and no preemption is in progress."""
        return self._in_progress.is_empty

    @property
    def has_strayed_binds(self) -> bool:
        """True while a bind is in flight to a node that has left the domain since the decision."""
        return self.binding.has_strayed

    async def drained(self) -> None:
        """Waits until `is_drained`."""
        if not self.is_drained:
            await self._in_progress.wait()

    def preempt_placed(self, uid: str, plugin: str) -> bool:
        """Cancels the bind of a victim if it has not been sent. Returns False for other pods.

        If a paused attempt has assumed the pod, that attempt is undone. Also returns True for a pending pod without a node, whose
        bind was cancelled together with that of another victim of its gang.
        """
        if self._cache.placed(uid) is None and self.nominations.still_waits(uid):
            return True
        return self.long_attempts.cancel(uid, f"preempted by {plugin}") or self.binding.preempt(uid, plugin)

    # -- another configuration -------------------------------------------------------------------------------------

    def resize(self, sizes: Sizes) -> None:
        """Changes the concurrency limits. Attempts and binds in progress continue."""
        self._loop.limit(sizes.cycles)
        self.limit.set_bounds(sizes.binds)
        self.binding.add_workers()

    def use(self, cycle: SchedulingCycle, *, retry_refused: bool) -> None:
        """Switches to the cycle of another profile. Attempts and binds in progress keep the cycle that they began with.

        `retry_refused`: see `PodQueue.use`.
        """
        self._loop.cycle = cycle
        self._loop.adjust()
        self.nominations.adopt(cycle.plugins)
        self.failures.report_gated(self.queue.use(cycle.plugins, self._clock.monotonic(), retry_refused=retry_refused))
        self.intake.wake()

    # -- tasks -----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Runs the scheduling tasks, bind workers and timers of this domain until cancelled."""
        async with anyio.create_task_group() as tasks:
            self._loop.start(tasks)
            self.binding.start(tasks)
            tasks.start_soon(self._keep_time)

    async def _keep_time(self) -> None:
        """Ends backoffs, flushes unschedulable pods, times out Permit waits and reviews gang barriers, each when it is due."""
        while True:
            now_s = self._clock.monotonic()
            due = [t for t in (self.queue.next_wakeup_s(), self.waiting.next_deadline_s()) if t is not None]
            pause_s = min([max(0.0, t - now_s) for t in due], default=IDLE_WAKEUP_MAX_S)
            await asyncio.sleep(min(max(pause_s, 0.01), 0.25))
            now_s = self._clock.monotonic()
            moved = self.queue.flush(now_s)
            self.failures.report_gated(moved)
            self.failures.report_members(now_s)
            self.waiting.expire(now_s)
            self.binding.review_barriers()
            if moved.active:
                self.intake.wake()
            self.wake_if_ready()
