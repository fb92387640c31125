"""Trials leave the queue in front of a pod its room: a change must help that pod, and not one that goes first."""

from __future__ import annotations

from typing import Any

import pytest

from multisched.config import loading
from multisched.observe.explain_view import ExplainQuery, NotExplainedError
from multisched.testing.builders import GPU, Document, container, node_document, pod_document
from multisched.whatif import queue_ahead
from multisched.whatif.explain_source import ProgramExplanations
from tests.unit.shell.program_kit import Cluster, at_once, play
from tests.unit.whatif.clusters import ASKED, dump_of, explained, small_pod

EARLIER, LATER = "2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z"
FULL = (node_document("n1", cpu="2"), small_pod("small", cpu="1500m", node="n1"))
TWO_DOMAINS = """
apiVersion: multisched.io/v1
kind: MultischedConfiguration
domains:
- {name: work, schedulerNames: [work-scheduler], nodes: {rule: rest}}
- {name: gpu, schedulerNames: [gpu-scheduler], nodes: {selector: {matchLabels: {pool: gpu}}}}
"""


def waiting(name: str, created: str, **fields: Any) -> Document:
    return small_pod(name, metadata={"creationTimestamp": created}, **fields)


def fixes_of(*documents: Document) -> list[str]:
    return [fix.text for fix in explained(*FULL, *documents).fixes or ()]


DELETION = "delete the pod default/small (priority 0) from n1"


@pytest.mark.parametrize(
    ("first", "is_named"),
    [
        (waiting("first", EARLIER, cpu="1500m"), False),
        (waiting("first", EARLIER, cpu="1"), True),
        (waiting("first", EARLIER, cpu="1500m", priority=-1), True),
        (waiting("first", EARLIER, cpu="1500m", nodeSelector={"disk": "ssd"}), True),
        (waiting("first", EARLIER, cpu="1500m", schedulingGates=[{"name": "hold"}]), True),
        (waiting("first", LATER, cpu="1500m", priority=1), False),
        (waiting("first", LATER, cpu="1500m"), True),
    ],
    ids=["takes the room", "leaves room", "lower priority", "fits nowhere", "gated", "higher priority", "younger"],
)
def test_fix_ignores_deletions_that_help_a_pod_ahead_in_the_queue(first: Document, is_named: bool) -> None:
    late = waiting("late", "2026-01-01T00:00:30Z", cpu="1")
    assert (DELETION in fixes_of(first, late)) is is_named


def test_explanation_names_pods_ahead_in_the_queue() -> None:
    node, first = node_document("n1", cpu="2"), waiting("first", EARLIER, cpu="1500m")
    view = explained(node, first, waiting("late", LATER, cpu="1"))
    assert "it would fit n1, but pods in front of it in the queue are placed there first" in view.notes
    assert "1 pod in front of it in the queue were placed first in each trial" in view.notes
    assert "lower the cpu request from 1 to 500m" in [fix.text for fix in view.fixes or ()]
    assert not any("delete" in fix.text for fix in view.fixes or ()), "the pod in front stands in thought only"


def test_omitted_pods_ahead_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_ahead, "AHEAD_MAX", 1)
    others = [waiting(f"first-{at}", EARLIER, cpu="1500m") for at in range(2)]
    view = explained(*FULL, *others, waiting("late", LATER, cpu="1"))
    assert any(note.endswith("; the further ones in front of it were not tried") for note in view.notes), view.notes


def test_fix_names_a_domain_that_accepts_the_pod() -> None:
    gpus = node_document("g1", labels={"pool": "gpu"}, extra={GPU: 4})
    pod = pod_document("late", container(extra={GPU: 1}), schedulerName="work-scheduler")
    dump = dump_of(node_document("n1"), gpus, pod, configured=loading.parse(TWO_DOMAINS, "test"))
    fixes = dump.pod(ASKED).fixes or ()
    assert [(fix.kind, fix.text, fix.node) for fix in fixes if fix.kind == "scheduler"] == [
        ("scheduler", "create the pod again with schedulerName gpu-scheduler (domain gpu)", "g1")
    ]


def test_misspelt_scheduler_name_gets_a_suggestion() -> None:
    configured = loading.parse(TWO_DOMAINS, "test")
    for name, hint in (
        ("work-schedular", "did you mean work-scheduler?"),
        ("default-scheduler", "the configuration has work-scheduler, gpu-scheduler"),
    ):
        dump = dump_of(node_document("n1"), small_pod("late", schedulerName=name), configured=configured)
        with pytest.raises(NotExplainedError) as told:
            dump.pod(ASKED)
        assert str(told.value) == f"no domain serves schedulerName {name}; {hint}"


def test_running_program_suggests_the_scheduler_name_of_a_pod_it_does_not_serve() -> None:
    async def scene(cluster: Cluster) -> None:
        await cluster.add_pod("late", scheduler="forecast-schedular")
        explanations = ProgramExplanations(cluster.program, in_thread=at_once)
        with pytest.raises(NotExplainedError, match="did you mean forecast-scheduler") as told:
            await explanations.pod(ExplainQuery("default", "late"))
        assert told.value.status == 404
        with pytest.raises(NotExplainedError, match="pod default/nobody is not known here"):
            await explanations.pod(ExplainQuery("default", "nobody"))

    play(scene)


# -- what if -----------------------------------------------------------------------------------------------------------


def planned(name: str, cpu: str, kind: str = "Pod", **fields: Any) -> Document:
    document = small_pod(name, cpu=cpu, **fields)
    if kind == "Pod":
        return document
    return {"kind": kind, "metadata": {"name": name}, "spec": {"template": {"spec": document["spec"]}}}


def test_planned_pod_gets_what_pods_ahead_leave() -> None:
    dump = dump_of(node_document("n1", cpu="2"), waiting("first", EARLIER, cpu="1500m"))
    view = dump.what_if(planned("new", "1"), 1)
    assert [one.node for one in view.placements] == [""]
    assert "1 pod that waits in front of it in the queue was placed first" in view.notes


def test_manifests_of_one_file_are_tried_together_by_importance() -> None:
    config = {"kind": "ConfigMap", "metadata": {"name": "settings"}}
    file = (config, planned("web", "1"), planned("web", "1500m", "Deployment", priority=10))
    view = dump_of(node_document("n1", cpu="2")).what_if_list(file, 1)
    assert [[one.node for one in item.placements] for item in view.items] == [[""], ["n1"]]
    assert view.notes == ("these contain no pod and were left out: ConfigMap settings",)


def test_gang_and_group_of_one_file_start_together() -> None:
    group = {
        "apiVersion": "scheduling.x-k8s.io/v1alpha1",
        "kind": "PodGroup",
        "metadata": {"name": "crew"},
        "spec": {"minMember": 2},
    }
    of_crew = {"labels": {"scheduling.x-k8s.io/pod-group": "crew"}}
    for cpu, nodes in (("1", ["n1", "n1"]), ("1500m", ["", ""])):
        file = (group, *(planned(name, cpu, metadata=dict(of_crew)) for name in ("a", "b")))
        view = dump_of(node_document("n1", cpu="2")).what_if_list(file, 1)
        assert [one.node for item in view.items for one in item.placements] == nodes, cpu


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([{"kind": "ConfigMap", "metadata": {"name": "a"}}], "none of the objects contains a pod; give"),
        ([planned("a", "1"), "text"], "object 2: the manifest is not an object"),
        ([planned("a", "1")] * 101, "the list has 101 objects; at most 100 are tried at once"),
        (
            [{"apiVersion": "scheduling.x-k8s.io/v1alpha1", "kind": "PodGroup", "metadata": 5}],
            "metadata of the manifest is not an object",
        ),
    ],
)
def test_list_of_other_objects_is_refused(items: list[Any], message: str) -> None:
    with pytest.raises(NotExplainedError, match=message) as told:
        dump_of(node_document("n1")).what_if_list(items, 1)
    assert told.value.status == 422
