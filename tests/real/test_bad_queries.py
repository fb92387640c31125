"""Queries, capacities and windows that are wrong, against a real Prometheus: each gives an error or a note that names the query."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from domains.forecast.forecast import Forecast
from domains.forecast.learning.refit import RefitState
from domains.forecast.peak_forecast import peak_forecast
from multisched.app import SystemClock
from multisched.cluster.api.direct import DirectTransport
from multisched.cluster.api.server import ApiServer
from multisched.cycle.waiting_pods import WaitingPodTable
from multisched.framework.context import PluginContext
from multisched.shell.workers.background_tasks import NetworkMeasures
from multisched.state.cluster_cache import ClusterCache
from multisched.testing.builders import make_node
from tests.real.prometheus_server import Series, make_blocks, serving
from tests.unit.domains.forecast.history.prometheus_kit import ports_at

pytestmark = pytest.mark.timeout(300)

STEP_S: Final = 300
NOW_S: Final = 1_700_000_100 // STEP_S * STEP_S
DAYS: Final = 7
USE: Final = "sum by (namespace, pod) (last_over_time(use[$window]))"


def measured() -> list[Series]:
    moments = [NOW_S - number * STEP_S - 1 for number in reversed(range(DAYS * 288))]
    steady = [(float(at), 2.0) for at in moments]
    return [
        ("use", {"namespace": "shop", "pod": "web-0", "container": "a"}, steady),
        ("use", {"namespace": "shop", "pod": "web-0", "container": "b"}, steady),
        ("node_use", {"host": "n1"}, steady),
        ("node_most", {"node": "n1"}, steady),
        ("node_most", {"node": "n2"}, [(at, 0.0) for at, _ in steady]),
        ("below", {"namespace": "shop", "pod": "web-0"}, [(at, -1.0) for at, _ in steady]),
        ("kube_pod_info", {"namespace": "shop", "pod": "web-0", "node": "n1"}, [(at, 1.0) for at, _ in steady]),
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("bad-queries")
    make_blocks(made, measured())
    return made


class Trial:
    """One server, asked with one configuration after the other."""

    def __init__(self, url: str, measures: NetworkMeasures) -> None:
        self._url = url
        self._measures = measures

    async def once(self, *dimensions: dict[str, Any], window_days: float = 1) -> tuple[Forecast, RefitState]:
        """One refit of a plugin with these dimensions, on three nodes."""
        cache = ClusterCache()
        context = PluginContext(
            "test", cache.nodes, WaitingPodTable(), cache.ledgers, cache.objects, measures=self._measures
        )
        source = {"type": "prometheus", "url": self._url, "owners": False, "tries": 1}
        history = {
            "stepSeconds": STEP_S,
            "windowDays": window_days,
            "sources": [source],
            "dimensions": list(dimensions),
        }
        made = peak_forecast({"history": history}, context)
        for name in ("n1", "n2", "n3"):
            cache.set_node(make_node(name))
        assert made._refit is not None
        await made._refit.once(ports_at(NOW_S))
        return made, made._refit.state()


@asynccontextmanager
async def trial(folder: Path) -> AsyncIterator[Trial]:
    measures = NetworkMeasures(DirectTransport(ApiServer(SystemClock())), random.Random(1))
    async with serving(folder) as url:
        yield Trial(url, measures)


REFUSED: Final[Sequence[tuple[dict[str, Any], str]]] = (
    ({"query": "sum by (namespace pod) (use)"}, "parse error: unexpected identifier"),
    ({"query": "rate(use)"}, "expected type range vector in call to function"),
    ({"query": "percentile(use)"}, 'unknown function with name "percentile"'),
    ({"query": "use[$window]"}, 'invalid expression type "range vector" for range query'),
    ({"query": '"text"'}, 'invalid expression type "string" for range query'),
    ({"query": "1"}, "the query returns a series {} without the label 'namespace'"),
    ({"query": "sum by (pod) (use)"}, "{pod=\"web-0\"} without the label 'namespace'; write sum by (namespace, pod)"),
    ({"query": "sum by (namespace) (use)"}, "without the label 'pod'; write sum by (namespace, pod)"),
    ({"query": "use"}, "two series have the same pod or node: {"),
    ({"query": "sum by (node) (node_use)", "per": "node"}, "a series {} without the label node or nodename or"),
    ({"query": "node_use", "per": "node"}, 'host="n1"} without the label node or nodename or'),
    ({"query": USE, "capacity": {"query": "rate(use)"}}, "cpu, capacity: prometheus "),
    (
        {"query": USE, "capacity": {"query": "absent_metric"}},
        "capacity: the query returns no samples (query: absent_metric)",
    ),
    ({"query": USE, "capacity": {"query": "use"}}, "without the label node or nodename or"),
    (
        {"query": "absent_metric"},
        "cpu: the query returns no samples; check that this server has the metric with these labels",
    ),
    ({"query": "below"}, "cpu: 288 samples negative; they count as gaps"),
    ({"query": "use / 0 * 0"}, "two series have the same pod or node"),
)
"""What is asked for, and what the refit is told; the last profiles stay in force."""


async def test_refit_fails_and_names_the_query_without_usable_data(folder: Path) -> None:
    async with trial(folder) as asked:
        for dimension, told in REFUSED:
            made, state = await asked.once({"name": "cpu", **dimension})
            assert told in state.last_error, dimension
            assert made._ledger.predictor.version == 0, "nothing is in force"
            request_of = dimension.get("capacity", dimension)["query"].replace("$window", "300s")
            assert request_of in state.last_error, state.last_error


async def test_partly_wrong_data_is_noted_and_the_rest_is_learned(folder: Path) -> None:
    cpu = {"name": "cpu", "query": USE}
    async with trial(folder) as asked:
        _, state = await asked.once(cpu, {"name": "log", "query": "absent_metric"})
        assert state.refits == 1
        assert state.notes == (
            "log: the query returns no samples; check that this server has the metric with these labels (query: absent_metric)",
            "services: 1 pods have no known owner; their services are guessed from their names; scrape kube-state-metrics",
            "log: no sample in the whole window; the use of pods is unknown and counts as zero",
            "cpu: 1 of 1 services has too few days of samples, and one quantile is used for the whole week: shop/web",
        )

        _, state = await asked.once(cpu, window_days=14)
        assert [note for note in state.notes if "days" in note] == [
            "cpu: 7.0 days of samples, 14.0 were requested (windowDays)"
        ]

        made, state = await asked.once(cpu, {"name": "log", "query": USE, "capacity": {"query": "node_most"}})
        assert "log, capacity: 1 nodes have no capacity, such as n2 (query: node_most)" in state.notes
        while made.catch_up():
            pass
        assert [(gap.dimension, gap.kind, gap.nodes, gap.example) for gap in made.statistics().capacity_gaps] == [
            ("log", "unstated", 1, "n3 (query: node_most)"),
            ("log", "zero", 1, "n2 (query: node_most)"),
        ]
