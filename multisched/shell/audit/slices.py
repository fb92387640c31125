"""The amount of work of an audit between two yields to the event loop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, TypeVar

SLICE_ITEMS: Final = 256
"""Listed objects, cache entries or ledger holds per slice: less than a millisecond."""
SLICE_ROWS: Final = 64

T = TypeVar("T")


def slices(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (items[start : start + size] for start in range(0, len(items), size))
