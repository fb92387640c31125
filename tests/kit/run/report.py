"""What one run found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Report:
    """What a run found. `trace` is a digest of every request and its moment, in order: equal for equal seeds (I12)."""

    seed: int
    is_shipped: bool
    """It ran the default configuration, unchanged."""
    broken: tuple[str, ...]
    bound: int
    trace: int
    faults: Mapping[str, int]
    """Kind -> how often it struck."""
    conflicts_true: int
    conflicts_false: int
    repaired: int
    """Lost events that the audit found."""
    quarantines: int
    """Times a pod was set aside since the API server refused it again and again."""
    quiet_s: float
    """Virtual seconds from the last fault to rest."""
    virtual_s: float

    @property
    def fault_count(self) -> int:
        return sum(self.faults.values())
