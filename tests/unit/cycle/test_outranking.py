"""A plugin that outranks: no weight, no extender and no lost race puts a pod on a worse row while a better one takes it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from multisched.client.extender_client import HttpExtenderClient
from multisched.cycle.results import Conflicted, Placed
from multisched.framework.ports import ExtenderSettings
from multisched.framework.registry import PluginSetupError
from multisched.framework.traits import Traits
from multisched.model.objects import CPU, PodSpec
from multisched.plugins.extender.http_extender import NAME, ExtenderResult, HTTPExtenders
from multisched.testing.builders import make_node, make_pod
from tests.unit.cycle.cycle_kit import Domain, ScoreBy, Waiting
from tests.unit.cycle.test_gang_attempts import attempt as attempt_gang
from tests.unit.cycle.test_gang_attempts import gang_of
from tests.unit.cycle.test_scheduling_cycle import Service
from tests.unit.plugins.extender.extender_kit import WholeObjects

FULL = PodSpec(requests={CPU: 1000}, placed_cpu_milli=1000)
HEAVY = {"NodeResourcesFit": 1_000, "Prefers": 1_000, "First": 0}


class First(ScoreBy):
    """Real rows by one point before virtual ones."""

    traits = Traits(outranks=True)

    def __init__(self, name: str = "First") -> None:
        super().__init__(name, lambda pod, node: int(node.startswith("real")))


def domain_of(*more: object, reals: int = 4, weights: Mapping[str, int] = HEAVY) -> Domain:
    nodes = [make_node(f"real{i}", cpu_milli=1000) for i in range(reals)]
    virtual = make_node("virtual", cpu_milli=10_000_000)
    prefers = ScoreBy("Prefers", lambda pod, node: 100 if node == "virtual" else 0)
    return Domain(virtual, *nodes, plugins=[First(), prefers, *more], weights=weights)  # type: ignore[list-item]


def test_pods_fill_better_rows_whatever_the_weights() -> None:
    domain = domain_of()
    placed = [domain.schedule(make_pod(f"p{i}", spec=FULL)) for i in range(6)]
    nodes = [one.node for one in placed if isinstance(one, Placed)]
    assert sorted(nodes[:4]) == ["real0", "real1", "real2", "real3"]
    assert nodes[4:] == ["virtual", "virtual"]


def test_gang_fills_better_rows_first() -> None:
    domain = domain_of()
    result = attempt_gang(domain, gang_of([make_pod(f"p{i}", spec=FULL) for i in range(5)], 5))
    assert sorted(one.node for one in result.placed) == ["real0", "real1", "real2", "real3", "virtual"]


def test_pod_that_lost_its_rows_during_a_wait_is_tried_again() -> None:
    domain = domain_of(Service(), reals=2)
    waiting = Waiting.begin(domain, make_pod("p", spec=FULL))
    for node in ("real0", "real1"):
        domain.cache.place(make_pod(f"on-{node}", spec=FULL, node=node))
    result = waiting.answer({"Service": {"real0": 0, "real1": 0, "virtual": 100}})
    assert isinstance(result, Conflicted)


def test_extender_decides_among_equal_rows_only() -> None:
    client = HttpExtenderClient(ExtenderSettings("http://127.0.0.1:1", prioritize_verb="prioritize"))
    extenders = HTTPExtenders([client], WholeObjects())
    for boost in (
        {"virtual": 10**9, "real2": 7},
        {"real2": 7},
        {"virtual": 2**40, "real0": -5, "real1": -5, "real3": -5},
    ):
        domain = domain_of(extenders)
        result = Waiting.begin(domain, make_pod("p", spec=FULL)).answer({NAME: ExtenderResult({}, boost)})
        assert isinstance(result, Placed)
        assert result.node == "real2"


def test_two_outranking_plugins_are_refused() -> None:
    with pytest.raises(PluginSetupError, match="First and Second both outrank all others; remove one"):
        domain_of(First("Second"))
