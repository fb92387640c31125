"""Where planned pods would go: manifests of all kinds, priorities, victims, and what cannot be known."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multisched.config import loading
from multisched.cycle.results import Conflicted
from multisched.framework.points import CycleView, PermitResult
from multisched.framework.status import Code, Status
from multisched.model.decode import LABELS_MAX, Decoder
from multisched.model.objects import Pod
from multisched.observe.explain_view import NotExplainedError
from multisched.testing.builders import Document, node_document
from multisched.whatif import what_if
from multisched.whatif.explain_source import ProgramExplanations
from multisched.whatif.sandbox import Tried
from multisched.whatif.what_if_plan import planned_pod
from tests.unit.shell import program_kit
from tests.unit.shell.program_kit import Cluster, at_once
from tests.unit.whatif.clusters import CONFIGURATION, dump_of, small_pod

CONTAINERS = [{"name": "main", "image": "app", "resources": {"requests": {"cpu": "1"}}}]
SPEC: Document = {"schedulerName": "default-scheduler", "containers": CONTAINERS}
KEYS = ("kind", "metadata", "name", "namespace", "labels", "annotations", "spec", "jobTemplate", "template", "nodeName",
        "priorityClassName", "containers")  # fmt: skip


def workload(kind: str, spec: Document) -> Document:
    return {"kind": kind, "metadata": {"name": "new"}, "spec": spec}


@pytest.mark.parametrize(
    "document",
    [
        {"metadata": {"name": "new"}, "spec": SPEC},
        workload("Pod", SPEC),
        workload("Deployment", {"template": {"metadata": {"labels": {"app": "web"}}, "spec": SPEC}}),
        workload("Job", {"template": {"spec": SPEC}}),
        workload("CronJob", {"jobTemplate": {"spec": {"template": {"spec": SPEC}}}}),
    ],
)
def test_pod_or_workload_template_is_placed(document: Document) -> None:
    view = dump_of(node_document("n1", cpu="2")).what_if(document, 3)
    assert (view.namespace, view.name) == ("default", "new")
    assert [one.node for one in view.placements] == ["n1", "n1", ""]
    assert view.placements[2].message.startswith("0/1 nodes are available: 1 Insufficient cpu.")


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"kind": "Service", "metadata": {"name": "s"}, "spec": {}}, "a Service contains no pod"),
        ({"kind": "Pod"}, "no pod spec with containers"),
        ({"spec": {**SPEC, "nodeName": "n1"}}, "has nodeName n1"),
        ({"spec": {**SPEC, "schedulerName": "other"}}, "no domain serves schedulerName other"),
        ({"spec": {**SPEC, "containers": "none"}}, "cannot be"),
        ({"spec": {**SPEC, "overhead": {"cpu": "lots"}}}, "cannot be scheduled"),
        ([], "not an object"),
        ({"metadata": 5, "spec": SPEC}, "metadata of the manifest is not an object"),
        ({"kind": "CronJob", "spec": {"jobTemplate": 5}}, "jobTemplate of the manifest is not an object"),
        (
            {"kind": "Job", "spec": {"template": {"metadata": 7, "spec": SPEC}}},
            "metadata of the manifest is not an object",
        ),
        ({"kind": "Job", "spec": {"template": "x"}}, "template of the manifest is not an object"),
        ({"metadata": {"name": 5}, "spec": SPEC}, "cannot be read"),
    ],
)
def test_invalid_manifest_is_refused(document: Any, message: str) -> None:
    with pytest.raises(NotExplainedError, match=message) as told:
        dump_of(node_document("n1")).what_if(document, 1)
    assert told.value.status == 422


PARTS = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.text(max_size=3), st.sampled_from(("CronJob", "Pod")), st.just(SPEC)
    ),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=8,
)


@given(PARTS)
def test_arbitrary_manifests_are_at_worst_refused(document: Any) -> None:
    with suppress(NotExplainedError):
        planned_pod(document, Decoder())


def test_limits_count_as_requests_as_the_api_server_stores_them() -> None:
    limited = [{"name": "main", "image": "app", "resources": {"limits": {"cpu": "2"}, "requests": {"memory": "1Gi"}}}]
    view = dump_of(node_document("n1", cpu="3")).what_if(workload("Pod", {**SPEC, "containers": limited}), 2)
    assert [one.node for one in view.placements] == ["n1", ""]
    assert "Insufficient cpu" in view.placements[1].message


def test_a_plan_may_be_tried_without_preemptions() -> None:
    document = {"metadata": {"name": "new"}, "spec": {**SPEC, "priority": 100}}
    world = (node_document("n1", cpu="1"), small_pod("small", node="n1", cpu="1"))
    assert dump_of(*world).what_if(document, 1).placements[0].victims
    alone = dump_of(*world).what_if(document, 1, preempts=False).placements[0]
    assert (alone.node, alone.victims) == ("", ())


def test_labels_of_planned_replicas_count_between_them() -> None:
    apart = {"labelSelector": {"matchLabels": {"app": "web"}}, "topologyKey": "kubernetes.io/hostname"}
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}}
    document = {"metadata": {"labels": {"app": "web"}}, "spec": {**SPEC, "affinity": affinity}}
    view = dump_of(node_document("n1"), node_document("n2")).what_if(document, 3)
    assert sorted(one.node for one in view.placements) == ["", "n1", "n2"]


def test_gated_pod_is_reported_as_waiting() -> None:
    document = {"spec": {**SPEC, "schedulingGates": [{"name": "hold"}]}}
    view = dump_of(node_document("n1")).what_if(document, 2)
    assert [one.node for one in view.placements] == ["", ""]
    assert view.placements[0].message.startswith("SchedulingGates: ")


def test_victims_of_planned_pods_are_shown_and_free_their_room() -> None:
    cluster = [
        node_document("n1", cpu="2"),
        small_pod("low", cpu="900m", node="n1", priority=1),
        small_pod("lower", cpu="900m", node="n1", priority=0),
    ]
    view = dump_of(*cluster).what_if({"spec": {**SPEC, "priority": 5}}, 3)
    assert [(one.node, one.victims) for one in view.placements] == [
        ("n1", ("default/lower",)),
        ("n1", ("default/low",)),
        ("", ()),
    ]
    assert [one.ties for one in view.placements] == [0, 0, 0], "nobody is compared with a node that was promised"


@pytest.mark.parametrize(
    ("refusal", "told"),
    [("gpu-devices of n1: none is free", "gpu-devices of n1: none is free"), ("", "its nodes are no longer feasible")],
)
def test_replica_refused_at_commit_shows_the_reason(refusal: str, told: str) -> None:
    pod = Decoder().pod(orjson.dumps(small_pod("new")))

    class Refusing:
        def attempt(self, worker: object, pod: Pod) -> Tried:
            record: Any = None
            return Tried(Conflicted(pod, refusal), record, ())

    refusing: Any = Refusing()
    assert what_if._place(refusing, refusing, pod, 1, []).message == told


def test_number_of_tied_nodes_is_shown() -> None:
    view = dump_of(node_document("n1"), node_document("n2"), node_document("n3", cpu="200m")).what_if({"spec": SPEC}, 2)
    assert [one.ties for one in view.placements] == [2, 1]


def test_priority_class_of_a_dump_applies() -> None:
    classes = {"kind": "PriorityClass", "metadata": {"name": "high"}, "value": 5}
    cluster = [node_document("n1", cpu="1"), small_pod("low", cpu="1", node="n1"), classes]
    named = {"spec": {**SPEC, "priorityClassName": "high"}}
    assert dump_of(*cluster).what_if(named, 1).placements[0].victims == ("default/low",)
    unknown = dump_of(*cluster[:2]).what_if(named, 1)
    assert unknown.placements[0].node == ""
    (note,) = unknown.notes
    assert note == (
        "the value of priority class high is unknown: priority 0 is assumed;"
        " write priority: N in addition to priorityClassName, as the API server will"
    )


def make_class(name: str, value: int, **changes: object) -> Document:
    return {"kind": "PriorityClass", "metadata": {"name": name}, "value": value, **changes}


def test_default_priority_class_and_preemption_policy_apply() -> None:
    cluster = [node_document("n1", cpu="1"), small_pod("low", cpu="1", node="n1")]
    default = make_class("usual", 7, globalDefault=True)
    view = dump_of(*cluster, default, make_class("other", 9)).what_if({"spec": SPEC}, 1)
    assert view.placements[0].victims == ("default/low",)
    assert view.notes == ("it names no priority class and gets the cluster's default, usual: 7",)

    meek = make_class("meek", 9, preemptionPolicy="Never")
    named = {"spec": {**SPEC, "priorityClassName": "meek"}}
    assert dump_of(*cluster, default, meek).what_if(named, 1).placements[0].node == ""


@pytest.mark.parametrize(
    ("document", "name"),
    [
        ({"metadata": {"name": "new"}, "spec": {**SPEC, "priorityClassName": "hihg"}}, "new"),
        (workload("Job", {"template": {"spec": {**SPEC, "priorityClassName": "hihg"}}}), "new-"),
    ],
)
def test_unknown_priority_class_is_refused_as_by_the_api_server(document: Document, name: str) -> None:
    with pytest.raises(NotExplainedError) as told:
        dump_of(node_document("n1"), make_class("high", 5)).what_if(document, 1)
    assert str(told.value) == f'pods "{name}" is forbidden: no PriorityClass with name hihg was found'
    assert told.value.status == 422


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        (
            {"priority": 6},
            "the integer value of priority (6) must not be provided in pod spec; priority admission controller computed 5",
        ),
        (
            {"preemptionPolicy": "Never"},
            (
                "the string value of PreemptionPolicy (Never) must not be provided in pod spec;"
                " priority admission controller computed PreemptLowerPriority"
            ),
        ),
    ],
)
def test_manifest_priority_counts_and_the_admission_result_is_noted(written: Document, reason: str) -> None:
    document = {"metadata": {"name": "new"}, "spec": {**SPEC, "priorityClassName": "high", **written}}
    view = dump_of(node_document("n1"), make_class("high", 5)).what_if(document, 1)
    refusal = f'pods "new" is forbidden: {reason} from the given PriorityClass name'
    assert view.placements[0].node == "n1"
    assert view.notes == (f"the API server will refuse it: {refusal}",)


@pytest.mark.parametrize(("priority", "victims"), [(5, ()), (6, ("default/low",))])
def test_manifest_priority_decides_the_victims(priority: int, victims: tuple[str, ...]) -> None:
    cluster = [node_document("n1", cpu="1"), small_pod("low", cpu="1", node="n1", priority=5), make_class("high", 5)]
    document = {"spec": {**SPEC, "priorityClassName": "high", "priority": priority}}
    assert dump_of(*cluster).what_if(document, 1).placements[0].victims == victims


def test_unreadable_parts_of_a_dump_are_noted() -> None:
    view = dump_of(node_document("n1"), {"kind": "Pod", "metadata": 7}).what_if({"spec": SPEC}, 1)
    assert view.placements[0].node == "n1"
    assert view.notes[0].startswith("an object of the dump cannot be read: ")


# -- pods with more annotations than are read of any -------------------------------------------------------------------

GPU_MILLI, GPU_DEVICES = "multisched.io/gpu-milli", "multisched.io/gpu-devices"
MANY = {f"note-{number}": "x" for number in range(LABELS_MAX + 1)}
SHIPPED = loading.default()


def make_gpu_node() -> Document:
    node = node_document("g1", labels={"nvidia.com/gpu.present": "true"})
    node["status"]["allocatable"]["nvidia.com/gpu"] = "1"
    return node


def share(milli: int) -> Document:
    annotations = {**MANY, GPU_MILLI: str(milli)}
    return {"metadata": {"annotations": annotations}, "spec": {**SPEC, "schedulerName": "gpu-scheduler"}}


def test_relevant_annotations_of_planned_pods_are_read_among_many() -> None:
    view = dump_of(make_gpu_node(), configured=SHIPPED).what_if(share(600), 2)
    assert [one.node for one in view.placements] == ["g1", ""]


def test_relevant_annotations_of_dump_pods_are_read_among_many() -> None:
    standing = small_pod("standing", node="g1", schedulerName="gpu-scheduler")
    standing["metadata"]["annotations"] = {**MANY, GPU_MILLI: "600", GPU_DEVICES: "0"}
    view = dump_of(make_gpu_node(), standing, configured=SHIPPED).what_if(share(600), 1)
    assert [one.node for one in view.placements] == [""]


class HoldsAll:
    """Lets every pod wait at Permit."""

    name = "HoldsAll"

    def permit(self, cycle: CycleView, pod: Pod, node: str) -> PermitResult:
        return PermitResult(Status(Code.WAIT), 60.0)


def test_plugins_that_would_hold_a_pod_at_permit_are_noted_once() -> None:
    profile = f"profile: {{plugins: {{enabled: [{{name: '{__name__}:HoldsAll'}}]}}}}, nodes:"
    configured = loading.parse(CONFIGURATION.replace("nodes:", profile), "test")
    view = dump_of(node_document("n1"), configured=configured).what_if({"spec": SPEC}, 2)
    assert [one.node for one in view.placements] == ["n1", "n1"]
    assert view.notes.count("HoldsAll would delay it at Permit first") == 1


# -- of a running program ----------------------------------------------------------------------------------------------


def test_program_reads_the_priority_class_of_a_plan() -> None:
    async def scene(cluster: Cluster) -> None:
        await cluster.add_node("a", cpu="1")
        await cluster.add_pod("low", cpu="1")
        classes = "/apis/scheduling.k8s.io/v1/priorityclasses"
        await cluster.send("POST", classes, {"metadata": {"name": "urgent"}, "value": 100})
        await cluster.settle()
        explanations = ProgramExplanations(cluster.program, in_thread=at_once)
        spec = {**SPEC, "schedulerName": "forecast-scheduler", "priorityClassName": "urgent"}
        view = await explanations.what_if({"spec": spec}, 1)
        assert [(one.node, one.victims) for one in view.placements] == [("a", ("default/low",))]
        assert view.notes == ()

    program_kit.play(scene)
