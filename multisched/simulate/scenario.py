"""A scenario of recorded services, read and validated: values that are sent to the processes that run it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from multisched.config.schema import Configuration
from multisched.simulate.usage_table import UsageTable

CAPACITY_ANNOTATION = "multisched.io/capacity-"
"""Prefix of node annotations with the usable amount of a dimension, for plugins that read more than requests."""


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
    """Usable amount per dimension of the usage, in its plain unit."""


class Event(msgspec.Struct, frozen=True):
    """Releases and scaling at one moment; services are indices into `Scenario.services`."""

    at_s: int
    release: tuple[int, ...] = ()
    scale: Mapping[int, int] = msgspec.field(default_factory=dict)


class Policy(msgspec.Struct, frozen=True):
    """A policy: the configuration that places the pods."""

    name: str
    configuration: Configuration
    scheduler_name: str
    uses_current_load: bool = False
    """Whether it scores by current use (`CurrentLoad`)."""
    sections: Mapping[str, Any] = {}
    """The values that domains have read from their sections of the policy's entry (`contribution.PolicySection`)."""


class Scenario(msgspec.Struct, frozen=True):
    """All data of a scenario file and of the files it names. Moments are epoch seconds."""

    name: str
    usage: UsageTable
    """The usage as recorded, including gaps."""
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
        """Returns float64[nodes, dimensions]: the usable amounts."""
        return np.array([node.capacity for node in self.nodes])
