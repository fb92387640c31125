"""Usage measured per node or at one moment, as sources of history deliver it; immutable except `MeasuredLoads`."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np
from numpy.typing import NDArray

from domains.forecast.service_names import PodName
from multisched.forecasting.usage import Samples


class PlacementInterval(msgspec.Struct, frozen=True):
    """A time interval (epoch seconds) in which a number of replicas of a service ran on a node."""

    service: str
    node: str
    begin_s: float
    end_s: float
    replicas: int = 1


class NodeTotals(msgspec.Struct, frozen=True):
    """Use of whole nodes, for dimensions measured only per node, and the placement intervals of services."""

    start_s: float
    step_s: float
    nodes: tuple[str, ...]
    dimensions: tuple[str, ...]
    values: Samples
    """float32[nodes, dimensions, steps]"""
    placement_intervals: tuple[PlacementInterval, ...]


class LoadRequest(msgspec.Struct, frozen=True):
    """A request for the use at one moment. Picklable."""

    now_s: float
    step_s: float
    deadline_s: float
    row_of_pod: Mapping[PodName, int]
    """Existing pods -> row."""


class MeasuredLoads(msgspec.Struct):
    """The answer to a `LoadRequest`, in plain units. Picklable."""

    by_row: dict[str, tuple[NDArray[np.int64], NDArray[np.float64]]] = {}
    """Dimension -> (rows, total use of the pods on each)."""
    by_node: dict[str, dict[str, float]] = {}
    """Dimension -> node -> use of the whole node."""
