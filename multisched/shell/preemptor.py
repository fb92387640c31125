"""Carries out preemptions: takes lower nominations back, marks and deletes the victims, and lets the preemptor go on.

Owns who preempts at this moment and whose deletion is under way; one per process, for all domains. A cycle decides and
hands over a value (`framework.preemption.Preemption`); everything that waits happens here. A pod is not scheduled while
its victims go (`is_preempting`). Pods that are to start together are held, and let go, together. Nothing is written
without the lease, and no two preemptions delete one victim. Each preemptor goes on, whatever fails. Nothing here needs
to survive the process: the next one finds the preemptors pending and decides anew, by what has become of the victims.

A preemptor is held until the watch, too, has said that its victims go. Upstream lets it go once the server has. Then
the deletion of anybody else's victim wakes it; it finds its own still standing, and removes some more pods in vain. The
watch may be first, while the server's answer about the last victim is on its way. Then the preemptor goes on at once,
as upstream. Victims that take their time to end wake it one by one as they are gone, by the hints of the plugins that
refused it.
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
from multisched.shell.removals import Removals
from multisched.state.nominator import Nominator
from multisched.state.reservations import is_stand_in

logger = logging.getLogger(__name__)

WORKERS: Final = 32
"""Preemptions carried out at once; more wait in line. Each pod in a queue has one at most."""
VICTIMS_AT_ONCE: Final = 16
"""Victims of one preemption removed at once."""
ATTEMPTS_MAX: Final = 5
"""Sendings of one write whose effect is not known, or that got a 429."""
FAILURE_PAUSE_S: Final = 1.0
"""A pod whose preemption failed is held for so long: an idle queue would try it again at once, and again in vain."""
SEEN_MAX_S: Final = 5.0
"""A pod whose victims were deleted is held for so long at most if the watch is late to say that they go."""
RETRY_DELAY_S: Final = 0.1
"""Before the second sending; doubled before each further one."""

NO_LEASE = "the lease was lost"
NO_NODE = "the node has left the domain"


class VictimHome(Protocol):
    """The domain of a victim."""

    def preempt_placed(self, uid: str, plugin: str) -> bool:
        """Turns back a pod of this domain that waits at Permit or for its bind; False if it does not."""
        ...


class Home(Protocol):
    """The domain of a preemptor.

    Border: it is `DomainNominations`, above the preemptor, which hands it preemptions.
    """

    lease: LeaseHolder
    observer: DomainObserver
    write_timeout_s: float

    def still_waits(self, uid: str) -> bool:
        """True while the pod is there and wants a node, and its gang, if it has one, is eligible to start."""
        ...

    def may_use(self, node: str) -> bool:
        """The node is the domain's at this moment, and nobody else may be binding to it."""
        ...

    def is_standing(self, uid: str) -> bool:
        """True for a pod that the watch has shown on a node, and of which it has not said that it goes."""
        ...

    def preemption_ended(self) -> None:
        """Nothing more is written for one of the domain's preemptors."""
        ...

    def nomination_ended(self, pod: Pod, node: str) -> None:
        """A pod is promised this node no more: who left it the room hears of it, though the server need not know."""
        ...

    def let_go(self, pod: Pod, *, failed: bool) -> None:
        """The pod is held no longer: its victims are gone, or going, or could not be removed."""
        ...


class _Job(msgspec.Struct, frozen=True, eq=False):
    preemption: Preemption
    home: Home

    @property
    def pods(self) -> tuple[Pod, ...]:
        """Its preemptors."""
        return tuple(pod for pod, _ in self.preemption.nominations)

    @property
    def first(self) -> Pod:
        """The one that speaks for all of them."""
        return self.preemption.nominations[0].pod

    @property
    def still_waits(self) -> bool:
        """True while all preemptors do: without one of them, the victims of the others might go in vain."""
        return all(self.home.still_waits(pod.uid) for pod in self.pods)

    @property
    def may_use_nodes(self) -> bool:
        return all(self.home.may_use(node) for _, node in self.preemption.nominations)


class _Write(msgspec.Struct, frozen=True):
    """What became of one write."""

    problem: str = ""
    """Empty if it was carried out, or the pod is gone."""
    is_gone: bool = False
    """The pod is gone."""
    may_have_happened: bool = False
    """The API server has carried it out, or may have."""


class _Held(msgspec.Struct, frozen=True, eq=False):
    """Preemptors whose victims the server has deleted, or is just deleting the last of."""

    job: _Job
    unseen: set[str]
    """uids of victims that stand as far as the watch has said."""
    timer: asyncio.TimerHandle | None
    """Runs from the server's last answer on."""


class Preemptor:
    """`framework.preemption.PreemptionsUnderWay`, and the work behind it."""

    def __init__(
        self,
        writer: PodWriter,
        events: EventSink,
        clock: Clock,
        nominator: Nominator,
        removals: Removals,
        home_of: Callable[[Pod], VictimHome | None],
    ) -> None:
        """`home_of`: the domain that serves a pod; None for a pod of another scheduler."""
        self._writer = writer
        self._events = events
        self._clock = clock
        self._nominator = nominator
        self.removals = removals
        self._home_of = home_of
        self._jobs: dict[str, _Job] = {}
        """uid of each preemptor -> what is done for it."""
        self._waiting: deque[_Job] = deque()
        self._going: dict[str, asyncio.Event] = {}
        """uid of a victim -> set when its removal has ended."""
        self._held: dict[str, _Held] = {}
        """By the uid of each preemptor."""
        self._awaited: dict[str, list[_Held]] = {}
        """uid of an unseen victim -> who is held for it."""
        self._wake = asyncio.Event()
        self._tasks: anyio.abc.TaskGroup | None = None

    def is_preempting(self, uid: str) -> bool:
        return uid in self._jobs or uid in self._held

    def saw_going(self, uid: str) -> None:
        """The watch has said that this pod is gone, or going."""
        self.removals.seen(uid)
        for held in self._awaited.pop(uid, ()):
            held.unseen.discard(uid)
            if not held.unseen:
                self._let_go(held.job)

    def start(self, preemption: Preemption, home: Home) -> bool:
        """Begins to carry out what a cycle has decided. The preemptors count as preempting from this call on, until their
        home hears of the end.

        False: all victims are being deleted already, or their binds are turned back; or the same preemption is under way for
        another of its preemptors. Victims wake the preemptors as they leave. To turn a bind back once more would end at once, and
        so the preemptors would be tried again at once, without end.
        """
        victims, job = preemption.every_victim, _Job(preemption, home)
        known = self._jobs.get(job.first.uid)
        is_done = all(victim.is_deleting or self._is_turned_back(victim, home) for victim in victims)
        if is_done or (known is not None and known.preemption is preemption):
            return False
        home.observer.preemption_began(len(victims))
        self.removals.decide(job, victims)
        for pod in job.pods:
            self._jobs[pod.uid] = job
        self._waiting.append(job)
        self._wake.set()
        return True

    def _is_turned_back(self, victim: Pod, home: Home) -> bool:
        """Its bind is turned back, and it may still be assumed: the bind ends in a step of its own."""
        return self.removals.is_sent(victim.uid) and not home.is_standing(victim.uid)

    def drop_waiting(self, home: Home) -> None:
        """The domain ends: of its preemptions those that have not begun never will."""
        for job in [job for job in self._waiting if job.home is home]:
            self._waiting.remove(job)
            self._end(job, failed=True)
        for job in {id(held): held.job for held in self._held.values() if held.job.home is home}.values():
            self._let_go(job)

    async def run(self) -> None:
        """Works until cancelled. Cancelled, it leaves victims that were not asked to go where they are."""
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
        if not job.still_waits:  # one was deleted meanwhile, or their gang lost a member: nobody has to go for them
            await self._end_in_vain(job)
            return
        began = self._clock.monotonic()
        problems: list[str] = []
        await self._clear_lower(job, problems)
        by_node = job.preemption.victims.items()
        victims = [(victim, node) for node, some in by_node for victim in some if not victim.is_deleting]
        failures: list[str] = []
        await self._remove_all(job, victims[:-1], failures)
        if not failures:
            # Last and alone: once it is gone the preemptor has its room, and is not held any longer than that.
            self._expect(job)
            await self._remove(job, *victims[-1], failures)
        seconds = self._clock.monotonic() - began
        job.home.observer.preemption_ended("error" if failures or problems else "success", seconds)
        for text in (*problems, *failures):
            fields = {"pod": job.first.key, "node": job.preemption.nominations[0].node, "error": text}
            logger.warning("preemption", extra=fields)
        if self._jobs.get(job.first.uid) is not job:
            self._finish(job)  # the watch has shown all victims going before the server answered
            return
        self._forget_held(job)
        if not failures:
            self._hold(job)
            return
        await self._end_in_vain(job)

    async def _end_in_vain(self, job: _Job) -> None:
        """Takes the nominations back, and lets the preemptors go after a pause."""
        # First: who is woken by the end of the nominations must count as standing what this job does not remove.
        self.removals.release(job, job.preemption.every_victim)
        await self._give_up(job)
        assert self._tasks is not None, "run has begun"
        self._tasks.start_soon(self._end_later, job)

    async def _end_later(self, job: _Job) -> None:
        if any(job.home.still_waits(pod.uid) for pod in job.pods):
            await anyio.sleep(FAILURE_PAUSE_S)
        self._end(job, failed=True)

    async def _clear_lower(self, job: _Job, problems: list[str]) -> None:
        """Pods that give way to a preemptor on its node may look for another one: what they count on goes away."""
        own = {pod.uid for pod in job.pods}
        for pod, node in job.preemption.nominations:
            for other in self._nominator.on(node):
                if other.uid in own or self._nominator.rank_of(other) >= pod.spec.priority:
                    continue
                self._nominator.remove(other.uid)
                if is_stand_in(other):  # a place that is kept: no pod has it
                    continue
                job.home.nomination_ended(other, node)
                problem = await self._cleared(job, other)
                if problem:
                    problems.append(f"the nomination of {other.key} was not taken back: {problem}")

    async def _cleared(self, job: _Job, pod: Pod) -> str:
        ref, timeout_s = pod_ref(pod), job.home.write_timeout_s
        return (await self._sent(job, lambda: self._writer.clear_nomination(ref, timeout_s=timeout_s))).problem

    async def _remove_all(self, job: _Job, victims: Sequence[tuple[Pod, str]], failures: list[str]) -> None:
        places = anyio.CapacityLimiter(VICTIMS_AT_ONCE)

        async def remove(victim: Pod, node: str) -> None:
            async with places:
                if not failures:  # as upstream: after the first failure no further victim is asked to go
                    await self._remove(job, victim, node, failures)

        async with anyio.create_task_group() as tasks:
            for victim, node in victims:
                tasks.start_soon(remove, victim, node)

    async def _give_up(self, job: _Job) -> None:
        """The nodes are not what they were promised to be: the nominations end, here and on the pods."""
        for pod, node in job.preemption.nominations:
            if self._nominator.node_of(pod.uid) == node:
                self._nominator.remove(pod.uid)
                job.home.nomination_ended(pod, node)
                await self._cleared(job, pod)

    def _end(self, job: _Job, *, failed: bool) -> None:
        self._finish(job)
        for pod in job.pods:
            job.home.let_go(pod, failed=failed)

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
        """Nothing but the last victim's removal is left to do: whatever the server says of it, the watch may say it first."""
        unseen = self._unseen(job)
        if unseen:
            self._await(_Held(job, unseen, None))

    def _hold(self, job: _Job) -> None:
        """All victims are deleted at the server: holds the preemptors until the watch has said so of each."""
        unseen = self._unseen(job)
        if not unseen or not job.still_waits:
            self._end(job, failed=False)
            return
        timer = asyncio.get_running_loop().call_later(SEEN_MAX_S, self._let_go, job)
        self._await(_Held(job, unseen, timer))
        self._finish(job)

    def _unseen(self, job: _Job) -> set[str]:
        return {victim.uid for victim in job.preemption.every_victim if job.home.is_standing(victim.uid)}

    def _await(self, held: _Held) -> None:
        for pod in held.job.pods:
            self._held[pod.uid] = held
        for victim in held.unseen:
            self._awaited.setdefault(victim, []).append(held)

    def _let_go(self, job: _Job) -> None:
        self._forget_held(job)
        self._forget_job(job)
        for pod in job.pods:
            job.home.let_go(pod, failed=False)

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
        going = self._going.get(victim.uid)
        if going is not None:
            await going.wait()  # for another preemptor; if that fails, this one's next attempt will see it
            return
        going = self._going[victim.uid] = asyncio.Event()
        try:
            problem = await self._removed(job, victim, node)
        finally:
            del self._going[victim.uid]
            going.set()
        if problem:
            failures.append(f"victim {victim.key} was not removed: {problem}")

    async def _removed(self, job: _Job, victim: Pod, node: str) -> str:
        """Empty if the victim is gone or going, else what went wrong. `node`: where it stands."""
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
        """One write, sent again while its effect is not known.

        `is_for_room`: it is of no use once the domain may not use a nominated node any more.
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
