"""Moving pods: what the background task of a plugin works with that carries a repair out. Protocols and values only.

`BackgroundPorts.mover` evicts a pod, keeps the place of its replacement, and remembers where a run stands. The shell
implements it for one domain (`shell/mover.py`), the client its writes. Refusals that are to be expected are values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, auto
from hashlib import sha256
from typing import Any, Final, Protocol, runtime_checkable

import msgspec

from multisched.framework.points import Plugin
from multisched.framework.ports import ObjectRef
from multisched.framework.repair import RepairAsked, RepairPlan
from multisched.model.objects import Pod

STAND_IN: Final = "place-of/"
"""Begins the uid of a stand-in: the pod by which the place of a replacement is kept. No pod's uid has a slash."""


class EvictAnswer(Enum):
    """What one eviction is known to have done."""

    EVICTED = auto()
    """The pod is being deleted; its budget has counted it."""
    GONE = auto()
    """There is no pod of this name any more, or one of another uid."""
    NOT_NOW = auto()
    """429: its budget allows no disruption, or the server is busy. Nothing happened."""
    REFUSED = auto()
    """Another definite answer (403, 422, a webhook, two budgets for one pod): nothing happened."""
    UNKNOWN = auto()
    """5xx, timeout, reset: it may have been evicted. Safe to ask again: it names the pod's uid."""


class EvictReply(msgspec.Struct, frozen=True):
    """The answer to one eviction; `message` is the server's sentence, truncated."""

    answer: EvictAnswer
    retry_after_s: float = 0.0
    message: str = ""


class Evictor(Protocol):
    """Evicts by policy/v1; never retries by itself."""

    async def evict(self, pod: ObjectRef, *, timeout_s: float) -> EvictReply:
        """One POST with the pod's uid as precondition and a deadline that the server keeps too. Never raises for anything a
        server can do."""
        ...


class KeepAnswer(Enum):
    """What became of a document that was to be kept."""

    KEPT = auto()
    OVERTAKEN = auto()
    """Somebody else has written it since it was read: whoever goes on, it is not us."""
    REFUSED = auto()
    """403 or another definite answer: it will not be kept."""
    UNKNOWN = auto()
    """429, 5xx, timeout: not known to be kept. Safe to ask again."""


class KeepReply(msgspec.Struct, frozen=True):
    answer: KeepAnswer
    message: str = ""


class Keeper(Protocol):
    """One document in the API server, written by one leader at a time."""

    async def read(self) -> bytes | None:
        """A consistent read; None: there is none. Raises UnreachableError."""
        ...

    async def write(self, document: bytes) -> KeepReply:
        """Replaces what the last `read` or `write` saw, and nothing newer. Never raises for anything a server can do."""
        ...


class Mover(Keeper, Evictor, Protocol):
    """One domain's. All but the writes is synchronous; it keeps one place at a time.

    Border: the shell has it (`DomainMover`), and no plugin sees the shell.
    """

    write_timeout_s: float
    """The deadline to give `evict`: a lease that is held now is held at least so long."""

    def may_act(self) -> bool:
        """True while the domain leads: asked immediately before whatever changes something."""
        ...

    async def plan(self, asked: RepairAsked) -> RepairPlan:
        """As the cluster is now. Raises RepairRefusedError."""
        ...

    def standing(self, uid: str) -> Pod | None:
        """The pod, with the node it stands on; None where it stands on none, whether it waits or is gone."""
        ...

    def peers(self, namespace: str, owner: str) -> Sequence[Pod]:
        """Every pod of the namespace whose controlling owner has this uid, those that wait for a node included."""
        ...

    def budget_refusal(self, pod: Pod) -> str:
        """Why no PodDisruptionBudget lets the pod go now; empty: they all do, as far as the watch has shown."""
        ...

    async def reads(self, pod: ObjectRef) -> bool:
        """Whether the pod of this uid stands and is not asked to go, by a consistent read. Raises UnreachableError."""
        ...

    def hold(self, uid: str, like: Pod, node: str, *, handed: Callable[[], None]) -> str:
        """Keeps a place on a node for the replacement of the pod of this uid, after the filters were asked; empty, or why not.

        `like`: the pod itself, which leaves, or a peer that stands in for one that is gone. What was held before is released.
        `handed`: called when the place has become the nomination of a replacement.
        """
        ...

    def hand_over(self, known: frozenset[str]) -> None:
        """From now on the place goes to the first pod of the same owner and size that waits for a node.

        `known`: uids of those that are no replacement.
        """
        ...

    def taker(self) -> str:
        """The uid of the pod the place was given to; empty: it is still held, or was never."""
        ...

    def is_kept(self) -> bool:
        """True while the place is held and nobody has got it: what is more important may have taken it back."""
        ...

    def release(self) -> None:
        """Nothing is held any more. Idempotent."""
        ...

    def has_node(self, name: str) -> bool:
        """True while the node is there and the domain may use it."""
        ...

    def record_event(self, kind: str, regarding: ObjectRef, reason: str, note: str) -> None:
        """An event; `kind` is Normal or Warning."""
        ...


class RepairStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How the repair of one domain stands, for people and metrics."""

    domain: str
    mode: str
    """off, preview or apply."""
    is_open: bool
    """A window is open."""
    opens_s: float | None = None
    """Epoch seconds at which the next window opens, or that open now opened; None: not within three weeks."""
    closes_s: float | None = None
    """Of the window that is open."""
    state: str = ""
    """Of the run under way, or the last one; empty: there was none."""
    step: int = 0
    """The move under way, from 1."""
    steps: int = 0
    move: str = ""
    """The move under way, in words."""
    reason: str = ""
    """Why the last run stopped."""
    moved: int = 0
    """Pods moved in the window that is open, or was last."""
    moves_left: int = 0
    """Of that window's budget."""
    counts: dict[str, int] = {}
    """Since the start: plans, runs, finished, stopped, moves, evictions_refused, evictions_unknown, keep_failures."""
    digest: str = ""
    """Of the plan that is carried out, or was shown last."""


@runtime_checkable
class CarriesOutRepairs(Plugin, Protocol):
    """A plugin that moves pods. Both are called on the loop.

    Border: a domain's plugin does (`PeakForecast`), and whoever asks knows no domain.
    """

    def repair_status(self) -> RepairStatus:
        """How it stands."""
        ...

    async def request_repair(self, asked: RepairAsked, digest: str) -> RepairStatus:
        """Begins to carry out the plan that was shown under this digest, if the cluster still gives the same. Raises
        RepairRefusedError."""
        ...


def digest_of(plan: RepairPlan) -> str:
    """Equal for plans that move the same pods in the same order to the same nodes."""
    parts: list[Any] = [plan.domain, *([move.uid, move.from_node, move.to_node] for move in plan.moves)]
    return sha256(msgspec.json.encode(parts)).hexdigest()[:12]
