"""The binding cycles of one domain: Permit, PreBind and bind of each assumed pod.

Owns the pods in a binding cycle. A bind can be cancelled until it has been sent; its pod is then forgotten and requeued. After
that the bind is in flight. Ingest cancels binds of pods that changed or whose node changed; the preemptor cancels binds of pods
that became victims.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

import anyio.abc

from multisched.cycle.bind_outcome import Outcome
from multisched.cycle.results import Placed
from multisched.cycle.scheduling_cycle import SchedulingCycle
from multisched.cycle.waiting_pods import WaitingPodTable
from multisched.framework.points import PreBindPlugin
from multisched.framework.status import Status
from multisched.model.objects import Pod
from multisched.shell.binding.bind import Bind
from multisched.shell.binding.bind_limit import BindLimit
from multisched.shell.binding.bind_sender import NOT_NOW, BindSender
from multisched.shell.binding.gang_barrier import Barrier, GangBarriers, GangFailure
from multisched.shell.binding.pre_bind import PreBindStage
from multisched.shell.binding.send_check import SendCheck
from multisched.shell.idle_workers import IdleWorkers
from multisched.shell.scheduling.bind_outcomes import BindOutcomes
from multisched.shell.scheduling.ports import DomainPorts
from multisched.shell.scheduling.wait_group import WaitGroup
from multisched.state.cluster_cache import ClusterCache

logger = logging.getLogger(__name__)


class BindingCycle:
    """Permit, PreBind and bind of the assumed pods of one domain; `domain` is its name."""

    def __init__(
        self,
        domain: str,
        waiting: WaitingPodTable,
        cache: ClusterCache,
        pre_bind: PreBindStage,
        check: SendCheck,
        limit: BindLimit,
        sender: BindSender,
        outcomes: BindOutcomes,
        in_progress: WaitGroup,
        ports: DomainPorts,
    ) -> None:
        self._domain = domain
        self._waiting = waiting
        self._cache = cache
        self._pre_bind = pre_bind
        self._check = check
        self._limit = limit
        self._sender = sender
        self._outcomes = outcomes
        self._in_progress = in_progress
        self._ports = ports
        self._unsent: dict[str, Bind] = {}
        """uid -> assumed pod whose bind has not been sent: at Permit, at PreBind, or waiting for a bind worker."""
        self._barriers = GangBarriers(cache.gangs)
        self._sent: dict[str, Bind] = {}
        """uid -> pod whose bind is in flight; its outcome may be unknown."""
        self._to_bind: deque[Bind] = deque()
        self._idle = IdleWorkers()
        self._tasks: anyio.abc.TaskGroup | None = None
        self._workers = 0

    def start(self, tasks: anyio.abc.TaskGroup) -> None:
        """Starts the bind workers in this task group."""
        self._tasks = tasks
        self.add_workers()

    def add_workers(self) -> None:
        """Starts bind workers up to the current limit of binds in flight. If the limit was lowered, surplus workers stay idle."""
        if self._tasks is not None:
            while self._workers < self._limit.width:
                self._workers += 1
                self._tasks.start_soon(self._bind_placed)

    def expect(self, placed: Iterable[Placed], gang_of: Mapping[str, str]) -> None:
        """Registers gang members that one attempt placed together. None is bound before enough of them can be bound.

        Must be called before `begin`. `gang_of`: uid -> key of its gang.
        """
        self._barriers.expect({one.pod.uid: gang_of[one.pod.uid] for one in placed})

    def begin(self, placed: Placed, attempts: int, cycle: SchedulingCycle) -> None:
        """Starts the binding cycle of a pod. Must be called in the step in which the cycle assumed it, without an await."""
        bind = Bind(placed, attempts, self._check.note(placed, cycle))
        self._in_progress.add()
        self._unsent[placed.pod.uid] = bind
        barrier = self._barriers.begin(placed.pod.uid) if self._barriers else None
        if barrier is not None and barrier.failure is not None:
            self._abandon(bind, barrier.failure.status_of(placed.pod))
            return
        if placed.waits:
            self._hold(bind)
        else:
            self._start_pre_bind(bind)
        if barrier is not None:
            self._send(self._barriers.open_if_complete(barrier))

    @property
    def has_strayed(self) -> bool:
        """True while a bind is in flight to a node that has left the domain since the decision."""
        return not all(self._check.is_at_home(bind.placed, bind.seen) for bind in self._sent.values())

    # -- cancelling ------------------------------------------------------------------------------------------------

    def recheck(self, uid: str) -> None:
        """Checks the pod again after its node changed or was deleted, and cancels its bind if it no longer fits there."""
        bind = self._unsent.get(uid)
        refusal = None if bind is None else self._check.refusal(bind.placed, bind.seen)
        if refusal is not None:
            self.cancel(uid, refusal)

    def revise(self, pod: Pod) -> None:
        """Accounts for an assumed pod that changed, and cancels its bind if it no longer fits on its node."""
        if self._cache.revise(pod):
            self.recheck(pod.uid)
        else:
            self.cancel(pod.uid, Status.error("the pod changed before it was bound"))

    def cancel(self, uid: str, status: Status) -> None:
        """Cancels the binding cycle of a pod whose bind has not been sent; the pod is requeued."""
        if not self._waiting.end(uid, status):
            self._cancel(uid, status)

    def cancel_all(self, status: Status) -> None:
        for uid in list(self._unsent):
            self.cancel(uid, status)

    def preempt(self, uid: str, plugin: str) -> bool:
        """Cancels the bind of a victim if it has not been sent. Returns False for other pods."""
        if self._waiting.preempt(uid, plugin):
            return True
        return self._cancel(uid, Status.error(f"preempted by {plugin}").by(plugin))

    def close(self) -> None:
        """Handles the stop of the domain: cancels PreBind calls that do not end soon (`PreBindStage.close`)."""
        self._pre_bind.close()

    def _cancel(self, uid: str, status: Status) -> bool:
        """Returns False for a pod whose bind may have been sent."""
        bind = self._unsent.get(uid)
        if bind is None:
            return False
        if bind.cancelled is None:
            bind.cancelled = status
        self._pre_bind.end(uid)
        barrier = self._barriers.of(uid)
        if barrier is not None and uid in barrier.arrived and not barrier.is_open:
            self._abandon(bind, bind.cancelled)
        return True

    # -- the steps -------------------------------------------------------------------------------------------------

    def _hold(self, bind: Bind) -> None:
        """Holds the pod at Permit until all its plugins allow it or one rejects it."""
        began = self._ports.clock.monotonic()

        def decided(status: Status) -> None:
            waited = self._ports.clock.monotonic() - began
            self._ports.observer.permit_waited("allowed" if status.is_success else "rejected", waited)
            if status.is_success:
                self._start_pre_bind(bind)
            else:
                self._abandon(bind, status)

        self._waiting.hold(bind.placed.pod, bind.placed.waits, began, decided)

    def _start_pre_bind(self, bind: Bind) -> None:
        """Starts PreBind in a task. Most pods have no work at PreBind and go directly to a bind worker."""
        work = self._pre_bind.work_for(bind)
        if not work:
            self._enqueue(bind)
            return
        assert self._tasks is not None, "pods are placed by a running domain only"
        self._tasks.start_soon(self._pre_bind_first, bind, work)

    async def _pre_bind_first(self, bind: Bind, work: Sequence[PreBindPlugin] | Status) -> None:
        status = work if isinstance(work, Status) else await self._pre_bind.run(bind, work)
        if status.is_success:
            self._enqueue(bind)
        else:
            self._abandon(bind, status)

    def _enqueue(self, bind: Bind) -> None:
        if self._barriers:
            self._send(self._barriers.arrive(bind))
        else:
            self._send((bind,))

    def _send(self, binds: Sequence[Bind]) -> None:
        for bind in binds:
            self._to_bind.append(bind)
            self._idle.wake_one()

    async def _bind_placed(self) -> None:
        while True:
            while not self._to_bind:
                await self._idle.sleep()
            await self._bind_one(self._to_bind.popleft())

    async def _bind_one(self, bind: Bind) -> None:
        placed = bind.placed
        await self._limit.enter()
        barrier = self._barriers.of(placed.pod.uid)
        if barrier is not None and barrier.failure is None:
            self._pass(barrier)
        self._unsent.pop(placed.pod.uid, None)
        if bind.cancelled is not None:
            self._limit.leave()
            self._abandon(bind, bind.cancelled)
            return
        self._ports.conditions.drop(placed.pod.uid)
        began = self._ports.clock.monotonic()
        self._sent[placed.pod.uid] = bind
        try:
            outcome, answer = await self._sender.send(bind)
        finally:
            del self._sent[placed.pod.uid]
            self._limit.leave()
            self.add_workers()
        self._ports.observer.bind_ended(placed.pod, outcome, self._ports.clock.monotonic() - began)
        if outcome is not Outcome.BOUND:
            fields = bind.named(self._domain) | {"outcome": outcome.name, "error": answer.message}
            # A deleted pod, or a decision that became stale before it was sent, is normal and needs no investigation.
            level = logging.INFO if outcome is Outcome.GONE or bind.is_withdrawn else logging.WARNING
            logger.log(level, "pod not bound", extra=fields)
        match outcome:
            case Outcome.BOUND:
                self._outcomes.on_bound(bind)
            case Outcome.REFUSED:
                self._abandon(bind, answer)
            case Outcome.GONE | Outcome.FOREIGN:
                self._outcomes.on_lost(bind)

    def _abandon(self, bind: Bind, status: Status) -> None:
        uid = bind.placed.pod.uid
        self._unsent.pop(uid, None)
        barrier = self._barriers.of(uid)
        if barrier is None:
            self._outcomes.on_refused(bind, status)
            return
        key = self._barriers.leave(barrier, uid)
        barrier.undone.append(self._outcomes.undo(bind, status))
        if barrier.failure is None and self._barriers.cannot_reach_minimum(barrier):
            self._fail(barrier, GangFailure(uid, bind.placed.pod, key, status))
        if barrier.failure is None or not barrier.gang_of:
            undone = barrier.in_order()
            barrier.undone.clear()
            self._outcomes.requeue(undone)
            self._send(self._barriers.open_if_complete(barrier))  # the barrier may have waited only for this member

    # -- gangs that start together ---------------------------------------------------------------------------------

    def review_barriers(self) -> None:
        """Applies changed gang minimums to members that wait at a barrier. Must be called periodically."""
        for barrier in self._barriers.all() if self._barriers else ():
            if barrier.failure is None and self._barriers.cannot_reach_minimum(barrier):
                self._fail(barrier, self._cause(barrier))
            self._send(self._barriers.open_if_complete(barrier))

    def _pass(self, barrier: Barrier) -> None:
        """Decides, right before the first bind of a gang is sent, whether all binds of the gang may be sent or none."""
        if not self._ports.lease.may_bind():
            self._fail(barrier, GangFailure("", None, next(iter(barrier.members)), Status.error(NOT_NOW)))
            return
        for bind in barrier.arrived.values():
            if bind.cancelled is None:
                bind.cancelled = self._check.refusal(bind.placed, bind.seen)
        if self._barriers.may_send(barrier):
            self._barriers.dissolve(barrier)
        else:
            self._fail(barrier, self._cause(barrier))

    def _cause(self, barrier: Barrier) -> GangFailure:
        """Returns the failure of the first member whose bind was cancelled; if there is none, the shortage of the gang."""
        for uid, key in barrier.gang_of.items():
            bind = self._unsent.get(uid)
            if bind is not None and bind.cancelled is not None:
                return GangFailure(uid, bind.placed.pod, key, bind.cancelled)
        return self._barriers.shortage(barrier)

    def _fail(self, barrier: Barrier, failure: GangFailure) -> None:
        """Cancels the binds of all members. They are requeued together, once PreBind has ended for each of them."""
        for uid in self._barriers.fail(barrier, failure):
            bind = self._unsent.get(uid)
            if bind is not None:
                self.cancel(uid, failure.status_of(bind.placed.pod))
