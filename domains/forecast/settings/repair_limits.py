"""RepairLimits: the limits of one plan. Immutable; checked on creation, error messages name the field."""

from __future__ import annotations

import math

import msgspec
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class RepairLimits(msgspec.Struct, frozen=True):
    """Limits of one plan. Budgets are the remaining ones: with several plans in a window, the caller subtracts earlier moves."""

    threshold: tuple[float, ...]
    """Per dimension: limit of every node's predicted peak, as a share of capacity. A single number applies to all."""
    moves_per_window: int = 50
    moves_per_node: int = 10
    """Counted at both the source and the target of a move."""
    moves_per_service: int = 10
    swell: float = 0.1
    """For exchanges of two pods: how much higher the peak of a node above its threshold may rise between the two moves, as a
    share of capacity. With 0, pods that use anything at the hot hour cannot be exchanged."""
    keep_apart: bool = False
    """A pod moves only to nodes with fewer pods of its service than its source has, including itself. Replicas of a
    service have correlated load and forecast errors, so a gain from concentrating them would not be real."""
    move_gangs: bool = False
    """Allow moving gang members beyond the gang's minimum, one at a time."""
    fits_max: int = 5_000
    """Limit of pods for which `Fits` is called."""
    work_max: int = 150_000_000
    """Limit of cells evaluated to improve the first plan; a cell takes a few nanoseconds."""

    def __post_init__(self) -> None:
        if not self.threshold or not all(0 < share < math.inf for share in self.threshold):
            raise ValueError(
                f"threshold: {self.threshold}; write a share of capacity above 0 per dimension, such as 0.8"
            )
        for name in ("moves_per_window", "moves_per_node", "moves_per_service", "swell", "fits_max", "work_max"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name}: {getattr(self, name)} is below zero; 0 forbids")

    def thresholds(self, dimensions: tuple[str, ...]) -> Floats:
        """Returns float64[dimensions]. Raises ValueError unless there is one threshold, or one per dimension."""
        if len(self.threshold) not in (1, len(dimensions)):
            raise ValueError(f"threshold: {len(self.threshold)} numbers; write one, or one for each of {dimensions}")
        return np.broadcast_to(np.array(self.threshold, np.float64), (len(dimensions),))
