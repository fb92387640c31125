"""All disruptions with their weights (light, heavy, rare and early ones), and the choice for one run.

A run has only some kinds, so that it stays short. In a hundred seeds each kind occurs dozens of times.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from tests.kit.disruptions import devices, memory, nodes, objects, pods, processes, questions, servers, volumes
from tests.kit.disruptions.run_context import Disruption, RunKind
from tests.kit.settings.setting import Setting

LIGHT_KINDS = 10
"""Number of disruptions in a run that do not disturb processes."""
HEAVY_KINDS = 2
"""Number of disruptions in a run that make a process lose or release its lease, or restart late."""
EDITED_LIGHT_KINDS, EDITED_HEAVY_KINDS = 3, 1
"""The same in runs with edits (`Setting.is_edited`), a tide (`has_tide`), units (`has_units`) or loans, which are the longer part of
these.
"""
RARE_SHARE = 0.25
"""Share of runs with a rare disruption."""
EARLY_SHARE = 0.25
"""Share of runs with an early disruption."""

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
"""Disruptions that do not disturb processes."""
HEAVY = processes.TABLE

RARE = (*processes.RARE, *devices.RARE)
"""Some runs have one of these at the end, in addition to the other drawn disruptions."""

EARLY = processes.EARLY
"""Some runs have one of these first, in place of another one: leases are still held as at the start."""

BY_NAME = {one.name: one for one in (*LIGHT, *HEAVY, *RARE, *EARLY)}


def drawn_kinds(seed: int, rng: random.Random, setting: Setting) -> Sequence[str]:
    """Returns light and heavy disruptions in their order. A run without leases has no heavy ones: a process must not be replaced
    there.

    Rare disruptions have a generator of their own, so that adding one does not change other runs.
    """
    is_alone = not setting.configuration.lease.enabled
    light, heavy = (
        (EDITED_LIGHT_KINDS, EDITED_HEAVY_KINDS)
        if setting.is_edited or setting.has_tide or setting.has_units or setting.loans
        else (LIGHT_KINDS, HEAVY_KINDS)
    )
    elsewhere = RunKind.REMOTE if setting.is_shipped else RunKind.DEFAULT
    found = [
        *_sample(rng, [one for one in LIGHT if one.runs is not elsewhere], light),
        *_sample(rng, [one for one in HEAVY if one.runs is not elsewhere], 0 if is_alone else heavy),
    ]
    rng.shuffle(found)
    apart = random.Random(f"{seed}/rare")
    if not is_alone and apart.random() < RARE_SHARE:
        found.append(apart.choice(RARE).name)
    if not is_alone and apart.random() < EARLY_SHARE:
        found[0] = apart.choice(EARLY).name
    return found


def _sample(rng: random.Random, left: list[Disruption], most: int) -> list[str]:
    """Draws by weight, without repetition."""
    left = [one for one in left if not one.awaits]
    found: list[str] = []
    while left and len(found) < most:
        (one,) = rng.choices(left, [one.weight for one in left])
        left.remove(one)
        found.append(one.name)
    return found
