"""When a pod that has succeeded ran: read from its document only when a plugin asks, not with each pod."""

from __future__ import annotations

from datetime import datetime
from typing import Final

import msgspec

from multisched.model.decode_selectors import Wire
from multisched.model.wire import UNREADABLE

SCHEDULED: Final = "PodScheduled"


class PodRun(msgspec.Struct, frozen=True):
    """The run of one pod, in seconds since the epoch."""

    scheduled_s: float
    """When it was bound (condition PodScheduled); equal to `began_s` if the condition has no time."""
    began_s: float
    """Start of its first container, without init containers."""
    ended_s: float
    """End of its last container."""

    @property
    def duration_s(self) -> float:
        return max(0.0, self.ended_s - self.began_s)

    @property
    def start_up_s(self) -> float:
        """From the bind until its first container ran: images, init containers, a sandbox."""
        return max(0.0, self.began_s - self.scheduled_s)


class _Terminated(Wire):
    started_at: datetime | None = None
    finished_at: datetime | None = None


class _State(Wire):
    terminated: _Terminated | None = None


class _Status(Wire):
    state: _State = msgspec.field(default_factory=_State)


class _Condition(Wire):
    type: str = ""
    status: str = ""
    last_transition_time: datetime | None = None


class _PodStatus(Wire):
    phase: str = ""
    conditions: list[_Condition] | None = None
    container_statuses: list[_Status] | None = None


class _Pod(Wire):
    status: _PodStatus = msgspec.field(default_factory=_PodStatus)


_decoder: Final = msgspec.json.Decoder(_Pod)


def run_of(document: bytes | msgspec.Raw) -> PodRun | None:
    """Returns the run of a succeeded pod; None if the document does not tell, or for another pod. Never raises."""
    try:
        status = _decoder.decode(document).status
    except UNREADABLE:
        return None
    ended = [one.state.terminated for one in status.container_statuses or () if one.state.terminated is not None]
    begins = [one.started_at.timestamp() for one in ended if one.started_at is not None]
    ends = [one.finished_at.timestamp() for one in ended if one.finished_at is not None]
    if status.phase != "Succeeded" or not begins or not ends:
        return None
    bound = [
        one.last_transition_time.timestamp()
        for one in status.conditions or ()
        if one.type == SCHEDULED and one.status == "True" and one.last_transition_time is not None
    ]
    return PodRun(bound[0] if bound else min(begins), min(begins), max(ends))
