"""SliceDriver: sends the requests of the state machines of one domain, and passes versions and responses to them. For slices of nodes
and of quotas.

A new leader first owns every SliceSet (`own`). Then `run` sends requests and reads versions from the watch. Between two awaits, the amounts
that the sides have read from the machines are current. The lease is checked before each request.
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
from multisched.plugins.slices.sides import BorrowingSide, LendingSide, SliceMachines
from multisched.plugins.slices.slice_reports import SliceReports

logger = logging.getLogger(__name__)

Side = LendingSide | BorrowingSide

PERIOD_S: Final = 1.0
GATHER_S: Final = 0.05
"""Changes within this time are written together."""
GATHER_PAUSED_S: Final = 0.25
"""The same while all sides are paused (`WritePause`)."""
WRITE_EVERY_S: Final = 1.0
"""Shortest pause after a write. So the first of several changes is written at once, and the others together."""
RELEASE_EVERY_S: Final = 5.0
"""Interval between releases of claimed amounts that no pod uses."""
OBJECTS_PER_STEP: Final = 1
"""SliceSets that are handled before other tasks run. Each has up to 256 slices."""
KEYS_PER_STEP: Final = 50
"""Slices whose waiting pods are checked before other tasks run."""
RETRY_S: Final = 0.5
"""Shortest pause after a refused or unanswered request."""
PAUSE_MAX_S: Final = 30.0
"""Longest pause of a side after refused or unanswered requests."""
KIND: Final = ObjectKind.SLICE_SET
NO_SLICE_SET_FIX: Final = (
    "apply deploy/crds/slicesets.yaml if it is missing, and see what the leader of the lender reports"
)


class WritePause(msgspec.Struct, frozen=True):
    """The time for which one side sends no requests."""

    length_s: float = 0.0
    until_s: float = 0.0
    """End of the pause, monotonic."""
    is_failure: bool = False
    """The last request was refused or not answered."""

    def after(self, request: SliceRequest, reply: SliceReply, sent_s: float, now_s: float, most_s: float) -> WritePause:
        """Returns the next pause of the side, after a request. `sent_s`, `now_s`: when it was sent and answered, monotonic.

        `most_s`: the longest pause after a successful write. Pauses double while more changes arrive, and start again with the shortest
        one after `most_s` without a change.
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
        is_next = sent_s >= self.until_s  # false: it was sent together with the previous write
        length_s = min(most_s, max(WRITE_EVERY_S, 2 * length_s if is_next else length_s))
        return WritePause(length_s, now_s + length_s)


NO_PAUSE: Final = WritePause()


class SliceDriver:
    """Drives the sides of one domain: the loans that it lends and borrows by slices."""

    def __init__(
        self,
        context: PluginContext,
        machines: SliceMachines,
        used: Sequence[LendingSide],
        borrowed: Sequence[BorrowingSide],
        reports: SliceReports,
        *,
        on_more: Callable[[], None],
        needs: Callable[[], int],
        plugin: str,
    ) -> None:
        """`used`: loans for whose borrowers pods of this domain must leave room. Only those whose lender this domain is make offers.

        `on_more`: called when refused pods may fit. `needs`: returns a number that changes when pods of the lender need other lent
        amounts. `plugin`: name of the plugin for which pods wait at Permit.
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
        """NAMESPACE/NAME -> the version that was read last from the watch."""
        self._shown_at = -1
        """Version of all SliceSets at that time; -1: none was read."""
        self._offered: dict[int, tuple[float, int]] = {}
        """id() of the side -> (time of its next regular decision about offers, monotonic; version of the needs at the last one)."""
        self._needed_from_s: dict[int, float] = {}
        """id() of the side -> time at which its offers are decided because its needs have changed, monotonic."""
        self._raises_from_s: dict[int, float] = {}
        """id() of the side -> time from which its offers may be raised, monotonic."""
        self._releases_from_s = 0.0
        self._waiting_from_s = 0.0
        """Time of the next check of all waiting pods, monotonic. Each response is followed by a check of the pods that it concerns."""
        self._adopting: asyncio.Task[None] | None = None
        self._pauses: dict[int, WritePause] = {}
        """id() of the side -> its pause."""
        self.trouble = ""
        """Why SliceSets cannot be listed, or that a write was not answered; empty if neither."""
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
        """Begins a term of each side with a consistent list. Returns False if the lease was lost meanwhile."""
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
            return  # the process is stopping or has lost the lease, so `own` has returned early
        for side in self.borrowed:
            side.settle()
            side.refresh()
        self._is_settled = True
        self._raises_from_s.clear()  # offers rise only after pods of the lender that waited under the former leader
        self.wake()

    # -- leading ---------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Makes `run` take its next turn soon: pods wait at Permit, or the lender needs lent amounts."""
        self._wake.set()

    async def run(self, ports: BackgroundPorts) -> None:
        """Sends requests while this process leads the domain, until it is cancelled."""
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
                is_paused = all(self._is_paused(side, ports.clock.monotonic()) for side in self._sides)
                await asyncio.sleep(GATHER_PAUSED_S if is_paused else GATHER_S)

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
        if monotonic_s >= self._waiting_from_s:
            self._waiting_from_s = monotonic_s + PERIOD_S
            await self._release_every_waiting(now_s)
        for side in self._sides:
            if not self._is_paused(side, monotonic_s):
                await self._ask(side, slices, ports, tasks)
        if self._adopting is None or self._adopting.done():
            self._adopting = tasks.create_task(self._adopt(slices, monotonic_s))

    async def _release_every_waiting(self, now_s: float) -> None:
        """Allows pods that wait at Permit if enough of their slices is claimed. Lets other tasks run between parts of the slices."""
        for borrowed in self.borrowed:
            waiting = list(borrowed.waiting())
            for first in range(0, len(waiting), KEYS_PER_STEP):
                self._release_waiting(borrowed, waiting[first : first + KEYS_PER_STEP], now_s)
                await asyncio.sleep(0)

    async def _adopt(self, slices: SlicePorts, now_s: float) -> None:
        """Adopts the slices of dead borrowers."""
        for side in self.lent:
            await side.adopt_of_dead(slices, now_s)

    async def _ask(self, side: Side, slices: SlicePorts, ports: BackgroundPorts, tasks: asyncio.TaskGroup) -> None:
        """Sends the requests of one side, each in its own task. Lets other tasks run between objects."""
        for _ in range(0, side.due_count(), OBJECTS_PER_STEP):
            if not slices.may_write():
                return
            for request in side.next_requests(OBJECTS_PER_STEP):
                tasks.create_task(self._send(side, request, slices, ports))
            await asyncio.sleep(0)

    async def _watch(self) -> None:
        """Passes the changes since the last turn from the watch to the machines. Lets other tasks run between objects."""
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
        """Decides the offers of each lending side: at regular times, and soon if a waiting pod of the lender needs lent amounts."""
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
        """Reports whether the side sends no requests now: after a failure, or so that one write contains many changes."""
        return monotonic_s < self._pauses.get(id(side), NO_PAUSE).until_s

    async def _send_all(self, sides: Iterable[Side], ports: SlicePorts) -> bool:
        """Sends the requests of a takeover. Returns False if one was not successful, or if there were none."""
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
            await asyncio.sleep(0)
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
        """Applies a version or a response of one object to the machine of a side. Requeues refused pods if more is available."""
        if side.change(name, change) and self._is_settled:
            self._on_more()

    def _release_waiting(self, side: BorrowingSide, keys: Iterable[str], now_s: float) -> None:
        side.release_waiting(keys, self._context.waiting_pods, self._plugin, now_s)

    # -- views and health ------------------------------------------------------------------------------------------

    def problems(self) -> Mapping[str, str]:
        """Returns name of a SliceSet -> why it cannot be written or trusted."""
        found: dict[str, str] = {}
        for side in self._sides:
            if side.machine is not None:
                found.update(side.machine.problems())
        return found

    def document(self) -> list[Document]:
        """Returns one document per loan, with the sums of its slices."""
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
        """Returns why less is lent or borrowed than possible; empty if there is no problem."""
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
