"""The outcome of a pod's run, read from its status: begin and end, and why a virtual kubelet could not run it.

Read only for pods of domains with a plugin that learns from it (`framework.introspection.OutcomePlugin`), beside `decode.Decoder.pod`.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

import msgspec

from multisched.model.objects import Pod

MESSAGE_MAX: Final = 1024
"""Characters that are kept of a message."""


class PodOutcome(msgspec.Struct, frozen=True, gc=False):
    """One version of a pod with a node. Times are seconds since the epoch, 0 if unknown; the kubelet writes whole seconds."""

    pod: Pod
    """Its phase is Succeeded or Failed in the last version."""
    reason: str = ""
    """status.reason, such as ProviderFailed or Evicted."""
    message: str = ""
    """status.message, shortened."""
    scheduled_s: float = 0.0
    """When it was bound (condition PodScheduled)."""
    began_s: float = 0.0
    """When its first container began to run."""
    ended_s: float = 0.0
    """When its last container ended; 0 if any has not."""


class _Running(msgspec.Struct, rename="camel"):
    started_at: datetime | None = None
    finished_at: datetime | None = None


class _State(msgspec.Struct):
    running: _Running | None = None
    terminated: _Running | None = None


class _Container(msgspec.Struct):
    state: _State | None = None


class _Condition(msgspec.Struct, rename="camel"):
    type: str = ""
    status: str = ""
    last_transition_time: datetime | None = None


class _Status(msgspec.Struct, rename="camel"):
    reason: str = ""
    message: str = ""
    conditions: list[_Condition] | None = None
    container_statuses: list[_Container] | None = None


class _Wire(msgspec.Struct):
    status: _Status | None = None


_DECODER: Final = msgspec.json.Decoder(_Wire)
_NOTHING: Final = _Status()


def outcome_of(pod: Pod, document: bytes | msgspec.Raw) -> PodOutcome:
    """Returns what the document of the pod tells. A status that cannot be read tells nothing."""
    try:
        status = _DECODER.decode(document).status or _NOTHING
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        status = _NOTHING
    states = [container.state or _State() for container in status.container_statuses or ()]
    began = [_seconds((one.running or one.terminated or _Running()).started_at) for one in states]
    bound = (one for one in status.conditions or () if (one.type, one.status) == ("PodScheduled", "True"))
    ended = [_seconds(one.terminated.finished_at if one.terminated is not None else None) for one in states]
    return PodOutcome(
        pod,
        status.reason[:MESSAGE_MAX],
        status.message[:MESSAGE_MAX],
        next((_seconds(one.last_transition_time) for one in bound), 0.0),
        min((at_s for at_s in began if at_s), default=0.0),
        max(ended) if ended and all(ended) else 0.0,
    )


def _seconds(at: datetime | None) -> float:
    return 0.0 if at is None else at.timestamp()
