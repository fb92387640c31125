"""Which play ends a run: each is named where it is written."""

from __future__ import annotations

import random
from collections import Counter
from typing import Final

from multisched.testing.disruptions import (
    class_plays,
    handbacks,
    preemptors,
    restart_plays,
    storage_plays,
    strangers,
    waiting,
    wakeups,
)
from multisched.testing.disruptions.scene import Scene
from multisched.testing.disruptions.stage import LED_MAX_S, Plays, place, standing

SHARE: Final = 0.4
"""Of all runs."""
PLAYS: Final[Plays] = (
    *waiting.PLAYS,
    *wakeups.PLAYS,
    *handbacks.PLAYS,
    *strangers.PLAYS,
    *preemptors.PLAYS,
    *storage_plays.PLAYS,
    *class_plays.PLAYS,
    *restart_plays.PLAYS,
)


async def play_one(scene: Scene, struck: Counter[str]) -> None:
    """In some runs, which are drawn apart: the others stay as they are."""
    rng = random.Random(f"{scene.run.seed}/waiting")  # noqa: S311 - a simulation
    if rng.random() >= SHARE:
        return
    name, act = rng.choice(PLAYS)
    first = await place(scene, "", 10)
    await scene.until(lambda: bool(standing(scene, [first])), LED_MAX_S)
    if standing(scene, [first]):
        struck[name] += await act(scene)
