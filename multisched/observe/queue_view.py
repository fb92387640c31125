"""What waits where and why: the answer of `/api/v1/queue`, and what `multisched queue` prints.

Values only. The composition root implements QueueSource over the domains' queues; the server encodes; the CLI decodes.
"""

from __future__ import annotations

from typing import Final, Protocol

import msgspec

from multisched.framework.leading import LedElsewhere

PODS_SHOWN: Final = 500
PODS_SHOWN_MAX: Final = 5_000
STATES: Final = ("active", "backoff", "unschedulable", "gated", "gang", "quarantined", "refused", "permit", "binding")
"""Quarantined: set aside, for the API server refuses it again and again in the same words.
Gang: goes with another member of its gang. Refused: malformed, or asking for what is not evaluated; only a change of the pod itself helps.
Binding: being decided or bound."""


class WaitingPod(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One pod that is not bound yet."""

    domain: str
    state: str
    """One of STATES."""
    namespace: str
    name: str
    uid: str
    priority: int = 0
    qos: str = ""
    attempts: int = 0
    waiting_s: float = 0.0
    """Since it was first seen."""
    retry_in_s: float = 0.0
    """Until its backoff ends; 0 where none runs."""
    plugins: tuple[str, ...] = ()
    """Who refused it last."""
    node: str = ""
    """Where it is assumed (permit, binding)."""
    message: str = ""
    """The sentence of its PodScheduled condition."""


class DomainQueue(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How many pods a domain has in each state."""

    domain: str
    scheduler_names: tuple[str, ...]
    is_leading: bool
    counts: dict[str, int]


class QueueView(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The answer: all counts, and at most `limit` pods, the longest waiting first; of domains that this process leads."""

    domains: tuple[DomainQueue, ...]
    pods: tuple[WaitingPod, ...]
    left_out: int = 0
    """Waiting pods beyond the limit."""
    elsewhere: tuple[LedElsewhere, ...] = ()
    """Domains of which only their leaders know what waits."""
    identity: str = ""
    """The process that answered."""


def longest_waiting_first(pod: WaitingPod) -> tuple[bool, float, str]:
    """The order of the answer; pods on their way to a node come last."""
    return pod.state == "binding", -pod.waiting_s, pod.uid


class NoDomainError(Exception):
    """There is no domain of this name; the message says which there are."""


class QueueSource(Protocol):
    """Reads the queues; synchronous and bounded by `limit`.

    Border: the shell has it (`ProgramQueues`), above `observe`.
    """

    def queue(self, *, domain: str | None, limit: int) -> QueueView:
        """`domain` None: all that are led here. Raises NoDomainError, and NotLeadingError for one that is not."""
        ...


def encode_queue(view: QueueView) -> bytes:
    """JSON with camelCase names."""
    return msgspec.json.encode(view)


def decode_queue(body: bytes) -> QueueView:
    """Raises msgspec.DecodeError for anything else."""
    return msgspec.json.decode(body, type=QueueView)
