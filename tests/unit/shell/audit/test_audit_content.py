"""What a pod or a node holds in the cache, against what the API shows of the very same version."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import orjson
import pytest
from hypothesis import settings

from multisched.model.decode import Decoder
from multisched.model.objects import Node, Pod
from multisched.model.quotas.koordinator import POD_LABEL
from multisched.shell.audit.audited_kinds import AuditedNodes, AuditedPods, CachedObject
from multisched.shell.audit.content import node_fault, pod_fault
from multisched.shell.program import RUNNING_PODS
from multisched.state.cluster_cache import PodState
from tests.conformance.generate import FAMILIES, problem
from tests.unit.model.documents import Document, container, node_document, pod_document
from tests.unit.model.test_decoder_bounds import OVER, REQUIRED, term
from tests.unit.shell.program_kit import Cluster, play

RESIZED = {
    "containerStatuses": [
        {"name": "c", "resources": {"requests": {"cpu": "3"}}, "allocatedResources": {"cpu": "2500m"}},
    ]
}
PODS: dict[str, Document] = {
    "plain": pod_document(container(cpu="1500m", memory="1Gi")),
    "without requests": pod_document(container()),
    "odd amounts": pod_document(container(**{"cpu": "0.5", "memory": "1e3", "nvidia.com/gpu": "2", "bare": "7"})),
    "rounded up": pod_document(container(cpu="1n", memory="100m")),
    "overhead": pod_document(container(cpu="1"), overhead={"cpu": "250m"}),
    "init containers": pod_document(
        container(cpu="1"),
        initContainers=[container("i", cpu="3"), container("s", cpu="1") | {"restartPolicy": "Always"}],
    ),
    "pod level": pod_document(container(cpu="1"), resources={"requests": {"cpu": "4"}}),
    "being resized": pod_document(container(cpu="2"), nodeName="n", status=RESIZED),
    "a sidecar being resized": pod_document(
        container(cpu="1"),
        initContainers=[container("s", cpu="2") | {"restartPolicy": "Always"}],
        nodeName="n",
        status={"initContainerStatuses": [{"name": "s", "allocatedResources": {"cpu": "1"}}]},
    ),
    "to be resized": pod_document(
        container(cpu="2"),
        nodeName="n",
        status={"conditions": [{"type": "PodResizePending", "status": "True", "reason": "Deferred"}]},
    ),
    "ports": pod_document(
        container() | {"ports": [{"hostPort": 80, "hostIP": "0.0.0.0"}, {"hostPort": 81, "hostIP": "10.0.0.1"}]},
        initContainers=[container("s") | {"restartPolicy": "Always", "ports": [{"hostPort": 9, "protocol": "UDP"}]}],
    ),
    "terms": pod_document(
        affinity={"podAntiAffinity": {REQUIRED: [term(), term()]}, "podAffinity": {REQUIRED: [term()]}}
    ),
    "claims": pod_document(
        volumes=[
            {"name": "v", "persistentVolumeClaim": {"claimName": "c"}},
            {"name": "e", "ephemeral": {}},
            {"name": "x"},
        ]
    ),
    "labels": pod_document(metadata={"labels": {"app": "web"}}),
    **{f"too many {name}": pod_document(nodeName="n", **spec) for name, (spec, _) in OVER.items()},
}


def decoded(document: Document) -> tuple[Pod, bytes]:
    raw = orjson.dumps(document)
    return Decoder().pod(raw), raw


@pytest.mark.parametrize("document", PODS.values(), ids=PODS)
def test_decoder_and_judge_read_equal_content(document: Document) -> None:
    assert pod_fault(*decoded(document)) == ""


@pytest.mark.parametrize("family", FAMILIES)
def test_decoder_and_judge_read_random_objects_equally(family: str) -> None:
    for seed in range(settings().max_examples // 5):
        made = problem(family, 7_000 + seed)
        for document in made["pods"]:
            assert pod_fault(*decoded(document)) == ""
        for document in made["nodes"]:
            raw = orjson.dumps(document)
            assert node_fault(Decoder().node(raw), raw) == ""


CHANGED: dict[str, tuple[Callable[[Document], Any], str]] = {
    "size": (lambda d: d["spec"]["containers"][0]["resources"].update(requests={"cpu": "7"}), "requests"),
    "port": (lambda d: d["spec"]["containers"][0].update(ports=[{"hostPort": 81}]), "ports"),
    "label": (lambda d: d["metadata"].update(labels={"app": "other"}), "labels"),
    "term": (lambda d: d["spec"]["affinity"].pop("podAffinity"), "affinity_terms 2 in the cache, 0 in the API"),
    "anti term": (
        lambda d: d["spec"]["affinity"].pop("podAntiAffinity"),
        "anti_affinity_terms 1 in the cache, 0 in the API",
    ),
    "claim": (lambda d: d["spec"].pop("volumes"), "claims"),
}


@pytest.mark.parametrize(("change", "told"), CHANGED.values(), ids=CHANGED)
def test_content_difference_is_reported_with_both_sides(change: Callable[[Document], Any], told: str) -> None:
    document = pod_document(
        container(cpu="1") | {"ports": [{"hostPort": 80}]},
        metadata={"labels": {"app": "web"}},
        affinity={"podAntiAffinity": {REQUIRED: [term()]}, "podAffinity": {REQUIRED: [term(), term()]}},
        volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}],
    )
    pod, _ = decoded(document)
    change(document)
    fault = pod_fault(pod, orjson.dumps(document))
    assert fault.startswith(told)
    assert "in the API" in fault


MORE = {"requests": {"cpu": "3"}}
GIVEN: dict[str, tuple[dict[str, Any], bool]] = {
    "nothing told": ({}, False),
    "as asked for": (
        {
            "containerStatuses": [
                {"name": "c", "resources": {"requests": {"cpu": "2"}}, "allocatedResources": {"cpu": "2"}}
            ]
        },
        False,
    ),
    "container given more": ({"containerStatuses": [{"name": "c", "resources": MORE}]}, True),
    "container promised more": ({"containerStatuses": [{"name": "c", "allocatedResources": {"cpu": "3"}}]}, True),
    "init container given more": ({"initContainerStatuses": [{"name": "s", "resources": MORE}]}, True),
    "one of two": ({"containerStatuses": [{"name": "c"}, {"name": "d", "resources": MORE}]}, True),
    "pod given more": ({"resources": MORE}, True),
    "pod promised more": ({"allocatedResources": {"cpu": "3"}}, True),
    "resize that waits": ({"conditions": [{"type": "Ready"}, {"type": "PodResizePending"}]}, True),
    "other condition": ({"conditions": [{"type": "Ready"}]}, False),
}


@pytest.mark.parametrize(("status", "is_resized"), GIVEN.values(), ids=GIVEN)
def test_pod_requests_are_compared_unless_being_resized(status: dict[str, Any], is_resized: bool) -> None:
    document = pod_document(
        container(cpu="2"),
        container("d", cpu="1"),
        initContainers=[container("s", cpu="1") | {"restartPolicy": "Always"}],
        status=status,
    )
    smaller, _ = decoded(pod_document(container(cpu="1")))
    fault = pod_fault(smaller, orjson.dumps(document))
    assert fault == ("" if is_resized else "requests {'cpu': 1000} in the cache, {'cpu': 4000} in the API")


def test_unreadable_content_is_no_difference() -> None:
    pod, _ = decoded(pod_document(container(cpu="1")))
    assert pod_fault(pod, orjson.dumps(pod_document(container(cpu="lots")))) == ""
    assert pod_fault(pod, b"[]") == ""


def _node(**spec: Any) -> tuple[Node, bytes]:
    document = node_document({"labels": {"zone": "a"}}, cpu="4", memory="8Gi", **{"nvidia.com/gpu": "2"}) | {
        "spec": spec
    }
    raw = orjson.dumps(document)
    return Decoder().node(raw), raw


def test_nodes_are_compared_by_labels_taints_and_allocatable() -> None:
    taint = {"key": "k", "value": "v", "effect": "NoSchedule"}
    node, raw = _node(taints=[taint], unschedulable=True)
    assert node_fault(node, raw) == ""
    assert "taints" in node_fault(node, _node(unschedulable=True)[1])
    assert "is_unschedulable" in node_fault(node, _node(taints=[taint])[1])
    assert "allocatable" in node_fault(node, raw.replace(b'"cpu":"4"', b'"cpu":"5"'))
    assert "labels" in node_fault(node, raw.replace(b'"zone":"a"', b'"zone":"b"'))


async def _prepare(cluster: Cluster) -> None:
    await cluster.add_node("a")
    await cluster.add_pod("p", cpu="2")


@pytest.mark.parametrize("is_assumed", [True, False])
def test_audit_repairs_a_pod_counted_with_another_size(is_assumed: bool) -> None:
    """As one that was resized while it was assumed once did."""

    async def scene(cluster: Cluster) -> None:
        cache, audit = cluster.program.cache, cluster.program.audit
        (entry,) = cache
        small = Decoder().pod(orjson.dumps(pod_document(container(cpu="1"), nodeName="a")))
        shrunk = msgspec.structs.replace(entry.pod, spec=small.spec)
        if is_assumed:
            pending = msgspec.structs.replace(shrunk, node="")
            cache.remove(shrunk.uid)
            cache.assume(pending, 0)
            cluster.transport.said = lambda text: text.replace(b'"nodeName":"a"', b'"nodeName":""')
            cluster.program.pods.pending[shrunk.uid] = pending  # type: ignore[index]
        else:
            cache.place(shrunk)
        assert int(cache.nodes.requested("cpu")[0]) == 1000
        found = await audit.once()
        assert [one.kind for one in found] == ["pod"]
        assert "requests {'cpu': 1000} in the cache, {'cpu': 2000} in the API" in found[0].what
        assert int(cache.nodes.requested("cpu")[0]) == 2000
        assert await audit.once() == []
        if is_assumed:
            assert cache.placed(shrunk.uid) is not None
            assert cache.is_assumed(shrunk.uid)
            assert cluster.program.pods.pending[shrunk.uid].requests["cpu"] == 2000, "as it is decided by, turned back"
        else:
            assert next(iter(cache)).state is PodState.CONFIRMED

        assert (audit.statistics().lost, audit.statistics().inner) == (0, 1), "no event was lost: a defect of ours"

    play(scene, prepare=_prepare)


def test_label_set_at_the_bind_is_no_difference() -> None:
    async def scene(cluster: Cluster) -> None:
        assert cluster.placed == {"p": "a"}
        await cluster.change_metadata("p", labels={POD_LABEL: "later", "app": "web"})
        await cluster.settle()
        (entry,) = cluster.program.cache
        assert entry.pod.labels == {"app": "web"}
        assert await cluster.program.audit.once() == []
        assert cluster.program.audit.statistics().inner == 0

    play(scene, prepare=_prepare)


def test_label_that_an_assumed_pod_will_get_from_its_node_is_no_difference() -> None:
    zone = "topology.kubernetes.io/zone"

    async def scene(cluster: Cluster) -> None:
        cache = cluster.program.cache
        (entry,) = cache
        pending = msgspec.structs.replace(entry.pod, node="", labels={zone: "z"})
        cache.remove(pending.uid)
        cache.assume(pending, 0)
        cluster.transport.said = lambda text: text.replace(b'"nodeName":"a"', b'"nodeName":""')
        cluster.program.pods.pending[pending.uid] = pending  # type: ignore[index]
        assert await cluster.program.audit.once() == []

    play(scene, prepare=_prepare)


def test_audit_repairs_a_node_counted_with_another_size() -> None:
    async def scene(cluster: Cluster) -> None:
        cache, audit = cluster.program.cache, cluster.program.audit
        node = cache.nodes.node(0)
        cache.set_node(msgspec.structs.replace(node, allocatable={**node.allocatable, "cpu": 8000}))
        (found,) = await audit.once()
        assert (found.kind, found.key) == ("node", "a")
        assert "'cpu': 8000" in found.what
        assert "'cpu': 4000" in found.what
        assert int(cache.nodes.allocatable("cpu")[0]) == 4000
        assert await audit.once() == []
        assert (audit.statistics().lost, audit.statistics().inner) == (0, 1)

    play(scene, prepare=_prepare)


def test_deleted_objects_have_no_content_fault() -> None:
    async def scene(cluster: Cluster) -> None:
        program, gone = cluster.program, CachedObject("nowhere", "nobody", 1)
        raw = msgspec.Raw(_node()[1])
        for audited_kind in (
            AuditedNodes(program.cache, program.nodes, program.reflectors["nodes"]),
            AuditedPods(program.cache, program.pods, program.pod_repair, program.reflectors["pods"], RUNNING_PODS),
        ):
            assert audited_kind.content_fault(gone, raw) == ""

    play(scene)
