"""`multisched forecast` against a running program: what it shows is what the program places by."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio.to_thread
import orjson
import pytest
from typer.testing import CliRunner

from domains.forecast.forecast import Forecast
from multisched.cli.commands import app
from multisched.framework.views import NoViewError, ViewQuery
from multisched.observe.health import Health
from multisched.observe.metrics import Metrics
from multisched.observe.server import ServerSettings, Sources, serve
from multisched.shell.plugin_views import QUERIES_MAX, ProgramViews
from multisched.shell.telemetry import ProgramQueues
from multisched.whatif.explain_source import ProgramExplanations
from multisched.whatif.repair_source import RepairPlans
from tests.integration.plugins.program_cluster import HEAD, ProgramCluster, one_domain, open_cluster
from tests.unit.domains.forecast.fleets import learned

ARGS = {"dimensions": ["cpu", "log"], "capacities": {"log": "2"}}
TEXT = one_domain({"name": "PeakForecast", "args": ARGS})


def forecast(cluster: ProgramCluster) -> Forecast:
    (found,) = [b.plugin for b in cluster.worker().plugins.built if isinstance(b.plugin, Forecast)]
    return found


@asynccontextmanager
async def served() -> AsyncIterator[tuple[ProgramCluster, str]]:
    async with open_cluster(TEXT) as cluster:
        for number in range(3):
            await cluster.node(f"n{number}")
        forecast(cluster).adopt(learned(["default/web", "default/cart"], ("cpu", "log")))
        for number in range(4):
            await cluster.pod(f"web-{number}", cpu="100m", labels={"multisched.io/service": "web"})
        await cluster.pod("stranger", cpu="100m")
        await cluster.bound(*(f"web-{number}" for number in range(4)), "stranger")
        sources = Sources(
            Health(),
            Metrics(),
            ProgramQueues(cluster.program, "me"),
            ProgramExplanations(cluster.program),
            RepairPlans(cluster.program),
            ProgramViews(cluster.program),
        )
        async with serve(ServerSettings(port=0), sources) as url:
            yield cluster, url
        await cluster.at_rest()


async def said(url: str, *arguments: str, code: int = 0) -> str:
    def call() -> str:
        result = CliRunner().invoke(app, ["forecast", *arguments, "--server", url])
        assert result.exit_code == code, result.output
        return result.output

    return await anyio.to_thread.run_sync(call)


async def test_nodes_and_times_are_shown_for_a_running_program() -> None:
    async with served() as (cluster, url):
        lines = (await said(url, "nodes")).splitlines()
        assert lines[0].split() == ["NODE", "PODS", "NO", "PROFILE", "FULLEST", "AT", "PEAK", "NOW"]
        assert {line.split()[0] for line in lines[1:4]} == {"n0", "n1", "n2"}
        assert lines[-1].startswith("domain tests; profiles 3, 0 s old; it is ")
        assert "CPU AT" in await said(url, "nodes", "-o", "wide")

        node = cluster.node_of("web-0")
        text = await said(url, "node", node)
        assert f"{node}   " in text
        assert re.search(r"^default/web-0 +web +profile +\d+ % ", text, re.MULTILINE)
        assert "IF IT LEFT, FULLEST IS" in text

        found = json.loads(await said(url, "nodes", "-o", "json"))
        assert sum(one["pods"] for one in found["nodes"]) == 5
        assert sum(one["unknown"] for one in found["nodes"]) == 1
        at = json.loads(await said(url, "at", "now", "-o", "json"))
        assert {one["node"] for one in at["nodes"]} == {"n0", "n1", "n2"}
        assert {one["service"]: one["pods"] for one in at["services"]} == {"default/web": 4, "default/cart": 0}
        assert (await said(url, "at", "20:00")).splitlines()[0].split() == ["NODE", "CPU", "LOG"]


async def test_services_and_backtest_are_shown_for_a_running_program() -> None:
    async with served() as (_, url):
        lines = (await said(url, "services")).splitlines()
        assert lines[0].split()[-1] == "PODS"
        assert lines[1].split()[-1] == "4"
        assert "per replica" in await said(url, "service", "default/web")
        text = await said(url, "backtest")
        assert "was better on the last 7 days" in text
        assert text.splitlines()[0].startswith("DIMENSION   SERVICES   CHOSEN")


async def test_report_is_a_page_with_the_history_of_a_file(tmp_path: Path) -> None:
    usage = tmp_path / "use.csv"
    usage.write_text(
        "timestamp,service,dimension,value\n1767571200,default/cart,cpu,7\n1767571200,other,cpu,1\nnoon,other,cpu,1\n"
    )
    async with served() as (_, url):
        assert (await said(url, "report")).startswith("<!doctype html>")
        own = json.loads(await said(url, "report", "-o", "json"))
        other = json.loads(await said(url, "report", "-o", "json", "--usage", str(usage)))
        assert own["history"]["startSeconds"] != other["history"]["startSeconds"]
        assert other["history"]["scale"][1][0] * 254 == pytest.approx(7, rel=1e-3)
        assert "use.csv, line 4, column timestamp" in await said(url, "report", "--usage", str(usage))
        usage.write_text("timestamp,service,dimension,value\n1767571200,other,cpu,1\n")
        text = await said(url, "report", "--usage", str(usage), code=2)
        assert "services of the file: other; of the profiles: default/cart, default/web" in text
        assert "no column timestamp" in await said(url, "report", "--usage", __file__, code=2)


async def test_invalid_forecast_query_is_reported() -> None:
    async with served() as (_, url):
        assert "domain tests has no node n9" in await said(url, "node", "n9", code=2)
        assert "domain job does not serve the view forecast; these domains do: tests" in await said(
            url, "nodes", "--domain", "job", code=2
        )
        assert "'noon' is not a time of the week" in await said(url, "at", "noon", code=2)
        assert "--config needs --snapshot" in await said(url, "nodes", "--config", __file__, code=2)


async def test_forecasts_of_two_domains_are_selected_by_name() -> None:
    plugin = {"name": "PeakForecast"}
    profile = {"plugins": {"enabled": [plugin]}}
    domains = [
        {"name": "a", "profile": profile},
        {"name": "b", "profile": profile, "nodes": {"rule": "labelled"}},
    ]
    async with open_cluster(HEAD + "domains: " + orjson.dumps(domains).decode()) as cluster:
        views = ProgramViews(cluster.program)
        with pytest.raises(NoViewError, match="several domains serve this view; name one of them: a, b"):
            await views.document("forecast", ViewQuery("nodes"))
        with pytest.raises(NoViewError, match="no profiles are active yet"):
            await views.document("forecast", ViewQuery("nodes", {"domain": "b"}))
        with pytest.raises(NoViewError, match="no plugin serves the view weather"):
            await views.document("weather", ViewQuery("nodes"))


async def test_too_many_queries_are_refused_and_others_answered() -> None:
    async with served() as (cluster, _):
        views, refused, answered = ProgramViews(cluster.program), [], []

        async def ask() -> None:
            try:
                answered.append(await views.document("forecast", ViewQuery("report")))
            except NoViewError as error:
                refused.append(error.status)

        async with anyio.create_task_group() as tasks:
            for _ in range(QUERIES_MAX + 3):
                tasks.start_soon(ask)
        assert (len(answered), refused) == (QUERIES_MAX, [429] * 3)
