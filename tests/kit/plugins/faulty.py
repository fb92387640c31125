"""A plugin with bugs, as a user's plugin may have: it raises, or returns nonsense, at every extension point.

Each pod meets each bug at most once, and few pods meet any. The promises to other pods, and to the next attempt, still hold. Its
failures are the only plugin failures that a run may have (`quiescence_checker`).
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Final

from multisched.framework.context import PluginContext
from multisched.framework.events import Action, ClusterEvent, EventObject, EventRegistration, Hint, Resource
from multisched.framework.node_view import Rows
from multisched.framework.points import CycleView, PermitResult, PostFilterResult, PreFilterResult, Refusals
from multisched.framework.ports import Binder, BindReply, BindRequest
from multisched.framework.status import SKIP, SUCCESS, Code, Status
from multisched.model.objects import Node, Pod

FAULTY: Final = "Faulty"
ONE_IN: Final = 23
"""One pod in this number meets the bug of an extension point."""
LEDGER_ONE_IN: Final = 61
CONCERNED_ONE_IN: Final = 3
"""One in this number of the few pods that use the ledger: a failure costs one attempt, and does not mark the ledger as broken."""
CATCHES_UP_EVERY, FAILS_TO_EVERY = 3, 7
"""Every n-th call of `catch_up` returns that more work is left, and every n-th call fails."""
ANSWER_TIMEOUT_S: Final = 0.5
LONG_REASON: Final = "the plugin is confused" + 400 * "…"
"""Longer than the note of an Event may be, with characters of several bytes."""


class FaultyError(Exception):
    """The exception that the plugin raises."""


class Bugs:
    """Records which pods have met which bugs."""

    def __init__(self) -> None:
        self._met: set[tuple[str, str]] = set()

    def strikes(self, point: str, uid: str, one_in: int = ONE_IN) -> int:
        """Returns the number of the bug that the pod meets at this point now; 0 for none."""
        drawn = zlib.crc32(f"{point}/{uid}".encode())
        if drawn % one_in or (point, uid) in self._met:
            return 0
        self._met.add((point, uid))
        return 1 + drawn // one_in % 2

    def raise_or(self, point: str, uid: str, nonsense: Any, otherwise: Any, one_in: int = ONE_IN) -> Any:
        struck = self.strikes(point, uid, one_in)
        if struck == 1:
            raise FaultyError(f"{point} of {uid}")
        return nonsense if struck else otherwise


class Faulty:
    """A plugin that raises or answers nonsense at every extension point, once per pod."""

    name = FAULTY
    response_timeout_s = ANSWER_TIMEOUT_S

    def __init__(self, context: PluginContext) -> None:
        self._bugs = Bugs()
        self._caught_up = 0
        context.hold.register(FaultyLedger())

    def pre_enqueue(self, pod: Pod) -> Status:
        return self._status("PreEnqueue", pod)

    def pre_filter(self, cycle: CycleView, pod: Pod) -> PreFilterResult:
        struck = self._bugs.strikes("PreFilter", pod.uid)
        if struck == 1:
            raise FaultyError("PreFilter")
        return PreFilterResult(Status.unresolvable(LONG_REASON) if struck else SUCCESS)

    def sign(self, pod: Pod) -> Hashable:
        """Gives pods that meet the bug of PreFilter a class of their own."""
        return pod.uid if zlib.crc32(f"PreFilter/{pod.uid}".encode()) % ONE_IN == 0 else ""

    def request(self, cycle: CycleView, pod: Pod, rows: Rows) -> object | None:
        return pod.uid if zlib.crc32(f"Answer/{pod.uid}".encode()) % ONE_IN == 0 else None

    async def response(self, request: object) -> object:
        struck = self._bugs.strikes("Response", str(request))
        if struck == 1:
            raise FaultyError("Response")
        await asyncio.sleep(2 * ANSWER_TIMEOUT_S if struck else 0.0)
        return None

    def post_filter(self, cycle: CycleView, pod: Pod, refusals: Refusals) -> PostFilterResult:
        nonsense: Any = None
        unhelpful = PostFilterResult(Status(Code.UNSCHEDULABLE, FAULTY, ("nothing to be done",)))
        found: PostFilterResult = self._bugs.raise_or("PostFilter", pod.uid, nonsense, unhelpful)
        return found

    def reserve(self, cycle: CycleView, pod: Pod, node: str) -> Status:
        return self._status("Reserve", pod)

    def unreserve(self, cycle: CycleView, pod: Pod, node: str) -> None:
        self._bugs.raise_or("Unreserve", pod.uid, None, None)

    def permit(self, cycle: CycleView, pod: Pod, node: str) -> PermitResult:
        struck = self._bugs.strikes("Permit", pod.uid)
        if struck == 1:
            raise FaultyError("Permit")
        return PermitResult(Status(Code.UNSCHEDULABLE, FAULTY, ("not today",)) if struck else SUCCESS)

    def pre_bind_pre_flight(self, cycle: CycleView, pod: Pod, node: str) -> Status:
        return SUCCESS if zlib.crc32(f"PreBind/{pod.uid}".encode()) % ONE_IN == 0 else SKIP

    async def pre_bind(self, cycle: CycleView, pod: Pod, node: str) -> Status:
        return self._status("PreBind", pod)

    async def bind(self, binder: Binder, request: BindRequest, *, timeout_s: float) -> BindReply | None:
        """Never binds a pod."""
        found: BindReply | None = self._bugs.raise_or("Bind", request.uid, "bound", None)
        return found

    def post_bind(self, cycle: CycleView, pod: Pod, node: str) -> None:
        self._bugs.raise_or("PostBind", pod.uid, None, None)

    def catch_up(self) -> bool:
        self._caught_up += 1
        if self._caught_up % FAILS_TO_EVERY == 0:
            raise FaultyError("CatchUp")
        return self._caught_up % CATCHES_UP_EVERY == 0

    def events_to_register(self) -> Sequence[EventRegistration]:
        return (EventRegistration(ClusterEvent(Resource.NODE, Action.ALL), self._hint),)

    def _hint(self, pod: Pod, old: EventObject | None, new: EventObject | None) -> Hint:
        found: Hint = self._bugs.raise_or("QueueingHint", pod.uid, Hint.SKIP, Hint.QUEUE)
        return found

    def _status(self, point: str, pod: Pod) -> Status:
        nonsense: Any = None
        found: Status = self._bugs.raise_or(point, pod.uid, nonsense, SUCCESS)
        return found


class FaultyLedger:
    """A ledger that holds one item for each pod that uses it, and sometimes forgets to count: the audit repairs it.

    Its bugs keep the names from which the seeds draw them, whatever the methods are called.
    """

    name = FAULTY

    def __init__(self) -> None:
        self._bugs = Bugs()
        self._held: dict[str, int] = {}

    def is_used_by(self, pod: Pod) -> bool:
        return zlib.crc32(f"Ledger/{pod.uid}".encode()) % ONE_IN == 0

    def version(self, row: int) -> int:
        return 0

    def fits(self, pod: Pod, row: int) -> str:
        found = self._bugs.raise_or("fits", pod.uid, "it does not like the pod", "", CONCERNED_ONE_IN)
        return str(found)

    def take(self, pod: Pod, row: int) -> Mapping[str, str]:
        if self._bugs.strikes("take", pod.uid, CONCERNED_ONE_IN):
            raise FaultyError("take")
        self._held[pod.uid] = row
        return {}

    def restore(self, pod: Pod, row: int) -> None:
        struck = self._bugs.strikes("place", pod.uid)
        if struck == 1:
            raise FaultyError("place")
        if not struck:
            self._held[pod.uid] = row

    def release(self, uid: str) -> None:
        if self._bugs.strikes("give", uid, LEDGER_ONE_IN) != 2:
            self._held.pop(uid, None)

    def set_node(self, row: int, node: Node | None) -> None:
        """Ignores nodes."""

    def held(self) -> Mapping[str, object]:
        return self._held

    def empty_copy(self) -> FaultyLedger:
        fresh = FaultyLedger()
        fresh._bugs = _NO_BUGS
        return fresh


class _NoBugs(Bugs):
    def strikes(self, point: str, uid: str, one_in: int = ONE_IN) -> int:
        return 0


_NO_BUGS: Final = _NoBugs()
