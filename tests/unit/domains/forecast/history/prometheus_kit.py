"""A small Prometheus on loopback: series are functions of time, found by the text of the whole query."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, TypeVar

import anyio.to_thread
import orjson
from aiohttp import web

from domains.forecast.history.prometheus_source import PrometheusSource
from domains.forecast.service_names import Labels, PodName
from domains.forecast.settings.sources import Dimension, PrometheusSettings
from multisched.client.prometheus import PrometheusMeter
from multisched.framework.background import BackgroundPorts
from multisched.framework.measures import MeterSettings
from tests.unit.client.servers import serving

T = TypeVar("T")
Curve = Callable[[float], float | str | None]
"""Epoch seconds -> value; None: no sample."""
Series = tuple[Mapping[str, str], Curve]


class SmallPrometheus:
    """Answers range queries about the series it is given; everything else has none."""

    def __init__(self, **queries: Sequence[Series]) -> None:
        self.queries: dict[str, Sequence[Series]] = dict(queries)
        self.asked: list[dict[str, str]] = []
        self.fail_with: web.Response | None = None
        self.warnings: list[str] = []

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        form = {name: str(value) for name, value in (await request.post()).items()}
        self.asked.append(form)
        if self.fail_with is not None:
            refused = self.fail_with
            return web.Response(status=refused.status, body=refused.body, headers=refused.headers)
        start, end, step = (float(form[name]) for name in ("start", "end", "step"))
        times = [start + number * step for number in range(round((end - start) / step) + 1)]
        result = []
        for labels, curve in self.queries.get(form["query"], ()):
            values: list[Any] = [[time, str(value)] for time in times if (value := curve(time)) is not None]
            if values:
                result.append({"metric": labels, "values": values})
        data = {"resultType": "matrix", "result": result}
        return web.Response(body=orjson.dumps({"status": "success", "data": data, "warnings": self.warnings}))


class RealClock:
    """The wall stands still, so that readings can be foretold."""

    def __init__(self, now_s: float) -> None:
        self.now_s = now_s

    def monotonic(self) -> float:
        return self.now_s

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.now_s, UTC)


async def in_thread(work: Callable[[], T]) -> T:
    return await anyio.to_thread.run_sync(work)


def ports_at(now_s: float) -> BackgroundPorts:
    return BackgroundPorts(RealClock(now_s), random.Random(1), in_thread)


@asynccontextmanager
async def source_of(
    server: SmallPrometheus,
    *dimensions: Dimension,
    known: Mapping[PodName, str] | None = None,
    labels: Labels | None = None,
    asks_owners: bool = False,
    **meter: Any,
) -> AsyncIterator[PrometheusSource]:
    """A source on a running server."""

    async def known_pods() -> Mapping[PodName, str]:
        return known or {}

    async with serving(server.handle) as url:
        settings = PrometheusSettings(
            MeterSettings(url, **{"tries": 1, **meter}), labels or Labels(), asks_owners=asks_owners
        )
        client = PrometheusMeter(settings.meter, random.Random(1))
        yield PrometheusSource(settings, client, dimensions, known_pods)
