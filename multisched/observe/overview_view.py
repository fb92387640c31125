"""The document of `/api/v1/overview`, which the page shows first, and the latest decisions. Values only.

The shell implements OverviewSource over a running program. The document has no time of its own: it is equal to the one
before unless something happened, so that an idle program sends its pages nothing.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

import msgspec

DECISIONS_SHOWN: Final = 100
DECISIONS_SHOWN_MAX: Final = 1_000
FOUND_SHOWN: Final = 100
"""Pods, and nodes, that are sent of those that a text finds."""


class Latency(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """From the time a pod could first be scheduled to its bind, over the latest pods."""

    pods: int
    p50_ms: float
    p90_ms: float
    p99_ms: float


class DomainOverview(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One domain as this process sees it."""

    domain: str
    scheduler_names: tuple[str, ...]
    is_leading: bool
    led_elsewhere: str = ""
    """A sentence that names the process that leads it; empty if this process does."""
    nodes: int
    counts: dict[str, int]
    """Pods per state, see `queue_view.STATES`."""
    unschedulable_by_plugin: dict[str, int]
    bound: int
    bound_per_second: float | None = None
    """Over the last RATE_WINDOW_S; None: watched for less than a second."""
    attempts: int
    latency: Latency | None = None
    conflicts_true: int
    conflicts_false: int
    binds_in_flight: int
    bind_limit: int


class Decided(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One placement."""

    domain: str
    namespace: str
    name: str
    node: str
    attempt: int
    score: int
    at_seconds: float
    """Unix time."""
    why: str = ""
    """Why the node ranked above the others; empty in a list of decisions."""


class ApiHealth(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How the API server answers."""

    throttled: int
    """429 responses since the start."""
    failed_reads: int
    """Failed lists and watches since the start."""
    stale_kinds: tuple[str, ...] = ()
    """Kinds whose watch has been silent for longer than a watch should be."""


class Overview(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The whole document."""

    identity: str
    version: str
    is_ready: bool
    remarks: str
    """The remarks of `/readyz?verbose`."""
    api: ApiHealth
    domains: tuple[DomainOverview, ...]
    decisions: tuple[Decided, ...]
    """The latest of all domains, the newest first, with reasons."""
    views: dict[str, tuple[str, ...]]
    """Views of plugins (`/api/v1/VIEW/NAME`) -> domains that have it."""
    changes: int
    """Rises when pods, nodes or other objects have changed: other documents may differ then."""


class DecisionList(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The document of `/api/v1/decisions`: recent placements, the newest first."""

    decisions: tuple[Decided, ...]


class FoundNames(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The document of `/api/v1/overview/find`: pods and nodes whose names contain a text, in the order of their names."""

    pods: tuple[tuple[str, str], ...]
    """At most FOUND_SHOWN (namespace, name); those with exactly this name first."""
    pods_total: int
    nodes: tuple[str, ...]
    """At most FOUND_SHOWN; one with exactly this name first."""
    nodes_total: int


class OverviewSource(Protocol):
    """Reads a running program in steps of a few milliseconds.

    A Protocol because `observe` does not import the shell; implemented there (`ProgramOverview`).
    """

    async def overview(self) -> Overview: ...

    async def decisions(self, *, domain: str | None, limit: int) -> DecisionList:
        """Returns recent placements. Raises NoDomainError, and NotLeadingError for a domain that is led elsewhere."""
        ...

    async def find(self, text: str) -> FoundNames:
        """Returns the pods whose NAMESPACE/NAME contains the text, and the nodes whose name does. Nothing for an empty text."""
        ...


def encode(document: Any) -> bytes:
    """Returns JSON with camelCase names."""
    return msgspec.json.encode(document)
