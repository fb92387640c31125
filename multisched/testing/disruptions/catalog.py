"""All disruptions with their weights: the light and the heavy ones, the rare and the early."""

from __future__ import annotations

from multisched.testing.disruptions import devices, memory, nodes, objects, pods, processes, questions, servers, volumes

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
