"""The sandbox sizes of a serverless unit: requests are rounded up to one, and the price is that of the rounded size.

Pure. CPU is in thousandths, memory in bytes, prices in the unit's currency per hour.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

GIB: Final = 2**30
SECONDS_PER_HOUR: Final = 3600.0


@dataclass(frozen=True, slots=True, order=True)
class Size:
    """The resources of one sandbox."""

    cpu_milli: int
    memory_bytes: int

    def holds(self, cpu_milli: int, memory_bytes: int) -> bool:
        return self.cpu_milli >= cpu_milli and self.memory_bytes >= memory_bytes


@dataclass(frozen=True, slots=True)
class Price:
    """Prices per hour; a sandbox costs the sum."""

    per_cpu: float = 0.0
    per_gib: float = 0.0

    def of(self, size: Size, duration_s: float) -> float:
        """Returns the price of a sandbox of this size that exists for this time."""
        per_hour = self.per_cpu * size.cpu_milli / 1000 + self.per_gib * size.memory_bytes / GIB
        return per_hour * duration_s / SECONDS_PER_HOUR


class Sizes(Protocol):
    """The rule by which a provider rounds."""

    def rounded(self, cpu_milli: int, memory_bytes: int) -> Size | None:
        """Returns the sandbox for these requests; None if none is large enough."""
        ...


@dataclass(frozen=True, slots=True)
class ListedSizes:
    """A list of sizes: the cheapest that holds the requests, as with Fargate."""

    sizes: Sequence[Size]
    price: Price

    def __post_init__(self) -> None:
        """Raises ValueError for an empty list, or a size that is not positive."""
        if not self.sizes or any(size.cpu_milli <= 0 or size.memory_bytes <= 0 for size in self.sizes):
            raise ValueError("sizes must be a list of at least one size with positive cpu and memory")
        by_price = sorted(self.sizes, key=lambda size: (self.price.of(size, SECONDS_PER_HOUR), size))
        object.__setattr__(self, "sizes", tuple(by_price))

    def rounded(self, cpu_milli: int, memory_bytes: int) -> Size | None:
        return next((size for size in self.sizes if size.holds(cpu_milli, memory_bytes)), None)


@dataclass(frozen=True, slots=True)
class SteppedSizes:
    """Sizes in steps (`roundTo`): each request is rounded up to a multiple of its step, at least one step."""

    step: Size
    largest: Size | None = None

    def __post_init__(self) -> None:
        if self.step.cpu_milli <= 0 or self.step.memory_bytes <= 0:
            raise ValueError(f"roundTo must have positive cpu and memory, got {self.step}")

    def rounded(self, cpu_milli: int, memory_bytes: int) -> Size | None:
        size = Size(_up(cpu_milli, self.step.cpu_milli), _up(memory_bytes, self.step.memory_bytes))
        if self.largest is not None and not self.largest.holds(size.cpu_milli, size.memory_bytes):
            return None
        return size


def _up(amount: int, step: int) -> int:
    return max(1, -(-amount // step)) * step
