"""SliceDriver: carries out what the state machines of one domain ask for, about slices of nodes or of quotas.

As a new leader it first owns every object (`own`); then `run` sends requests and takes versions from the watch.
Every step between two awaits leaves what the sides have read as the machines are. The lease is checked before each request.
"""

from __future__ import annotations

import asyncio
import logging
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final

import msgspec

from multisched.framework.background import BackgroundPorts
from multisched.framework.context import PluginContext
from multisched.framework.ports import UnreachableError
from multisched.framework.slice_writes import SliceAnswer, SliceCall, SlicePorts, SliceReply, SliceRequest
from multisched.framework.views import Document
from multisched.model.cluster_objects import SliceSet
from multisched.model.object_kinds import ObjectKind
from multisched.model.slice_parts import SliceAmount
from multisched.plugins.slices.borrower_slices import BorrowerSlices
from multisched.plugins.slices.lender_slices import LenderSlices
from multisched.plugins.slices.sides import BorrowingSide, LendingSide, Machines
from multisched.plugins.slices.slice_reports import SliceReports

logger = logging.getLogger(__name__)

Side = LendingSide | BorrowingSide

PERIOD_S: Final = 1.0
GATHER_S: Final = 0.05
"""What changes within this time is one write."""
WRITE_EVERY_S: Final = 1.0
"""Pause after a write. The first of several changes is written at once, and the others together."""
RELEASE_EVERY_S: Final = 5.0
OBJECTS_PER_STEP: Final = 1
"""SliceSets that are looked at before other tasks run: each has up to 256 nodes."""
KEYS_PER_STEP: Final = 200
"""Slices for which pods wait that are looked at before other tasks run."""
RETRY_S: Final = 0.5
PAUSE_MAX_S: Final = 30.0
"""Longest pause after refused or unanswered requests about one loan."""
KIND: Final = ObjectKind.SLICE_SET
NO_SLICE_SET_FIX: Final = (
    "apply deploy/crds/slicesets.yaml if it is missing, and see what the leader of the lender reports"
)


class WritePause(msgspec.Struct, frozen=True):
    """How long one side sends nothing."""

    length_s: float = 0.0
    until_s: float = 0.0
    """Monotonic."""
    is_failure: bool = False
    """The last request was refused, or not answered."""

    def after(self, request: SliceRequest, reply: SliceReply, sent_s: float, now_s: float, most_s: float) -> WritePause:
        """Returns the pause after a request of this one's side. `sent_s`, `now_s`: when it was sent and answered, monotonic.

        `most_s`: while changes go on, pauses double up to this. After so long without a change they begin anew.
        """
        if reply.answer in (SliceAnswer.REFUSED, SliceAnswer.UNKNOWN) or (
            reply.answer is SliceAnswer.NOT_FOUND and reply.message
        ):
            before_s = self.length_s if self.is_failure else 0.0
            length_s = min(PAUSE_MAX_S, max(RETRY_S, 2 * before_s, reply.retry_after_s))
            return WritePause(length_s, now_s + length_s, is_failure=True)
        length_s = 0.0 if self.is_failure or sent_s >= self.until_s + most_s else self.length_s
        if reply.answer is not SliceAnswer.DONE or request.call is SliceCall.READ:
            return WritePause(length_s, now_s)
        is_next = sent_s >= self.until_s  # else it was sent together with the write before
        length_s = min(most_s, max(WRITE_EVERY_S, 2 * length_s if is_next else length_s))
        return WritePause(length_s, now_s + length_s)


NO_PAUSE: Final = WritePause()


class SliceDriver:
    """What one domain lends and borrows by slices."""

    def __init__(
        self,
        context: PluginContext,
        machines: Machines,
        used: Sequence[LendingSide],
        borrowed: Sequence[BorrowingSide],
        reports: SliceReports,
        *,
        on_more: Callable[[], None],
        needs: Callable[[], int],
        plugin: str,
    ) -> None:
        """`used`: loans whose room this domain uses by the lender's Lease. It drives those of which it is the lender.

        `on_more`: called when pods that were refused may fit. `needs`: returns the version of what pods of the lender need of what
        is lent. `plugin`: for which pods wait at Permit.
        """
        self._machines = machines
        self._context = context
        self._on_more = on_more
        self._needs = needs
        self._plugin = plugin
        self.used = used
        self.lent = [side for side in self.used if side.key[0] == context.domain]
        self.borrowed = borrowed
        self._ports: SlicePorts | None = None
        self._is_settled = False
        self._wake = asyncio.Event()
        self._shown: dict[str, SliceSet] = {}
        """What the watch showed last, by name."""
        self._shown_at = -1
        self._offered: dict[int, tuple[float, int]] = {}
        """id() of the side -> when it is looked at again, monotonic, and the version of the needs that were considered."""
        self._needed_from_s: dict[int, float] = {}
        """id() of the side -> when its offers are decided because its needs have changed, monotonic."""
        self._raises_from_s: dict[int, float] = {}
        """id() of the side -> when more may be offered again, monotonic."""
        self._releases_from_s = 0.0
        self._adopting: asyncio.Task[None] | None = None
        self._pauses: dict[int, WritePause] = {}
        """By id() of the side."""
        self.trouble = ""
        """Why SliceSets cannot be read, or a write was not answered."""
        self._reports = reports

    @property
    def _sides(self) -> list[Side]:
        return [*self.lent, *self.borrowed]

    # -- taking over -----------------------------------------------------------------------------------------------

    async def own(self, ports: SlicePorts) -> None:
        """See `framework.slice_writes.SlicingPlugin.own_slices`."""
        self._ports, self._is_settled = ports, False
        sides: list[Side] = [*self.used, *self.borrowed]
        terms = self._machines.terms
        async with self._machines.taking_over:
            fresh = [side for side in sides if terms.get((side.role, side.key)) != ports.term()]
            if fresh and not await self._begin(fresh, ports):
                return
            while ports.may_write() and not all(self._is_ready(side) for side in sides):
                if not await self._send_all(sides, ports):
                    await asyncio.sleep(RETRY_S)

    async def _begin(self, sides: Iterable[Side], ports: SlicePorts) -> bool:
        """Begins a term of each side with a consistent list; returns False if the lease was lost meanwhile."""
        term = ports.term()
        while ports.may_write():
            try:
                listed = await ports.list()
            except UnreachableError as error:
                self._report(f"SliceSets cannot be listed: {error}")
                await asyncio.sleep(RETRY_S)
                continue
            if ports.term() != term or not ports.may_write():
                return False
            self.trouble = ""
            for side in sides:
                side.begin_term(listed, ports.namespace)
                self._machines.terms[side.role, side.key] = term
            return True
        return False

    @staticmethod
    def _is_ready(side: Side) -> bool:
        return side.machine is not None and side.machine.is_ready()

    def settle(self) -> None:
        """See `framework.slice_writes.SlicingPlugin.settle_slices`."""
        sides: list[Side] = [*self.used, *self.borrowed]
        if not all(self._is_ready(side) for side in sides):
            return  # the process is stopping, or has lost the lease: `own` has ended without them
        for side in self.borrowed:
            side.settle()
            side.refresh()
        self._is_settled = True
        self._raises_from_s.clear()  # pods of the lender that waited under the former leader come first
        self.wake()

    # -- leading ---------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Lets the driver look soon: pods wait, or the lender needs what it has lent."""
        self._wake.set()

    async def run(self, ports: BackgroundPorts) -> None:
        if not self._sides:
            await asyncio.Event().wait()
        self._reports.mover = ports.mover
        async with asyncio.TaskGroup() as tasks:
            while True:
                slices = self._ports
                if slices is not None and self._is_settled and slices.may_write():
                    await self._turn(slices, ports, tasks)
                try:
                    async with asyncio.timeout(PERIOD_S):
                        await self._wake.wait()
                except TimeoutError:
                    continue
                self._wake.clear()
                await asyncio.sleep(GATHER_S)

    async def _turn(self, slices: SlicePorts, ports: BackgroundPorts, tasks: asyncio.TaskGroup) -> None:
        now_s, monotonic_s = ports.clock.now().timestamp(), ports.clock.monotonic()
        await self._watch()
        await self._offer(slices, now_s, monotonic_s)
        for borrowed in self.borrowed:
            await borrowed.want()
            if monotonic_s >= self._releases_from_s:
                await borrowed.release(now_s)
        if monotonic_s >= self._releases_from_s:
            self._releases_from_s = monotonic_s + RELEASE_EVERY_S
        for borrowed in self.borrowed:
            waiting = list(borrowed.waiting())
            for first in range(0, len(waiting), KEYS_PER_STEP):
                self._release_waiting(borrowed, waiting[first : first + KEYS_PER_STEP], now_s)
                await asyncio.sleep(0)
        for side in self._sides:
            if not self._is_paused(side, monotonic_s):
                await self._ask(side, slices, ports, tasks)
        if self._adopting is None or self._adopting.done():
            self._adopting = tasks.create_task(self._adopt(slices, monotonic_s))

    async def _adopt(self, slices: SlicePorts, now_s: float) -> None:
        for side in self.lent:
            await side.adopt_of_dead(slices, now_s)

    async def _ask(self, side: Side, slices: SlicePorts, ports: BackgroundPorts, tasks: asyncio.TaskGroup) -> None:
        """Sends the requests of one side. Pauses between objects."""
        for _ in range(0, side.due_count(), OBJECTS_PER_STEP):
            if not slices.may_write():
                return
            for request in side.next_requests(OBJECTS_PER_STEP):
                tasks.create_task(self._send(side, request, slices, ports))
            await asyncio.sleep(0)

    async def _watch(self) -> None:
        """Passes on what the watch has shown since the last turn. Pauses between objects."""
        objects = self._context.objects
        version = objects.version(KIND)
        if version == self._shown_at:
            return
        changed = None if self._shown_at < 0 else objects.changed_since(KIND, self._shown_at)
        if changed is None:
            every = {(one.namespace, one.name) for one in objects.all(KIND)}
            changed = every | {(one.namespace, one.name) for one in self._shown.values()}
        self._shown_at = version
        for count, (namespace, name) in enumerate(changed, 1):
            if count % OBJECTS_PER_STEP == 0:
                await asyncio.sleep(0)
            found = objects.get(KIND, namespace, name)
            before = self._shown.pop(f"{namespace}/{name}", None)
            for side in self._sides:
                if isinstance(found, SliceSet):
                    self._change(side, name, partial(_observe, found))
                elif before is not None:
                    self._change(side, name, partial(_removed, before))
            if isinstance(found, SliceSet):
                self._shown[f"{namespace}/{name}"] = found

    async def _offer(self, slices: SlicePorts, now_s: float, monotonic_s: float) -> None:
        """Decides what is offered: regularly, and at once if a waiting pod needs what is lent."""
        needs = self._needs()
        for side in self.lent:
            from_s, needs_at = self._offered.get(id(side), (0.0, -1))
            is_regular = monotonic_s >= from_s
            if needs != needs_at and id(side) not in self._needed_from_s:
                self._needed_from_s[id(side)] = monotonic_s + side.gather_s()
            is_needed = monotonic_s >= self._needed_from_s.get(id(side), math.inf)
            if self._is_paused(side, monotonic_s) or not (is_regular or is_needed):
                continue
            self._needed_from_s.pop(id(side), None)
            self._offered[id(side)] = monotonic_s + side.offer_every_s if is_regular else from_s, needs
            if id(side) not in self._raises_from_s:
                first_s = side.raise_every_s if side.has_offers() else side.offer_every_s
                self._raises_from_s[id(side)] = monotonic_s + first_s
            raises_from_s = self._raises_from_s[id(side)]
            if is_regular and side.is_short():
                raises_from_s += side.raise_every_s
            raises = not side.raise_every_s or (is_regular and monotonic_s >= raises_from_s)
            if raises:
                self._raises_from_s[id(side)] = monotonic_s + side.raise_every_s
            await side.offer(now_s, slices.may_write, raises=raises)
        await asyncio.sleep(0)
        self._reports.look(self.lent)
        await asyncio.sleep(0)

    def _is_paused(self, side: Side, monotonic_s: float) -> bool:
        """Reports whether the next request waits, because the last one was refused or not answered, or to be one for many pods."""
        return monotonic_s < self._pauses.get(id(side), NO_PAUSE).until_s

    async def _send_all(self, sides: Iterable[Side], ports: SlicePorts) -> bool:
        """Sends the requests of a takeover; returns False if one of them was not done."""
        asked = [(side, request) for side in sides for request in side.next_requests(sys.maxsize)]
        replies = await asyncio.gather(*(ports.send(request) for _, request in asked))
        for (side, request), reply in zip(asked, replies, strict=True):
            self._answered(side, request, reply)
        return bool(asked) and all(reply.answer is SliceAnswer.DONE for reply in replies)

    async def _send(self, side: Side, request: SliceRequest, slices: SlicePorts, ports: BackgroundPorts) -> None:
        sent_s = ports.clock.monotonic()
        if not slices.may_write():
            reply = SliceReply(SliceAnswer.REFUSED, message="this process does not lead the domain")
        else:
            reply = await slices.send(request)
        self._answered(side, request, reply)
        before, answered_s = self._pauses.get(id(side), NO_PAUSE), ports.clock.monotonic()
        pause = before.after(request, reply, sent_s, answered_s, side.write_pause_max_s)
        self._pauses[id(side)] = pause
        if not pause.is_failure:
            self.wake()
        if isinstance(side, BorrowingSide) and side.machine is not None:
            self._release_waiting(side, side.machine.keys_in(request.name), ports.clock.now().timestamp())

    def _answered(self, side: Side, request: SliceRequest, reply: SliceReply) -> None:
        def answered(machine: LenderSlices | BorrowerSlices) -> bool:
            machine.answered(request, reply)
            return True

        self._change(side, request.name, answered)
        if reply.answer is SliceAnswer.UNKNOWN:
            self._report(f"a write of a SliceSet was not answered: {reply.message}")
        elif reply.answer is SliceAnswer.DONE:
            self.trouble = ""
            self._reports.served()
        elif reply.answer is SliceAnswer.NOT_FOUND and request.call is SliceCall.CREATE:
            self._reports.unserved(request, reply.message)

    def _change(self, side: Side, name: str, change: Callable[[LenderSlices | BorrowerSlices], bool]) -> None:
        """Lets a machine take what concerns one object. Pods that were refused are tried again if there is more."""
        if side.change(name, change) and self._is_settled:
            self._on_more()

    def _release_waiting(self, side: BorrowingSide, keys: Iterable[str], now_s: float) -> None:
        side.release_waiting(keys, self._context.waiting_pods, self._plugin, now_s)

    # -- what people see -------------------------------------------------------------------------------------------

    def problems(self) -> Mapping[str, str]:
        """Returns SliceSet -> what is wrong with it."""
        found: dict[str, str] = {}
        for side in self._sides:
            if side.machine is not None:
                found.update(side.machine.problems())
        return found

    def document(self) -> list[Document]:
        """Returns each sliced loan with what is offered, held and reserved in total."""
        sides: list[Side] = self._sides
        return [
            {
                "lender": side.key[0],
                "borrower": side.key[1],
                "role": side.role,
                "isOwned": self._is_ready(side),
                "problems": {} if side.machine is None else side.machine.problems(),
                **{name: document_of(amount) for name, amount in side.totals().items()},
            }
            for side in sides
        ]

    def health(self) -> str:
        """Returns why less is lent or borrowed than could be; empty: nothing is wrong."""
        said = [f"SliceSet {name}: {text}" for name, text in sorted(self.problems().items())]
        said += [
            f"{side.key[0]} has published no SliceSet, so nothing is borrowed: {NO_SLICE_SET_FIX}"
            for side in self.borrowed
            if side.machine is not None and not side.machine.is_known and side.is_needed()
        ]
        return "; ".join(filter(None, (self.trouble, self._reports.problem, *said)))

    def _report(self, trouble: str) -> None:
        if trouble != self.trouble:
            logger.warning("slices", extra={"domain": self._context.domain, "error": trouble})
        self.trouble = trouble


def document_of(amount: SliceAmount) -> Document:
    found: Document = {"cpuMilli": amount.cpu_milli, "memoryBytes": amount.memory_bytes, "pods": amount.pods}
    return {**found, "others": dict(amount.others)} if amount.others else found


def _observe(found: SliceSet, machine: LenderSlices | BorrowerSlices) -> bool:
    return machine.observe(found)


def _removed(found: SliceSet, machine: LenderSlices | BorrowerSlices) -> bool:
    return machine.removed(found)
