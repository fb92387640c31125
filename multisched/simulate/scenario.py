"""A scenario, read and checked: values that travel to the processes that run it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np
from numpy.typing import NDArray

from multisched.config_schema import Configuration
from multisched.simulate.usage_table import UsageTable

CAPACITY_ANNOTATION = "multisched.io/capacity-"
"""Under which nodes state what may be used of a dimension; PeakForecast reads it."""


class Service(msgspec.Struct, frozen=True):
    """`requests`: resource -> quantity, per replica."""

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
    """Services by their place in `Scenario.services`."""

    at_s: int
    release: tuple[int, ...] = ()
    scale: Mapping[int, int] = msgspec.field(default_factory=dict)


class Policy(msgspec.Struct, frozen=True):
    """What places the pods."""

    name: str
    configuration: Configuration
    scheduler_name: str
    reads_moment: bool = False
    """It goes by the use of the moment (`MomentLoad`)."""


class Scenario(msgspec.Struct, frozen=True):
    """Everything of a file and of the files it names. All moments are epoch seconds."""

    name: str
    usage: UsageTable
    """With its gaps, as the policies may know it."""
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
    """Service -> replica -> series of the usage, for as many replicas as there will ever be."""
    notes: tuple[str, ...] = ()
    """What was completed or left out in reading, for the report."""

    def capacities(self) -> NDArray[np.float64]:
        """float64[nodes, dimensions]"""
        return np.array([node.capacity for node in self.nodes])

    def history(self, end: int) -> NDArray[np.float64]:
        """float64[services, dimensions, end]: use per replica until that step, NaN in gaps: the service's, else its pods' mean."""
        values = self.usage.values[:, :, :end]
        return np.stack([_mean(values[sorted(set(own))]) for own in self.series])


def _mean(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Over the first axis, of what is there."""
    count = (~np.isnan(values)).sum(0)
    total = np.nansum(values, axis=0)
    mean: NDArray[np.float64] = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    return mean
