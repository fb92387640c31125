"""How seldom Python looks for cyclic garbage in a process that keeps a cluster in memory.

Called where processes begin: the command line, `app`, and what measures or simulates the program without it.
"""

from __future__ import annotations

import gc

GC_YOUNG_MAX = 50_000
"""Allocations between two looks for cycles among young objects; 700 as shipped, some five pods."""
GC_YOUNG_STARTING_MAX = 250_000
"""The same until the first lists are in: what is imported and listed stays, and is looked through in vain."""


def collect_seldom(young_max: int = GC_YOUNG_MAX) -> None:
    """Takes what is loaded out of the cyclic collector's sight, and lets it look once in many allocations only."""
    gc.freeze()
    gc.set_threshold(young_max, 20, 50)
    gc.enable()


def leave_to_reference_counts() -> None:
    """As `collect_seldom`, with what the first lists brought.

    Pods and nodes have no cycles; a full collection that walks 100,000 of them stops every domain for 60 to 100 ms. Not even one
    is made before: the start leaves hardly any garbage, and what there is may stay.
    """
    collect_seldom()
