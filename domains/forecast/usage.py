"""Usage: what was measured, on one regular grid of times. What sources deliver and fits read; immutable."""

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


class Stay(msgspec.Struct, frozen=True):
    """So many replicas of a service stood on a node from one moment to another (epoch seconds)."""

    service: str
    node: str
    begin_s: float
    end_s: float
    replicas: int = 1


class NodeTotals(msgspec.Struct, frozen=True):
    """Use of whole nodes, where no better is measured, and who stood there."""

    start_s: float
    step_s: float
    nodes: tuple[str, ...]
    dimensions: tuple[str, ...]
    values: Samples
    """float32[nodes, dimensions, steps]"""
    stays: tuple[Stay, ...]
