"""SchedulingGates, the queue sorts, DefaultBinder, and the table of in-tree plugins."""

from __future__ import annotations

from itertools import permutations

import msgspec
import pytest

from multisched.config.kube.points import DEFAULT_PLUGINS
from multisched.framework.caching import SignPlugin
from multisched.framework.dependency import Dependency
from multisched.framework.events import Action, Hint, Resource
from multisched.framework.points import FilterPlugin, Plugin, QueuedPod, QueueSortPlugin, ScorePlugin
from multisched.framework.ports import BindAnswer, BindReply, BindRequest, PodTruth
from multisched.framework.registry import EXTENSION_POINTS, PluginSetupError, PluginUse, Registry, extension_points
from multisched.framework.status import Code
from multisched.model.objects import Pod
from multisched.plugins import IN_TREE
from multisched.plugins.default_binder import DefaultBinder
from multisched.plugins.priority_sort import PrioritySort
from multisched.plugins.qos_sort import QOSSort
from multisched.plugins.scheduling_gates import SchedulingGates
from multisched.testing.builders import container, decode_pod, pod_document
from tests.unit.plugins.scenes import context_of


def test_gated_pods_report_their_gates() -> None:
    gated = decode_pod(pod_document("p", schedulingGates=[{"name": "a.io/one"}, {"name": "b.io/two"}]))
    status = SchedulingGates().pre_enqueue(gated)

    assert (status.code, status.message) == (
        Code.UNSCHEDULABLE_AND_UNRESOLVABLE,
        "waiting for scheduling gates: [a.io/one b.io/two]",
    )
    assert SchedulingGates().pre_enqueue(decode_pod(pod_document("p"))).is_success


def test_removed_gates_requeue_the_pod() -> None:
    (registration,) = SchedulingGates().events_to_register()
    pod, other = decode_pod(pod_document("p")), decode_pod(pod_document("q"))

    assert (registration.event.resource, registration.event.action) == (Resource.TARGET_POD, Action.UPDATE_POD_GATES)
    assert registration.hint is not None
    assert registration.hint(pod, pod, pod) is Hint.QUEUE
    assert registration.hint(pod, other, other) is Hint.SKIP


def queued(name: str, priority: int, queued_s: float, qos: str = "none") -> QueuedPod:
    requests = {} if qos == "none" else {"cpu": "1", "memory": "1Gi"}
    box = {**container(), "resources": {"requests": requests, "limits": requests if qos == "all" else {}}}
    pod = decode_pod(pod_document(name, box, priority=priority))
    return QueuedPod(pod, queued_s)


def order(sort: QueueSortPlugin, entries: list[QueuedPod]) -> set[tuple[str, ...]]:
    return {
        tuple(entry.pod.name for entry in sorted(shuffled, key=sort.sort_key)) for shuffled in permutations(entries)
    }


def test_priority_sort_orders_by_priority_then_time() -> None:
    entries = [
        queued("late-guaranteed", 5, 3, "all"),
        queued("early", 5, 1),
        queued("high", 6, 9),
        queued("low", -1, 0),
    ]
    assert order(PrioritySort(), entries) == {("high", "early", "late-guaranteed", "low")}


def test_qos_sort_orders_by_priority_then_qos_then_time() -> None:
    entries = [
        queued("best-effort", 5, 0),
        queued("burstable", 5, 1, "some"),
        queued("guaranteed", 5, 3, "all"),
        queued("earlier-guaranteed", 5, 2, "all"),
        queued("high", 6, 9),
    ]
    assert order(QOSSort(), entries) == {("high", "earlier-guaranteed", "guaranteed", "burstable", "best-effort")}


class RecordingBinder:
    """A Binder that answers with what it is told to."""

    def __init__(self, reply: BindReply) -> None:
        self.reply = reply
        self.posted: list[tuple[BindRequest, float]] = []

    async def post(self, request: BindRequest, *, timeout_s: float) -> BindReply:
        self.posted.append((request, timeout_s))
        return self.reply

    async def read(self, namespace: str, name: str, *, timeout_s: float) -> PodTruth | None:
        return None


@pytest.mark.parametrize("outcome", BindAnswer)
async def test_default_binder_posts_once_and_returns_the_reply(outcome: BindAnswer) -> None:
    binder = RecordingBinder(BindReply(outcome))
    request = BindRequest("default", "p", "uid-p", "n0")

    assert await DefaultBinder().bind(binder, request, timeout_s=3.0) == BindReply(outcome)
    assert binder.posted == [(request, 3.0)]


def in_tree() -> dict[str, Plugin]:
    registry = Registry()
    registry.add_all(IN_TREE, "in-tree")
    return {name: registry.build(PluginUse(name), context_of()) for name in IN_TREE}


def test_every_in_tree_plugin_is_built_under_its_own_name_and_can_be_cached() -> None:
    assert IN_TREE.keys() - DEFAULT_PLUGINS.keys() == {"ElasticQuota", "GangScheduling", "QOSSort"}
    for name, plugin in in_tree().items():
        assert plugin.name == name
        assert extension_points(plugin), EXTENSION_POINTS
        if isinstance(plugin, FilterPlugin | ScorePlugin):
            assert isinstance(plugin, SignPlugin)
            assert plugin.depends_on is not Dependency.ATTEMPT


def test_bad_args_are_reported_with_plugin_and_path() -> None:
    registry = Registry()
    registry.add_all(IN_TREE, "in-tree")
    with pytest.raises(ValueError, match=r"args\.scoringStrategy\.typ: unknown field; did you mean type\?"):
        registry.factory("NodeResourcesFit")(args={"scoringStrategy": {"typ": "MostAllocated"}})
    with pytest.raises(PluginSetupError, match="did you mean NodePorts"):
        registry.factory("NodePort")


def test_signatures_are_equal_exactly_if_results_must_be() -> None:
    def signatures(pod: Pod) -> list[object]:
        return [plugin.sign(pod) for plugin in in_tree().values() if isinstance(plugin, SignPlugin)]

    pod = decode_pod(pod_document("p", container(cpu="100m")))
    same = decode_pod(pod_document("q", container(cpu="100m")))
    assert signatures(pod) == signatures(same)
    others = [
        pod_document("p", container(cpu="101m")),
        pod_document("p", container(cpu="100m", ports=[{"hostPort": 80}])),
        pod_document("p", container(image="other:v1", cpu="100m")),
        pod_document("p", container(cpu="100m"), tolerations=[{"operator": "Exists"}]),
        pod_document("p", container(cpu="100m"), nodeSelector={"a": "b"}),
        pod_document("p", container(cpu="100m"), resources={"requests": {"cpu": "100m", "memory": "1Gi"}}),
        pod_document("p", container(cpu="100m"), volumes=[{"name": "v", "image": {"reference": "a:b"}}]),
        pod_document("p", container(cpu="100m"), volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]),
        pod_document("p", container(cpu="100m"), hostNetwork=True, hostUsers=False),
    ]
    assert all(signatures(decode_pod(other)) != signatures(pod) for other in others)
    assert signatures(msgspec.structs.replace(pod, node="n0")) != signatures(pod)
