"""Carries out preemptions: clears lower nominations, marks and deletes the victims, then makes the preemptor schedulable.

Owns the preemptions in progress and the deletions in flight; one per process, for all domains. A cycle decides a
`framework.preemption.Preemption`; all writes and waits happen here. A preemptor (the pod that preempts) is held, that is, not
scheduled, while its victims are being removed (`is_preempting`). Pods that start together are held and released together.
Nothing is written without the lease, and no victim is deleted by two preemptions. Every preemptor is released in the end, also
after failures. No state has to survive the process: the next one finds the preemptors pending and decides again.

A preemptor is held until the watch shows its victims as deleting. Upstream releases it when the API server has accepted the
deletions. Then any other victim's deletion may requeue it while its own victims still count, and it preempts more pods
needlessly. If the watch shows the last victim as deleting before the API server answers, the preemptor is released at once, as
upstream. Victims with a grace period requeue it when they end, by the queueing hints of the plugins that rejected it.
Source: kube-scheduler 1.36, framework/preemption/executor.go.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

import anyio
import anyio.abc
import msgspec

from multisched.framework.ports import (
    Clock,
    Event,
    EventSink,
    LeaseHolder,
    PodWriter,
    WriteAnswer,
    WriteReply,
    pod_ref,
)
from multisched.framework.preemption import Preemption
from multisched.model.objects import Pod
from multisched.shell.observer import DomainObserver
from multisched.shell.recent_preemptions import RecentPreemptions
from multisched.shell.removals import Removals
from multisched.state.nominator import Nominator
from multisched.state.reservations import is_stand_in

logger = logging.getLogger(__name__)

WORKERS: Final = 32
"""Preemptions carried out concurrently; others wait. A pending pod has at most one."""
VICTIMS_AT_ONCE: Final = 16
"""Victims of one preemption removed concurrently."""
ATTEMPTS_MAX: Final = 5
"""Attempts of one write whose outcome is unknown or that got a 429."""
FAILURE_PAUSE_S: Final = 1.0
"""Hold time of a pod whose preemption failed: an idle queue would retry it at once, with the same failure."""
SEEN_MAX_S: Final = 5.0
"""Maximum hold time after the deletions were accepted, if the watch does not show them."""
RETRY_DELAY_S: Final = 0.1
"""Delay before the second attempt of a write; doubled before each further one."""

NO_LEASE = "the lease was lost"
NO_NODE = "the node has left the domain"


class VictimDomain(Protocol):
    """The domain of a victim."""

    def preempt_placed(self, uid: str, plugin: str) -> bool:
        """Cancels the bind of a pod of this domain, if it was not sent yet. Returns False for other pods."""
        ...


class PreemptorDomain(Protocol):
    """The domain of a preemptor.

    Implemented by `DomainNominations`, which is in a layer above and starts preemptions.
    """

    lease: LeaseHolder
    observer: DomainObserver
    write_timeout_s: float

    def still_waits(self, uid: str) -> bool:
        """Reports whether the pod is still pending and its gang, if it has one, is eligible to start."""
        ...

    def may_use(self, node: str) -> bool:
        """Reports whether the node belongs to the domain now and no other leader may be binding to it."""
        ...

    def is_confirmed_on_node(self, uid: str) -> bool:
        """Reports whether the watch has shown the pod on a node, and has not shown it as deleting."""
        ...

    def preemption_ended(self) -> None:
        """Handles the end of a preemption: there are no further writes for it."""
        ...

    def nomination_ended(self, pod: Pod, node: str) -> None:
        """Requeues pods that may have been refused because of this nomination: it ended, and may never have been written."""
        ...

    def release_preemptor(self, pod: Pod, *, failed: bool) -> None:
        """Releases a held pod: its victims are deleted, deleting, or could not be removed."""
        ...


class _Job(msgspec.Struct, frozen=True, eq=False):
    """A preemption, and the domain of its preemptors."""

    preemption: Preemption
    home: PreemptorDomain

    @property
    def pods(self) -> tuple[Pod, ...]:
        """The preemptors."""
        return tuple(pod for pod, _ in self.preemption.nominations)

    @property
    def first(self) -> Pod:
        """The first preemptor; it represents all of them in logs, events and indexes."""
        return self.preemption.nominations[0].pod

    @property
    def still_waits(self) -> bool:
        """True while all preemptors are pending: without one of them, the others may not need their victims' capacity."""
        return all(self.home.still_waits(pod.uid) for pod in self.pods)

    @property
    def may_use_nodes(self) -> bool:
        return all(self.home.may_use(node) for _, node in self.preemption.nominations)


class _Write(msgspec.Struct, frozen=True):
    """The outcome of one write."""

    problem: str = ""
    """Why it failed; empty if it succeeded or the pod does not exist any more."""
    is_gone: bool = False
    """The pod does not exist any more."""
    may_have_happened: bool = False
    """The API server has carried out the write, or may have."""


class _Held(msgspec.Struct, frozen=True, eq=False):
    """Preemptors that wait for the watch. The API server has accepted the victims' deletions; the last may still be in flight."""

    job: _Job
    unseen: set[str]
    """uids of victims that the watch has not shown as deleting."""
    timer: asyncio.TimerHandle | None
    """Ends the wait; set once the API server has accepted the last deletion."""


class Preemptor:
    """Executor of preemptions; implements `framework.preemption.PreemptionsInProgress`."""

    def __init__(
        self,
        writer: PodWriter,
        events: EventSink,
        clock: Clock,
        nominator: Nominator,
        removals: Removals,
        home_of: Callable[[Pod], VictimDomain | None],
    ) -> None:
        """`home_of`: returns the domain that schedules a pod; None for a pod of another scheduler."""
        self._writer = writer
        self._events = events
        self._clock = clock
        self._nominator = nominator
        self.removals = removals
        self._home_of = home_of
        self.recent = RecentPreemptions()
        self._jobs: dict[str, _Job] = {}
        """uid of each preemptor -> its preemption in progress."""
        self._waiting: deque[_Job] = deque()
        self._removals_in_flight: dict[str, asyncio.Event] = {}
        """uid of each victim whose removal is in flight -> event that is set when it has ended."""
        self._held: dict[str, _Held] = {}
        """uid of each preemptor that waits for the watch."""
        self._awaited: dict[str, list[_Held]] = {}
        """uid of each unseen victim -> the preemptors held for it."""
        self._wake = asyncio.Event()
        self._tasks: anyio.abc.TaskGroup | None = None

    def is_preempting(self, uid: str) -> bool:
        return uid in self._jobs or uid in self._held

    def on_victim_deleting(self, uid: str) -> None:
        """Handles a pod that the watch has shown as deleting or deleted."""
        self.removals.seen(uid)
        for held in self._awaited.pop(uid, ()):
            held.unseen.discard(uid)
            if not held.unseen:
                self._release_preemptors(held.job)

    def start(self, preemption: Preemption, home: PreemptorDomain) -> bool:
        """Starts a preemption. `is_preempting` is true for its preemptors from this call until they are released.

        Returns False if there is nothing to do: all victims are deleting or their binds are being cancelled, or the same
        preemption was started for another of its preemptors. The victims' deletions then requeue the preemptors. Cancelling
        such a bind again would end at once and release the preemptors at once, in an endless loop.
        """
        victims, job = preemption.every_victim, _Job(preemption, home)
        known = self._jobs.get(job.first.uid)
        is_done = all(victim.is_deleting or self._is_cancelled(victim, home) for victim in victims)
        if is_done or (known is not None and known.preemption is preemption):
            return False
        home.observer.preemption_began(len(victims))
        self.recent.note(self._clock.monotonic(), preemption)
        self.removals.decide(job, victims)
        for pod in job.pods:
            self._jobs[pod.uid] = job
        self._waiting.append(job)
        self._wake.set()
        return True

    def _is_cancelled(self, victim: Pod, home: PreemptorDomain) -> bool:
        """Reports whether the victim's bind is being cancelled. It may still be assumed, until its binding cycle ends."""
        return self.removals.is_sent(victim.uid) and not home.is_confirmed_on_node(victim.uid)

    def drop_waiting(self, home: PreemptorDomain) -> None:
        """Drops the waiting preemptions of a domain and releases its held preemptors: the domain stops."""
        for job in [job for job in self._waiting if job.home is home]:
            self._waiting.remove(job)
            self._end(job, failed=True)
        for job in {id(held): held.job for held in self._held.values() if held.job.home is home}.values():
            self._release_preemptors(job)

    async def run(self) -> None:
        """Carries out preemptions until cancelled. Victims that were not deleted by then stay."""
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            for _ in range(WORKERS):
                tasks.start_soon(self._work)

    def __len__(self) -> int:
        return len({id(job) for job in self._jobs.values()})

    # -- one preemption --------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        while True:
            while not self._waiting:
                self._wake.clear()
                await self._wake.wait()
            await self._carry_out(self._waiting.popleft())

    async def _carry_out(self, job: _Job) -> None:
        if not job.still_waits:  # a preemptor was deleted, or its gang lost a member: no victim is needed
            await self._fail(job)
            return
        began = self._clock.monotonic()
        problems: list[str] = []
        await self._clear_lower(job, problems)
        by_node = job.preemption.victims.items()
        victims = [(victim, node) for node, some in by_node for victim in some if not victim.is_deleting]
        failures: list[str] = []
        await self._remove_all(job, victims[:-1], failures)
        if not failures:
            # The last victim is removed after all others: the watch may then release the preemptor before the answer arrives.
            self._expect(job)
            await self._remove(job, *victims[-1], failures)
        seconds = self._clock.monotonic() - began
        job.home.observer.preemption_ended("error" if failures or problems else "success", seconds)
        for text in (*problems, *failures):
            fields = {"pod": job.first.key, "node": job.preemption.nominations[0].node, "error": text}
            logger.warning("preemption", extra=fields)
        if self._jobs.get(job.first.uid) is not job:
            self._finish(job)  # the watch showed all victims as deleting before the API server answered
            return
        self._forget_held(job)
        if not failures:
            self._hold(job)
            return
        await self._fail(job)

    async def _fail(self, job: _Job) -> None:
        """Ends the nominations, and releases the preemptors after a pause."""
        # First, because pods requeued by the end of the nominations must not count these victims as leaving.
        self.removals.release(job, job.preemption.every_victim)
        await self._give_up(job)
        assert self._tasks is not None, "run has begun"
        self._tasks.start_soon(self._end_later, job)

    async def _end_later(self, job: _Job) -> None:
        if any(job.home.still_waits(pod.uid) for pod in job.pods):
            await anyio.sleep(FAILURE_PAUSE_S)
        self._end(job, failed=True)

    async def _clear_lower(self, job: _Job, problems: list[str]) -> None:
        """Ends the nominations of lower-priority pods on the nominated nodes, so that these pods are scheduled elsewhere."""
        own = {pod.uid for pod in job.pods}
        for pod, node in job.preemption.nominations:
            for other in self._nominator.on(node):
                if other.uid in own or self._nominator.rank_of(other) >= pod.spec.priority:
                    continue
                self._nominator.remove(other.uid)
                if is_stand_in(other):  # a reservation, not a pod
                    continue
                job.home.nomination_ended(other, node)
                problem = await self._cleared(job, other)
                if problem:
                    problems.append(f"the nomination of {other.key} was not cleared: {problem}")

    async def _cleared(self, job: _Job, pod: Pod) -> str:
        ref, timeout_s = pod_ref(pod), job.home.write_timeout_s
        return (await self._sent(job, lambda: self._writer.clear_nomination(ref, timeout_s=timeout_s))).problem

    async def _remove_all(self, job: _Job, victims: Sequence[tuple[Pod, str]], failures: list[str]) -> None:
        places = anyio.CapacityLimiter(VICTIMS_AT_ONCE)

        async def remove(victim: Pod, node: str) -> None:
            async with places:
                if not failures:  # as upstream, stops deleting victims after the first failure
                    await self._remove(job, victim, node, failures)

        async with anyio.create_task_group() as tasks:
            for victim, node in victims:
                tasks.start_soon(remove, victim, node)

    async def _give_up(self, job: _Job) -> None:
        """Ends the nominations of a failed preemption, in memory and on the API server."""
        for pod, node in job.preemption.nominations:
            if self._nominator.node_of(pod.uid) == node:
                self._nominator.remove(pod.uid)
                job.home.nomination_ended(pod, node)
                await self._cleared(job, pod)

    def _end(self, job: _Job, *, failed: bool) -> None:
        self._finish(job)
        for pod in job.pods:
            job.home.release_preemptor(pod, failed=failed)

    def _finish(self, job: _Job) -> None:
        self._forget_job(job)
        job.home.preemption_ended()

    def _forget_job(self, job: _Job) -> None:
        self.removals.release(job, job.preemption.every_victim)
        for pod in job.pods:
            if self._jobs.get(pod.uid) is job:
                del self._jobs[pod.uid]

    # -- until the watch has shown it ------------------------------------------------------------------------------

    def _expect(self, job: _Job) -> None:
        """Registers the wait for the watch before the last victim is deleted: the watch may be faster than the API's answer."""
        unseen = self._unseen(job)
        if unseen:
            self._await(_Held(job, unseen, None))

    def _hold(self, job: _Job) -> None:
        """Holds the preemptors until the watch has shown all victims as deleting; the API server has accepted the deletions."""
        unseen = self._unseen(job)
        if not unseen or not job.still_waits:
            self._end(job, failed=False)
            return
        timer = asyncio.get_running_loop().call_later(SEEN_MAX_S, self._release_preemptors, job)
        self._await(_Held(job, unseen, timer))
        self._finish(job)

    def _unseen(self, job: _Job) -> set[str]:
        return {victim.uid for victim in job.preemption.every_victim if job.home.is_confirmed_on_node(victim.uid)}

    def _await(self, held: _Held) -> None:
        for pod in held.job.pods:
            self._held[pod.uid] = held
        for victim in held.unseen:
            self._awaited.setdefault(victim, []).append(held)

    def _release_preemptors(self, job: _Job) -> None:
        self._forget_held(job)
        self._forget_job(job)
        for pod in job.pods:
            job.home.release_preemptor(pod, failed=False)

    def _forget_held(self, job: _Job) -> None:
        held = self._held.get(job.first.uid)
        if held is None or held.job is not job:
            return
        for pod in job.pods:
            del self._held[pod.uid]
        if held.timer is not None:
            held.timer.cancel()
        for victim in held.unseen:
            waiting = self._awaited[victim]
            waiting.remove(held)
            if not waiting:
                del self._awaited[victim]

    # -- one victim ------------------------------------------------------------------------------------------------

    async def _remove(self, job: _Job, victim: Pod, node: str, failures: list[str]) -> None:
        removal = self._removals_in_flight.get(victim.uid)
        if removal is not None:
            await removal.wait()  # another preemption deletes it; a failure shows in this preemptor's next attempt
            return
        removal = self._removals_in_flight[victim.uid] = asyncio.Event()
        try:
            problem = await self._removed(job, victim, node)
        finally:
            del self._removals_in_flight[victim.uid]
            removal.set()
        if problem:
            failures.append(f"victim {victim.key} was not removed: {problem}")

    async def _removed(self, job: _Job, victim: Pod, node: str) -> str:
        """Removes a victim. Returns why that failed; empty: it is deleted, deleting or its bind is cancelled. `node`: its node."""
        group = job.preemption.group
        note = f"Preempted by {f'podgroup {group}' if group else f'pod {job.first.uid}'} on node {node}"
        home = self._home_of(victim)
        if not job.may_use_nodes:
            return NO_NODE
        if home is not None and home.preempt_placed(victim.uid, job.preemption.plugin):
            self.removals.sent(victim.uid)
            self._record_event(job, victim, f"{note} (in kube-scheduler memory).")
            return ""
        ref, timeout_s = pod_ref(victim), job.home.write_timeout_s
        why = f"{job.first.spec.scheduler_name}: preempting to accommodate a higher priority pod"
        mark = await self._sent(job, lambda: self._writer.mark_victim(ref, why, timeout_s=timeout_s), is_for_room=True)
        if mark.is_gone:
            self.removals.sent(victim.uid)
        if mark.is_gone or mark.problem:
            return mark.problem
        deletion = await self._sent(job, lambda: self._writer.delete(ref, timeout_s=timeout_s), is_for_room=True)
        if deletion.may_have_happened:
            self.removals.sent(victim.uid)
        if not deletion.is_gone and not deletion.problem:
            self._record_event(job, victim, note)
        return deletion.problem

    async def _sent(self, job: _Job, send: Callable[[], Awaitable[WriteReply]], *, is_for_room: bool = False) -> _Write:
        """Sends one write, and retries it while its outcome is unknown.

        `is_for_room`: stops once the domain may no longer use a nominated node, because the write would then be useless.
        """
        message, may_have_happened = "", False
        for attempt in range(ATTEMPTS_MAX):
            if not job.home.lease.may_bind():
                return _Write(NO_LEASE, may_have_happened=may_have_happened)
            if is_for_room and not job.may_use_nodes:
                return _Write(NO_NODE, may_have_happened=may_have_happened)
            reply = await send()
            if reply.answer in (WriteAnswer.DONE, WriteAnswer.GONE):
                return _Write(is_gone=reply.answer is WriteAnswer.GONE, may_have_happened=True)
            message = reply.message
            if reply.answer is WriteAnswer.REFUSED:
                break
            may_have_happened |= reply.answer is WriteAnswer.UNKNOWN
            await anyio.sleep(max(reply.retry_after_s, RETRY_DELAY_S * 2**attempt))
        return _Write(message or "no answer", may_have_happened=may_have_happened)

    def _record_event(self, job: _Job, victim: Pod, note: str) -> None:
        reporter = job.first.spec.scheduler_name
        self._events.record(
            Event(pod_ref(victim), "Normal", "Preempted", "Preempting", note, reporter, related=pod_ref(job.first))
        )
