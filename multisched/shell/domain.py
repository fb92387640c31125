"""One domain at work: its queue, its parallel cycles, its pods at Permit and its bind workers.

Owns the domain's queue and everything between a pod's arrival and its definite outcome. The synchronous core decides;
this file waits, for plugins that ask outside, for Permit, for the API server, and for the lease.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Protocol

import anyio
import anyio.abc
import msgspec
from msgspec.structs import replace

from multisched.cycle.bind_outcome import BindMachine, Outcome, Step
from multisched.cycle.preemption.post_filter import CLEARED
from multisched.cycle.results import Conflicted, Placed, RemoteRequest, Result, Unplaced
from multisched.cycle.scheduling_cycle import SchedulingCycle
from multisched.cycle.waiting_pods import WaitingPodTable
from multisched.framework.events import ASSIGNED_POD_DELETE, Action, ClusterEvent, EventObject, Resource
from multisched.framework.isolation import IsolatedError
from multisched.framework.points import PreBindPlugin, QueuedPod
from multisched.framework.ports import (
    BindAnswer,
    Binder,
    BindReply,
    BindRequest,
    Clock,
    Condition,
    ConditionWriter,
    Event,
    EventSink,
    ExtenderError,
    LeaseHolder,
    ObjectRef,
    UnreachableError,
)
from multisched.framework.registry import PluginSet
from multisched.framework.runner import PluginFailure, Runner, sentence
from multisched.framework.status import Status
from multisched.framework.traits import traits_of
from multisched.model.objects import Pod, ask_alike
from multisched.queueing.active_pods import UNIT_S
from multisched.queueing.entry import Failure
from multisched.queueing.pod_queue import PodQueue
from multisched.queueing.quarantine import alike
from multisched.queueing.transitions import Place
from multisched.shell.binding.bind_limit import BindLimit
from multisched.shell.binding.pre_bind import PreBindStage
from multisched.shell.binding.send_check import Seen, SendCheck
from multisched.shell.idle_workers import IdleWorkers
from multisched.shell.news_share import NewsShare
from multisched.shell.observer import DomainObserver
from multisched.shell.preemptor import Preemptor
from multisched.state.cluster_cache import ClusterCache

logger = logging.getLogger(__name__)

PODS_PER_SLICE = 16
"""Pods one cycle decides before it lets the loop run: watches, binds and other domains wait no longer than that."""

SLICE_S = 0.005
"""Seconds after which a cycle lets the loop run however few pods it has decided: some pods take a hundred times as long as most."""

IDLE_WAKEUP_MAX_S = 30.0
READ_TIMEOUT_S = 5.0
BIND_GRACE_S = 5.0
"""What a Bind plugin may take beyond the deadline it was given."""

LATENCIES_KEPT = 100_000
_PREEMPTED = ClusterEvent(Resource.WILDCARD, Action.ALL, "PreemptionEnded")

NOT_NOW = "nothing may be bound now: the lease was lost, or what is known of the cluster is in doubt"
_DENIALS = frozenset({BindAnswer.DENIED, BindAnswer.REJECTED})


class DomainCounters(msgspec.Struct):
    """What the domain has done since the start; `latencies_s` holds first-schedulable-to-bound of the latest pods."""

    bound: int = 0
    refused: int = 0
    attempts: int = 0
    unknown: int = 0
    """Binds whose outcome is unknown right now."""


class DomainPorts(msgspec.Struct, frozen=True):
    """The ports one domain works through."""

    clock: Clock
    binder: Binder
    events: EventSink
    conditions: ConditionWriter
    lease: LeaseHolder
    observer: DomainObserver
    news: NewsShare


class _Bind(msgspec.Struct):
    """A placed pod on its way to the API server."""

    placed: Placed
    attempts: int
    seen: Seen
    turned_back: Status | None = None
    """Why it must not be bound any more, though nothing was sent yet."""


class Listeners(Protocol):
    """All domains, this one among them: what gives room back is told to whoever waits for room."""

    def tell(self, event: ClusterEvent, old: EventObject, new: EventObject, now_s: float) -> None: ...

    def tell_promise_ended(self, pod: Pod, node: str, now_s: float) -> None: ...


class DomainWorker:
    """The running half of a domain; `app` builds it from the configuration and starts `run`."""

    def __init__(
        self,
        name: str,
        *,
        cycle: SchedulingCycle,
        queue: PodQueue,
        waiting: WaitingPodTable,
        runner: Runner,
        cache: ClusterCache,
        outside: DomainPorts,
        cycles: int,
        bind_workers: int,
        bind_timeout_s: float,
        listeners: Listeners,
        preemptor: Preemptor,
    ) -> None:
        self.name = name
        self.queue = queue
        self.cycle = cycle
        self.waiting = waiting
        self.counters = DomainCounters()
        self.latencies_s: deque[float] = deque(maxlen=LATENCIES_KEPT)
        self.limit = BindLimit(bind_workers)
        self.runner = runner
        self._cache = cache
        self._outside = outside
        self._cycles = cycles
        self._bind_workers = bind_workers
        self._bind_timeout_s = bind_timeout_s
        self._listeners = listeners
        self._preemptor = preemptor
        self._preempting = 0
        """Preemptions of this domain under way."""
        self._send_check = SendCheck(cache, cycle)
        self._unsent: dict[str, _Bind] = {}
        """uid -> placed pod of whose bind nothing has been sent yet: at Permit, at PreBind, or waiting for a bind worker."""
        self._sent: dict[str, _Bind] = {}
        """uid -> pod of which a bind is under way: nobody may know yet what becomes of it."""
        self.lease = outside.lease
        self.observer = outside.observer
        self.write_timeout_s = bind_timeout_s
        self._to_bind: deque[_Bind] = deque()
        self._idle_cycles, self._idle_binders = IdleWorkers(), IdleWorkers()
        self.is_leading = False
        self._is_closing = False
        self._is_held = False
        """True while nobody knows what the cluster is like: nothing is decided."""
        self._in_flight = 0
        self._pre_bind = PreBindStage(self.cycle.plugins, runner)
        self._tasks: anyio.abc.TaskGroup | None = None
        self._idle = asyncio.Event()

    @property
    def plugins(self) -> PluginSet:
        return self.cycle.plugins

    # -- called by ingest, synchronously ---------------------------------------------------------------------------

    def wake(self) -> None:
        """Something may be schedulable now."""
        self._idle_cycles.wake_one()

    def lead(self) -> None:
        """The lease is ours: start deciding."""
        self.is_leading = True
        self.wake()

    def hold(self) -> None:
        """Nothing is decided from now on until `go_on`: what is known may not be true any more."""
        self._is_held = True

    def go_on(self, turned_back: str = "") -> None:
        """What is known is true again. `turned_back`: why what was decided before is to be decided anew; empty: it is not."""
        for uid in list(self._unsent) if turned_back else ():
            self.turn_back(uid, Status.error(turned_back))
        self._is_held = False
        self.wake()

    def close_intake(self) -> None:
        """No new attempts from now on; what is decided is still bound, what Permit holds goes back to the queue."""
        self._is_closing = True
        for pod in self.waiting.waiting():
            self.waiting.reject(pod.uid, "", "the scheduler stopped while the pod waited for others")
        self._preemptor.drop_waiting(self)
        self._pre_bind.close()

    @property
    def is_drained(self) -> bool:
        """No bind is under way or queued, and no victim is being removed."""
        return not (self._in_flight or self._to_bind or self._preempting)

    @property
    def has_strayed_binds(self) -> bool:
        """True while a bind is under way to a node that has left the domain since it was decided."""
        return not all(self._send_check.is_at_home(bind.placed, bind.seen) for bind in self._sent.values())

    async def drained(self) -> None:
        """Waits until `is_drained`."""
        while not self.is_drained:
            self._idle.clear()
            await self._idle.wait()

    # -- tasks -----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Runs until cancelled: the parallel cycles, the bind workers and the timers of this domain."""
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            # Where no plugin asks outside, a decision waits for nothing: a second cycle would only take the loop twice a turn.
            for _ in range(self._cycles if self.plugins.remote else 1):
                tasks.start_soon(self._decide)
            for _ in range(self._bind_workers):
                tasks.start_soon(self._bind_placed)
            tasks.start_soon(self._keep_time)

    async def _decide(self) -> None:
        """Pops and decides. Cycles interleave only where a plugin asks outside, and between slices."""
        now = self._outside.clock.monotonic
        slice_left, slice_began_s = PODS_PER_SLICE, now()
        while True:
            entry = None
            if self.is_leading and not self._is_closing and not self._is_held:
                entry = self.queue.pop(now())
            if entry is None:
                await self._idle_cycles.sleep()
                slice_left, slice_began_s = PODS_PER_SLICE, now()
                continue
            if self.queue.has_ready:
                self.wake()
            await self._decide_one(entry)
            slice_left -= 1
            took_s = now() - slice_began_s
            if not slice_left or took_s > SLICE_S:
                await self._outside.news.pause(took_s)
                slice_left, slice_began_s = PODS_PER_SLICE, now()

    async def _decide_one(self, entry: QueuedPod) -> None:
        started = self._outside.clock.monotonic()
        if entry.pod.gates:  # they came back with a restored backup: its way back to the queue asks for them
            self._decide_anew(entry, "the pod was gated again", 0.0)
            return
        self.counters.attempts += 1
        attempt = self.cycle.attempt(entry)
        answers: Mapping[str, object | PluginFailure] | None = None
        while True:
            try:
                asked = next(attempt) if answers is None else attempt.send(answers)
            except StopIteration as ended:
                result: Result = ended.value
                break
            answers = await self._ask(asked)
            if self.queue.where(entry.pod.uid) is Place.LEAVING:
                # Deleted, or bound by another process, while the plugin was asked: there is nothing left to decide.
                attempt.close()
                self.queue.done(entry.pod.uid)
                return
            latest = self._latest(entry.pod)
            if latest.spec is not entry.pod.spec or latest.gates:
                attempt.close()
                seconds = self._outside.clock.monotonic() - started
                self._decide_anew(entry, "the pod changed while a plugin was asked about it", seconds)
                return
        self._settle(entry, result, self._outside.clock.monotonic() - started)

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
                answers[plugin.name] = await plugin.response(one.request)
        except TimeoutError:
            text = f"no answer within {plugin.response_timeout_s} s"
            answers[plugin.name] = self.runner.failure(plugin, "Response", text)
        except IsolatedError as error:
            answers[plugin.name] = self.runner.failure(plugin, error.point, error.text)
        except ExtenderError as error:  # the pod is told the extender's words and no more, as upstream
            self.runner.failure(plugin, "Response", error)
            answers[plugin.name] = PluginFailure(Status.error(str(error)).by(plugin.name))
        except Exception as error:  # noqa: BLE001 - a plugin ends here
            answers[plugin.name] = self.runner.failure(plugin, "Response", error)

    def _settle(self, entry: QueuedPod, result: Result, seconds: float) -> None:
        observer = self._outside.observer
        if seconds > UNIT_S:
            self.queue.took(entry.pod.uid, seconds)
        match result:
            case Placed():
                observer.attempt_ended(entry.pod, "scheduled", seconds)
                if result.promised not in ("", result.node):
                    self.promise_ended(result.pod, result.promised)
                self._hold_or_bind(_Bind(result, entry.attempts, self._send_check.note(result)))
                latest = self._latest(entry.pod)
                if not ask_alike(entry.pod, latest):
                    self.revise(latest)
            case Conflicted():
                self._decide_anew(entry, result.refusal or "its node was taken", seconds, is_told=bool(result.refusal))
            case Unplaced():
                observer.attempt_ended(entry.pod, "error" if result.is_error else "unschedulable", seconds)
                self._return_to_queue(result)

    def _latest(self, pod: Pod) -> Pod:
        """The pod as the watch has told it last."""
        return self.queue.pod(pod.uid) or pod

    def _decide_anew(self, entry: QueuedPod, why: str, seconds: float, *, is_told: bool = False) -> None:
        """What the decision was made of is no more: the pod is tried again, at once for the first few times.

        `is_told`: its owner is told why, since that may not be over at once.
        """
        self._outside.observer.attempt_ended(entry.pod, "conflict", seconds)
        failure = Failure(without_backoff=True, message=why)
        placement = self.queue.fail(entry.pod.uid, failure, self._outside.clock.monotonic())
        if is_told and placement.place is not Place.ABSENT:
            self.report(entry.pod, "Unschedulable", why)
        self.wake()

    def _return_to_queue(self, result: Unplaced, refusal: str = "") -> None:
        """Requeues a refused pod, and tells its owner why. `refusal`: what the API server's refusals have in common."""
        self.counters.refused += 1
        pod = result.pod
        promised = self.cycle.nominator.node_of(pod.uid)
        nominated = self._nominate(result)
        failure = Failure(
            result.rejectors, result.pending, is_error=result.is_error, message=result.message, refusal=refusal
        )
        placement = self.queue.fail(pod.uid, failure, self._outside.clock.monotonic())
        if promised and promised != self.cycle.nominator.node_of(pod.uid):
            self.promise_ended(pod, promised)
        if placement.place is Place.ABSENT:
            return  # it was deleted meanwhile: nobody is left to be told
        reason = "SchedulerError" if result.is_error else result.reason
        self.report(pod, reason, placement.set_aside or result.message, nominated)
        self.wake()

    def report(self, pod: Pod, reason: str, message: str, nominated_node: str | None = None) -> None:
        """The condition and the event a refused pod gets; `nominated_node` as in `Condition`. Who does not lead tells nothing."""
        if not self.is_leading:
            return
        condition = Condition("False", reason, message, nominated_node=nominated_node)
        self._outside.conditions.write(_ref(pod), condition, self._outside.lease)
        if reason != "SchedulingGated":
            self._event(pod, "Warning", "FailedScheduling", "Scheduling", message)

    # -- preemption ------------------------------------------------------------------------------------------------

    def _nominate(self, result: Unplaced) -> str | None:
        """Keeps what a refused pod was promised, and begins to make it true; what is to be written of it, if anything.

        Before the pod is back in its queue: from then on it must not be tried while its victims go.
        """
        pod, node = result.pod, result.nominated_node
        known = pod.nominated_node or self.cycle.nominator.node_of(pod.uid)
        if node is None and known and not self.may_use(known):
            node = CLEARED  # a plugin failed, which keeps a promise: but not of a node of another domain, whose pods wait for it
        if node is None or not self.still_waits(pod.uid):
            return None
        self.cycle.nominator.nominate(pod, node, None if result.preemption is None else result.preemption.rank)
        if result.preemption is not None and self._preemptor.start(pod, result.preemption, self):
            self._preempting += 1
        return node if node != known else None

    def still_waits(self, uid: str) -> bool:
        return self.queue.where(uid) not in (None, Place.LEAVING)

    def is_preempting(self, uid: str) -> bool:
        """True while victims are removed for this pod."""
        return self._preemptor.is_preempting(uid)

    def may_use(self, node: str) -> bool:
        """The node is the domain's, and not withheld."""
        row = self._cache.nodes.row_of(node)
        return row is not None and self.cycle.rows.has(row)

    def preempt_placed(self, uid: str, plugin: str) -> bool:
        """Turns back a pod that waits at Permit, is at PreBind, or of whose bind nothing has been sent; False for others."""
        if self.waiting.preempt(uid, plugin):
            return True
        return self._turn_back(uid, Status.error(f"preempted by {plugin}").by(plugin))

    def look_again(self, uid: str) -> None:
        """The node that the pod is on its way to changed, or went: a pod that it takes no more is turned back now."""
        bind = self._unsent.get(uid)
        refusal = None if bind is None else self._send_check.refusal(bind.placed, bind.seen)
        if refusal is not None:
            self.turn_back(uid, refusal)

    def revise(self, pod: Pod) -> None:
        """A pod on its way to a node has changed: it counts as it is now, and goes there only if the node takes it so."""
        if self._cache.revise(pod):
            self.look_again(pod.uid)
        else:
            self.turn_back(pod.uid, Status.error("the pod changed before it was bound"))

    def turn_back(self, uid: str, status: Status) -> None:
        """A pod of whose bind nothing has been sent is decided anew."""
        if not self.waiting.end(uid, status):
            self._turn_back(uid, status)

    def _turn_back(self, uid: str, status: Status) -> bool:
        """False for a pod of whose bind something may have been sent."""
        if self._pre_bind.end(uid, status):
            return True
        bind = self._unsent.get(uid)
        if bind is None:
            return False
        bind.turned_back = status
        return True

    def is_standing(self, uid: str) -> bool:
        """True for a pod that the watch has shown on a node, and of which it has not said that it goes."""
        entry = self._cache.placed(uid)
        return entry is not None and not entry.pod.is_deleting and not self._cache.is_assumed(uid)

    def preemption_ended(self) -> None:
        """Nothing more is written for one of this domain's preemptors."""
        self._preempting -= 1
        if self.is_drained:
            self._idle.set()

    def try_promised(self, node: str) -> None:
        """Pods that were promised the node are decided anew: it left the domain, or a victim left it.

        No hint need tell them, and until then others leave them room that they may no longer be able to take.
        """
        for pod in self.cycle.nominator.on(node):
            if self.queue.activate(pod.uid, self._outside.clock.monotonic()) is not None:
                self.wake()

    def promise_ended(self, pod: Pod, node: str) -> None:
        """A pod is promised this node no more. Where the server has not been told of the promise, no watch tells the end."""
        self._outside.conditions.end_nomination(pod.uid)
        self._listeners.tell_promise_ended(pod, node, self._outside.clock.monotonic())

    def let_go(self, pod: Pod, *, failed: bool) -> None:
        """Victims that go wake the pod by their events; what it missed of them while it was held is made good here.

        After its backoff, also when it failed: who may not delete pods would else preempt in vain, again and again.
        """
        now_s = self._outside.clock.monotonic()
        if failed or self.queue.where(pod.uid) is Place.GATED:
            self.queue.on_event(_PREEMPTED, None, pod, now_s)
        self.wake()

    # -- Permit ----------------------------------------------------------------------------------------------------

    def _hold_or_bind(self, bind: _Bind) -> None:
        self._in_flight += 1
        placed = bind.placed
        self._unsent[placed.pod.uid] = bind
        if not placed.waits:
            self._start_pre_bind(bind)
            return
        began = self._outside.clock.monotonic()

        def decided(status: Status) -> None:
            waited = self._outside.clock.monotonic() - began
            self._outside.observer.permit_waited("allowed" if status.is_success else "rejected", waited)
            if status.is_success:
                self._start_pre_bind(bind)
            else:
                self._abandon(bind, status)

        self.waiting.hold(placed.pod, placed.waits, began, decided)

    def _start_pre_bind(self, bind: _Bind) -> None:
        """Most pods have nothing to do at PreBind and are bound at once."""
        work = self._pre_bind.work_for(bind.placed)
        if not work:
            self._enqueue_bind(bind)
            return
        assert self._tasks is not None, "pods are placed by a running domain only"
        self._tasks.start_soon(self._pre_bind_first, bind, work)

    async def _pre_bind_first(self, bind: _Bind, work: Sequence[PreBindPlugin] | Status) -> None:
        status = work if isinstance(work, Status) else await self._pre_bind.run(bind.placed, work)
        if status.is_success:
            self._enqueue_bind(bind)
        else:
            self._abandon(bind, status)

    def _enqueue_bind(self, bind: _Bind) -> None:
        self._to_bind.append(bind)
        self._idle_binders.wake_one()

    def _abandon(self, bind: _Bind, status: Status) -> None:
        """Nothing was sent for this pod, or it is certainly not bound: everything is undone and it waits again."""
        self._leave_flight()
        held = self._held(bind.placed)
        result = self.cycle.give_up(bind.placed, status)
        uid = bind.placed.pod.uid
        self._unsent.pop(uid, None)
        if self._cache.placed(uid) is None:
            self._return_to_queue(result, alike(status.message, bind.placed.node) if status.is_denied else "")
        else:
            # Somebody else bound it to this very node meanwhile: a second attempt would assume a pod that is placed.
            self.queue.remove(uid)
            self.queue.done(uid)
        # Last, when it is no longer in flight: else it would be woken by the room that it gives back itself.
        self._tell_freed(held, bind.placed.node)

    def _leave_flight(self) -> None:
        self._in_flight -= 1
        if self.is_drained:
            self._idle.set()

    def _held(self, placed: Placed) -> Pod:
        """The pod as it counts on its row: it may have changed since it was placed."""
        entry = self._cache.placed(placed.pod.uid)
        return placed.pod if entry is None else entry.pod

    def _tell_freed(self, pod: Pod, node: str) -> None:
        """Room that was held became free again: as good as a deleted pod, which stood on the node, to who waits for room."""
        freed = replace(pod, node=node)
        self._listeners.tell(ASSIGNED_POD_DELETE, freed, None, self._outside.clock.monotonic())

    # -- binding ---------------------------------------------------------------------------------------------------

    async def _bind_placed(self) -> None:
        while True:
            while not self._to_bind:
                await self._idle_binders.sleep()
            await self._bind_one(self._to_bind.popleft())

    async def _bind_one(self, bind: _Bind) -> None:
        placed = bind.placed
        await self.limit.enter()
        self._unsent.pop(placed.pod.uid, None)
        if bind.turned_back is not None:
            self.limit.leave()
            self._abandon(bind, bind.turned_back)
            return
        self._outside.conditions.drop(placed.pod.uid)
        began = self._outside.clock.monotonic()
        self._sent[placed.pod.uid] = bind
        try:
            outcome, answer = await self._resolve(bind)
        finally:
            del self._sent[placed.pod.uid]
            self.limit.leave()
        self._outside.observer.bind_ended(placed.pod, outcome, self._outside.clock.monotonic() - began)
        if outcome is not Outcome.BOUND:
            told = self._named(placed) | {"outcome": outcome.name, "error": answer.message}
            logger.warning("pod not bound", extra=told)
        match outcome:
            case Outcome.BOUND:
                self._bound(bind)
            case Outcome.REFUSED:
                self._abandon(bind, answer)
            case Outcome.GONE | Outcome.FOREIGN:
                self._lost(bind)

    async def _resolve(self, bind: _Bind) -> tuple[Outcome, Status]:
        """Drives the outcome machine to its end, and says why. Cancelled (lease lost, exit): nothing is forgotten."""
        placed, pod = bind.placed, bind.placed.pod
        machine = BindMachine(pod.uid, placed.node, bind_deadline_s=self._bind_timeout_s)
        request = BindRequest(
            pod.namespace, pod.name, pod.uid, placed.node, placed.annotations, partial(self._is_void, bind)
        )
        action = machine.first()
        counted = is_denied = False
        try:
            while action.step is not Step.END:
                if action.pause_s:
                    await anyio.sleep(action.pause_s)
                if action.step is Step.READ:
                    try:
                        truth = await self._outside.binder.read(pod.namespace, pod.name, timeout_s=READ_TIMEOUT_S)
                    except UnreachableError:
                        action = machine.on_unreachable()
                    else:
                        action = machine.on_read(truth)
                    continue
                refusal = self._send_check.refusal(placed, bind.seen)
                if refusal is not None:
                    action = machine.withdraw(refusal.message)
                    continue
                if not self._outside.lease.may_bind():
                    if machine.is_unknown:
                        await anyio.sleep(self._bind_timeout_s)
                        continue
                    return Outcome.REFUSED, Status.error(NOT_NOW)
                reply = await self._post(request)
                if isinstance(reply, PluginFailure):
                    action = machine.on_failure(reply.status.message)
                else:
                    self.limit.observe(reply.answer)
                    action = machine.on_reply(reply)
                    is_denied = reply.answer in _DENIALS and action.step is Step.END
                if machine.is_unknown and not counted:
                    counted = True
                    self.counters.unknown += 1
                    logger.warning("no answer to a bind; asking what became of it", extra=self._named(placed))
        finally:
            if counted:
                self.counters.unknown -= 1
        if action.outcome is None:
            raise AssertionError("the bind machine ended without an outcome")
        message = action.message or "the API server refused the binding"
        return action.outcome, Status.denied(message) if is_denied else Status.error(message)

    def _is_void(self, bind: _Bind) -> bool:
        """What was looked at before the bind was handed on holds no more: the limit of writes held it up."""
        return not self._outside.lease.may_bind() or self._send_check.refusal(bind.placed, bind.seen) is not None

    async def _post(self, request: BindRequest) -> BindReply | PluginFailure:
        """The first Bind plugin's reply. One that failed may have sent the binding before."""
        for plugin in self.plugins.bind:
            try:
                if traits_of(plugin).keeps_deadline:
                    reply = await plugin.bind(self._outside.binder, request, timeout_s=self._bind_timeout_s)
                else:
                    async with asyncio.timeout(self._bind_timeout_s + BIND_GRACE_S):  # a third of what anyio's costs
                        reply = await plugin.bind(self._outside.binder, request, timeout_s=self._bind_timeout_s)
            except ExtenderError as error:  # told bare, as upstream, where an extender is no Bind plugin
                self.runner.failure(plugin, "Bind", error)
                return PluginFailure(Status.error(str(error)).by(plugin.name))
            except Exception as error:  # noqa: BLE001 - a plugin ends here
                return self.runner.failure(plugin, "Bind", error)
            if isinstance(reply, BindReply):
                is_bare = not reply.message or any(plugin.name == extender.name for extender in self.plugins.extenders)
                return reply if is_bare else replace(reply, message=sentence(plugin, "Bind", reply.message))
            if reply is not None:
                return self.runner.failure(plugin, "Bind", f"returned {type(reply).__name__}, not BindReply")
        return await self._outside.binder.post(request, timeout_s=self._bind_timeout_s)

    def _named(self, placed: Placed) -> dict[str, object]:
        """What every log line about a placed pod says."""
        return {"pod": placed.pod.key, "domain": self.name, "node": placed.node}

    def _bound(self, bind: _Bind) -> None:
        self._leave_flight()
        pod, node = bind.placed.pod, bind.placed.node
        if logger.isEnabledFor(
            logging.DEBUG
        ):  # the event says it too; a line for each costs a twentieth of a pod's CPU
            logger.debug("pod bound", extra=self._named(bind.placed) | {"attempts": bind.attempts})
        now_s = self._outside.clock.monotonic()
        self._cache.answered(pod.uid, now_s)
        since_s = self.queue.schedulable_since_s(pod.uid)
        if since_s is not None:
            self.latencies_s.append(now_s - since_s)
            self._outside.observer.pod_bound(pod, now_s - since_s, bind.attempts)
        self.queue.done(pod.uid)
        self.counters.bound += 1
        for plugin in self.plugins.post_bind:
            try:
                plugin.post_bind(bind.placed.view, pod, node)
            except Exception as error:  # noqa: BLE001 - a plugin ends here
                self.runner.failure(plugin, "PostBind", error)
        self._event(pod, "Normal", "Scheduled", "Binding", f"Successfully assigned {pod.key} to {node}")

    def _lost(self, bind: _Bind) -> None:
        """The pod is gone or bound elsewhere: undone here, and never requeued; the watch accounts for the truth."""
        self._leave_flight()
        held = self._held(bind.placed)
        self.cycle.give_up(bind.placed, Status.error("gone"))
        self.queue.remove(bind.placed.pod.uid)
        self.queue.done(bind.placed.pod.uid)
        self._tell_freed(held, bind.placed.node)

    # -- time ------------------------------------------------------------------------------------------------------

    async def _keep_time(self) -> None:
        """Ends backoffs, flushes leftovers and times out Permit waits, each when it is due."""
        while True:
            now_s = self._outside.clock.monotonic()
            due = [t for t in (self.queue.next_wakeup_s(), self.waiting.next_deadline_s()) if t is not None]
            pause_s = min([max(0.0, t - now_s) for t in due], default=IDLE_WAKEUP_MAX_S)
            await asyncio.sleep(min(max(pause_s, 0.01), 0.25))
            now_s = self._outside.clock.monotonic()
            moved = self.queue.flush(now_s)
            self.waiting.expire(now_s)
            if moved.active or self.queue.has_ready:
                self.wake()

    def _event(self, pod: Pod, kind: str, reason: str, action: str, note: str) -> None:
        self._outside.events.record(Event(_ref(pod), kind, reason, action, note, pod.spec.scheduler_name))


def _ref(pod: Pod) -> ObjectRef:
    return ObjectRef("Pod", pod.namespace, pod.name, pod.uid)
