"""What a copy of a cluster is made of: a running program's knowledge, or what kubectl printed; and that it touches nothing."""

from __future__ import annotations

import gc
from datetime import timedelta
from typing import Any

import msgspec
import orjson
import pytest

from multisched.config import loading
from multisched.config.plugins import plugin_registry
from multisched.cycle.effort import Effort
from multisched.framework.pod_group import PodGroup
from multisched.framework.registry import Registry
from multisched.framework.status import Status
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Pod
from multisched.model.wire import ConnectFailedError, Response
from multisched.observe.explain_view import ExplainQuery
from multisched.state.cluster_cache import PlacedPod
from multisched.testing.builders import make_node, make_pod, node_document
from multisched.whatif.sandbox import (
    EVALUATIONS_MAX,
    UNREADABLE_SHOWN,
    ClusterSnapshot,
    DumpedCluster,
    SchedulerSandbox,
    trial,
)
from tests.kit import definitions
from tests.unit.plugins.quota.trees import leaf
from tests.unit.plugins.quota.trees import node as level
from tests.unit.shell.program_kit import CONFIGURATION, Cluster, play
from tests.unit.whatif.clusters import CONFIGURATION as DUMPED
from tests.unit.whatif.clusters import NOW, configuration, dump_of, small_pod

TREES = "/apis/scheduling.sigs.k8s.io/v1beta1/namespaces/kube-system/elasticquotatrees"
TREE = ObjectKind.ELASTIC_QUOTA_TREE


def dumped(*documents: Any) -> DumpedCluster:
    return DumpedCluster([msgspec.Raw(orjson.dumps(document)) for document in documents], NOW, 7.0)


def test_dump_contains_nodes_pods_objects_and_classes() -> None:
    promised = small_pod("promised")
    promised["status"]["nominatedNodeName"] = "n1"
    ended = small_pod("ended", node="n1")
    ended["status"]["phase"] = "Succeeded"
    claim = {"kind": "PersistentVolumeClaim", "metadata": {"name": "data", "namespace": "default", "uid": "c"}}
    cluster = dumped(
        node_document("n1"),
        small_pod("stands", node="n1"),
        ended,
        promised,
        claim,
        {"kind": "PriorityClass", "metadata": {"name": "high"}, "value": 1000},
        {"kind": "Deployment", "metadata": {"name": "passed-over"}},
    )
    sandbox = SchedulerSandbox(configuration(), cluster)
    assert [node.name for _, node in sandbox.cache.nodes.live_rows()] == ["n1"]
    assert [entry.pod.name for entry in sandbox.cache] == ["stands"]
    assert list(sandbox.pending) == [("default", "promised")]
    assert [(pod.name, pod.nominated_node) for pod in sandbox.nominator.pods()] == [("promised", "n1")]
    assert sandbox.cache.objects.claim("default", "data") is not None
    assert [(one.name, one.value) for one in sandbox.classes or ()] == [("high", 1000)]
    assert sandbox.notes == ()
    clock = sandbox.program.clock
    assert (clock.monotonic(), clock.now()) == (7.0, NOW)


def test_nominated_pod_with_a_quota_keeps_its_node() -> None:
    """As in the program that nominated it; a dump says no more than the node's name."""
    claim, plain = small_pod("claim"), small_pod("plain")
    for pod in (claim, plain):
        pod["status"]["nominatedNodeName"] = "n1"
    claim["metadata"]["namespace"] = "team"
    bounds = {"min": {"cpu": 8}, "max": {"cpu": 8}}
    tree = {
        "apiVersion": "scheduling.sigs.k8s.io/v1beta1",
        "kind": "ElasticQuotaTree",
        "metadata": {"name": "tree", "namespace": "kube-system", "uid": "t"},
        "spec": {"root": {"name": "root", **bounds, "children": [{"name": "a", **bounds, "namespaces": ["team"]}]}},
    }
    sandbox = SchedulerSandbox(configuration(), dumped(node_document("n1"), claim, plain, tree))
    urgent = make_pod("urgent", priority=1_000)
    assert [one.name for one in sandbox.nominator.ahead_on("n1", urgent)] == ["claim"]


@pytest.mark.parametrize("count", [1, UNREADABLE_SHOWN, UNREADABLE_SHOWN + 1, UNREADABLE_SHOWN + 5])
def test_number_of_listed_unreadable_objects_is_limited(count: int) -> None:
    broken = [{"kind": "Node", "metadata": {"name": 7}} for _ in range(count)]
    notes = SchedulerSandbox(configuration(), dumped(node_document("n1"), *broken)).notes
    told = [note for note in notes if note.startswith("an object of the dump cannot be read: ")]
    assert len(told) == min(count, UNREADABLE_SHOWN)
    more = count - UNREADABLE_SHOWN
    assert list(notes[len(told) :]) == ([f"{more} more objects of the dump cannot be read"] if more > 0 else [])


def test_incomplete_dump_names_the_missing_kind() -> None:
    empty = SchedulerSandbox(configuration(), dumped(small_pod("p")))
    assert empty.classes is None
    assert empty.notes == (
        "the dump has no nodes; write one with kubectl get nodes,pods,namespaces,pv,pvc,sc,csinodes -A -o json",
    )


def test_object_of_a_dump_is_identified_with_its_group() -> None:
    def service(name: str, **version: str) -> dict[str, Any]:
        return {"kind": "Service", **version, "metadata": {"name": name, "namespace": "default", "uid": name}}

    documents = service("core", apiVersion="v1"), service("other", apiVersion="serving.example/v1"), service("bare")
    sandbox = SchedulerSandbox(configuration(), dumped(node_document("n1"), *documents))
    assert [one.name for one in sandbox.cache.objects.services("default")] == ["core", "bare"]


async def test_sandbox_uses_no_network() -> None:
    transport = SchedulerSandbox(configuration(), dumped(node_document("n1"))).program.transport
    with pytest.raises(ConnectFailedError, match=r"^DELETE /api/v1/pods: a sandbox has no network$"):
        await transport.request("DELETE", "/api/v1/pods")
    with pytest.raises(ConnectFailedError, match=r"^/api/v1/pods: a sandbox has no network$"):
        async with transport.stream("/api/v1/pods"):
            pass


def test_snapshot_has_the_state_of_its_moment() -> None:
    async def prepare(cluster: Cluster) -> None:
        for name in ("a", "b"):
            await cluster.add_node(name, cpu="4")
        cluster.transport.answer = lambda method, path: (
            Response(403, b"", {}) if "csistoragecapacities" in path else None
        )

    async def scene(cluster: Cluster) -> None:
        program = cluster.program
        await cluster.send("POST", "/api/v1/namespaces", {"kind": "Namespace", "metadata": {"name": "team"}})
        await cluster.add_pod("stands", scheduler="another")
        await cluster.bind("stands", "a")
        await cluster.add_pod("late", cpu="64")
        await cluster.settle()
        cluster.transport.bind_s = 60.0
        await cluster.add_pod("going", cpu="3")
        await cluster.settle(2.0)
        snapshot = ClusterSnapshot.of(program)
        assert sorted(node.name for node in snapshot.nodes) == ["a", "b"]
        assert sorted((pod.name, pod.node) for pod in snapshot.placed) == [
            ("going", cluster.placed["going"]),
            ("stands", "a"),
        ]
        assert sorted(pod.name for pod in snapshot.pending) == ["going", "late"]
        assert "team" in {item.name for kind, item in snapshot.objects if kind is ObjectKind.NAMESPACE}
        assert (snapshot.monotonic_s, snapshot.now) == (program.clock.monotonic(), program.clock.now())
        assert [kind for kind, why in snapshot.unreadable if why] == [ObjectKind.CSI_STORAGE_CAPACITY]
        late = program.pods.pending[program.pods.uid_of("default/late")]
        program.nominator.nominate(late, "b")
        again = ClusterSnapshot.of(program)
        assert [(pod.name, pod.nominated_node) for pod in again.nominated] == [("late", "b")]
        assert snapshot.nominated == ()

        copy = SchedulerSandbox(loading.parse(CONFIGURATION, "test"), again)
        assert {entry.pod.name: entry.node for entry in copy.cache} == cluster.placed
        assert set(copy.pending) == {("default", "going"), ("default", "late")}
        assert [(pod.name, pod.nominated_node) for pod in copy.nominator.pods()] == [("late", "b")]
        assert copy.cache.objects.unreadable(ObjectKind.CSI_STORAGE_CAPACITY)
        assert copy.cache.objects.namespace("team") is not None
        before = program.clock.now()
        await cluster.settle(1.0)
        assert copy.program.clock.now() == before == program.clock.now() - timedelta(seconds=1)

        # Its promise has ended in the program, and the API server has not been told yet.
        unpromised = msgspec.structs.replace(
            again, nominated=(), pending=(msgspec.structs.replace(late, nominated_node="b"),)
        )
        assert not list(SchedulerSandbox(loading.parse(CONFIGURATION, "test"), unpromised).nominator.pods())

    play(scene, prepare=prepare)


@pytest.mark.parametrize(
    ("pod", "fits"),
    [
        (small_pod("late"), True),
        (small_pod("late", cpu="64"), False),
        (small_pod("late", schedulingGates=[{"name": "hold"}]), False),
        (small_pod("late", overhead={"cpu": "lots"}), False),
        (small_pod("late", resourceClaims=[{"name": "device", "resourceClaimName": "d"}]), False),
    ],
    ids=["with room", "without room", "gated", "malformed", "unsupported"],
)
def test_sandbox_places_a_pod_like_the_program_without_a_trace(pod: Any, fits: bool) -> None:
    sandbox = SchedulerSandbox(configuration(), dumped(node_document("n1"), pod))
    late = sandbox.pending["default", "late"]
    worker = sandbox.worker_of(late)
    assert worker is not None
    for _ in range(2):
        assert sandbox.fits(worker, late) == ("n1" if fits else None)
        assert sandbox.cache.placed(late.uid) is None


def test_attempt_in_a_sandbox_pauses_by_evaluations_since_its_clock_stands_still() -> None:
    """By the clock each evaluation after the first pause would be a step, and long searches for victims would be given up early."""
    sandbox = SchedulerSandbox(configuration(), dumped(node_document("n1"), small_pod("late")))
    (worker,) = sandbox.program.router.workers()
    effort = Effort(worker.cycle._budget)
    pauses = [effort.is_pause_due() for _ in range(3 * (EVALUATIONS_MAX + 1))]
    assert pauses == [*[False] * EVALUATIONS_MAX, True] * 3


class Closed:
    """Lets nobody into the queue."""

    name = "Closed"

    def pre_enqueue(self, pod: Pod) -> Status:
        return Status.unschedulable("closed")


def test_sandbox_builds_plugins_like_the_program() -> None:
    """Whoever runs a program may give it other plugins than those that ship."""
    registry, shipped = Registry(), plugin_registry()
    for name in shipped.names():
        registry.add(name, Closed if name == "SchedulingGates" else shipped.factory(name), "test")
    sandbox = SchedulerSandbox(configuration(), dumped(node_document("n1"), small_pod("late")), registry)
    late = sandbox.pending["default", "late"]
    worker = sandbox.worker_of(late)
    assert worker is not None
    assert sandbox.gate(worker, late) == Status.unschedulable("closed").by("Closed")


def test_remote_plugins_are_named_and_not_called() -> None:
    extender = "extenders: [{urlPrefix: 'http://127.0.0.1:1', filterVerb: filter}]"
    text = DUMPED.replace("nodes:", f"{extender}, nodes:")
    dump = dump_of(node_document("n1"), small_pod("late"), configured=loading.parse(text, "test"))
    view = dump.pod(ExplainQuery("default", "late"))
    assert view.notes == ("Extender would have sent a request; its response is not known here",)
    assert view.now is not None
    assert (view.now.outcome, view.now.node) == ("placed", "n1")
    plain = dump_of(node_document("n1"), small_pod("late")).pod(ExplainQuery("default", "late"))
    assert plain.notes == ()


def test_kept_deleted_tree_is_in_force_in_the_copy_as_in_the_program() -> None:
    def deleted(cluster: Cluster) -> list[str]:
        return [one.key for kind, one in ClusterSnapshot.of(cluster.program).removed if kind is TREE]

    async def prepare(cluster: Cluster) -> None:
        for name in ("elasticquotatrees", "elasticquotas-scheduler-plugins"):
            await cluster.send("POST", definitions.PATH, definitions.definition(name))
        root = level("root", {"cpu": 4}, {"cpu": 4}, leaf("web", 1, 4, "default"))
        await cluster.send("POST", TREES, {"metadata": {"name": "tree"}, "spec": {"root": root}})

    async def scene(cluster: Cluster) -> None:
        await cluster.send("DELETE", f"{TREES}/tree")
        await cluster.settle()
        assert deleted(cluster) == ["kube-system/tree"]
        quotas = "/apis/scheduling.x-k8s.io/v1alpha1/namespaces/default/elasticquotas"
        await cluster.send("POST", quotas, {"metadata": {"name": "quota"}, "spec": {"max": {"cpu": "1"}}})
        await cluster.settle()
        await cluster.send("DELETE", f"{quotas}/quota")
        await cluster.settle()
        assert deleted(cluster) == []

    play(scene, prepare=prepare)


def test_trial_frees_its_pods_without_a_garbage_collection() -> None:
    """A collection would free them in one go, and stop all threads of the program for as long."""
    pods = tuple(make_pod(f"p{number}", node="n1", labels={"number": str(number)}) for number in range(50))
    snapshot = ClusterSnapshot((make_node("n1", pods=100),), pods)
    gc.collect()
    before = copies_alive()
    with trial(configuration(), snapshot, None) as sandbox:
        assert not gc.isenabled(), "a collection would read the whole copy"
        assert copies_alive() - before == 2 * len(pods)
        assert sandbox.cache.placed(pods[0].uid) is not None
    assert gc.isenabled()
    gc.disable()
    try:
        assert copies_alive() == before
    finally:
        gc.enable()


def copies_alive() -> int:
    """Objects that each cache has per pod with labels of its own."""
    return sum(isinstance(one, PlacedPod | PodGroup) for one in gc.get_objects())
