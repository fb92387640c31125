"""History from a real Prometheus, whose blocks promtool made of generated series: exactly those values, on the grid, with gaps."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import numpy as np
import pytest
from numpy.typing import NDArray

from domains.forecast.curves.node_usage import PlacementInterval
from domains.forecast.history.prometheus_source import PrometheusSource
from domains.forecast.history.source import SourceError
from domains.forecast.service_names import PodName
from domains.forecast.settings.queries import READY, Per
from domains.forecast.settings.sources import Aggregation, Dimension, PrometheusSettings
from multisched.client.prometheus import PrometheusMeter
from multisched.framework.measures import Grid, MeterError, MeterSettings, Piece
from tests.real.prometheus_server import Series, make_blocks, serving
from tests.unit.domains.forecast.history.prometheus_kit import in_thread

pytestmark = pytest.mark.timeout(240)

STEP_S: Final = 15.0
STEPS: Final = 25_000
"""Three requests: none may ask for more than 11,000."""
FIRST: Final = 113_333_336
"""Of the grid, in steps since the epoch: in November 2023."""
PODS: Final = {"web-6d4cf56db6-x7k2p": "web", "web-6d4cf56db6-zzzz2": "web", "db-0": "db"}
INSIDE_S: Final = 5.0
"""How long before the end of its step a sample lies: within the step, whether the server's ranges are open or closed on the left."""


def drawn(seed: int) -> NDArray[np.float64]:
    """Use of a pod with a day's swing, noise, and gaps of a quarter of an hour, as NaN."""
    rng = np.random.default_rng(seed)
    values = 2 + np.sin(np.arange(STEPS) * 2 * np.pi / 5760) + rng.uniform(0, 0.5, STEPS)
    for begin in rng.integers(0, STEPS, 20):
        values[begin : begin + 60] = np.nan
    return values


def samples(values: NDArray[np.float64]) -> list[tuple[float, float]]:
    return [((FIRST + k + 1) * STEP_S - INSIDE_S, float(v)) for k, v in enumerate(values.tolist()) if v == v]


def generated() -> list[Series]:
    found: list[Series] = [
        ("pod_load", {"namespace": "shop", "pod": name}, samples(drawn(seed))) for seed, name in enumerate(PODS)
    ]
    short = slice(0, 2_000)
    for name in PODS:
        grown = np.cumsum(np.full(STEPS, 1.5 * STEP_S))[short]
        cadvisor = {"namespace": "shop", "pod": name, "container": "main", "image": "x"}
        found.append(("container_cpu_usage_seconds_total", cadvisor, samples(grown)))
        info = {"namespace": "shop", "pod": name, "node": "n1"}
        found.append(("kube_pod_info", info, samples(np.ones(1_000))))
        owner = {"namespace": "shop", "pod": name, "owner_kind": "StatefulSet", "owner_name": f"owner-of-{PODS[name]}"}
        found.append(("kube_pod_owner", owner, samples(np.ones(1_000))))
    found.append(("node_load", {"node": "n1"}, samples(np.full(2_000, 7.0))))
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("prometheus")
    make_blocks(made, generated())
    return made


@asynccontextmanager
async def source_on(folder: Path, *dimensions: Dimension, asks_owners: bool = False) -> AsyncIterator[PrometheusSource]:
    async def known() -> Mapping[PodName, str]:
        return {}

    async with serving(folder) as url:
        meter = PrometheusMeter(MeterSettings(url), random.Random(1))
        settings = PrometheusSettings(MeterSettings(url), asks_owners=asks_owners)
        yield PrometheusSource(settings, meter, dimensions, known)


EXACT: Final = "sum by (namespace, pod) (last_over_time(pod_load[$window]))"
"""Looks at one step alone: a gap of the series is a gap of the answer."""


def expected(service: str) -> NDArray[np.float32]:
    """The mean over the service's replicas that have a sample, as the source rounds it; where some have samples before and
    after, too, over those alone. Requests are of 11,000 steps."""
    rows = np.array([drawn(seed) for seed, name in enumerate(PODS) if PODS[name] == service])
    known = ~np.isnan(rows)
    at = np.arange(STEPS)
    before, after = np.roll(known, 1, axis=1) | (at % 11_000 == 0), np.roll(known, -1, axis=1)
    whole = known & before & (after | (at % 11_000 == 10_999) | (at == STEPS - 1))
    counted = np.where(whole.any(axis=0), whole, known)
    means = np.full(STEPS, np.nan)
    np.divide(np.where(counted, rows, 0).sum(axis=0), counted.sum(axis=0), out=means, where=known.any(axis=0))
    return means.astype(np.float32)


async def test_values_and_gaps_read_in_several_requests_are_exact(folder: Path) -> None:
    async with source_on(folder, Dimension("load", EXACT)) as source:
        reading = await source.read(Grid(FIRST * STEP_S, STEP_S, STEPS), in_thread)
    usage = reading.usage
    assert usage.services == ("shop/db", "shop/web")
    assert usage.values.shape == (2, 1, STEPS)
    for number, service in enumerate(("db", "web")):
        np.testing.assert_array_equal(usage.values[number, 0], expected(service))
    assert np.isnan(usage.values[0, 0]).sum() >= 60


async def test_no_request_asks_for_more_than_the_server_allows(folder: Path) -> None:
    """And the server would refuse one that does: the chunks are needed."""
    async with serving(folder) as url:
        pieces: list[Piece] = []
        grid = Grid((FIRST + 1) * STEP_S, STEP_S, STEPS)
        meter = PrometheusMeter(MeterSettings(url), random.Random(1))
        report = await meter.ranges("count(pod_load)", grid, pieces.append)
        assert report.requests == 3
        assert [int(piece.steps[-1]) for piece in pieces] == [10_999, 21_999, STEPS - 1]
        greedy = PrometheusMeter(MeterSettings(url, points_max=STEPS), random.Random(1))
        report = await greedy.ranges("count(pod_load)", grid, pieces.append)
        assert report.requests == 1 + 8  # refused once, then in eighths


async def test_invalid_query_is_reported_with_the_error_of_prometheus(folder: Path) -> None:
    async with source_on(folder, Dimension("log", "sum by (pod (x)")) as source:
        with pytest.raises(
            SourceError, match=r"^log: prometheus http://127.*parse error: .*\(query: sum by \(pod \(x\)\)"
        ):
            await source.read(Grid(FIRST * STEP_S, STEP_S, 10), in_thread)


async def test_ready_queries_give_owners_node_totals_and_maxima(folder: Path) -> None:
    cpu = READY["cadvisor-cpu"]
    dimensions = (
        Dimension("cpu", cpu.query),
        Dimension("top", "sum by (namespace, pod) (pod_load)", aggregation=Aggregation.MAX, resolution_s=15),
        Dimension("disk", "max by (node) (node_load)", per=Per.NODE),
    )
    step_s, steps = 5 * STEP_S, 100
    first = round(FIRST * STEP_S // step_s) + 12
    async with source_on(folder, *dimensions, asks_owners=True) as source:
        reading = await source.read(Grid(first * step_s, step_s, steps), in_thread)
    assert reading.usage.services == ("shop/owner-of-db", "shop/owner-of-web")
    assert reading.named["owner"] == len(PODS)
    np.testing.assert_allclose(reading.usage.values[:, 0], 1.5, rtol=1e-5)
    # Looked at once every quarter of a minute: each look sees the newest sample, five minutes back at most.
    raw = drawn(2)
    begin = round(first * step_s / STEP_S) - FIRST
    for number in range(steps):
        seen = raw[begin + number * 5 - 1 : begin + (number + 1) * 5]
        if not np.isnan(seen).any():
            got = reading.usage.values[0, 1, number]
            assert np.float32(seen[1:].max()) <= got <= np.float32(seen.max())
    assert reading.totals is not None
    np.testing.assert_array_equal(reading.totals.values, np.full((1, 1, steps), 7, np.float32))
    stood = (first * step_s, (first + steps) * step_s)
    assert set(reading.totals.placement_intervals) == {
        PlacementInterval(f"shop/owner-of-{name}", "n1", *stood) for name in ("web", "db")
    }


async def test_every_ready_query_parses(folder: Path) -> None:
    """But loki-log, which is Loki's language."""
    dimensions = [Dimension(name, ready.query, per=ready.per) for name, ready in READY.items() if name != "loki-log"]
    async with source_on(folder, *dimensions) as source:
        reading = await source.read(Grid(FIRST * STEP_S, STEP_S, 10), in_thread)
    assert len(reading.usage.dimensions) + 5 == len(dimensions)


async def test_unreachable_server_is_reported(folder: Path) -> None:
    async with serving(folder) as url:
        meter = PrometheusMeter(MeterSettings(url, tries=1), random.Random(1))
    with pytest.raises(MeterError, match="cannot be reached"):
        await meter.ranges("up", Grid(FIRST * STEP_S, STEP_S, 10), lambda _: None)
