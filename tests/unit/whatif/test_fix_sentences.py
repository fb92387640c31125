"""What each kind of fix says, word for word: the sentence, how much it asks for, the change for programs, and the command."""

from __future__ import annotations

import json
from typing import Any

import pytest

from multisched.testing.builders import Document, node_document
from tests.unit.whatif.clusters import explained, small_pod

HOST = "kubernetes.io/hostname"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
TERM = {"labelSelector": {"matchLabels": {"app": "web"}}, "topologyKey": HOST}
SPREAD = {
    "maxSkew": 1,
    "topologyKey": HOST,
    "whenUnsatisfiable": "DoNotSchedule",
    "labelSelector": {"matchLabels": {"app": "web"}},
}
Told = tuple[str, str, float, str, dict[str, Any], str]
"""Kind, text, size, node, change and command."""


def tainted(name: str, key: str) -> Document:
    node = node_document(name)
    node["spec"]["taints"] = [{"key": key, "value": "yes", "effect": "NoSchedule"}]
    return node


def wants(key: str, operator: str, *values: str) -> Document:
    return {"key": key, "operator": operator, "values": list(values)}


def required(*terms: list[Document]) -> Document:
    return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": term} for term in terms]}}}


def ports(*numbers: int) -> list[Document]:
    return [{"containerPort": number, "hostPort": number} for number in numbers]


def patch(op: str, path: str, value: Any = None) -> str:
    operation = {"op": op, "path": path, **({"value": value} if value is not None else {})}
    return f"kubectl -n default patch pod late --type=json -p '{json.dumps([operation])}'"


def victim(name: str, node: str) -> tuple[dict[str, str], str]:
    return {"namespace": "default", "name": name, "node": node}, f"kubectl -n default delete pod {name}"


TEAM = {"key": "team", "operator": "Equal", "value": "yes", "effect": "NoSchedule"}
CORDON = {"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"}
UNGATE = patch("remove", "/spec/schedulingGates")

SCENES: dict[str, tuple[list[Document], dict[str, Any], list[Told]]] = {
    "a request": (
        [
            node_document("n1", cpu="4"),
            node_document("n2", cpu="2"),
            small_pod("other", cpu="1500m", node="n1", priority=5),
        ],
        {"cpu": "5"},
        [
            (
                "request",
                "lower the cpu request from 5 to 2500m",
                0.5,
                "n1",
                {"resource": "cpu", "from": 5000, "to": 2500},
                "",
            )
        ],
    ),
    "two gates": (
        [node_document("n1")],
        {"schedulingGates": [{"name": "a"}, {"name": "b"}]},
        [("gate", "remove the scheduling gates a, b", 0.0, "n1", {"remove": ["a", "b"]}, UNGATE)],
    ),
    "one gate": (
        [node_document("n1")],
        {"schedulingGates": [{"name": "a"}]},
        [("gate", "remove the scheduling gate a", 0.0, "n1", {"remove": ["a"]}, UNGATE)],
    ),
    "a taint": (
        [tainted("n1", "team")],
        {"tolerations": [{"key": "x", "operator": "Exists"}]},
        [
            (
                "toleration",
                "add a toleration of the taint team=yes:NoSchedule",
                0.3,
                "n1",
                {"toleration": TEAM},
                patch("add", "/spec/tolerations/-", TEAM),
            ),
            (
                "node",
                "remove the taint team:NoSchedule from node n1",
                0.7,
                "n1",
                {"taint": "team", "node": "n1"},
                "kubectl taint node n1 team:NoSchedule-",
            ),
        ],
    ),
    "a cordoned node": (
        [{**node_document("n1"), "spec": {"unschedulable": True}}],
        {},
        [
            (
                "toleration",
                "add a toleration of the taint node.kubernetes.io/unschedulable:NoSchedule",
                0.3,
                "n1",
                {"toleration": CORDON},
                patch("add", "/spec/tolerations", [CORDON]),
            ),
            ("node", "uncordon node n1", 0.7, "n1", {"uncordon": "n1"}, "kubectl uncordon n1"),
        ],
    ),
    "a selector": (
        [node_document("n1", labels={"disk": "ssd"})],
        {"nodeSelector": {"disk": "ssd", "rack": "a"}},
        [
            ("selector", "drop rack=a from the node selector", 0.5, "n1", {"nodeSelector": "rack"}, ""),
            (
                "node",
                "set the label rack=a on node n1",
                0.7,
                "n1",
                {"node": "n1", "label": "rack", "value": "a"},
                "kubectl label node n1 rack=a --overwrite",
            ),
        ],
    ),
    "an affinity": (
        [node_document("n1", labels={"disk": "ssd", "cores": "3"})],
        {
            "affinity": required(
                [wants("disk", "In", "ssd"), wants("cores", "Gt", "4")],
                [wants("fast", "Exists"), wants("disk", "NotIn", "ssd")],
            )
        },
        [
            (
                "affinity",
                "drop cores Gt 4 from the required node affinity",
                0.5,
                "n1",
                {"term": 0, "expression": 1},
                "",
            ),
            ("affinity", "drop the required node affinity", 0.5, "n1", {"term": None}, ""),
            (
                "node",
                "set the label cores=5 on node n1",
                0.7,
                "n1",
                {"node": "n1", "label": "cores", "value": "5"},
                "kubectl label node n1 cores=5 --overwrite",
            ),
        ],
    ),
    "a spread": (
        [node_document("n1"), node_document("full", cpu="100m"), small_pod("w", node="n1", labels={"app": "web"})],
        {"cpu": "1", "labels": {"app": "web"}, "topologySpreadConstraints": [SPREAD]},
        [
            (
                "spread",
                "raise maxSkew over kubernetes.io/hostname from 1 to 2",
                0.4,
                "n1",
                {"constraint": 0, "maxSkew": 2},
                "",
            ),
            (
                "request",
                "lower the cpu request from 1 to 100m",
                0.9,
                "full",
                {"resource": "cpu", "from": 1000, "to": 100},
                "",
            ),
            ("victim", "delete the pod default/w (priority 0) from n1", 1.0, "n1", *victim("w", "n1")),
        ],
    ),
    "an anti-affinity": (
        [node_document("n1"), small_pod("w", node="n1", labels={"app": "web"})],
        {"affinity": {"podAntiAffinity": {REQUIRED: [TERM]}}},
        [
            (
                "pod affinity",
                "drop the required podAntiAffinity term over kubernetes.io/hostname",
                0.5,
                "n1",
                {"podAntiAffinity": 0},
                "",
            ),
            ("victim", "delete the pod default/w (priority 0) from n1", 1.0, "n1", *victim("w", "n1")),
        ],
    ),
    "a lonely pod": (
        [node_document("n1")],
        {"affinity": {"podAffinity": {REQUIRED: [TERM]}}},
        [
            (
                "pod affinity",
                "drop the required podAffinity term over kubernetes.io/hostname",
                0.5,
                "n1",
                {"podAffinity": 0},
                "",
            )
        ],
    ),
    "a port": (
        [node_document("n1"), small_pod("other", node="n1", ports=ports(80, 81))],
        {"ports": ports(80, 82)},
        [
            ("host port", "drop the host port 80/TCP", 0.5, "n1", {"hostPort": 80}, ""),
            ("victim", "delete the pod default/other (priority 0) from n1", 1.0, "n1", *victim("other", "n1")),
        ],
    ),
    "victims": (
        [
            node_document("n1"),
            node_document("n2", cpu="1"),
            small_pod("small", cpu="500m", node="n1"),
            small_pod("big", cpu="3500m", node="n1", priority=7),
            small_pod("low", cpu="900m", node="n2", priority=-1),
        ],
        {"cpu": "1"},
        [
            (
                "request",
                "lower the cpu request from 1 to 100m",
                0.9,
                "n2",
                {"resource": "cpu", "from": 1000, "to": 100},
                "",
            ),
            ("victim", "delete the pod default/low (priority -1) from n2", 1.0, "n2", *victim("low", "n2")),
            ("victim", "delete the pod default/big (priority 7) from n1", 2.0, "n1", *victim("big", "n1")),
        ],
    ),
}


@pytest.mark.parametrize("scene", SCENES)
def test_fixes_have_exact_texts_smallest_first(scene: str) -> None:
    cluster, spec, told = SCENES[scene]
    view = explained(*cluster, small_pod("late", **spec))
    found = [(fix.kind, fix.text, fix.size, fix.node, fix.change, fix.command) for fix in view.fixes or ()]
    assert found == told
