"""Whatever a server or a tenant sends becomes an object, a malformed object, or a DecodeError; never anything else."""

from __future__ import annotations

from typing import Any

import msgspec
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multisched.model.decode import (
    ALLOCATABLE_MAX,
    ANNOTATIONS_BYTES_MAX,
    CONTAINERS_MAX,
    IMAGE_BYTES_MAX,
    LABELS_MAX,
    TOLERATIONS_MAX,
    DecodeError,
    Decoder,
)
from multisched.model.decode_selectors import AFFINITY_TERMS_MAX, SELECTOR_VALUES_MAX
from multisched.model.objects import CPU, MEMORY, PODS, ExtendedRequests, HostPort, Owner, QosClass
from multisched.model.version import Version
from tests.unit.model.documents import Document, container, decode_node, decode_pod, node_document, pod_document

ONE_CPU = container(cpu="1", memory="1Gi")


def with_affinity(node_affinity: Document) -> Document:
    return pod_document(ONE_CPU, affinity={"nodeAffinity": node_affinity})


def required(*terms: Document) -> Document:
    return with_affinity({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}})


BOMBS: dict[str, tuple[Document, str]] = {
    "labels": (pod_document(ONE_CPU, metadata={"labels": {f"l{i}": "" for i in range(10_000)}}), "metadata.labels"),
    "tolerations": (pod_document(ONE_CPU, tolerations=[{"key": "k"}] * (TOLERATIONS_MAX + 1)), "spec.tolerations"),
    "containers": (pod_document(*[ONE_CPU] * (CONTAINERS_MAX + 1)), "spec.containers"),
    "node selector": (
        pod_document(ONE_CPU, nodeSelector={f"k{i}": "" for i in range(SELECTOR_VALUES_MAX + 1)}),
        "spec.nodeSelector",
    ),
    "affinity terms": (required(*[{"matchExpressions": []}] * (AFFINITY_TERMS_MAX + 1)), "nodeAffinity"),
    "preferred terms": (
        with_affinity({"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}] * (AFFINITY_TERMS_MAX + 1)}),
        "nodeAffinity",
    ),
    "expression values": (
        required({"matchExpressions": [{"key": "k", "operator": "In", "values": ["v"] * (SELECTOR_VALUES_MAX + 1)}]}),
        "nodeAffinity",
    ),
    "expressions": (
        required({"matchExpressions": [{"key": "k", "operator": "Exists"}] * (SELECTOR_VALUES_MAX + 1)}),
        "nodeAffinity",
    ),
    "resized to nonsense": (
        pod_document(
            ONE_CPU,
            nodeName="n",
            status={"containerStatuses": [{"name": "c", "resources": {"requests": {"cpu": "lots"}}}]},
        ),
        "status",
    ),
    "a limit that is none": (
        pod_document({**ONE_CPU, "resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "x"}}}),
        "cpu",
    ),
}


@pytest.mark.parametrize("kind", BOMBS)
def test_oversized_pod_is_malformed_and_its_requests_still_count(kind: str) -> None:
    document, field = BOMBS[kind]
    document["spec"]["nodeName"] = "n"
    pod = decode_pod(document)
    assert field in pod.malformed
    assert len(pod.malformed) < 400
    count = len(document["spec"]["containers"])
    assert (pod.requests[CPU], pod.requests[MEMORY]) == (1000 * count, 2**30 * count)
    assert pod.node == "n"
    assert pod.spec.scheduler_name == "default-scheduler"


@pytest.mark.parametrize(
    "resources",
    [{"cpu": "a lot"}, {"cpu": ""}, {"cpu": "-1"}, {"memory": "1e99"}, {"nvidia.com/gpu": "-1"}, {"cpu": "1K"}],
)
def test_pod_with_an_unreadable_request_is_malformed_and_keeps_its_scheduler(resources: Document) -> None:
    pod = decode_pod(pod_document(container(**resources), schedulerName="job-scheduler"))
    assert next(iter(resources)) in pod.malformed
    assert pod.spec.scheduler_name == "job-scheduler"
    assert not pod.requests


def test_extended_resources_are_read_per_container() -> None:
    two = {"nvidia.com/gpu": "2", "cpu": "1"}
    pod = decode_pod(
        pod_document(
            container("plain", cpu="1"),
            container("main", **two),
            initContainers=[container("init", **{"example.com/fpga": "1"})],
        )
    )

    assert pod.spec.extended == (
        ExtendedRequests("init", 0, is_init=True, amounts={"example.com/fpga": 1}),
        ExtendedRequests("main", 1, is_init=False, amounts={"nvidia.com/gpu": 2}),
    )
    assert (pod.spec.container_count, pod.spec.init_container_count) == (2, 1)


@pytest.mark.parametrize(
    ("capacity", "reduced"),
    [
        ({"cpu": "9", "example.com/a": "8", "example.com/b": "4"}, {"example.com/a": 8}),
        ({"example.com/a": "6k", "example.com/b": "1", "example.com/c": "9"}, {"example.com/a": 6000}),
        ({"example.com/a": "many", "example.com/b": "4"}, {}),
        ({"example.com/a": "1" * 30}, {"example.com/a": 2**51}),
        (None, {}),
    ],
)
def test_capacity_of_a_node_with_unhealthy_devices_is_read(capacity: Document | None, reduced: dict[str, int]) -> None:
    document = node_document(None, **{"cpu": "8", "example.com/a": "6", "example.com/b": "4"})
    document["status"]["capacity"] = capacity
    node = decode_node(document)
    assert (node.reduced_capacity, node.malformed) == (reduced, "")


def test_extended_resources_of_a_malformed_bound_pod_are_read() -> None:
    document = pod_document(*[container(**{"nvidia.com/gpu": "1"})] * (CONTAINERS_MAX + 1))
    document["spec"]["nodeName"] = "n"

    pod = decode_pod(document)

    assert "spec.containers" in pod.malformed
    assert sum(one.amounts["nvidia.com/gpu"] for one in pod.spec.extended) == CONTAINERS_MAX + 1


def test_negative_request_does_not_reduce_that_of_another_container() -> None:
    pod = decode_pod(pod_document(container(cpu="2"), container("d", cpu="-1")))
    assert "cpu" in pod.malformed
    assert "negative" in pod.malformed


@pytest.mark.parametrize(
    "change",
    [
        {"spec": {"containers": {}}},
        {"spec": {"containers": [{"resources": {"requests": {"cpu": True}}}]}},
        {"spec": {"containers": [{"ports": [{"hostPort": "80"}]}]}},
        {"spec": {"priority": "high"}},
        {"spec": {"tolerations": "all"}},
        {"spec": {"affinity": []}},
        {"status": []},
    ],
)
def test_pod_with_wrong_types_is_malformed_and_keeps_its_name(change: Document) -> None:
    pod = decode_pod({**pod_document(), **change})
    assert (pod.namespace, pod.name, pod.uid, pod.version) == ("default", "p", "u", 7)
    assert pod.malformed


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b"7",
        b"null",
        b"{}",
        b'{"metadata":{}}',
        b'{"metadata":{"name":7}}',
        b"\xff",
        b'{"metadata":',
        b'{"metadata":{"name":"p"},"spec":7}',
    ],
)
def test_non_objects_raise_decode_error(raw: bytes) -> None:
    with pytest.raises(DecodeError):
        Decoder().pod(raw)


def test_too_deeply_nested_document_raises_decode_error() -> None:
    deep = b"[" * 200_000 + b"]" * 200_000
    raw = b'{"metadata":{"name":"p","x":' + deep + b"}}"
    for decode in (Decoder().pod, Decoder().node):
        with pytest.raises(DecodeError):
            decode(raw)


@pytest.mark.parametrize(
    ("text", "version"), [("", 0), ("7", 7), ("x7", "x7"), ("-1", "-1"), ("٣", "٣"), ("9" * 21, "9" * 21)]
)
def test_non_numeric_resource_version_is_kept_as_text(text: str, version: Version) -> None:
    assert decode_pod(pod_document(metadata={"resourceVersion": text})).version == version


# -- nodes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "allocatable",
    [
        {"cpu": "-1"},
        {"memory": "lots"},
        {"cpu": str(ALLOCATABLE_MAX)},
        {"memory": "1Ei"},
        {"pods": "-3"},
        {"nvidia.com/gpu": "9" * 40},
    ],
)
def test_node_of_absurd_capacity_is_malformed_without_allocatable(allocatable: Document) -> None:
    node = decode_node(node_document(**allocatable))
    assert node.malformed.startswith("status.allocatable")
    assert next(iter(allocatable)) in node.malformed
    assert not node.allocatable


def test_malformed_node_does_not_affect_nodes_with_the_same_allocatable() -> None:
    """Nodes of one kind share what they offer; each of them is read by one decoder and the next alike."""
    document = node_document(cpu="4", memory="8Gi")
    labels = {f"l{number}": "" for number in range(LABELS_MAX + 1)}
    odd = {**document, "metadata": {**document["metadata"], "labels": labels}}
    before = dict(decode_node(document).allocatable)
    assert before[CPU] == 4_000
    assert decode_node(odd).malformed
    assert decode_node(document).allocatable == before


def test_terminating_node_is_decoded_like_any_other() -> None:
    """kube-scheduler places pods on it, too: only taints and spec.unschedulable say that nothing is to come."""
    staying = node_document(cpu="4")
    going = {**staying, "metadata": {**staying["metadata"], "deletionTimestamp": "2026-01-01T00:00:30Z"}}
    assert msgspec.structs.asdict(decode_node(going)) == msgspec.structs.asdict(decode_node(staying))


def test_node_without_capacity_is_valid_and_has_no_allocatable() -> None:
    node = decode_node(node_document())
    assert not node.malformed
    assert node.allocatable == {PODS: 0}


@pytest.mark.parametrize(
    "change", [{"spec": {"taints": 7}}, {"status": {"allocatable": []}}, {"spec": {"unschedulable": 1}}]
)
def test_node_with_wrong_types_is_malformed_and_keeps_its_name(change: Document) -> None:
    node = decode_node({**node_document(), **change})
    assert (node.name, node.uid, node.version) == ("n", "u", 7)
    assert node.malformed


@pytest.mark.parametrize(("told", "size"), [(-1, 0), (5, 5), (10**30, IMAGE_BYTES_MAX)])
def test_image_size_is_bounded(told: int, size: int) -> None:
    document = node_document()
    document["status"]["images"] = [{"names": ["app:v1"], "sizeBytes": told}]
    raw = orjson.dumps({**document, "status": {}})[:-3] + b'{"images":[{"names":["app:v1"],"sizeBytes":%d}]}}' % told
    node = Decoder().node(raw)
    assert node.malformed or [image.size_bytes for image in node.images] == [size]


# -- what is read ------------------------------------------------------------------------------------------------------


def test_all_scheduling_fields_of_a_pod_are_read() -> None:
    owners = [{"kind": "Other", "name": "o", "uid": "1"}, {"kind": "Job", "name": "j", "uid": "2", "controller": True}]
    times = {"creationTimestamp": "2026-01-01T00:00:00Z", "deletionTimestamp": "2026-01-01T00:00:30Z"}
    annotations = {"kubectl.kubernetes.io/last-applied-configuration": "{}", "kept": "v", "long": "x" * 5000}
    document = pod_document(
        {**ONE_CPU, "ports": [{"hostPort": 80, "hostIP": "0.0.0.0"}, {"containerPort": 1}]},
        metadata={"labels": {"app": "a"}, "annotations": annotations, "ownerReferences": owners, **times},
        schedulingGates=[{"name": "g"}],
        nodeName="n",
        preemptionPolicy="Never",
        priority=5,
        status={"phase": "Running", "nominatedNodeName": "m", "startTime": "2026-01-01T00:00:10Z"},
    )
    pod = decode_pod(document)
    assert not pod.malformed
    assert (pod.key, pod.uid, pod.version, pod.node, pod.nominated_node) == ("default/p", "u", 7, "n", "m")
    assert pod.labels == {"app": "a"}
    assert pod.annotations == {"kept": "v"}
    assert pod.owner == Owner("Job", "j", "2")
    assert (pod.gates, pod.is_deleting, pod.phase, pod.is_terminal) == (("g",), True, "Running", False)
    assert pod.started_s - pod.created_s == 10
    assert pod.spec.host_ports == (HostPort("", "TCP", 80),)
    assert (pod.spec.priority, pod.spec.can_preempt, pod.spec.qos) == (5, False, QosClass.BURSTABLE)


@pytest.mark.parametrize(
    ("condition", "is_preempted"),
    [
        ({"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}, True),
        ({"type": "DisruptionTarget", "status": "False", "reason": "PreemptionByScheduler"}, False),
        ({"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}, False),
        ({"type": "Ready", "status": "True", "reason": "PreemptionByScheduler"}, False),
    ],
)
def test_preempted_pod_is_recognized_by_its_condition(condition: dict[str, str], is_preempted: bool) -> None:
    status = {"conditions": [{"type": "Initialized", "status": "True"}, condition]}
    assert decode_pod(pod_document(ONE_CPU, status=status)).is_preempted is is_preempted


@pytest.mark.parametrize(("status", "is_ready"), [("True", True), ("False", False), ("Unknown", False)])
def test_readiness_of_a_pod_is_read_from_its_condition(status: str, is_ready: bool) -> None:
    conditions = [{"type": "ContainersReady", "status": "True"}, {"type": "Ready", "status": status}]
    assert decode_pod(pod_document(ONE_CPU, status={"conditions": conditions})).is_ready is is_ready


def test_scheduling_group_of_a_pod_is_read() -> None:
    grouped = decode_pod(pod_document(ONE_CPU, schedulingGroup={"podGroupName": "training"}))
    assert (grouped.spec.pod_group, decode_pod(pod_document(ONE_CPU)).spec.pod_group) == ("training", "")


def test_equal_specs_labels_and_annotations_are_shared() -> None:
    decoder = Decoder()
    metadata = {"labels": {"a": "b"}, "annotations": {"c": "d"}}
    first = decode_pod(pod_document(ONE_CPU, metadata={**metadata, "uid": "1"}), decoder)
    second = decode_pod(pod_document(ONE_CPU, metadata={**metadata, "uid": "2"}, nodeName="n"), decoder)
    other = decode_pod(pod_document(container(cpu="2")), decoder)
    assert first.spec is second.spec
    assert first.labels is second.labels
    assert first.annotations is second.annotations
    assert other.spec is not first.spec


def test_only_needed_or_short_annotations_are_kept() -> None:
    decoder = Decoder()
    decoder.keep({"needed"})
    annotations = {f"long-{number}": "x" * 4_000 for number in range(10)} | {"needed": "y" * 4_000, "short": "z"}
    kept = decode_pod(pod_document(ONE_CPU, metadata={"annotations": annotations}), decoder).annotations
    assert {"needed", "short"} <= kept.keys()
    assert sum(len(key) + len(value) for key, value in kept.items()) <= ANNOTATIONS_BYTES_MAX


def test_unsupported_constraints_are_reported() -> None:
    document = pod_document(resourceClaims=[{"name": "gpu"}])
    found = " ".join(decode_pod(document).spec.unsupported)
    assert "resource claims" in found


DECODER = Decoder()

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(max_size=5) | st.just("100m"),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(("name", "cpu", "key")), inner, max_size=3)
    ),
    max_leaves=6,
)
FIELDS = (
    *(
        "metadata.labels",
        "metadata.annotations",
        "metadata.ownerReferences",
        "metadata.uid",
        "metadata.resourceVersion",
    ),
    *("metadata.creationTimestamp", "spec", "status", "spec.containers", "spec.initContainers", "spec.overhead"),
    *("spec.containers.0.resources", "spec.containers.0.resources.requests", "spec.containers.0.ports"),
    *("spec.tolerations", "spec.nodeSelector", "spec.affinity", "spec.resources", "spec.priority", "spec.nodeName"),
    *("spec.affinity.nodeAffinity", "spec.volumes", "spec.schedulingGates", "spec.taints", "spec.unschedulable"),
    *("status.containerStatuses", "status.allocatable", "status.images", "status.conditions", "status.phase"),
)


def _put(document: Any, path: str, value: Any) -> None:
    *way, last = path.split(".")
    for step in way:
        document = document[int(step)] if isinstance(document, list) else document.setdefault(step, {})
        if not isinstance(document, dict | list):
            return
    if isinstance(document, dict):
        document[last] = value


@given(st.lists(st.tuples(st.sampled_from(FIELDS), json_values), min_size=1, max_size=3))
def test_any_value_in_any_field_is_decoded_or_malformed(changes: list[tuple[str, Any]]) -> None:
    document = pod_document(ONE_CPU, nodeName="n")
    for path, value in changes:
        try:
            _put(document, path, value)
        except (IndexError, ValueError):
            continue
    raw = orjson.dumps(document)
    for decode in (DECODER.pod, DECODER.node):
        try:
            found = decode(raw)
        except DecodeError:
            continue
        assert found.name == "p"
        assert all(amount >= 0 for amount in getattr(found, "requests", {}).values())
