"""Classes where nearly every workload is another one: many small services, and pods that can go to one node each."""

from __future__ import annotations

import orjson
import pytest

from multisched.cycle.attempt_record import ATTEMPTS_KEPT
from multisched.cycle.classes import cache
from multisched.cycle.results import Conflicted, Placed
from multisched.framework.points import QueuedPod
from multisched.model.decode import Decoder
from multisched.model.objects import Pod
from multisched.testing.builders import make_node, make_pod
from tests.perf.core_bench import Core
from tests.perf.relations_bench import free_hosts, is_placed, waiting_pods
from tests.perf.shapes import BY_NAME, REPLICAS
from tests.unit.cycle.cycle_kit import Domain, ScoreBy
from tests.unit.state.state_kit import NamespaceRoom

NODES = 40
SERVICES = 12


def placed(core: Core, shape: str, count: int) -> None:
    for pod in waiting_pods(BY_NAME[shape], count, Decoder()):
        assert is_placed(core, QueuedPod(pod, 0.0, 1))


def a_core() -> Core:
    core = Core("forecast", NODES, Decoder(), pods_before=0)
    free_hosts(core, alike=True)
    return core


@pytest.mark.parametrize("shape", ["services", "services-hard"])
def test_replicas_of_a_service_share_one_class_once_they_are_placed(shape: str) -> None:
    core = a_core()
    placed(core, shape, SERVICES * REPLICAS)
    classes = core.cycle.classes
    # The very first pod was asked about before any placed pod's term looked at its label.
    assert (classes.misses, classes.hits) == (SERVICES + 1, SERVICES * (REPLICAS - 1) - 1)


def test_class_size_is_that_of_its_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of these takes more than the rows it is for: no more than fit are kept, the latest of them."""
    monkeypatch.setattr(cache, "CLASS_BYTES_MAX", 10 * (cache.BYTES_PER_CLASS + 30 * NODES))
    core = a_core()
    placed(core, "services", SERVICES * REPLICAS)
    assert core.cycle.classes.hits == 0


def daemon(node: str, **requests: str) -> Pod:
    """As the DaemonSet controller makes it for this node."""
    document = next(iter(BY_NAME["daemonset"].pods(1, "forecast-scheduler")))
    term = document["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    term["nodeSelectorTerms"][0]["matchFields"][0]["values"] = [node]
    document["spec"]["containers"][0]["resources"]["requests"] |= requests
    document["metadata"] |= {"namespace": "bench", "uid": "daemon"}
    return Decoder().pod(orjson.dumps(document))


def test_pod_with_one_possible_node_is_not_scored_and_gets_no_class() -> None:
    core = a_core()
    assert is_placed(core, QueuedPod(daemon("node-000007"), 0.0, 1))
    assert [one.uid for one in core.cache.nodes.pods_on(7)] == ["daemon"]
    (record,) = core.cycle.records.read("daemon")
    assert record.snapshot is not None
    assert record.snapshot.scores == ()
    classes = core.cycle.classes
    assert (classes.hits, classes.misses) == (0, 0)
    classes.find(daemon("node-000008"), 1)
    classes.find(daemon("node-000008"), 2)
    assert (classes.hits, classes.misses) == (0, 2), "nor is it remembered where it is looked for"


@pytest.mark.parametrize(("node", "why"), [
    ("node-000007", "1 Insufficient cpu"),
    ("elsewhere", "node(s) didn't satisfy plugin(s) [NodeAffinity]"),
])  # fmt: skip
def test_pod_refused_by_its_only_node_is_diagnosed_as_usual(node: str, why: str) -> None:
    core = a_core()
    assert not is_placed(core, QueuedPod(daemon(node, cpu="1000"), 0.0, 1))
    (record,) = core.cycle.records.read("daemon")
    assert why in record.message


@pytest.mark.parametrize("is_nominated", [False, True], ids=["the node it names", "the node promised to it"])
def test_pod_refused_by_a_ledger_on_its_only_node_is_recorded_once(*, is_nominated: bool) -> None:
    domain = Domain(make_node("a"), make_node("b"), in_tree=("NodeAffinity", "NodeResourcesFit"))
    domain.cache.ledgers.register(NamespaceRoom(500))
    pod = make_pod("urgent", cpu_milli=600) if is_nominated else daemon("a", cpu="600m")
    if is_nominated:
        domain.nominator.nominate(pod, "a")
    for attempt in range(1, ATTEMPTS_KEPT + 1):
        assert isinstance(domain.schedule(pod, attempt), Conflicted), "so that it is tried again"
    records = domain.cycle.records.read(pod.uid)
    assert [(one.attempt, one.passed_over) for one in records] == [(n + 1, ("a",)) for n in range(ATTEMPTS_KEPT)]
    assert domain.cycle.classes.misses == 0


def test_named_node_is_one_of_many_without_a_node_affinity_plugin() -> None:
    likes_b = ScoreBy("LikesB", lambda pod, node: 100 * (node == "b"))
    domain = Domain(*(make_node(name) for name in ("a", "b")), plugins=[likes_b], in_tree=("NodeResourcesFit",))
    result = domain.schedule(daemon("a"))
    assert isinstance(result, Placed)
    assert result.node == "b"
