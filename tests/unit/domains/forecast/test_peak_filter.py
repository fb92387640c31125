"""PeakForecast as a filter: what fits now and would not at its predicted peak is refused, in a few sentences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from domains.forecast.peak_filter import SENTENCES_WITH_SLOT_MAX, PeakFilter
from domains.forecast.peak_forecast import peak_forecast
from multisched.forecasting.profiles import Profiles
from multisched.framework.points import CycleView
from multisched.framework.registry import extension_points
from multisched.model.objects import Node, Pod
from multisched.state.cluster_cache import ClusterCache
from multisched.testing.builders import all_rows, make_context, make_node, make_pod, make_view
from tests.unit.domains.forecast.profiles import make_profiles

CPU_ONLY: dict[str, Any] = {"mode": "filter", "dimensions": ["cpu"]}
TUESDAY_EVENING = 24 + 20


def evening(peak: float) -> Profiles:
    """A service that uses a core all week, and more on Tuesday at 20:00; and one that uses nothing."""
    curve = np.ones(168)
    curve[TUESDAY_EVENING] = peak
    return make_profiles(
        ("cpu", "log"), web={"cpu": curve, "log": 0 * curve}, idle={"cpu": 0 * curve, "log": 0 * curve}
    )


def web(name: str, node: str = "", service: str = "web") -> Pod:
    return make_pod(name, labels={"app": service}, node=node)


class Bench:
    """A cache with the filter on it."""

    def __init__(self, args: dict[str, Any], profiles: Profiles | None, *nodes: Node) -> None:
        self.cache = ClusterCache()
        plugin = peak_forecast(args, make_context(self.cache))
        assert isinstance(plugin, PeakFilter)
        self.plugin = plugin
        for node in nodes:
            self.cache.set_node(node)
        if profiles is not None:
            self.plugin.adopt(profiles)

    def messages(self, pod: Pod, view: CycleView | None = None) -> list[str]:
        codes = self.plugin.filter(view or make_view(self.cache), pod, all_rows(self.cache))
        return [self.plugin.reasons.status(int(code)).message if code else "" for code in codes]


def test_refusal_names_dimension_time_and_percentage() -> None:
    bench = Bench(
        CPU_ONLY,
        evening(5.0),
        make_node("a", cpu_milli=9_000),
        make_node("b", cpu_milli=20_000),
        make_node("c", allocatable={}),
    )
    bench.cache.place(web("w", node="a"))
    bench.cache.assume(web("v"), 1)

    assert bench.messages(web("next")) == ["node(s) fit now, cpu at Tue 20:00 would be over 110 %", "", ""]
    worst = bench.plugin.worst(web("next"), 0)
    assert worst is not None
    assert (worst.dimension, worst.slot, round(worst.percent)) == ("cpu", "Tue 20:00", 111)
    assert bench.plugin.worst(web("next"), 2) is None
    assert bench.messages(web("next", service="idle")) == ["", "", ""]


@pytest.mark.parametrize(("threshold", "refused"), [(55, True), (56, False), (200, False)])
def test_the_threshold_is_a_share_of_capacity(threshold: float, refused: bool) -> None:
    bench = Bench(CPU_ONLY | {"thresholdPercent": threshold}, evening(5.0), make_node("a", cpu_milli=9_000))

    assert bool(bench.messages(web("next"))[0]) is refused


def test_no_node_is_refused_without_profiles() -> None:
    bench = Bench(CPU_ONLY, None, make_node("a", cpu_milli=1))

    assert bench.messages(make_pod("next", cpu_milli=5_000)) == [""]


def test_nominated_and_removed_pods_count_only_in_their_cycle() -> None:
    bench = Bench(CPU_ONLY, evening(5.0), make_node("a", cpu_milli=12_000))
    bench.cache.place(web("w", node="a"))
    view, pod = make_view(bench.cache), web("next")
    assert bench.messages(pod, view) == [""]

    bench.plugin.add_pod(view, pod, web("promised"), 0)
    assert bench.messages(pod, view) == ["node(s) fit now, cpu at Tue 20:00 would be over 120 %"]
    bench.plugin.remove_pod(view, pod, web("w"), 0)
    assert bench.messages(pod, view) == [""]
    assert bench.messages(pod) == [""]


def test_number_of_distinct_messages_is_limited() -> None:
    nodes = [make_node(f"n{number}", cpu_milli=1_000) for number in range(168)]
    bench = Bench(CPU_ONLY, None, *nodes)
    hours = np.arange(168)
    for amount in (2.0, 1.15, 1.35):
        curves: dict[str, Any] = {f"s{hour}": {"cpu": np.where(hours == hour, amount, 0.0)} for hour in range(168)}
        bench.plugin.adopt(make_profiles(("cpu",), **curves))
        for hour in range(0, 168, 2):
            assert all(bench.messages(web("p", service=f"s{hour}")))

    assert SENTENCES_WITH_SLOT_MAX < len(bench.plugin.reasons) < SENTENCES_WITH_SLOT_MAX + 10
    assert (
        bench.messages(web("p", service="s166"))[0] == "node(s) fit now, cpu would be over 100 % at its predicted peak"
    )


@pytest.mark.parametrize(
    ("mode", "points"),
    [
        ("score", ["Score", "PostBind"]),
        ("filter", ["PreFilter", "Filter", "PostBind"]),
        ("both", ["PreFilter", "Filter", "Score", "PostBind"]),
    ],
)
def test_mode_selects_the_extension_points(mode: str, points: list[str]) -> None:
    assert extension_points(peak_forecast({"mode": mode}, make_context())) == points
