"""Bind, start and end of a pod that succeeded, for the history of run times."""

from __future__ import annotations

import msgspec

from multisched.model.pod_outcome import PodOutcome


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


def run_of(outcome: PodOutcome) -> PodRun | None:
    """Returns the run of a succeeded pod; None for another pod, or if its status lacks the times."""
    if outcome.pod.phase != "Succeeded" or not outcome.began_s or not outcome.ended_s:
        return None
    return PodRun(outcome.scheduled_s or outcome.began_s, outcome.began_s, outcome.ended_s)
