"""Pending pods per queue, with the reason: the document of `/api/v1/queue`, which `multisched queue` prints.

Values only. The composition root implements QueueSource over the domains' queues; the server encodes; the CLI decodes.
"""

from __future__ import annotations

from typing import Final, Protocol

import msgspec

from multisched.framework.leading import NotLedHere

PODS_SHOWN: Final = 500
PODS_SHOWN_MAX: Final = 5_000
STATES: Final = ("active", "backoff", "unschedulable", "gated", "gang", "quarantined", "refused", "permit", "binding")
"""Quarantined: set aside, because the API server keeps refusing it with the same message.
Gang: is tried with another member of its gang. Refused: malformed, or with fields that are not evaluated; only a change
of the pod itself helps. Binding: in an attempt or being bound.
"""


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
    """Seconds until its backoff ends; 0 without one."""
    plugins: tuple[str, ...] = ()
    """The plugins that refused it last."""
    node: str = ""
    """The node on which it is assumed (permit, binding)."""
    message: str = ""
    """The message of its PodScheduled condition."""


class DomainQueue(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Number of a domain's pods in each state."""

    domain: str
    scheduler_names: tuple[str, ...]
    is_leading: bool
    counts: dict[str, int]
    binds_in_flight: int = 0
    bind_limit: int = 0
    """Binds that may be in flight now."""
    cycle_limit: int = 0
    """Cycles that may wait for external responses now."""


class QueueView(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The whole document: all counts, and at most `limit` pods, the longest waiting first, of the domains that this process leads."""

    domains: tuple[DomainQueue, ...]
    pods: tuple[WaitingPod, ...]
    left_out: int = 0
    """Number of waiting pods beyond the limit."""
    elsewhere: tuple[NotLedHere, ...] = ()
    """Domains led by other replicas, whose queues only those know."""
    identity: str = ""
    """The process that responded."""


def longest_waiting_first(pod: WaitingPod) -> tuple[bool, float, str]:
    """Sort key of the pods; pods being bound come last."""
    return pod.state == "binding", -pod.waiting_s, pod.uid


class NoDomainError(Exception):
    """There is no domain of this name; the message lists the domains."""


class QueueSource(Protocol):
    """Reads the queues; synchronous and bounded by `limit`.

    A Protocol because `observe` does not import the shell; implemented there (`ProgramQueues`).
    """

    def queue(self, *, domain: str | None, limit: int) -> QueueView:
        """Returns the queue. `domain` None: all led by this replica. Raises NoDomainError, and NotLeadingError for one
        that is not.
        """
        ...


def encode_queue(view: QueueView) -> bytes:
    """Returns JSON with camelCase names."""
    return msgspec.json.encode(view)


def decode_queue(body: bytes) -> QueueView:
    """Decodes JSON. Raises msgspec.DecodeError for anything else."""
    return msgspec.json.decode(body, type=QueueView)
