"""Moving pods: the ports of a plugin's background task that evicts pods (PeakForecast, GpuTide). Protocols and values only.

`BackgroundPorts.mover` annotates and evicts pods, reserves capacity for a replacement, and persists the progress of a run. The
shell implements it for one domain (`shell/mover.py`), the client its writes. Expected refusals are values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from hashlib import sha256
from typing import Any, Final, Protocol, runtime_checkable

import msgspec

from multisched.framework.points import Plugin
from multisched.framework.ports import ObjectRef, UnreachableError, WriteReply
from multisched.framework.repair import RepairPlan, RepairRequest
from multisched.model.objects import Pod

STAND_IN: Final = "place-of/"
"""Prefix of the uid of a stand-in: the pod whose nomination reserves capacity for a replacement. No pod's uid has a slash."""


class EvictAnswer(Enum):
    """The known effect of one eviction."""

    EVICTED = auto()
    """The pod is being deleted; its budget has counted it."""
    GONE = auto()
    """There is no pod of this name any more, or it has another uid."""
    NOT_NOW = auto()
    """429 (its budget allows no disruption, or the server is busy), or not sent (the process may not evict it now): nothing happened."""
    REFUSED = auto()
    """Another definite answer (403, 422, a webhook, two budgets for one pod): nothing happened."""
    UNKNOWN = auto()
    """5xx, timeout, reset: it may have been evicted. Safe to retry: it names the pod's uid."""


class EvictReply(msgspec.Struct, frozen=True):
    """The response to one eviction; `message` is the server's message, truncated."""

    answer: EvictAnswer
    retry_after_s: float = 0.0
    message: str = ""


class Evictor(Protocol):
    """Evicts by policy/v1; never retries by itself."""

    async def evict(self, pod: ObjectRef, *, timeout_s: float) -> EvictReply:
        """Sends one POST with the pod's uid as precondition and a deadline that the server enforces too. Never raises,
        whatever the server does.
        """
        ...


class DocumentAnswer(Enum):
    """The result of writing a document."""

    WRITTEN = auto()
    CONFLICT = auto()
    """Another writer has changed it since it was read: another process has taken over."""
    REFUSED = auto()
    """403 or another definite answer: the write failed for good."""
    UNKNOWN = auto()
    """429, 5xx, timeout: it may have been written. Safe to retry."""


class DocumentReply(msgspec.Struct, frozen=True):
    answer: DocumentAnswer
    message: str = ""


class DocumentStore(Protocol):
    """One document in the API server, written by one leader at a time."""

    async def read(self) -> bytes | None:
        """Reads the document consistently. None: it does not exist. Raises UnreachableError."""
        ...

    async def write(self, document: bytes) -> DocumentReply:
        """Replaces the version that the last `read` or `write` saw, never a newer one. Never raises, whatever the server does."""
        ...


async def replace_document(store: DocumentStore, document: bytes) -> DocumentReply:
    """Writes a document, also over one that a former leader has written since this process read it. One try of each request."""
    reply = await store.write(document)
    if reply.answer is not DocumentAnswer.CONFLICT:
        return reply
    try:
        await store.read()
    except UnreachableError:
        return reply
    return await store.write(document)


class Mover(DocumentStore, Evictor, Protocol):
    """Moves the pods of one domain. It has at most one reservation at a time: capacity on a node for a replacement.

    A Protocol because no plugin imports the shell; implemented by the shell (`DomainMover`).
    """

    write_timeout_s: float
    """The deadline to pass to `evict`: a lease that is held now is held at least that long."""

    def may_act(self) -> bool:
        """Reports whether this process leads the domain: called immediately before each change."""
        ...

    async def plan(self, request: RepairRequest) -> RepairPlan:
        """Returns a plan for the current cluster. Raises RepairRefusedError."""
        ...

    async def evict_member(self, pod: ObjectRef, *, timeout_s: float) -> EvictReply:
        """The same as `evict`, for a pod whose whole gang is being evicted: the gang's minimum does not protect the pod."""
        ...

    async def remove(self, pod: ObjectRef, why: str, *, grace_s: int | None, timeout_s: float) -> WriteReply:
        """Deletes the pod against its PodDisruptionBudgets, after marking it as a disruption target; for capacity that is overdue.

        `why`: message of the condition. `grace_s`: see `ports.PodWriter.delete`. Sends nothing while this process does not lead
        the domain (THROTTLED).
        """
        ...

    async def annotate(self, pod: ObjectRef, annotations: Mapping[str, str | None], *, timeout_s: float) -> WriteReply:
        """See `ports.PodWriter.annotate`. Sends nothing while this process does not lead the domain (THROTTLED)."""
        ...

    def placed_pod(self, uid: str) -> Pod | None:
        """Returns the pod with its node; None if it has no node or does not exist."""
        ...

    def peers(self, namespace: str, owner: str) -> Sequence[Pod]:
        """Returns every pod of the namespace whose controlling owner has this uid, including pending pods."""
        ...

    def budget_refusal(self, pod: Pod) -> str:
        """Returns why a PodDisruptionBudget forbids evicting the pod now; empty if none does, as far as the watch has shown."""
        ...

    async def still_exists(self, pod: ObjectRef) -> bool:
        """Reports whether the pod of this uid exists and is not being deleted, by a consistent read. Raises UnreachableError."""
        ...

    def reserve(self, uid: str, like: Pod, node: str, *, on_assigned: Callable[[], None]) -> str:
        """Reserves capacity on a node for the replacement of the pod of this uid, after running the filters; returns empty, or why not.

        `like`: the pod to be evicted, or a peer if that pod is already deleted. An earlier reservation is
        released.
        `on_assigned`: called when the reservation has become the nomination of a replacement.
        """
        ...

    def assign_to_replacement(self, known: frozenset[str]) -> None:
        """From now on, the first pending pod of the same owner and size takes the reservation.

        `known`: uids of pods that are no replacements.
        """
        ...

    def replacement(self) -> str:
        """Returns the uid of the pod that took the reservation; empty: no pod did, or there is no reservation."""
        ...

    def is_reserved(self) -> bool:
        """Reports whether the capacity is reserved: False once a replacement or a more important pod has taken it."""
        ...

    def release(self) -> None:
        """Releases the reservation, and stops tracking evictions whose outcome is unknown. Idempotent."""
        ...

    def has_node(self, name: str) -> bool:
        """Reports whether the node exists and the domain may use it."""
        ...

    def record_event(
        self, kind: str, regarding: ObjectRef, reason: str, note: str, *, action: str = "Repairing"
    ) -> None:
        """Records an event; `kind` is Normal or Warning."""
        ...


class RepairStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The state of one domain's repair, for people and metrics."""

    domain: str
    mode: str
    """off, preview or apply."""
    is_open: bool
    """A maintenance window is open."""
    opens_s: float | None = None
    """Epoch seconds at which the next window opens, or the open one opened; None: not within three weeks."""
    closes_s: float | None = None
    """End of the open window."""
    state: str = ""
    """State of the current run, or of the last one; empty if there was none."""
    step: int = 0
    """The current move, from 1."""
    steps: int = 0
    move: str = ""
    """Description of the current move."""
    reason: str = ""
    """Why the last run stopped."""
    moved: int = 0
    """Pods moved in the open window, or the last one."""
    moves_left: int = 0
    """Remaining budget of that window."""
    counts: dict[str, int] = {}
    """Since the start: plans, runs, finished, stopped, moves, evictions_refused, evictions_unknown, keep_failures."""
    digest: str = ""
    """Digest of the plan that is being carried out, or that was shown last."""


@runtime_checkable
class RepairExecutor(Plugin, Protocol):
    """A plugin that moves pods. Both methods are called on the loop.

    A Protocol because callers import no domain; implemented by a domain's plugin (`PeakForecast`).
    """

    def repair_status(self) -> RepairStatus:
        """Returns the state of the repair."""
        ...

    async def request_repair(self, request: RepairRequest, digest: str) -> RepairStatus:
        """Starts the plan that was shown with this digest, if the cluster still yields the same plan. Raises RepairRefusedError."""
        ...


def digest_of(plan: RepairPlan) -> str:
    """Returns a digest that is equal for plans that move the same pods in the same order to the same nodes."""
    parts: list[Any] = [plan.domain, *([move.uid, move.from_node, move.to_node] for move in plan.moves)]
    return sha256(msgspec.json.encode(parts)).hexdigest()[:12]
