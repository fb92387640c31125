"""The forecast's metrics: what speaks for pods, how full nodes will be and are, how well it foretold."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec
import numpy as np
import pytest

from domains.forecast.curves.node_usage import MeasuredLoads
from domains.forecast.forecast import Forecast
from domains.forecast.learning.refit import Refit, RefitSettings
from domains.forecast.ledger.node_loads import NodeLoads
from domains.forecast.peak_forecast import peak_forecast
from multisched.forecasting.profiles import Profiles
from multisched.framework.introspection import HealthPlugin, MetricsPlugin, PluginMetric
from multisched.framework.measures import PodUse
from multisched.framework.node_view import Rows
from multisched.framework.registry import implements
from multisched.state.cluster_cache import ClusterCache
from multisched.testing.builders import all_rows, make_context, make_node, make_pod
from tests.unit.domains.forecast.profiles import make_profiles

MONDAY_S = 4 * 86_400.0
"""Monday 1970-01-05, 00:00 UTC."""
EVENING = np.where(np.arange(168) == 44, 2.0, 0.5)
"""Cores: two on Tuesday at 20:00."""
GIB = float(2**30)


def profiles(version: int = 1) -> Profiles:
    memory = np.full(168, GIB)
    found = make_profiles(
        ("cpu", "memory"),
        version=version,
        shop__web={"cpu": EVENING, "memory": memory},
        shop__half={"cpu": EVENING},
    )
    error = np.array([[0.1, 0.3], [0.2, np.nan]], np.float32)
    origin = np.array([[3, 2], [1, 0]], np.uint8)
    return msgspec.structs.replace(found, error=error, origin=origin, newest_s=MONDAY_S - 7_200)


class Scene:
    """Three nodes of four cores; the third is another domain's."""

    def __init__(self) -> None:
        self.cache = ClusterCache()
        context = msgspec.structs.replace(make_context(self.cache), rows=self.rows)
        self.plugin: Forecast = peak_forecast({}, context)
        for name in ("a", "b", "gpu"):
            self.cache.set_node(make_node(name, cpu_milli=4_000, memory_bytes=int(8 * GIB)))
        for number in range(3):
            self.place("web", f"w{number}", "a")
        self.place("half", "h", "b")
        self.place("new", "n", "b")
        self.place("", "nobody", "b", namespace="other")
        self.place("web", "far", "gpu")

    def place(self, service: str, name: str, node: str, namespace: str = "shop") -> None:
        labels = {"multisched.io/service": service} if service else {}
        self.cache.place(make_pod(name, labels=labels, node=node, namespace=namespace))

    def rows(self) -> Rows:
        return all_rows(self.cache)[:2]

    def figures(self, now_s: float = MONDAY_S) -> Mapping[str, PluginMetric]:
        found = self.plugin.metrics(now_s)
        assert len({metric.name for metric in found}) == len(found)
        return {metric.name.removeprefix("forecast_"): metric for metric in found}

    def values(self, name: str, now_s: float = MONDAY_S) -> Mapping[tuple[str, ...], float]:
        return self.figures(now_s)[name].values

    def catch_up(self) -> None:
        while self.plugin.catch_up():
            pass


def test_pods_are_counted_by_profile_origin_on_nodes_of_the_domain() -> None:
    scene = Scene()
    assert implements(scene.plugin, MetricsPlugin)
    assert implements(scene.plugin, HealthPlugin)
    assert {source: n for (source,), n in scene.values("pods").items() if n} == {"no_history": 5, "no_service": 1}
    scene.plugin.adopt(profiles())
    scene.catch_up()
    expected = {"own": 3, "partial_history": 1, "namespace": 1, "no_service": 1}
    assert {source: n for (source,), n in scene.values("pods").items() if n} == expected
    scene.cache.remove("uid-w0")
    assert scene.values("pods")["own",] == 2


def test_node_peak_metrics_have_quantiles_and_the_time_of_the_highest() -> None:
    scene = Scene()
    scene.plugin.adopt(profiles())
    scene.catch_up()
    peak = scene.values("node_peak_ratio")
    assert peak["cpu", "100"] == pytest.approx(6 / 4, rel=1e-3)
    assert peak["cpu", "50"] < peak["cpu", "95"] < peak["cpu", "100"]
    assert scene.values("node_peak_time_seconds")["cpu",] == (24 + 20) * 3_600
    assert scene.values("node_expected_ratio")["cpu", "100"] == pytest.approx(1.5 / 4, rel=0.01)
    tuesday_evening_s = MONDAY_S + 44 * 3_600
    assert scene.values("node_expected_ratio", tuesday_evening_s)["cpu", "100"] == pytest.approx(6 / 4, rel=1e-3)


def test_last_complete_snapshot_is_shown_while_new_profiles_are_counted() -> None:
    scene = Scene()
    scene.plugin.adopt(profiles())
    assert scene.values("catch_up_rows") == {(): 3}
    assert "node_peak_ratio" not in scene.figures()
    scene.catch_up()
    before = scene.values("node_peak_ratio")
    scene.plugin.adopt(profiles(version=2))
    assert scene.values("node_peak_ratio") == before
    assert scene.values("profiles_version") == {(): 2}
    scene.catch_up()
    assert scene.values("catch_up_rows") == {(): 0}
    assert scene.values("node_peak_ratio") == before


def test_profile_metrics_have_age_origin_and_backtest_error() -> None:
    scene = Scene()
    assert "profiles_age_seconds" not in scene.figures()
    scene.plugin.adopt(profiles())
    assert scene.values("profiles_age_seconds") == {(): 7_200}
    assert scene.values("services") == {(): 2}
    error = scene.values("backtest_error_ratio")
    assert error["cpu", "50"] == pytest.approx(0.15)
    assert error["cpu", "90"] == pytest.approx(0.19)
    assert error["memory", "90"] == pytest.approx(0.3)
    origins = {key: count for key, count in scene.values("profiles").items() if count}
    assert origins == {
        ("cpu", "seasonal"): 1,
        ("cpu", "quantile"): 1,
        ("memory", "slot_quantile"): 1,
        ("memory", "none"): 1,
    }


async def test_measured_node_usage_is_shown_after_the_first_query() -> None:
    scene = Scene()
    scene.plugin.adopt(profiles())
    ledger = scene.plugin._ledger
    loads = NodeLoads(ledger, scene.rows)
    assert ledger.pods is None
    ledger.keep_pods()
    for pod in ("w0", "w1", "h"):
        node = "a" if pod.startswith("w") else "b"
        scene.place("half" if pod == "h" else "web", pod, node)
    scene.plugin._refit = Refit([], lambda *_: profiles(), lambda _: None, RefitSettings(1, 1, 1), loads=loads)
    await loads.note_uses(MONDAY_S, [PodUse("shop", "w0", 1, 0), PodUse("shop", "w1", 2, 0), PodUse("shop", "?", 9, 9)])
    assert scene.values("node_load_ratio")["cpu", "100"] == pytest.approx(3 / 4)
    assert scene.values("node_load_ratio")["cpu", "50"] == pytest.approx(3 / 8), "the other node is idle"
    assert scene.values("node_load_time_seconds") == {("cpu",): MONDAY_S, ("memory",): MONDAY_S}
    loads.note(MONDAY_S + 60, MeasuredLoads(by_node={"memory": {"a": 2 * GIB, "gpu": 8 * GIB}, "unasked": {"a": 1.0}}))
    assert scene.values("node_load_ratio")["memory", "100"] == pytest.approx(0.25)
    assert scene.values("node_load_time_seconds")["memory",] == MONDAY_S + 60


def test_refit_metrics_are_shown_only_with_known_values() -> None:
    scene = Scene()
    assert "refits" not in scene.figures()
    assert scene.plugin.health(MONDAY_S) == ""
    scene.plugin.adopt(msgspec.structs.replace(profiles(), version=0))
    assert scene.plugin.health(MONDAY_S) == "profiles from files, whose newest sample is 2 h old"
    scene.plugin._refit = Refit([], lambda *_: profiles(), lambda _: None, RefitSettings(1, 1, 1), profiles())
    assert scene.plugin.health(MONDAY_S) == "profiles 1, 2 h old"
    found = scene.figures()
    assert found["refits"].is_counter
    assert found["refit_last_error_time_seconds"].values == {}
    assert found["refit_duration_seconds"].values == {}
    for metric in found.values():
        assert all(math.isfinite(value) for value in metric.values.values()), metric.name
