"""Metrics of a busy program, as Prometheus' own tools judge them."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Final

import orjson
import pytest
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families

from multisched.client.transport import connect
from tests.monitoring.boards import BOARDS
from tests.monitoring.panels import Graph, Query
from tests.real.busy_program import Busy, busy
from tests.real.prometheus_server import binaries

pytestmark = [pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="module")]

CHECK_TIMEOUT_S: Final = 60
VALUES_MAX: Final = 500
"""Of all labels together: bounds of buckets, plugins, events, kinds."""
VARIABLES: Final = {"$job": ".+", "$domain": ".+", "$__rate_interval": "1m"}
WITHOUT_SERIES: Final[dict[tuple[str, str], str]] = {
    # (panel, legend) -> why a program that is well shows none
    ("Failures per second", "{{domain}} {{plugin}} {{extension_point}}"): "no plugin fails",
    ("Plugin failures per second", "{{domain}} {{plugin}} {{extension_point}}"): "no plugin fails",
    ("Measured", "{{dimension}} p{{percentile}}"): "the embedded cluster has no metrics API",
    ("Error on the last days", "{{dimension}} p{{percentile}} attributed"): "no query is per node",
    ("Waits at Permit", "p50 {{domain}} {{result}}"): "no in-tree plugin waits there",
    ("Waits at Permit", "p99 {{domain}} {{result}}"): "no in-tree plugin waits there",
    ("Sandboxes per second", "{{domain}} {{unit}} started"): "ServerlessUnits is off by default",
    ("Sandboxes per second", "{{domain}} {{unit}} failed"): "ServerlessUnits is off by default",
    ("Sandboxes per second", "{{domain}} {{unit}} throttled"): "ServerlessUnits is off by default",
    ("Sandboxes per second", "{{domain}} {{unit}} learned rate"): "ServerlessUnits is off by default",
    ("Breakers of serverless units", "{{domain}} {{unit}}"): "ServerlessUnits is off by default",
    ("Lists and failures, in five minutes", "{{kind}} lists"): "shown only where a list is read again",
    ("Lists and failures, in five minutes", "{{kind}} failures"): "shown only where one fails",
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def program(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Busy]:
    async with busy(tmp_path_factory.mktemp("busy"), {"kubeSchedulerNames": True}) as found:
        yield found


def promtool(*arguments: str, text: str | None = None) -> str:
    """What it found fault with; empty for nothing."""
    command = [str(binaries() / "promtool"), *arguments]
    ended = subprocess.run(command, input=text, text=True, capture_output=True, check=False, timeout=CHECK_TIMEOUT_S)
    return "" if ended.returncode == 0 else ended.stdout + ended.stderr


async def test_promtool_accepts_the_metrics(program: Busy) -> None:
    assert promtool("check", "metrics", text=await program.text()) == ""


async def test_promtool_reports_an_invalid_metric(program: Busy) -> None:
    text = 'multisched_x{quantile="1"} 1\n'
    assert 'should not have "quantile" label' in promtool(
        "check", "metrics", text=f"# HELP multisched_x X.\n# TYPE multisched_x gauge\n{text}"
    )


async def test_no_label_value_is_written_by_tenants(program: Busy) -> None:
    families = text_string_to_metric_families(await program.text())
    values = {value for family in families for sample in family.samples for value in sample.labels.values()}
    async with connect(program.kubeconfig) as transport:
        for kind in ("pods", "nodes", "namespaces"):
            answer = await transport.request("GET", f"/api/v1/{kind}")
            names = {item["metadata"]["name"] for item in orjson.loads(answer.body)["items"]}
            assert len(names) > 5
            assert values & names == set(), kind
    assert len(values) < VALUES_MAX


def queries() -> Iterator[tuple[tuple[str, str], str]]:
    """((panel, legend), what Grafana would ask) of every panel of every dashboard."""
    for board in BOARDS:
        for panel in (panel for row in board.rows for panel in row.panels):
            asked: Sequence[Query] = panel.queries if isinstance(panel, Graph) else (panel.query,)
            for query in asked:
                text = query.expression
                for name, value in VARIABLES.items():
                    text = text.replace(name, value)
                assert "$" not in text, text
                yield (panel.title, query.legend), text


async def test_every_panel_query_returns_series(program: Busy) -> None:
    found = {(*key, text): await program.query(text) for key, text in queries()}
    assert len(found) > 100
    missing = [key for key, series in found.items() if not series and key[:2] not in WITHOUT_SERIES]
    assert not missing, "\n".join(map(str, missing))


async def test_invalid_or_empty_query_is_detected(program: Busy) -> None:
    with pytest.raises(AssertionError, match="parse error"):
        await program.query("sum(")
    assert await program.query("multisched_luck") == []
    assert WITHOUT_SERIES.keys() <= {key for key, _ in queries()}


@pytest.mark.parametrize(
    "query",
    [
        "sum by (queue) (scheduler_pending_pods)",
        "sum by (result, profile) (rate(scheduler_schedule_attempts_total[1m]))",
        "histogram_quantile(0.99, sum by (le, profile) (rate(scheduler_scheduling_attempt_duration_seconds_bucket[1m])))",
        "histogram_quantile(0.99, sum by (le) (rate(scheduler_scheduling_algorithm_duration_seconds_bucket[1m])))",
        "histogram_quantile(0.99, sum by (le) (rate(scheduler_pod_scheduling_sli_duration_seconds_bucket[1m])))",
        "sum by (queue, event) (rate(scheduler_queue_incoming_pods_total[1m]))",
        "sum by (extension_point) (rate(scheduler_framework_extension_point_duration_seconds_sum[1m]))",
        "rate(scheduler_preemption_attempts_total[1m])",
        "sum by (plugin) (scheduler_unschedulable_pods)",
        'sum by (type) (scheduler_cache_size{type="assumed_pods"})',
        'sum(rate(rest_client_requests_total{job="multisched", code=~"2.."}[1m]))',
        'histogram_quantile(0.99, sum by (le, verb) (rate(rest_client_request_duration_seconds_bucket{verb="POST"}[1m])))',
        'leader_election_master_status{name=~"multisched.*"} == 1',
    ],
)
async def test_queries_of_kube_scheduler_dashboards_return_series(program: Busy, query: str) -> None:
    assert await program.query(query) != []
