"""Nodes as the scheduler counts them: the documents of `/api/v1/nodes` and `/api/v1/nodes/NAME`. Values only."""

from __future__ import annotations

from typing import Final, Protocol

import msgspec

NODES_SHOWN: Final = 500
NODES_SHOWN_MAX: Final = 5_000
PODS_ON_NODE_MAX: Final = 500
"""Pods of one node that are listed."""
BUCKETS: Final = 11
"""0..10 %, ..., 90..100 %, and nodes that hold more than they have."""
TEXT_CHARS_MAX: Final = 256
"""Longer labels, taints and messages are cut: tenants write them."""


class NodeShare(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One node of a list."""

    node: str
    shares: tuple[float | None, ...]
    """Requested / allocatable, in the order of `NodesView.resources`; None: the node has none of it."""
    pods: int
    is_closed: bool
    """spec.unschedulable, or a field is invalid."""


class ResourceTotal(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One resource over all nodes of the list, without nodes on which it is elastic."""

    resource: str
    allocatable: int
    """Milli-CPU for cpu, bytes or counts for all others."""
    requested: int
    histogram: tuple[int, ...]
    """Nodes by share, in BUCKETS buckets."""


class NodesView(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The nodes of a domain, or all: totals of all of them, and some of them."""

    domain: str
    resources: tuple[str, ...]
    sorted_by: str
    count: int
    totals: tuple[ResourceTotal, ...]
    nodes: tuple[NodeShare, ...]
    """The fullest first."""
    matching: int
    """Nodes whose name contains `match`."""
    offset: int


class PodOnNode(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A pod that is assumed or bound there."""

    namespace: str
    name: str
    uid: str
    scheduler: str
    priority: int
    requests: dict[str, int]
    is_leaving: bool


class NodeDetail(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One node."""

    node: str
    domains: tuple[str, ...]
    """Domains that may use it."""
    is_unschedulable: bool
    malformed: str
    taints: tuple[str, ...]
    labels: dict[str, str]
    resources: dict[str, tuple[int, int]]
    """Resource -> requested, allocatable."""
    pods: tuple[PodOnNode, ...]
    """The largest CPU requests first."""
    pods_left_out: int


class NodesQuery(msgspec.Struct, frozen=True):
    """Which nodes to list."""

    domain: str | None = None
    resource: str = "cpu"
    match: str = ""
    offset: int = 0
    limit: int = NODES_SHOWN


class NoNodeError(Exception):
    """There is no such node or resource; the message says which."""


class NodesSource(Protocol):
    """Reads the node table in steps of a few milliseconds, bounded by the limits above.

    A Protocol because `observe` does not import the shell; implemented there (`ProgramNodes`).
    """

    async def nodes(self, query: NodesQuery) -> NodesView:
        """Raises NoNodeError for an unknown resource, and NoDomainError."""
        ...

    async def node(self, name: str) -> NodeDetail:
        """Raises NoNodeError."""
        ...
