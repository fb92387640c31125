"""A scenario, read and validated: values that are sent to the processes that run it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from multisched.config.schema import Configuration
from multisched.simulate.usage_table import UsageTable

CAPACITY_ANNOTATION = "multisched.io/capacity-"
"""Prefix of node annotations with the usable amount of a dimension; PeakForecast reads them."""


class Service(msgspec.Struct, frozen=True):
    """A service; `requests`: resource -> quantity, per replica."""

    name: str
    replicas: int
    requests: Mapping[str, str]


class NodeSpec(msgspec.Struct, frozen=True):
    """One node."""

    name: str
    allocatable: Mapping[str, str]
    labels: Mapping[str, str]
    capacity: tuple[float, ...]
    """Per dimension of the usage, in its plain unit."""


class Event(msgspec.Struct, frozen=True):
    """Releases and scaling at one moment; services are indices into `Scenario.services`."""

    at_s: int
    release: tuple[int, ...] = ()
    scale: Mapping[int, int] = msgspec.field(default_factory=dict)


class Repair(msgspec.Struct, frozen=True):
    """What PeakForecast may repair in the judged days."""

    args: Mapping[str, Any]
    """The section `repair:` of its args, without the moves per window."""
    moves_per_100_replicas: float
    """Over all judged days."""
    moves_per_window: int | None

    def moves(self, replicas: int) -> tuple[int, int]:
        """Returns the allowed moves over all judged days, and in one window."""
        whole = math.floor(self.moves_per_100_replicas * replicas / 100 + 1e-9)
        return whole, whole if self.moves_per_window is None else self.moves_per_window


class Policy(msgspec.Struct, frozen=True):
    """A policy: the configuration that places the pods."""

    name: str
    configuration: Configuration
    scheduler_name: str
    uses_current_load: bool = False
    """Scores by current use (`CurrentLoad`)."""
    repair: Repair | None = None


class Scenario(msgspec.Struct, frozen=True):
    """All data of a scenario file and of the files it names. Moments are epoch seconds."""

    name: str
    usage: UsageTable
    """With gaps as recorded."""
    services: tuple[Service, ...]
    nodes: tuple[NodeSpec, ...]
    events: tuple[Event, ...]
    policies: tuple[Policy, ...]
    seeds: tuple[int, ...]
    order: str
    create_s: int
    known_until_s: int
    judged_from_s: int
    judged_to_s: int
    series: tuple[tuple[int, ...], ...]
    """Service -> replica -> series of the usage, for the largest number of replicas in any event."""
    notes: tuple[str, ...] = ()
    """Gaps that were filled, and usage that was ignored, for the report."""

    @property
    def replicas(self) -> int:
        """Returns the number of replicas at the beginning."""
        return sum(service.replicas for service in self.services)

    def capacities(self) -> NDArray[np.float64]:
        """float64[nodes, dimensions]"""
        return np.array([node.capacity for node in self.nodes])

    def history(self, end: int) -> NDArray[np.float64]:
        """Returns float64[services, dimensions, end]: use per replica before step `end`, the mean over its series; NaN in gaps."""
        values = self.usage.values[:, :, :end]
        return np.stack([_mean(values[sorted(set(own))]) for own in self.series])


def _mean(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the mean over the first axis, ignoring NaN."""
    count = (~np.isnan(values)).sum(0)
    total = np.nansum(values, axis=0)
    mean: NDArray[np.float64] = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    return mean
