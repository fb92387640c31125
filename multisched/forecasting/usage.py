"""Usage: measured samples on one regular time grid. Delivered by sources, read by fits; immutable."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

Samples = NDArray[np.float32]
"""In the dimension's plain unit; NaN where nothing was measured."""


class Usage(msgspec.Struct, frozen=True):
    """Use per replica of each service: the mean over its replicas in each step."""

    start_s: float
    """Epoch seconds of the first step."""
    step_s: float
    services: tuple[str, ...]
    """`namespace/service`, or `service`."""
    dimensions: tuple[str, ...]
    values: Samples
    """float32[services, dimensions, steps]"""
