"""All disruptions with their weights: the light and the heavy ones, the rare and the early; and which of them strike in a run.

Not every kind is in each run, so that a run stays short; over a hundred seeds each kind is met dozens of times.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from tests.kit.disruptions import devices, memory, nodes, objects, pods, processes, questions, servers, volumes
from tests.kit.disruptions.run_context import Disruption, RunKind
from tests.kit.settings.setting import Setting

LIGHT_KINDS = 10
"""Disruptions of a run that leave the processes alone."""
HEAVY_KINDS = 2
"""Those that make a process lose its lease, give it back, or come back late."""
RARE_SHARE = 0.25
"""Of all runs: one rare disruption strikes in them."""
EARLY_SHARE = 0.25
"""The same of early ones."""

LIGHT = (
    *nodes.TABLE,
    *pods.TABLE,
    *devices.TABLE,
    *servers.TABLE,
    *objects.TABLE,
    *questions.TABLE,
    *memory.TABLE,
    *volumes.TABLE,
)
"""They leave the processes alone."""
HEAVY = processes.TABLE

RARE = (*processes.RARE, *devices.RARE)
"""One of them strikes in some runs, at the end, beside what is drawn of the others."""

EARLY = processes.EARLY
"""One of them strikes first in some runs, in the place of another one: the leases are where they were at the start."""

BY_NAME = {one.name: one for one in (*LIGHT, *HEAVY, *RARE, *EARLY)}


def drawn_kinds(seed: int, rng: random.Random, setting: Setting) -> Sequence[str]:
    """Light and heavy ones, in the order in which they strike. A process without a lease is not to be followed by another.

    Rare ones are drawn apart, so that the other runs stay as they are when one more is thought of.
    """
    is_alone = not setting.configuration.lease.enabled
    elsewhere = RunKind.REMOTE if setting.is_shipped else RunKind.DEFAULT
    found = [
        *_sample(rng, [one for one in LIGHT if one.runs is not elsewhere], LIGHT_KINDS),
        *_sample(rng, [one for one in HEAVY if one.runs is not elsewhere], 0 if is_alone else HEAVY_KINDS),
    ]
    rng.shuffle(found)
    apart = random.Random(f"{seed}/rare")
    if not is_alone and apart.random() < RARE_SHARE:
        found.append(apart.choice(RARE).name)
    if not is_alone and apart.random() < EARLY_SHARE:
        found[0] = apart.choice(EARLY).name
    return found


def _sample(rng: random.Random, left: list[Disruption], most: int) -> list[str]:
    """By weight, none twice."""
    left = [one for one in left if not one.awaits]
    found: list[str] = []
    while left and len(found) < most:
        (one,) = rng.choices(left, [one.weight for one in left])
        left.remove(one)
        found.append(one.name)
    return found
