"""Plugins that count ahead: all is counted before the first decision, in pieces between which others have their turn."""

from __future__ import annotations

import asyncio

from multisched.framework.points import Plugin
from multisched.framework.registry import BuiltPlugin, PluginSet, PluginUse
from multisched.framework.runner import Runner
from multisched.shell.catch_up import CATCH_UP_EVERY_S, CatchUp
from multisched.testing.sim_loop import SimLoop, simulate
from tests.unit.cycle.cycle_kit import ByName, Heard


class Counts:
    """Has so many pieces to count."""

    name = "Counts"

    def __init__(self, pieces: int) -> None:
        self.pieces = pieces
        self.turns = 0

    def catch_up(self) -> bool:
        if self.pieces:
            self.pieces -= 1
            self.turns += 1
        return bool(self.pieces)


class Fails(Counts):
    name = "Fails"

    def catch_up(self) -> bool:
        raise RuntimeError("cannot count")


def catch_up(*plugins: Counts, heard: Heard | None = None) -> CatchUp:
    every: list[Plugin] = [*plugins, ByName()]
    profile = PluginSet([BuiltPlugin(plugin, PluginUse(plugin.name)) for plugin in every])
    runner = Runner(heard or Heard(), lambda: 0.0)
    return CatchUp(lambda: [(profile, runner)])


def test_catch_up_processes_all_pieces_and_yields_in_between() -> None:
    counts = Counts(pieces=5)
    seen: list[int] = []

    async def watch() -> None:
        while counts.pieces:
            seen.append(counts.pieces)
            await asyncio.sleep(0)

    async def main() -> None:
        await asyncio.gather(catch_up(counts).once(), watch())

    simulate(main(), SimLoop(seed=1))
    assert counts.turns == 5
    assert len(seen) >= 4


def test_catch_up_processes_later_changes_within_a_period() -> None:
    counts = Counts(pieces=0)

    async def main() -> None:
        task = asyncio.create_task(catch_up(counts).run())
        counts.pieces = 3
        await asyncio.sleep(CATCH_UP_EVERY_S * 1.5)
        task.cancel()

    simulate(main(), SimLoop(seed=1))
    assert counts.turns == 3


def test_failed_catch_up_is_logged_and_blocks_no_plugin() -> None:
    heard, counts = Heard(), Counts(pieces=2)
    simulate(catch_up(Fails(1), counts, heard=heard).once(), SimLoop(seed=1))
    assert heard.failures == [("Fails", "CatchUp", "cannot count")]
    assert counts.turns == 2
