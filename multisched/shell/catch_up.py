"""CatchUp: lets plugins that keep counts process watch events in small pieces between scheduling cycles.

Before a domain leads, `once` lets them process the first lists; after that `run` calls them every CATCH_UP_EVERY_S. A plugin
that fails is reported to its domain's observer and called again in the next period.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import anyio
import anyio.lowlevel

from multisched.framework.background import CatchUpPlugin
from multisched.framework.registry import PluginSet, implements
from multisched.framework.runner import PluginFailure, Runner

CATCH_UP_EVERY_S = 1.0
"""Period of the calls. An attempt has to process at most the events of one period itself."""


class CatchUp:
    """Periodic calls of the plugins that keep counts, between scheduling cycles."""

    def __init__(self, profiles: Callable[[], Iterable[tuple[PluginSet, Runner]]]) -> None:
        """`profiles`: returns the current profile of each domain, with the runner that calls its plugins."""
        self._profiles = profiles

    async def once(self) -> None:
        """Calls each plugin until it has processed all events so far; yields to other tasks after each piece."""
        for plugin, runner in self._plugins():
            while _has_more(plugin, runner):
                await anyio.lowlevel.checkpoint()

    async def run(self) -> None:
        while True:
            await anyio.sleep(CATCH_UP_EVERY_S)
            await self.once()

    def _plugins(self) -> list[tuple[CatchUpPlugin, Runner]]:
        return [
            (built.plugin, runner)
            for plugins, runner in self._profiles()
            for built in plugins.built
            if implements(built.plugin, CatchUpPlugin)
        ]


def _has_more(plugin: CatchUpPlugin, runner: Runner) -> bool:
    try:
        return bool(runner.call(plugin, "CatchUp", plugin.catch_up))
    except PluginFailure:
        return False
