"""Fleets with learned profiles: a real PeakForecast on a cache, for tests of what it shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import numpy as np
import orjson

from domains.forecast.forecast import Forecast
from domains.forecast.peak_forecast import peak_forecast
from multisched.forecasting.fit import fit
from multisched.forecasting.fit_settings import FitSettings
from multisched.forecasting.profiles import Profiles
from multisched.forecasting.recent import recent_of
from multisched.forecasting.usage import Usage
from multisched.framework.views import Document, ViewPorts, ViewQuery
from multisched.model.objects import Node, Pod
from multisched.state.cluster_cache import ClusterCache
from multisched.testing.builders import all_rows, make_context, make_node, make_pod
from tests.unit.forecasting.weeks import MONDAY_S, make_series

NOW = datetime(2026, 1, 20, 7, 30, tzinfo=UTC)
"""A Tuesday morning."""


class StoppedClock:
    def monotonic(self) -> float:
        return 0.0

    def now(self) -> datetime:
        return NOW


def learned(names: Sequence[str], dimensions: Sequence[str], *, seed: int = 0, days: int = 14) -> Profiles:
    """Profiles of a fit, with history and backtest, as a refit puts them in force."""
    values = make_series(seed, services=len(names) * len(dimensions), days=days, step_s=3_600)
    usage = Usage(MONDAY_S, 3_600.0, tuple(names), tuple(dimensions), values.reshape(len(names), len(dimensions), -1))
    settings = FitSettings()
    profiles = fit(usage, settings, 3, NOW.timestamp() - 600)
    return msgspec.structs.replace(profiles, recent=recent_of(usage, settings.zone, settings.slot_s))


class ShownFleet:
    """A cache with PeakForecast on it."""

    def __init__(self, *nodes: Node, args: Mapping[str, Any] | None = None) -> None:
        self.cache = ClusterCache()
        self.plugin: Forecast = peak_forecast(dict(args or {}), make_context(self.cache, domain="shop"))
        for node in nodes:
            self.cache.set_node(node)

    def stand(self, service: str, name: str, node: str) -> Pod:
        """One pod of the service, whose namespace comes before its slash."""
        namespace, _, short = service.rpartition("/")
        labels = {"multisched.io/service": short} if short else {}
        pod = make_pod(name, labels=labels, node=node, namespace=namespace or "default", cpu_milli=100)
        self.cache.place(pod)
        return pod

    async def show(self, what: str, **options: str) -> Document:
        """The document as it comes over the wire."""
        make = await self.plugin.show(ViewQuery(what, options), ViewPorts(StoppedClock(), all_rows(self.cache)))
        found: Document = orjson.loads(orjson.dumps(make()))
        return found


def large_fleet(services: int, nodes: int, dimensions: Sequence[str], *, pods_per_node: int = 20) -> ShownFleet:
    """Pods at random, every node with room for some more."""
    rng = np.random.default_rng(0)
    profiles = learned([f"team-{number % 20}/service-{number}" for number in range(services)], dimensions)
    peaks = profiles.peak.max(axis=2)
    numbers = rng.integers(0, services, (nodes, pods_per_node))
    room = 1.4 * peaks[numbers].sum(axis=1).mean(axis=0)
    others = {f"multisched.io/capacity-{name}": f"{amount:.3f}" for name, amount in zip(dimensions, room, strict=True)}
    fleet = ShownFleet(
        *(make_node(f"node-{number}", annotations=others, cpu_milli=int(1000 * room[0])) for number in range(nodes))
    )
    for number in range(nodes):
        for at, service in enumerate(numbers[number].tolist()):
            fleet.stand(profiles.services[service], f"pod-{number}-{at}", f"node-{number}")
    fleet.plugin.adopt(profiles)
    return fleet
