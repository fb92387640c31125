"""One domain behind ports that a test holds in its hand: what is sent, what is told, and what is answered.

Everything between the ports is the product itself; time is virtual.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.abc
import msgspec
import orjson

from multisched.cycle.bind_outcome import Outcome
from multisched.framework.points import CycleView, PermitResult, Plugin
from multisched.framework.ports import (
    BindAnswer,
    BindReply,
    BindRequest,
    Condition,
    Event,
    LeaseHolder,
    ObjectRef,
    PodTruth,
    UnreachableError,
    WriteAnswer,
    WriteReply,
)
from multisched.framework.status import SUCCESS, Code, Status
from multisched.model.decode import Decoder
from multisched.model.objects import Pod
from multisched.model.selectors import Toleration
from multisched.queueing.pod_queue import PodQueue
from multisched.shell.adaptive_width import Bounds
from multisched.shell.audit.pod_repair import PodRepair
from multisched.shell.domain import DomainWorker, Sizes
from multisched.shell.event_time_share import EventTimeShare
from multisched.shell.ingest.pods_and_nodes import NodeIngest, PodIngest
from multisched.shell.ingest.router import Router
from multisched.shell.preemptor import Preemptor
from multisched.shell.scheduling.ports import DomainPorts
from multisched.state.reservations import Reservations
from multisched.testing.builders import GPU, Document, container, node_document, pod_document
from multisched.testing.sim_loop import SimClock, SimLoop
from tests.kit.counted_steps import CountedSteps
from tests.unit.cycle.cycle_kit import POINTS, Domain

NO_TOLERATIONS: Mapping[str, tuple[Toleration, ...]] = {}
HELD_S = 5.0
WRITE_S = 0.01
"""That a write beside binds takes."""


class Holding:
    """Keeps pods at Permit or at PreBind for a while, as their names say."""

    name = "Holding"

    def permit(self, cycle: CycleView, pod: Pod, node: str) -> PermitResult:
        is_held = pod.name == "permit"
        return PermitResult(Status(Code.WAIT), HELD_S + 5) if is_held else PermitResult(SUCCESS)

    async def pre_bind(self, cycle: CycleView, pod: Pod, node: str) -> Status:
        if pod.name == "prebind":
            await asyncio.sleep(HELD_S)
        return SUCCESS


class Desk:
    """Every port of a domain, recording."""

    def __init__(self) -> None:
        self.posts: list[tuple[str, str]] = []
        self.requests: list[tuple[BindRequest, float]] = []
        """With the timeout of each."""
        self.reads: list[tuple[str, str, float]] = []
        """(namespace, name, timeout)."""
        self.bound: list[tuple[str, float, int]] = []
        """(pod, seconds, attempts)."""
        self.told_of: list[tuple[ObjectRef, LeaseHolder]] = []
        """Of each condition."""
        self.replies: list[BindReply | float] = []
        """Answers to the next POSTs, in order; a number is seconds to wait before the next; then CREATED for ever."""
        self.truths: list[PodTruth | UnreachableError | None] = []
        self.events: list[Event] = []
        self.conditions: list[tuple[str, Condition]] = []
        self.ends: list[tuple[str, Any]] = []
        self.attempts: list[tuple[str, str]] = []
        """(pod, how its attempt ended)."""
        self.writes: dict[tuple[str, str], list[WriteReply]] = {}
        self.preemptions_s: list[float] = []
        self.dropped: list[str] = []
        """Pods of which nothing more is to be written, as they are bound."""
        self.ended: list[str] = []
        """uids of pods whose unwritten nominations were taken back."""
        self.writes_sent: list[tuple[str, str]] = []
        self.writes_sent_at: list[float] = []
        self.marks: list[tuple[ObjectRef, str, float]] = []
        """(victim, what it is told, timeout in seconds)."""
        self.is_leading = True
        self.sleep: Callable[[float], Any] | None = None

    async def post(self, request: BindRequest, *, timeout_s: float) -> BindReply:
        assert timeout_s > 0
        self.posts.append((request.name, request.node))
        self.requests.append((request, timeout_s))
        while self.replies:
            reply = self.replies.pop(0)
            if isinstance(reply, BindReply):
                return reply
            assert self.sleep is not None
            await self.sleep(reply)
        return BindReply(BindAnswer.CREATED)

    async def read(self, namespace: str, name: str, *, timeout_s: float) -> PodTruth | None:
        self.reads.append((namespace, name, timeout_s))
        truth = self.truths.pop(0)
        if isinstance(truth, UnreachableError):
            raise truth
        return truth

    def record(self, event: Event) -> None:
        self.events.append(event)

    def write(self, pod: ObjectRef, condition: Condition, lease: LeaseHolder) -> None:
        self.conditions.append((pod.name, condition))
        self.told_of.append((pod, lease))

    async def mark_victim(self, pod: ObjectRef, message: str, *, timeout_s: float) -> WriteReply:
        self.marks.append((pod, message, timeout_s))
        return await self._write("mark", pod)

    async def delete(self, pod: ObjectRef, *, timeout_s: float, grace_s: int | None = None) -> WriteReply:
        assert timeout_s > 0
        return await self._write("delete", pod)

    async def clear_nomination(self, pod: ObjectRef, *, timeout_s: float) -> WriteReply:
        assert timeout_s > 0
        return await self._write("clear", pod)

    async def annotate(self, pod: ObjectRef, annotations: Mapping[str, str | None], *, timeout_s: float) -> WriteReply:
        assert timeout_s > 0
        return await self._write("annotate", pod)

    async def _write(self, what: str, pod: ObjectRef) -> WriteReply:
        """An answer of `writes` by (what, pod's name), in order; then DONE for ever. It takes a moment, as it does."""
        self.writes_sent.append((what, pod.name))
        self.writes_sent_at.append(asyncio.get_running_loop().time())
        if self.sleep is not None:
            await self.sleep(WRITE_S)
        answers = self.writes.get((what, pod.name))
        return answers.pop(0) if answers else WriteReply(WriteAnswer.DONE)

    def drop(self, uid: str) -> None:
        self.dropped.append(uid)

    def end_nomination(self, uid: str) -> None:
        self.ended.append(uid)

    def may_bind(self) -> bool:
        return self.is_leading

    def plugin_ran(self, plugin: str, point: str, seconds: float) -> None:
        """Times are of no interest here, but that they are some."""
        assert seconds >= 0
        assert point in POINTS

    def plugin_failed(self, plugin: str, point: str, error: BaseException | str) -> None:
        assert point in POINTS
        self.ends.append(("failure", (plugin, point)))

    def attempt_ended(self, pod: Pod, result: str, seconds: float) -> None:
        assert seconds >= 0
        self.ends.append(("attempt", result))
        self.attempts.append((pod.name, result))

    def pod_bound(self, pod: Pod, seconds: float, attempts: int) -> None:
        assert seconds >= 0
        self.ends.append(("bound", pod.name))
        self.bound.append((pod.name, seconds, attempts))

    def bind_ended(self, pod: Pod, outcome: Outcome, seconds: float) -> None:
        assert seconds >= 0
        self.ends.append(("outcome", outcome))

    def permit_waited(self, result: str, seconds: float) -> None:
        assert seconds >= 0
        self.ends.append(("permit", result))

    def preemption_began(self, victims: int) -> None:
        self.ends.append(("victims", victims))

    def preemption_ended(self, result: str, seconds: float) -> None:
        assert seconds >= 0
        self.ends.append(("preemption", result))
        self.preemptions_s.append(seconds)


class WorkerHarness:
    """A worker with its router, ingest and cache, over a desk. `scheduler` serves the pods of schedulerName "ours"."""

    def __init__(
        self,
        loop: SimLoop,
        *nodes: str,
        plugins: Sequence[Plugin] = (),
        tolerations: Mapping[str, tuple[Toleration, ...]] = NO_TOLERATIONS,
        bind_workers: int = 4,
        desk: Desk | None = None,
        profile: str = "",
        filters: Sequence[str] = (),
        steps: CountedSteps | None = None,
    ) -> None:
        """`profile`: a shipped one, in place of the few plugins that most tests need; `filters`: in-tree plugins beside these."""
        self.desk = desk or Desk()
        self.clock = SimClock(loop)
        in_tree = ("NodeResourcesFit", "TaintToleration", "SchedulingGates", *filters)
        self.steps = steps or CountedSteps(1_000_000)
        self.domain = Domain(plugins=plugins, in_tree=in_tree, profile=profile, steps=self.steps)
        self.cache = self.domain.cache
        built = self.domain.plugins
        self.router = Router()
        self.removals = self.domain.removals
        self.preemptor = Preemptor(
            self.desk, self.desk, self.clock, self.domain.nominator, self.removals, self.router.worker_of
        )
        event_time_share = EventTimeShare(lambda: 0, self.clock.monotonic)
        self.reservations = Reservations(self.domain.nominator)
        self.worker = DomainWorker(
            "ours",
            cycle=self.domain.cycle,
            queue=PodQueue(
                built.queue_sort,
                built.pre_enqueue,
                [one.plugin for one in built.built],
                on_error=self._queue_error,
                gangs=self.cache.gangs if "GangScheduling" in filters else None,
            ),
            waiting=self.domain.waiting,
            runner=self.domain.runner,
            cache=self.cache,
            ports=DomainPorts(
                self.clock, self.desk, self.desk, self.desk, self.desk, self.desk, event_time_share, self.steps
            ),
            sizes=Sizes(cycles=Bounds(2, 2), binds=Bounds(1, bind_workers)),
            bind_timeout_s=5.0,
            listeners=self.router,
            preemptor=self.preemptor,
        )
        self.router.add(self.worker, self.domain.rows, ["ours"])
        self.cache.gangs.on_change = self.router.gang_changed
        decoder = Decoder()
        self.pods = PodIngest(
            self.cache,
            self.domain.nominator,
            self.router,
            decoder,
            self.clock,
            tolerations=tolerations,
            on_deleting=self.preemptor.on_victim_deleting,
            offer=self.reservations.offer,
        )
        self.repair = PodRepair(
            self.pods, self.cache, self.router, decoder, self.clock, on_deleting=self.preemptor.on_victim_deleting
        )
        self.nodes = NodeIngest(
            self.cache, self.router, decoder, self.clock, self.desk, "ours", disputed=lambda node: ()
        )
        for name in nodes:
            self.see_node(name)

    def _queue_error(self, plugin: str, point: str, error: BaseException) -> None:
        raise AssertionError(f"{plugin} {point}: {error}")

    @asynccontextmanager
    async def at_work(self, *others: Callable[[], Coroutine[Any, Any, None]]) -> AsyncIterator[anyio.abc.TaskGroup]:
        """The domain is led and its worker works, the `others` beside it, until the block ends."""
        async with anyio.create_task_group() as tasks:
            for work in (self.worker.run, *others):
                tasks.start_soon(work)
            self.worker.lead()
            yield tasks
            tasks.cancel_scope.cancel()

    # -- what the watch says ---------------------------------------------------------------------------------------

    def see_node(self, name: str, *, cpu: str = "2", gpus: int = 0, **fields: Any) -> None:
        """`uid`, and what `node_document` takes."""
        own = {"uid": fields.pop("uid")} if "uid" in fields else {}
        extra = {GPU: gpus} if gpus else {}
        self.nodes.upsert(name, as_served(node_document(name, cpu=cpu, pods=10, extra=extra, metadata=own, **fields)))

    def lose_node(self, name: str) -> None:
        self.nodes.delete(name, None)

    def see_pod(self, name: str, *, cpu: str = "1", scheduler: str = "ours", **fields: Any) -> str:
        """`uid`, `phase`, and what `pod_document` takes. Returns the uid."""
        uid = fields.pop("uid", f"uid-{name}")
        metadata = {"uid": uid, **fields.pop("metadata", {})}
        status = {"phase": fields.pop("phase", "Pending"), **fields.pop("status", {})}
        spec = {"schedulerName": scheduler, "containers": [container(cpu=cpu)], **fields}
        document = pod_document(name, metadata=metadata, status=status, **spec)
        self.pods.upsert(f"{metadata.get('namespace', 'default')}/{name}", as_served(document))
        return str(uid)

    def lose_pod(self, name: str) -> None:
        self.pods.delete(f"default/{name}", None)

    def node_of(self, name: str) -> str | None:
        entry = self.cache.placed(f"uid-{name}")
        return None if entry is None else entry.node

    def told(self, name: str) -> list[str]:
        """The messages of the conditions that a pod was given."""
        return [condition.message for pod, condition in self.desk.conditions if pod == name]

    def reasons(self) -> list[str]:
        return [event.reason for event in self.desk.events]


def as_served(document: Document) -> msgspec.Raw:
    return msgspec.Raw(orjson.dumps(document))
