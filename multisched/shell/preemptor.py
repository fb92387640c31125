"""Preemptor: carries out preemptions. Clears nominations of lower-priority pods, marks and deletes victims, and releases preemptors.

Owns the preemptions in progress and the deletions in flight; there is one Preemptor per process, for all domains. A cycle decides a
`framework.preemption.Preemption`; all writes and waits happen here. A preemptor (the pod that preempts) is held, that is, not
scheduled, while its victims are being removed (`is_preempting`). Pods that start together are held and released together.
Nothing is written without the lease, and no victim is deleted by two preemptions. Every preemptor is released in the end, even
after failures. No state has to survive the process: the next process finds the preemptors pending and decides again.

A preemptor is held until the watch shows its victims as terminating. Upstream releases it earlier, when the API server has accepted the
deletions. An event of another pod may then requeue the preemptor before the watch shows the deletions. The next attempt would see the
victims as running, and preempt further pods needlessly. If the watch shows the last victim as terminating before the API server responds,
the preemptor is released at once, as it is upstream. When victims with a grace period end, the queueing hints of the plugins that rejected
the preemptor requeue it.
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
"""Maximum number of preemptions carried out concurrently; others wait. A pending pod has at most one preemption."""
VICTIMS_AT_ONCE: Final = 16
"""Maximum number of victims of one preemption that are removed concurrently."""
ATTEMPTS_MAX: Final = 5
"""Maximum number of times that a write is sent if its outcome is unknown or the response is 429."""
FAILURE_PAUSE_S: Final = 1.0
"""Time for which a preemptor is held after a failure, because an idle queue would retry it at once, with the same failure."""
SEEN_MAX_S: Final = 5.0
"""Maximum time for which a preemptor is held after the deletions were accepted, if the watch does not show them."""
RETRY_DELAY_S: Final = 0.1
"""Delay before the second attempt of a write; doubled before each further one."""

NO_LEASE = "the lease was lost"
NO_NODE = "the node no longer belongs to the domain"


class VictimDomain(Protocol):
    """The domain of a victim."""

    def preempt_placed(self, uid: str, plugin: str) -> bool:
        """Cancels the bind of the pod. Returns False if the pod is not in this domain, or if its bind was already sent."""
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
        """Reports whether the watch has shown the pod on a node, and not as terminating."""
        ...

    def preemption_ended(self) -> None:
        """Handles the end of a preemption, after its last write."""
        ...

    def nomination_ended(self, pod: Pod, node: str) -> None:
        """Requeues pods that may have been refused because of this nomination.

        Needed because a nomination that was never written to the API server causes no watch event when it ends.
        """
        ...

    def release_preemptor(self, pod: Pod, *, failed: bool) -> None:
        """Releases a held pod, because its victims are deleted or terminating, or (`failed`) could not be removed."""
        ...


class _Execution(msgspec.Struct, frozen=True, eq=False):
    """A preemption with the domain of its preemptors."""

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
        """True while all preemptors are pending. If one is not, the others may not need the capacity of their victims."""
        return all(self.home.still_waits(pod.uid) for pod in self.pods)

    @property
    def may_use_nodes(self) -> bool:
        return all(self.home.may_use(node) for _, node in self.preemption.nominations)


class _Write(msgspec.Struct, frozen=True):
    """The outcome of one write."""

    problem: str = ""
    """Why it failed; empty if it succeeded, or if the pod no longer exists."""
    is_deleted: bool = False
    """The pod no longer exists."""
    may_have_happened: bool = False
    """The write was carried out, or its outcome is unknown."""


class _Held(msgspec.Struct, frozen=True, eq=False):
    """Preemptors that are held until the watch shows their victims as terminating.

    The API server has accepted the deletions, except for the last one, which may be in flight.
    """

    execution: _Execution
    unseen: set[str]
    """uids of victims that the watch has not shown as terminating."""
    timer: asyncio.TimerHandle | None
    """Releases the preemptors after SEEN_MAX_S; set when the API server has accepted the last deletion."""


class Preemptor:
    """Carries out preemptions; implements `framework.preemption.PreemptionsInProgress`."""

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
        self._executions: dict[str, _Execution] = {}
        """uid of each preemptor -> its preemption in progress."""
        self._waiting: deque[_Execution] = deque()
        self._removals_in_flight: dict[str, asyncio.Event] = {}
        """uid of a victim that is being removed -> event that is set when the removal has ended."""
        self._held: dict[str, _Held] = {}
        """uid of a held preemptor -> its state."""
        self._awaited: dict[str, list[_Held]] = {}
        """uid of a victim that the watch has not shown as terminating -> the preemptors held for it."""
        self._wake = asyncio.Event()
        self._tasks: anyio.abc.TaskGroup | None = None

    def is_preempting(self, uid: str) -> bool:
        return uid in self._executions or uid in self._held

    def on_victim_deleting(self, uid: str) -> None:
        """Handles a pod that the watch has shown as terminating or deleted."""
        self.removals.seen(uid)
        for held in self._awaited.pop(uid, ()):
            held.unseen.discard(uid)
            if not held.unseen:
                self._release_preemptors(held.execution)

    def start(self, preemption: Preemption, home: PreemptorDomain) -> bool:
        """Starts a preemption. `is_preempting` is true for its preemptors from this call until they are released.

        Returns False if there is nothing to do: the same preemption was already started for another of its preemptors, or all victims are
        being removed (each is terminating, or its bind is being cancelled). When the victims end, they requeue the preemptors. If their
        binds were cancelled a second time, the preemption would end at once, and the released preemptors would preempt again, endlessly.
        """
        victims, execution = preemption.every_victim, _Execution(preemption, home)
        known = self._executions.get(execution.first.uid)
        is_done = all(victim.is_deleting or self._is_cancelled(victim, home) for victim in victims)
        if is_done or (known is not None and known.preemption is preemption):
            return False
        home.observer.preemption_began(len(victims))
        self.recent.note(self._clock.monotonic(), preemption)
        self.removals.decide(execution, victims)
        for pod in execution.pods:
            self._executions[pod.uid] = execution
        self._waiting.append(execution)
        self._wake.set()
        return True

    def _is_cancelled(self, victim: Pod, home: PreemptorDomain) -> bool:
        """Reports whether the victim's bind is being cancelled. The victim may stay assumed until its binding cycle ends."""
        return self.removals.is_sent(victim.uid) and not home.is_confirmed_on_node(victim.uid)

    def drop_waiting(self, home: PreemptorDomain) -> None:
        """Drops the waiting preemptions of a domain and releases its held preemptors, because the domain stops."""
        for execution in [execution for execution in self._waiting if execution.home is home]:
            self._waiting.remove(execution)
            self._end(execution, failed=True)
        for execution in {
            id(held): held.execution for held in self._held.values() if held.execution.home is home
        }.values():
            self._release_preemptors(execution)

    async def run(self) -> None:
        """Carries out preemptions until it is cancelled. Victims that were not deleted by then are kept."""
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            for _ in range(WORKERS):
                tasks.start_soon(self._work)

    def __len__(self) -> int:
        return len({id(execution) for execution in self._executions.values()})

    # -- one preemption --------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        while True:
            while not self._waiting:
                self._wake.clear()
                await self._wake.wait()
            await self._carry_out(self._waiting.popleft())

    async def _carry_out(self, execution: _Execution) -> None:
        if not execution.still_waits:  # a preemptor was deleted, or its gang lost a member: no victim is needed
            await self._fail(execution)
            return
        began = self._clock.monotonic()
        problems: list[str] = []
        await self._clear_lower(execution, problems)
        by_node = execution.preemption.victims.items()
        victims = [(victim, node) for node, some in by_node for victim in some if not victim.is_deleting]
        failures: list[str] = []
        await self._remove_all(execution, victims[:-1], failures)
        if not failures:
            # The last victim is removed after all others. The watch may show it, and release the preemptor, before the response arrives.
            self._expect(execution)
            await self._remove(execution, *victims[-1], failures)
        seconds = self._clock.monotonic() - began
        execution.home.observer.preemption_ended("error" if failures or problems else "success", seconds)
        for text in (*problems, *failures):
            fields = {"pod": execution.first.key, "node": execution.preemption.nominations[0].node, "error": text}
            logger.warning("preemption", extra=fields)
        if self._executions.get(execution.first.uid) is not execution:
            self._finish(execution)  # the watch showed all victims as terminating before the API server responded
            return
        self._forget_held(execution)
        if not failures:
            self._hold(execution)
            return
        await self._fail(execution)

    async def _fail(self, execution: _Execution) -> None:
        """Ends the nominations, and releases the preemptors after a pause."""
        # Before the nominations end, which requeues pods: the attempts of these pods must not treat the victims as terminating.
        self.removals.release(execution, execution.preemption.every_victim)
        await self._end_nominations(execution)
        assert self._tasks is not None, "run has begun"
        self._tasks.start_soon(self._end_later, execution)

    async def _end_later(self, execution: _Execution) -> None:
        if any(execution.home.still_waits(pod.uid) for pod in execution.pods):
            await anyio.sleep(FAILURE_PAUSE_S)
        self._end(execution, failed=True)

    async def _clear_lower(self, execution: _Execution, problems: list[str]) -> None:
        """Ends the nominations of lower-priority pods on the nominated nodes, so that these pods are scheduled elsewhere."""
        own = {pod.uid for pod in execution.pods}
        for pod, node in execution.preemption.nominations:
            for other in self._nominator.on(node):
                if other.uid in own or self._nominator.rank_of(other) >= pod.spec.priority:
                    continue
                self._nominator.remove(other.uid)
                if is_stand_in(other):  # a reservation, not a pod
                    continue
                execution.home.nomination_ended(other, node)
                problem = await self._clear_nomination(execution, other)
                if problem:
                    problems.append(f"the nomination of {other.key} was not cleared: {problem}")

    async def _clear_nomination(self, execution: _Execution, pod: Pod) -> str:
        ref, timeout_s = pod_ref(pod), execution.home.write_timeout_s
        return (
            await self._send_with_retries(execution, lambda: self._writer.clear_nomination(ref, timeout_s=timeout_s))
        ).problem

    async def _remove_all(self, execution: _Execution, victims: Sequence[tuple[Pod, str]], failures: list[str]) -> None:
        limiter = anyio.CapacityLimiter(VICTIMS_AT_ONCE)

        async def remove(victim: Pod, node: str) -> None:
            async with limiter:
                if not failures:  # as upstream, stops deleting victims after the first failure
                    await self._remove(execution, victim, node, failures)

        async with anyio.create_task_group() as tasks:
            for victim, node in victims:
                tasks.start_soon(remove, victim, node)

    async def _end_nominations(self, execution: _Execution) -> None:
        """Ends the nominations of a failed preemption, in memory and on the API server."""
        for pod, node in execution.preemption.nominations:
            if self._nominator.node_of(pod.uid) == node:
                self._nominator.remove(pod.uid)
                execution.home.nomination_ended(pod, node)
                await self._clear_nomination(execution, pod)

    def _end(self, execution: _Execution, *, failed: bool) -> None:
        """Ends the preemption, and releases its preemptors."""
        self._finish(execution)
        for pod in execution.pods:
            execution.home.release_preemptor(pod, failed=failed)

    def _finish(self, execution: _Execution) -> None:
        """Ends the preemption, without releasing its preemptors."""
        self._forget_execution(execution)
        execution.home.preemption_ended()

    def _forget_execution(self, execution: _Execution) -> None:
        self.removals.release(execution, execution.preemption.every_victim)
        for pod in execution.pods:
            if self._executions.get(pod.uid) is execution:
                del self._executions[pod.uid]

    # -- waiting for the watch -------------------------------------------------------------------------------------

    def _expect(self, execution: _Execution) -> None:
        """Begins to wait for the watch before the last victim is deleted, because the watch may be faster than the response."""
        unseen = self._unseen(execution)
        if unseen:
            self._register(_Held(execution, unseen, None))

    def _hold(self, execution: _Execution) -> None:
        """Holds the preemptors until the watch has shown all victims as terminating, after the API server accepted the deletions."""
        unseen = self._unseen(execution)
        if not unseen or not execution.still_waits:
            self._end(execution, failed=False)
            return
        timer = asyncio.get_running_loop().call_later(SEEN_MAX_S, self._release_preemptors, execution)
        self._register(_Held(execution, unseen, timer))
        self._finish(execution)

    def _unseen(self, execution: _Execution) -> set[str]:
        return {
            victim.uid
            for victim in execution.preemption.every_victim
            if execution.home.is_confirmed_on_node(victim.uid)
        }

    def _register(self, held: _Held) -> None:
        for pod in held.execution.pods:
            self._held[pod.uid] = held
        for victim in held.unseen:
            self._awaited.setdefault(victim, []).append(held)

    def _release_preemptors(self, execution: _Execution) -> None:
        self._forget_held(execution)
        self._forget_execution(execution)
        for pod in execution.pods:
            execution.home.release_preemptor(pod, failed=False)

    def _forget_held(self, execution: _Execution) -> None:
        held = self._held.get(execution.first.uid)
        if held is None or held.execution is not execution:
            return
        for pod in execution.pods:
            del self._held[pod.uid]
        if held.timer is not None:
            held.timer.cancel()
        for victim in held.unseen:
            waiting = self._awaited[victim]
            waiting.remove(held)
            if not waiting:
                del self._awaited[victim]

    # -- one victim ------------------------------------------------------------------------------------------------

    async def _remove(self, execution: _Execution, victim: Pod, node: str, failures: list[str]) -> None:
        removal = self._removals_in_flight.get(victim.uid)
        if removal is not None:
            # Another preemption removes the victim. If that fails, the next attempt of this preemptor selects the victim again.
            await removal.wait()
            return
        removal = self._removals_in_flight[victim.uid] = asyncio.Event()
        try:
            problem = await self._delete_or_cancel_bind(execution, victim, node)
        finally:
            del self._removals_in_flight[victim.uid]
            removal.set()
        if problem:
            failures.append(f"victim {victim.key} was not removed: {problem}")

    async def _delete_or_cancel_bind(self, execution: _Execution, victim: Pod, node: str) -> str:
        """Removes a victim, which is on `node`. Returns why that failed; empty if its deletion was accepted or its bind is cancelled."""
        group = execution.preemption.group
        note = f"Preempted by {f'podgroup {group}' if group else f'pod {execution.first.uid}'} on node {node}"
        home = self._home_of(victim)
        if not execution.may_use_nodes:
            return NO_NODE
        if home is not None and home.preempt_placed(victim.uid, execution.preemption.plugin):
            self.removals.sent(victim.uid)
            self._record_event(execution, victim, f"{note} (in kube-scheduler memory).")
            return ""
        ref, timeout_s = pod_ref(victim), execution.home.write_timeout_s
        why = f"{execution.first.spec.scheduler_name}: preempting to accommodate a higher priority pod"
        mark = await self._send_with_retries(
            execution, lambda: self._writer.mark_victim(ref, why, timeout_s=timeout_s), needs_nominated_nodes=True
        )
        if mark.is_deleted:
            self.removals.sent(victim.uid)
        if mark.is_deleted or mark.problem:
            return mark.problem
        deletion = await self._send_with_retries(
            execution, lambda: self._writer.delete(ref, timeout_s=timeout_s), needs_nominated_nodes=True
        )
        if deletion.may_have_happened:
            self.removals.sent(victim.uid)
        if not deletion.is_deleted and not deletion.problem:
            self._record_event(execution, victim, note)
        return deletion.problem

    async def _send_with_retries(
        self, execution: _Execution, send: Callable[[], Awaitable[WriteReply]], *, needs_nominated_nodes: bool = False
    ) -> _Write:
        """Sends one write, and retries it while its outcome is unknown.

        `needs_nominated_nodes`: the write is useless, and is not sent, once the domain may no longer use a nominated node.
        """
        message, may_have_happened = "", False
        for attempt in range(ATTEMPTS_MAX):
            if not execution.home.lease.may_bind():
                return _Write(NO_LEASE, may_have_happened=may_have_happened)
            if needs_nominated_nodes and not execution.may_use_nodes:
                return _Write(NO_NODE, may_have_happened=may_have_happened)
            reply = await send()
            if reply.answer in (WriteAnswer.DONE, WriteAnswer.GONE):
                return _Write(is_deleted=reply.answer is WriteAnswer.GONE, may_have_happened=True)
            message = reply.message
            if reply.answer is WriteAnswer.REFUSED:
                break
            may_have_happened |= reply.answer is WriteAnswer.UNKNOWN
            await anyio.sleep(max(reply.retry_after_s, RETRY_DELAY_S * 2**attempt))
        return _Write(message or "no answer", may_have_happened=may_have_happened)

    def _record_event(self, execution: _Execution, victim: Pod, note: str) -> None:
        reporter = execution.first.spec.scheduler_name
        self._events.record(
            Event(
                pod_ref(victim), "Normal", "Preempted", "Preempting", note, reporter, related=pod_ref(execution.first)
            )
        )
