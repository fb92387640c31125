"""The result of one run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Report:
    """The result of one run. `trace` is a digest of every request and its time, in order: equal for equal seeds (I12)."""

    seed: int
    is_shipped: bool
    """As `Setting.is_shipped`."""
    broken: tuple[str, ...]
    bound: int
    trace: int
    faults: Mapping[str, int]
    """Kind -> number of occurrences."""
    conflicts_true: int
    conflicts_false: int
    repaired: int
    """Number of lost events that the audit found."""
    quarantines: int
    """Number of pods that were quarantined because the API server always refused them."""
    quiet_s: float
    """Virtual seconds from the last fault until the run was settled."""
    virtual_s: float

    @property
    def fault_count(self) -> int:
        return sum(self.faults.values())
