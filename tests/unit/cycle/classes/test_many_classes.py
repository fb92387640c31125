"""Classes where nearly every workload is another one: many small services, and pods that can go to one node each."""

from __future__ import annotations

import orjson
import pytest

from multisched.cycle.classes import cache
from multisched.framework.points import QueuedPod
from multisched.model.decode import Decoder
from tests.perf.core_bench import Core
from tests.perf.relations_bench import free_hosts, is_placed, waiting_pods
from tests.perf.shapes import BY_NAME, REPLICAS

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
def test_the_replicas_of_a_service_are_of_one_class_once_they_stand_apart(shape: str) -> None:
    core = a_core()
    placed(core, shape, SERVICES * REPLICAS)
    classes = core.cycle.classes
    # The very first pod was asked about before any placed pod's term looked at its label.
    assert (classes.misses, classes.hits) == (SERVICES + 1, SERVICES * (REPLICAS - 1) - 1)


def test_classes_are_weighed_by_their_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of these takes more than the rows it is for: no more than fit are kept, the latest of them."""
    monkeypatch.setattr(cache, "CLASS_BYTES_MAX", 10 * (cache.BYTES_PER_CLASS + 30 * NODES))
    core = a_core()
    placed(core, "services", SERVICES * REPLICAS)
    assert core.cycle.classes.hits == 0


def test_a_pod_that_can_go_to_one_node_is_neither_scored_nor_remembered_as_a_class() -> None:
    core = a_core()
    document = next(iter(BY_NAME["daemonset"].pods(1, "forecast-scheduler")))
    term = document["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    term["nodeSelectorTerms"][0]["matchFields"][0]["values"] = ["node-000007"]
    document["metadata"] |= {"namespace": "bench", "uid": "daemon"}
    pod = Decoder().pod(orjson.dumps(document))
    assert is_placed(core, QueuedPod(pod, 0.0, 1))
    assert [one.uid for one in core.cache.nodes.pods_on(7)] == ["daemon"]
    (record,) = core.cycle.records.read("daemon")
    assert record.snapshot is not None
    assert record.snapshot.scores == ()
    core.cycle.classes.find(pod, 2)
    assert (core.cycle.classes.hits, core.cycle.classes.misses) == (0, 2)
