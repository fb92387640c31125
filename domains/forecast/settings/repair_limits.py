"""RepairLimits: what one plan may do. Immutable; checked when it is made, each message names the field."""

from __future__ import annotations

import math

import msgspec
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class RepairLimits(msgspec.Struct, frozen=True):
    """What a plan may do. Budgets are what is left of them: who runs several plans in one window takes off what was moved."""

    threshold: tuple[float, ...]
    """Per dimension: the share of capacity that no node's predicted peak shall pass. One number stands for all."""
    moves_per_window: int = 50
    moves_per_node: int = 10
    """Counted at the node a pod leaves and at the one it comes to."""
    moves_per_service: int = 10
    swell: float = 0.1
    """Two pods that change places: how much of its capacity a node that is past the threshold already may peak higher between
    the two steps. 0: never, so that pods that use anything at the hot hour cannot change places."""
    keep_apart: bool = False
    """A pod goes only where fewer of its service stand than it leaves behind, itself included. Replicas of a service
    are busy together, and their forecast errs together. So a gain bought by bringing them closer is none."""
    move_gangs: bool = False
    """Move members a gang has beyond its minimum, one at a time."""
    fits_max: int = 5_000
    """Pods that `Fits` is asked about."""
    work_max: int = 150_000_000
    """Cells that may be looked at to better the first plan that was found, some nanoseconds each."""

    def __post_init__(self) -> None:
        if not self.threshold or not all(0 < share < math.inf for share in self.threshold):
            raise ValueError(
                f"threshold: {self.threshold}; write a share of capacity above 0 per dimension, such as 0.8"
            )
        for name in ("moves_per_window", "moves_per_node", "moves_per_service", "swell", "fits_max", "work_max"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name}: {getattr(self, name)} is below zero; 0 forbids")

    def thresholds(self, dimensions: tuple[str, ...]) -> Floats:
        """float64[dimensions]; a ValueError if there are neither one nor as many."""
        if len(self.threshold) not in (1, len(dimensions)):
            raise ValueError(f"threshold: {len(self.threshold)} numbers; write one, or one for each of {dimensions}")
        return np.broadcast_to(np.array(self.threshold, np.float64), (len(dimensions),))
