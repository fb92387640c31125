"""Nodes without a capacity: each kind told once, with how many they are, which and what stands in."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

from domains.forecast.forecast import Forecast
from domains.forecast.peak_forecast import peak_forecast
from multisched.cycle.waiting_pods import WaitingPodTable
from multisched.forecasting.profiles import Origin, Profiles
from multisched.framework.context import PluginContext
from multisched.state.cluster_cache import ClusterCache
from multisched.testing.builders import make_node, make_pod

LOG = {"log": {"annotation": "example.com/log"}}
WEB = make_pod("a", cpu_milli=100, labels={"app": "web"})


def plugin(cache: ClusterCache, **args: Any) -> Forecast:
    context = PluginContext("test", cache.nodes, WaitingPodTable(), cache.ledgers, cache.objects)
    return peak_forecast({"dimensions": ["cpu", "log"], "capacities": LOG, **args}, context)


def node(cache: ClusterCache, name: str, log: str | None) -> None:
    cache.set_node(make_node(name, cpu_milli=4_000, annotations={} if log is None else {"example.com/log": log}))


def logged_notes(made: Forecast, caplog: pytest.LogCaptureFixture) -> list[str]:
    """What a look between cycles logs."""
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        while made.catch_up():
            pass
    return [str(vars(record)["note"]) for record in caplog.records if record.msg == "nodes without a capacity"]


UNREADABLE = "state a value that is not a quantity above zero"
FALLBACK = "the score assumes 20 times the heaviest service's peak, the filter ignores the dimension"


@pytest.mark.parametrize(
    ("stated", "note"),
    [
        (None, f"log: 2 of 3 nodes state none; {FALLBACK}; such as n1 (annotation example.com/log)"),
        (
            "40 MB",
            f"log: 2 of 3 nodes {UNREADABLE}; {FALLBACK}; such as n1 (annotation example.com/log: '40 MB')",
        ),
        (
            "-5",
            f"log: 2 of 3 nodes {UNREADABLE}; {FALLBACK}; such as n1 (annotation example.com/log: '-5')",
        ),
        (
            "0",
            "log: 2 of 3 nodes state zero, and any use exceeds it; such as n1 (annotation example.com/log: '0')",
        ),
    ],
)
def test_each_kind_of_gap_names_count_example_and_fallback(
    stated: str | None, note: str, caplog: pytest.LogCaptureFixture
) -> None:
    cache = ClusterCache()
    made = plugin(cache)
    for name, log in (("n2", stated), ("n1", stated), ("n3", "40M")):
        node(cache, name, log)
    assert logged_notes(made, caplog) == [note]
    assert [gap.nodes for gap in made.statistics().capacity_gaps] == [2]


def test_gap_is_reported_once_and_again_after_doubling_or_recurring(caplog: pytest.LogCaptureFixture) -> None:
    cache = ClusterCache()
    made = plugin(cache)
    assert logged_notes(made, caplog) == []
    node(cache, "n1", None)
    assert len(logged_notes(made, caplog)) == 1
    assert logged_notes(made, caplog) == []
    node(cache, "n2", "1M")
    assert logged_notes(made, caplog) == []
    node(cache, "n3", None)
    assert logged_notes(made, caplog)[0].startswith("log: 2 of 3 nodes state none")
    for name in ("n1", "n3"):
        node(cache, name, "1M")
    assert logged_notes(made, caplog) == []
    node(cache, "n1", None)
    assert logged_notes(made, caplog)[0].startswith("log: 1 of 3 nodes state none")


def test_explain_names_missing_capacity_instead_of_a_percentage() -> None:
    cache = ClusterCache()
    made = plugin(cache, mode="both")
    node(cache, "none", "0")
    peak = np.full((1, 2, 168), 0.5, np.float32)
    origin, error = np.full((1, 2), Origin.SEASONAL, np.uint8), np.zeros((1, 2), np.float32)
    made.adopt(Profiles(1, 1.0, 1.0, ("web",), ("cpu", "log"), peak, peak, peak, origin, error))
    assert (
        made.describe(WEB, 0)
        == "with this pod, the highest predicted load of the node is log at Mon 00:00; the node has no log capacity"
    )
