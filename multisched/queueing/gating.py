"""Runs the PreEnqueue plugins of a domain for one pod.

Owns its list of plugins. A plugin that raises gates the pod with an Error status. It runs again at the plugin's
events, at the pod's next update, and at the leftover flush. So no pod is gated forever (k/k#139162).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from multisched.framework.points import PreEnqueuePlugin
from multisched.framework.runner import sentence
from multisched.framework.status import SUCCESS, Code, Status
from multisched.model.objects import Pod
from multisched.queueing.hints import OnError

POINT: Final = "PreEnqueue"
FAILED: Final = f"running {POINT} plugin"
"""Prefix of the message for the owner of a pod whose PreEnqueue plugin has raised."""


class Gates:
    """PreEnqueue plugins in profile order."""

    def __init__(self, plugins: Sequence[PreEnqueuePlugin], on_error: OnError) -> None:
        self.plugins = tuple(plugins)
        """Replaced when the profile changes."""
        self._on_error = on_error

    def ask(self, pod: Pod, held_by: str) -> Status:
        """Returns Success, or the first refusal with its plugin's name. The gate that held the pod runs first."""
        plugins = self.plugins
        if held_by:
            plugins = tuple(sorted(plugins, key=lambda plugin: plugin.name != held_by))
        for plugin in plugins:
            try:
                found = plugin.pre_enqueue(pod)
                if found is SUCCESS:
                    continue
                status = _status(found)
            except Exception as error:  # noqa: BLE001  (a plugin's failure must not propagate)
                return self._failure(plugin, error)
            if not (status.is_success or status.code is Code.SKIP):
                return status.by(plugin.name)
        return SUCCESS

    def _failure(self, plugin: PreEnqueuePlugin, error: Exception) -> Status:
        self._on_error(plugin.name, POINT, error)
        return Status(Code.ERROR, plugin.name, (sentence(plugin, POINT, f"{type(error).__name__}: {error}"),))


def _status(found: object) -> Status:
    if not isinstance(found, Status):
        raise TypeError(f"returned {type(found).__name__}, not Status")
    return found
