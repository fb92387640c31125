"""How long pods will still run, as far as a plugin of the domain has learned it; for other plugins, by `PluginContext.shared`."""

from __future__ import annotations

from collections.abc import Callable

from multisched.model.objects import Pod


def _unknown(pod: Pod, now_s: float) -> float | None:
    return None


class RunTimes:
    """What a domain knows of run times; nothing until a plugin sets it."""

    def __init__(self) -> None:
        self.residual_s: Callable[[Pod, float], float | None] = _unknown
        """(pod, epoch seconds) -> seconds within which nine of ten such pods end; None if no run is known."""
