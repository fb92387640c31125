"""CatchUp: lets plugins that keep counts keep up with the watch, a piece at a time, while no cycle runs.

Owns nothing. Before a domain leads, `once` lets them count what the first lists brought; after
that `run` looks every CATCH_UP_EVERY_S. A plugin that fails is reported to its domain's observer and asked again next
time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import anyio
import anyio.lowlevel

from multisched.framework.background import CatchUpPlugin
from multisched.framework.registry import PluginSet, implements
from multisched.framework.runner import PluginFailure, Runner

CATCH_UP_EVERY_S = 1.0
"""Between two looks whether there is anything to count; what came in between is the most that one attempt has to count."""


class CatchUp:
    """Lets plugins that keep counts follow the watch while no cycle runs."""

    def __init__(self, profiles: Callable[[], Iterable[tuple[PluginSet, Runner]]]) -> None:
        """`profiles`: those in force, with who calls their plugins."""
        self._profiles = profiles

    async def once(self) -> None:
        """Returns when all that has happened until now is counted; others have their turn after each piece."""
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
