"""Tunes Python's cyclic garbage collector for a process that keeps a cluster in memory.

Called at process start: by the command line, by `app`, and by benchmarks and simulations.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

GC_YOUNG_MAX = 50_000
"""Allocations between two collections of the young generation. Python's default is 700, which is about five pods."""
GC_YOUNG_STARTING_MAX = 250_000
"""The same until the first lists are complete: imported modules and listed objects stay, so collections free nothing."""


def set_gc_thresholds(young_max: int = GC_YOUNG_MAX) -> None:
    """Excludes all present objects from collection (`gc.freeze`), and makes collections rare."""
    gc.freeze()
    gc.set_threshold(young_max, 20, 50)
    gc.enable()


def disable_gc() -> None:
    """Excludes the objects of the first lists, too.

    Pods and nodes have no reference cycles, and a full collection over 100,000 of them stops every domain for 60 to 100 ms. No
    collection runs before the freeze: the start leaves little garbage, which may stay.
    """
    set_gc_thresholds()


@contextmanager
def no_collection() -> Iterator[None]:
    """Prevents collections while a thread works with many new objects and frees them itself. A collection would visit all of them.

    With a copy of 100,000 pods, one collection stops all threads for some hundred milliseconds.
    """
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_enabled:
            gc.enable()
