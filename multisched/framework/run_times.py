"""Predicted remaining run times of pods, which one plugin of a domain offers to the others through `PluginContext.shared`."""

from __future__ import annotations

from collections.abc import Callable

from multisched.model.objects import Pod


def _unknown(pod: Pod, now_s: float) -> float | None:
    return None


class RunTimes:
    """Predicts the remaining run times of a domain's pods; predicts nothing until a plugin sets `residual_s`."""

    def __init__(self) -> None:
        self.residual_s: Callable[[Pod, float], float | None] = _unknown
        """(pod, epoch seconds) -> seconds within which nine of ten such pods end; None if no run is known."""
