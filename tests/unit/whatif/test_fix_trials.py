"""What is tried for a fix: each change of the pod as the API server would show it, and no more trials than bounds allow."""

from __future__ import annotations

from typing import Any

import msgspec
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multisched.model.decode import Decoder
from multisched.model.objects import Pod
from multisched.model.placement import PodAffinity
from multisched.observe.explain_view import Fix
from multisched.testing.builders import Document, node_document
from multisched.whatif import fixes
from tests.unit.whatif.clusters import applied, clusters, dump_of, explained, small_pod

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
HOST, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"


@given(clusters(), st.integers(0, 3))
def test_trial_pod_equals_the_pod_after_the_fix(documents: list[Document], gib: int) -> None:
    late = next(one for one in documents if one["metadata"]["name"] == "late")
    if gib:
        late["spec"]["containers"][0]["resources"]["requests"]["memory"] = f"{gib * 4}Gi"
        late["spec"]["containers"].append({"name": "bare", "image": "app:v1"})
    sandbox = dump_of(*documents)._sandbox
    pod = sandbox.pending["default", "late"]
    worker = sandbox.worker_of(pod)
    assert worker is not None
    decoder = Decoder()
    for trials in fixes._CandidateChanges(sandbox, worker, pod).by_kind():
        for trial in trials:
            fix = Fix(kind=trial.kind, text=trial.text, size=trial.size, node="", change=trial.change, command="")
            (changed,) = [one for one in applied(documents, fix) if one["metadata"]["name"] == "late"]
            expected = decoder.pod(orjson.dumps(changed))
            assert (_shown(trial.pod), trial.pod.gates) == (_shown(expected), expected.gates), trial.text


def _shown(pod: Pod) -> str:
    """All of its spec but how long its text is; no terms about other pods are as good as no affinity."""
    return repr(msgspec.structs.replace(pod.spec, pod_affinity=pod.spec.pod_affinity or PodAffinity(), size_bytes=0))


def wants(key: str, operator: str, *values: str) -> Document:
    return {"key": key, "operator": operator, "values": list(values)}


def affine(*terms: Document) -> dict[str, Any]:
    return {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(terms)}}}}


def tainted(name: str, *taints: tuple[str, str], **how: Any) -> Document:
    node = node_document(name, **how)
    node["spec"]["taints"] = [{"key": key, "value": "yes", "effect": effect} for key, effect in taints]
    return node


def cordoned(name: str, **how: Any) -> Document:
    return {**node_document(name, **how), "spec": {"unschedulable": True}}


def crowded(name: str, pods: str, **how: Any) -> Document:
    """A node for so many pods."""
    node = node_document(name, **how)
    for amounts in node["status"].values():
        amounts["pods"] = pods
    return node


def with_memory(pod: Document, amount: str) -> Document:
    pod["spec"]["containers"][0]["resources"]["requests"]["memory"] = amount
    return pod


def ports(*numbers: int, protocol: str = "TCP") -> list[Document]:
    return [{"containerPort": number, "hostPort": number, "protocol": protocol} for number in numbers]


def term(app: str, key: str = HOST) -> Document:
    return {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": key}


def spread(key: str, app: str, when: str = "DoNotSchedule") -> Document:
    return {"maxSkew": 1, "whenUnsatisfiable": when, **term(app, key)}


def on(node: str, *names: str, **how: Any) -> list[Document]:
    return [small_pod(name, node=node, **how) for name in names]


SPREADS = [node_document("n1"), node_document("full", cpu="100m")]
SCENES: dict[str, tuple[list[Document], Document, list[str]]] = {
    # -- requests: of one resource alone, as large as some node takes, on nodes where nothing else is short
    "of several nodes the one with most room counts": (
        [*(node_document(f"n{cpu}", cpu=str(cpu)) for cpu in (1, 3, 2)), node_document("bare", cpu="3", memory="1Gi")],
        with_memory(small_pod("late", cpu="4"), "2Gi"),
        ["lower the cpu request from 4 to 3"],
    ),
    "of two resources the one that is short is lowered, each where it alone is": (
        [node_document("a", cpu="2", memory="8Gi"), node_document("b", cpu="8", memory="1Gi")],
        with_memory(small_pod("late", cpu="4"), "2Gi"),
        ["lower the cpu request from 4 to 2", "lower the memory request from 2Gi to 1Gi"],
    ),
    "where both are short neither helps": (
        [node_document("a", cpu="2", memory="1Gi")],
        with_memory(small_pod("late", cpu="4"), "2Gi"),
        [],
    ),
    "no request is lowered to nothing": (
        [node_document("a", cpu="1"), *on("a", "whole", cpu="1", priority=1)],
        small_pod("late", cpu="1"),
        ["delete the pod default/whole (priority 1) from a"],
    ),
    "a node with room for no more pods takes none, however small": (
        [crowded("a", "1", cpu="1"), *on("a", "one", cpu="500m")],
        small_pod("late", cpu="1"),
        ["delete the pod default/one (priority 0) from a"],
    ),
    "nor does one that something else refuses": (
        [tainted("a", ("x", "NoSchedule"), cpu="1")],
        small_pod("late", cpu="2"),
        [],
    ),
    # -- taints
    "taints that forbid nothing, and those it tolerates, are left alone": (
        [tainted("a", ("soft", "PreferNoSchedule"), ("mine", "NoSchedule"), ("team", "NoExecute"))],
        small_pod("late", tolerations=[{"key": "mine", "operator": "Exists"}]),
        ["add a toleration of the taint team=yes:NoExecute", "remove the taint team:NoExecute from node a"],
    ),
    "two taints of a key go by one toleration, and neither of them alone": (
        [tainted("a", ("team", "NoExecute"), ("team", "NoSchedule"))],
        small_pod("late"),
        ["add a toleration of the taint team"],
    ),
    "each of several nodes may be let off its taint or its cordon": (
        [tainted("a", ("x", "NoSchedule")), cordoned("b"), cordoned("c")],
        small_pod("late"),
        [
            "add a toleration of the taint node.kubernetes.io/unschedulable:NoSchedule",
            "add a toleration of the taint x=yes:NoSchedule",
            "remove the taint x:NoSchedule from node a",
            "uncordon node b",
        ],
    ),
    # -- places
    "each part of a selector, where it alone is in the way": (
        [node_document("a", labels={"x": "1"}), node_document("b", labels={"y": "1"})],
        small_pod("late", nodeSelector={"x": "1", "y": "1"}),
        [
            "drop x=1 from the node selector",
            "drop y=1 from the node selector",
            "set the label x=1 on node b",
            "set the label y=1 on node a",
        ],
    ),
    "a term that nothing is left of is no fix, and all of them are": (
        [node_document("a")],
        small_pod("late", **affine({"matchExpressions": [wants("x", "Exists")]})),
        ["drop the required node affinity", "set the label x=true on node a"],
    ),
    "a term about the node's name may lose all else": (
        [node_document("a")],
        small_pod(
            "late",
            **affine({"matchExpressions": [wants("x", "Exists")], "matchFields": [wants("metadata.name", "In", "a")]}),
        ),
        [
            "drop the required node affinity",
            "drop x Exists from the required node affinity",
            "set the label x=true on node a",
        ],
    ),
    "of two terms one that is met is enough": (
        [node_document("a", labels={"y": "1"})],
        small_pod(
            "late",
            **affine(
                {"matchExpressions": [wants("x", "In", "1", "2"), wants("z", "Exists")]},
                {"matchExpressions": [wants("y", "NotIn", "1", "2"), wants("z", "DoesNotExist")]},
            ),
        ),
        [
            "drop the required node affinity",
            "drop y NotIn 1, 2 from the required node affinity",
            "remove the label y from node a",
        ],
    ),
    "a label that is to be gone is taken off": (
        [node_document("a", labels={"y": "1"})],
        small_pod("late", **affine({"matchExpressions": [wants("y", "DoesNotExist")]})),
        ["drop the required node affinity", "remove the label y from node a"],
    ),
    "a label is not set to what another rule forbids": (
        [node_document("a", labels={"y": "1"})],
        small_pod(
            "late",
            nodeSelector={"x": "1"},
            **affine({"matchExpressions": [wants("x", "NotIn", "1"), wants("y", "Exists")]}),
        ),
        ["drop x=1 from the node selector"],
    ),
    # -- pods
    "a spread is loosened as far as needed, or given up": (
        [*SPREADS, *on("n1", *(f"w{at}" for at in range(7)), labels={"app": "w"})],
        small_pod("late", cpu="1", labels={"app": "w"}, topologySpreadConstraints=[spread(HOST, "w")]),
        [
            "lower the cpu request from 1 to 100m",
            "raise maxSkew over kubernetes.io/hostname from 1 to 11",
        ],
    ),
    "one beyond all steps is only given up": (
        [*SPREADS, *on("n1", *(f"w{at}" for at in range(25)), labels={"app": "w"})],
        small_pod("late", cpu="1", labels={"app": "w"}, topologySpreadConstraints=[spread(HOST, "w")]),
        [
            "lower the cpu request from 1 to 100m",
            "spread over kubernetes.io/hostname with whenUnsatisfiable: ScheduleAnyway",
        ],
    ),
    "of several constraints the one in the way, and never a soft one": (
        [
            node_document("a", labels={ZONE: "z"}),
            node_document("b", labels={ZONE: "z"}),
            *on("a", "w", labels={"app": "w"}),
        ],
        small_pod(
            "late",
            cpu="100m",
            labels={"app": "w"},
            nodeSelector={HOST: "a"},
            topologySpreadConstraints=[spread(ZONE, "w", "ScheduleAnyway"), spread("rack", "w"), spread(HOST, "none")],
        ),
        ["spread over rack with whenUnsatisfiable: ScheduleAnyway"],
    ),
    "each of several terms about pods, where it alone is in the way": (
        [
            node_document("a"),
            node_document("b"),
            *on("a", "w", labels={"app": "w"}),
            *on("b", "v", labels={"app": "v"}),
        ],
        small_pod("late", affinity={"podAntiAffinity": {REQUIRED: [term("w"), term("v")]}}),
        [
            "delete the pod default/v (priority 0) from b",
            "delete the pod default/w (priority 0) from a",
            "drop the required podAntiAffinity term over kubernetes.io/hostname",
            "drop the required podAntiAffinity term over kubernetes.io/hostname",
        ],
    ),
    "a port that is free is kept": (
        [node_document("a"), *on("a", "w", ports=ports(80))],
        small_pod("late", ports=[*ports(81, 80), *ports(80, protocol="UDP")]),
        ["delete the pod default/w (priority 0) from a", "drop the host port 80/TCP"],
    ),
    "no victim helps where another holds a port too": (
        [node_document("a"), *on("a", "w", ports=ports(80)), *on("a", "v", ports=ports(81))],
        small_pod("late", ports=ports(80, 81)),
        [],
    ),
    "victims are told the least important and the smallest first, and enough of them": (
        [
            node_document("a", cpu="1"),
            node_document("b", cpu="1"),
            node_document("c", cpu="1"),
            node_document("d", cpu="1"),
            *on("a", "urgent", cpu="1", priority=9),
            *on("b", "large", cpu="1"),
            *on("c", "small", cpu="900m"),
            *on("d", "tiny", cpu="100m"),
            *on("d", "rest", cpu="850m", priority=3),
        ],
        small_pod("late", cpu="800m", priority=5),
        [
            "delete the pod default/large (priority 0) from b",
            "delete the pod default/rest (priority 3) from d",
            "delete the pod default/small (priority 0) from c",
            "lower the cpu request from 800m to 100m",
        ],
    ),
}


@pytest.mark.parametrize("scene", SCENES)
def test_only_helpful_fixes_are_shown(scene: str) -> None:
    cluster, late, texts = SCENES[scene]
    assert sorted(fix.text for fix in explained(*cluster, late).fixes or ()) == texts


LACKING = [node_document(f"n{at}", labels={f"l{other}": "1" for other in range(5) if other != at}) for at in range(5)]
CHOOSY = small_pod("late", nodeSelector={f"l{at}": "1" for at in range(5)})


@pytest.mark.parametrize(
    ("in_all", "of_a_kind", "told_of_a_kind", "kinds"),
    [
        (64, 12, 3, {"selector": 3, "node": 3}),
        (64, 2, 3, {"selector": 2, "node": 2}),
        (64, 12, 4, {"selector": 4, "node": 4}),
        (5, 12, 3, {"selector": 3, "node": 2}),
        (3, 12, 3, {"selector": 3}),
        (2, 12, 3, {"selector": 2}),
    ],
)
def test_number_of_tried_and_shown_fixes_is_limited(
    in_all: int, of_a_kind: int, told_of_a_kind: int, kinds: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five labels are lacking, each on a node of its own."""
    bounds = {"TRIALS_MAX": in_all, "TRIALS_PER_KIND": of_a_kind, "FIXES_PER_KIND": told_of_a_kind}
    for name, value in bounds.items():
        monkeypatch.setattr(fixes, name, value)
    found = [fix.kind for fix in explained(*LACKING, CHOOSY).fixes or ()]
    assert {kind: found.count(kind) for kind in dict.fromkeys(found)} == kinds


@pytest.mark.parametrize("tried", [0, 1, 2, 3])
def test_number_of_nodes_tried_for_a_node_change_is_limited(tried: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fixes, "NODES_TRIED", tried)
    nodes = [tainted("a", ("x", "NoSchedule")), tainted("b", ("y", "NoSchedule")), tainted("c", ("z", "NoSchedule"))]
    found = [fix.node for fix in explained(*nodes, small_pod("late")).fixes or () if fix.kind == "node"]
    assert sorted(found) == ["a", "b", "c"][:tried]
    full = [node_document(name, cpu="1") for name in "abc"] + [
        small_pod(f"on-{name}", cpu="1", node=name) for name in "abc"
    ]
    victims = [fix.node for fix in explained(*full, small_pod("late", cpu="1")).fixes or () if fix.kind == "victim"]
    assert sorted(victims) == ["a", "b", "c"][:tried]


@pytest.mark.parametrize(
    "wrong", [{"tolerations": [{"key": f"t{at}"} for at in range(300)]}, {"resourceClaims": [{"name": "x"}]}]
)
def test_unschedulable_pod_is_not_reported_as_fitting(wrong: dict[str, Any]) -> None:
    sandbox = dump_of(node_document("n1"), small_pod("late", **wrong))._sandbox
    pod = sandbox.pending["default", "late"]
    worker = sandbox.worker_of(pod)
    assert worker is not None
    assert pod.malformed or pod.spec.unsupported
    assert sandbox.fits(worker, pod) is None
