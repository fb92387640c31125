"""What-if and fixes go by what the running program has learned, though no file tells it."""

from __future__ import annotations

import numpy as np
import pytest

from domains.forecast.forecast import Forecast
from multisched.framework.introspection import StateExportPlugin
from multisched.framework.registry import implements
from multisched.observe.explain_view import ExplainQuery
from multisched.whatif.explain_source import ProgramExplanations
from tests.integration.plugins.program_cluster import ProgramCluster, one_domain, open_cluster
from tests.unit.domains.forecast.profiles import make_profiles

TEXT = one_domain(
    {
        "name": "PeakForecast",
        "args": {"mode": "both", "dimensions": ["cpu", "memory", "log"], "capacities": {"log": 100}},
    }
)
QUIET = {"cpu": np.full(168, 0.01), "log": np.full(168, 1.0)}
CHATTY = {"cpu": np.full(168, 0.01), "log": np.where(np.arange(168) == 20, 60.0, 1.0)}


def forecast(cluster: ProgramCluster) -> Forecast:
    (found,) = [b.plugin for b in cluster.worker().plugins.built if isinstance(b.plugin, Forecast)]
    return found


def manifest(service: str) -> dict[str, object]:
    container = {"name": "main", "image": "app:v1", "resources": {"requests": {"cpu": "100m"}}}
    metadata = {"name": "new", "labels": {"multisched.io/service": service}}
    return {
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"schedulerName": "tests-scheduler", "containers": [container]},
    }


async def test_what_if_uses_the_profiles_of_the_running_process() -> None:
    async with open_cluster(TEXT) as cluster:
        explanations = ProgramExplanations(cluster.program)
        await cluster.node("n1")
        await cluster.node("n2")
        before = await explanations.what_if(manifest("chatty"), 3)
        assert all(one.node for one in before.placements), "nothing is known of logs yet"

        forecast(cluster).adopt(make_profiles(("cpu", "log"), quiet=QUIET, chatty=CHATTY))
        view = await explanations.what_if(manifest("chatty"), 3)

        assert sorted(one.node for one in view.placements) == ["", "n1", "n2"]
        assert "fit now, log at Mon 20:00 would be over 120 %" in view.placements[2].message
        await cluster.pod("chatty-1", cpu="100m", labels={"multisched.io/service": "chatty"})
        await cluster.pod("chatty-2", cpu="100m", labels={"multisched.io/service": "chatty"})
        await cluster.bound("chatty-1", "chatty-2")
        assert cluster.node_of("chatty-1") != cluster.node_of("chatty-2")
        await cluster.pod("chatty-3", cpu="100m", labels={"multisched.io/service": "chatty"})
        await cluster.until(lambda: cluster.waiting("chatty-3") is not None)
        explained = await explanations.pod(ExplainQuery("default", "chatty-3", with_fixes=True))
        assert explained.fixes, "a victim with a heavy evening makes room"


async def test_queried_capacity_is_exported_with_the_profiles() -> None:
    history = {
        "sources": [{"type": "prometheus", "url": "http://127.0.0.1:1"}],
        "dimensions": [
            {"name": "cpu", "ready": "cadvisor-cpu", "capacity": "allocatable"},
            {"name": "log", "query": "q", "capacity": {"query": "c"}},
        ],
    }
    text = one_domain({"name": "PeakForecast", "args": {"mode": "both", "history": history}})
    async with open_cluster(text) as cluster:
        explanations = ProgramExplanations(cluster.program)
        await cluster.node("n1")
        plugin = forecast(cluster)
        assert implements(plugin, StateExportPlugin)
        ((_, capacity),) = plugin._measured()
        capacity.measure({"n1": 50.0})
        plugin.adopt(make_profiles(("cpu", "log"), chatty=CHATTY))

        view = await explanations.what_if(manifest("chatty"), 1)

        assert view.placements[0].message.startswith("0/1 nodes are available: 1 node(s) fit now, log at Mon 20:00")


def test_plugin_refuses_foreign_state() -> None:
    plugin = Forecast.__new__(Forecast)
    with pytest.raises(AssertionError, match="must be exported by PeakForecast"):
        plugin.import_state(object())
