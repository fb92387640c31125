"""Rows whose cpu and memory are elastic: only these, and only as long as a ledger says so."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest

from multisched.cycle.results import Placed
from multisched.framework.events import Hint
from multisched.framework.frozen_nodes import FrozenNodes, RowRecord
from multisched.model.decode import ALLOCATABLE_MAX
from multisched.model.objects import CPU, ELASTIC_AMOUNT, MEMORY, PODS, Node, Pod, PodSpec
from multisched.plugins.node_resources_fit import NodeResourcesFit
from multisched.shell.ingest.cluster_changes import node_events
from multisched.state.cluster_cache import ClusterCache
from multisched.state.row_check import row_faults
from multisched.testing.builders import GPU, make_node
from tests.unit.cycle.cycle_kit import Asks, Domain, Waiting
from tests.unit.state.state_kit import Tickets, make_pod, make_spec

UNITS = [
    {"name": "limited", "nodeSelector": {"unit": "limited"}, "rate": {"burst": 10_000}},
    {"name": "elastic", "nodeSelector": {"kind": "virtual"}, "rate": {"burst": 10_000}, "capacity": "elastic"},
]
ELASTIC = {"kind": "virtual"}
BOTH = {"kind": "virtual", "unit": "limited"}
"""It belongs to the first unit."""


def node(name: str, labels: dict[str, str], **fields: Any) -> Node:
    return make_node(name, **{"cpu_milli": 2_000, "memory_bytes": 1_000, "pods": 10, **fields}, labels=labels)


def domain(*nodes: Node, plugins: tuple[Any, ...] = ()) -> Domain:
    in_tree, args = ("NodeResourcesFit", "ServerlessUnits"), {"ServerlessUnits": {"units": UNITS}}
    return Domain(*nodes, in_tree=in_tree, args=args, plugins=plugins)


@pytest.mark.parametrize("seed", range(8))
def test_sums_exceed_allocatable_only_on_elastic_nodes(seed: int) -> None:
    rng = random.Random(seed)
    labels: dict[str, dict[str, str]] = {"a": {}, "b": ELASTIC, "c": BOTH, "d": {"unit": "limited"}}
    found = domain(*(node(name, of, extra={GPU: 2}) for name, of in labels.items()))
    for step in range(120):
        requests = {CPU: rng.choice((100, 500, 3_000)), MEMORY: rng.choice((0, 10, 400)), GPU: rng.random() < 0.05}
        pod = make_pod(f"p{step}", PodSpec(requests={name: int(amount) for name, amount in requests.items() if amount}))
        found.schedule(pod)
        if rng.random() < 0.1:
            name = rng.choice("abcd")
            labels[name] = rng.choice(({}, ELASTIC, BOTH))
            found.cache.set_node(node(name, labels[name], extra={GPU: 2}))
            assert row_faults(found.cache.nodes, range(4)) == {}
    table, most = found.cache.nodes, Counter[str]()
    for name in labels:
        row = found.row(name)
        assert int(table.pod_count[row]) <= 10
        assert int(table.requested(GPU)[row]) <= 2
        most[name] = int(table.requested(CPU)[row])
    assert max(most.values()) > 2_000


def test_nodes_that_never_were_elastic_are_never_overcommitted() -> None:
    found = domain(node("own", {}), node("both", BOTH), node("elastic", ELASTIC))
    for number in range(40):
        found.schedule(make_pod(f"p{number}", make_spec(900)))
    requested = {name: int(found.cache.nodes.requested(CPU)[found.row(name)]) for name in ("own", "both", "elastic")}
    assert requested == {"own": 1_800, "both": 1_800, "elastic": 9_000}, "ten pods, the most that a node runs"


def test_commit_after_a_wait_checks_the_row_as_it_is_then() -> None:
    found = domain(node("n", ELASTIC), plugins=(Asks(),))
    waiting = Waiting.begin(found, make_pod("slow", make_spec(3_000)))
    found.cache.set_node(node("n", {}))
    assert not isinstance(waiting.answer({"Asks": ""}), Placed)

    waiting = Waiting.begin(found, make_pod("slow-too", make_spec(1_000)))
    found.cache.set_node(node("n", ELASTIC))
    found.schedule(make_pod("other", make_spec(1_900)))
    assert isinstance(waiting.answer({"Asks": ""}), Placed)


def test_views_of_an_elastic_row_agree() -> None:
    cache = domain(node("n", ELASTIC, cpu_milli=0), node("own", {})).cache
    table = cache.nodes
    records = [RowRecord(row, 0, one, ()) for row, one in table.live_rows()]
    frozen = FrozenNodes(records, 2, 0)
    for resource in (CPU, MEMORY, PODS):
        found = table.allocatable(resource)[:2].tolist()
        assert frozen.allocatable(resource).tolist() == found
        assert table.capacities((resource,), np.arange(2))[0].tolist() == found
    assert ELASTIC_AMOUNT == ALLOCATABLE_MAX
    assert table.allocatable(CPU)[:2].tolist() == [ELASTIC_AMOUNT, 2_000]
    assert table.allocatable(PODS)[:2].tolist() == [10, 10]
    assert table.node(0).allocatable[MEMORY] == 1_000, "as the API has it"


def test_malformed_node_offers_nothing_although_its_unit_is_elastic() -> None:
    cache = domain(node("n", ELASTIC, malformed="status.allocatable: nonsense")).cache
    assert cache.nodes.allocatable(CPU)[0] == 0


def test_heartbeat_of_an_elastic_node_changes_no_row() -> None:
    cache = domain(node("n", ELASTIC)).cache
    before = cache.nodes.version(0)
    cache.set_node(node("n", ELASTIC, version=7))
    assert cache.nodes.version(0) == before
    assert cache.nodes.node(0).elastic == {CPU, MEMORY}


def test_pod_that_waits_for_resources_is_queued_for_an_elastic_node() -> None:
    (registration,) = (one for one in NodeResourcesFit().events_to_register() if "Node" in one.event.label)
    cache = domain(node("n", ELASTIC, cpu_milli=0), node("own", {}, cpu_milli=0)).cache
    elastic, limited = cache.nodes.node(0), cache.nodes.node(1)
    waiting: Pod = make_pod("p", make_spec(5_000))
    assert registration.hint is not None
    assert registration.hint(waiting, None, elastic) is Hint.QUEUE
    assert registration.hint(waiting, limited, elastic) is Hint.QUEUE
    assert registration.hint(waiting, None, limited) is Hint.SKIP
    assert "NodeUpdateNodeAllocatable" in [event.label for event in node_events(limited, elastic)]


def test_ledger_that_fails_makes_no_node_elastic() -> None:
    class Failing(Tickets):
        def elastic(self, node: Node) -> frozenset[str]:
            raise RuntimeError("it fails")

    cache = ClusterCache()
    cache.ledgers.register(Failing())
    cache.set_node(node("n", ELASTIC))
    assert cache.nodes.node(0).elastic == frozenset()
    assert "tickets" in cache.ledgers.broken
