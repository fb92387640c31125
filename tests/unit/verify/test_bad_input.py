"""The judge on input that is odd, malformed or hostile: it names what it cannot read, judges the rest, and never fails."""

from __future__ import annotations

import copy
import json
import random
from fractions import Fraction
from typing import Any

import pytest

from multisched.verify import Judge, Snapshot, SnapshotError, report
from multisched.verify.fields import Unreadable
from multisched.verify.quantities import quantity
from tests.unit.verify.clusters import (
    HOST,
    WEB,
    ZONE,
    Told,
    anti_affinity,
    certain,
    make_node,
    make_pod,
    problems,
    spread,
    term,
    using,
)


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("1", 1),
        ("1.5", Fraction(3, 2)),
        (".5", Fraction(1, 2)),
        ("1.", 1),
        ("100m", Fraction(1, 10)),
        ("1n", Fraction(1, 10**9)),
        ("1u", Fraction(1, 10**6)),
        ("1k", 1000),
        ("1Ki", 1024),
        ("1E", 10**18),
        ("1Ei", 2**60),
        ("1e3", 1000),
        ("1E3", 1000),
        ("1e-3", Fraction(1, 1000)),
        ("-1", -1),
        ("+1", 1),
        (2, 2),
        (0.5, Fraction(1, 2)),
    ],
)
def test_quantities_are_exact(text: object, amount: Fraction) -> None:
    assert quantity(text) == amount


@pytest.mark.parametrize(
    "text", ["", "m", "1 ", "1mm", "1ki", "0x1", "1e", "1e999999999", "9" * 70, "\u0661", True, None, [], {}]
)
def test_invalid_quantity_is_refused(text: object) -> None:
    with pytest.raises(Unreadable, match="is not a quantity"):
        quantity(text)


def patched(told: Told, path: str, value: object) -> Told:
    kind, document = copy.deepcopy(told)
    at: Any = document
    *before, last = path.split(".")
    for part in before:
        at = at[int(part)] if part.isdigit() else at.setdefault(part, {})
    at[last] = value
    return kind, document


POD = make_pod("one", "n1", labels=WEB, requests={"cpu": "1"})
NODE = make_node("n1")


@pytest.mark.parametrize(
    ("told", "name", "problem"),
    [
        (
            patched(POD, "spec.containers.0.resources.requests.cpu", "lots"),
            "pod default/one",
            "requests.cpu: 'lots' is not a quantity",
        ),
        (
            patched(POD, "spec.containers.0.resources.requests.cpu", "-1"),
            "pod default/one",
            "requests.cpu: '-1' is below 0",
        ),
        (patched(POD, "spec.containers", "c"), "pod default/one", "containers: 'c' is not a list"),
        (patched(POD, "spec.containers", [None]), "pod default/one", "containers[0]: None is not an object"),
        (patched(POD, "metadata.labels", ["x"]), "pod default/one", "metadata.labels: ['x'] is not an object"),
        (patched(POD, "metadata.labels", {"x": 1}), "pod default/one", "metadata.labels.x: 1 is not a string"),
        (
            patched(POD, "metadata.creationTimestamp", "noon"),
            "pod default/one",
            "creationTimestamp: 'noon' is not a time",
        ),
        (patched(POD, "spec.nodeName", 7), "pod default/one", "nodeName: 7 is not a string"),
        (patched(POD, "metadata.name", ""), "pod default", "metadata.name: is missing"),
        (patched(POD, "spec.tolerations", {"a": 1}), "pod default/one", "spec.tolerations: {'a': 1} is not a list"),
        (patched(POD, "spec.affinity", {"nodeAffinity": []}), "pod default/one", "nodeAffinity: [] is not an object"),
        (patched(POD, "spec.affinity", anti_affinity({})), "pod default/one", "spec.topologyKey: is missing"),
        (patched(NODE, "status.allocatable", None), "node n1", "allocatable: is missing"),
        (patched(NODE, "status.allocatable.cpu", []), "node n1", "allocatable.cpu: [] is not a quantity"),
        (patched(NODE, "spec.taints", [{"timeAdded": 1}]), "node n1", "spec.timeAdded: 1 is not a string"),
        (("Node", {}), "a node without a name", "metadata.name: is missing"),
        (("Node", {"metadata": []}), "a node without a name", "metadata: [] is not an object"),
    ],
)
def test_unreadable_value_is_reported_with_its_field(told: Told, name: str, problem: str) -> None:
    named = problems(told)
    assert named, "no problem was told"
    assert named[0][0] == name
    assert problem in named[0][1]


def test_readable_part_of_a_pod_is_judged() -> None:
    odd = patched(make_pod("odd", "n1", second=90, ports=[{"hostPort": 80}]), "spec.tolerations", 7)
    assert certain(NODE, make_pod("one", "n1", ports=[{"hostPort": 80}]), odd) == {("odd", "hostPorts")}


def test_pod_on_a_missing_node_is_reported() -> None:
    found = report([NODE, make_pod("lost", "n9")])
    assert [tuple(one) for one in found.unreadable] == [
        ("pod default/lost", "spec.nodeName: node n9 is not in the input")
    ]


RICH = [
    NODE,
    make_pod(
        "rich",
        "n1",
        labels=WEB,
        requests={"cpu": "1", "memory": "1Gi"},
        ports=[{"hostPort": 80, "hostIP": "10.0.0.1", "protocol": "UDP"}],
        affinity={**anti_affinity(term(namespaceSelector={}, namespaces=["a"])), "nodeAffinity": {}},
        topologySpreadConstraints=spread(ZONE, matchLabelKeys=["app"], minDomains=2),
        tolerations=[{"key": "k", "operator": "Exists", "tolerationSeconds": 3}],
        nodeSelector={HOST: "n1"},
        volumes=[*using("c"), {"name": "e", "ephemeral": {}}, {"name": "r", "rbd": {"monitors": ["m"], "image": "i"}}],
        overhead={"cpu": "10m"},
        initContainers=[{"name": "i", "restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}}}],
        resources={"requests": {"cpu": "2"}},
        annotations={"multisched.io/gpu-milli": "500", "multisched.io/gpu-devices": "0"},
        status={"containerStatuses": [{"name": "main", "resources": {"requests": {"cpu": "1"}}}]},
    ),
    (
        "PersistentVolumeClaim",
        {"metadata": {"name": "c"}, "spec": {"volumeName": "v", "accessModes": ["ReadWriteOnce"]}},
    ),
    (
        "PersistentVolume",
        {
            "metadata": {"name": "v", "labels": {ZONE: "a"}},
            "spec": {
                "claimRef": {"name": "c"},
                "csi": {"driver": "d", "volumeHandle": "h"},
                "nodeAffinity": {"required": {}},
            },
        },
    ),
    ("CSINode", {"metadata": {"name": "n1"}, "spec": {"drivers": [{"name": "d", "allocatable": {"count": 1}}]}}),
    ("StorageClass", {"metadata": {"name": "s"}, "provisioner": "d"}),
    ("VolumeAttachment", {"metadata": {"name": "a"}, "spec": {"nodeName": "n1", "attacher": "d", "source": {}}}),
    ("Namespace", {"metadata": {"name": "default", "labels": {"a": "b"}}}),
]
ODD: list[Any] = [
    None,
    0,
    -1,
    2**70,
    1.5,
    True,
    "",
    "x",
    [],
    [None],
    ["x"],
    [[]],
    {},
    {"x": None},
    {"x": {}},
    "9" * 5000,
]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, one in items for place in places(one, (*path, key)))]


def test_no_value_in_any_field_raises() -> None:
    for kind, document in RICH:
        for path in places(document)[1:]:
            for odd in ODD:
                changed = copy.deepcopy(document)
                at: Any = changed
                for part in path[:-1]:
                    at = at[part]
                at[path[-1]] = odd
                told = Judge()
                for other in RICH:
                    told.add(*other)
                told.add(kind, changed)
                told.findings()
                told.placement("uid-default-rich")


def listed(*objects: Told) -> bytes:
    return json.dumps(
        {"kind": "List", "apiVersion": "v1", "items": [d | {"kind": kind} for kind, d in objects]}
    ).encode()


TWO = (make_pod("early", "n1", ports=[{"hostPort": 80}]), make_pod("late", "n1", second=90, ports=[{"hostPort": 80}]))


@pytest.mark.parametrize(
    "body",
    [
        listed(NODE, *TWO),
        listed(NODE) + b"\n" + listed(*TWO) + b"\n\n",
        b"[" + listed(NODE) + b"," + listed(*TWO) + b"]",
        json.dumps([d | {"kind": kind} for kind, d in (NODE, *TWO)]).encode(),
        json.dumps({"kind": "NodeList", "items": [NODE[1]]}).encode()
        + json.dumps(
            {"kind": "PodList", "items": [{k: v for k, v in d.items() if k != "kind"} for _, d in TWO]}
        ).encode(),
        listed(*TWO, NODE, ("Service", {"metadata": {"name": "s"}})),
    ],
)
def test_all_forms_of_a_snapshot_are_read(body: bytes) -> None:
    found = report(Snapshot(body).objects())
    assert [(one.pod, one.rule) for one in found.violations] == [("default/late", "hostPorts")]
    assert found.unreadable == []


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "it is empty"),
        (b"  \n", "it is empty"),
        (b"nonsense", "it is not JSON (line 1, column 1"),
        (b'{"kind": "List", "items": [', "it is not JSON"),
        (listed(NODE) + b"\n{", "document 2 is not JSON"),
        (b"\xff\xfe{}", "it is not UTF-8 (byte 0)"),
        (b"7", "it is not a list of objects"),
        (b'"text"', "it is not a list of objects"),
        (b"{}", "kind: is missing"),
        (b'{"kind": "List", "items": 7}', "it is not a list of objects"),
        (b'{"kind": "Status", "status": "Failure"}', "kind: 'Status' has no pods"),
        (listed(*TWO), "it has pods but no nodes"),
        (b"[" * 20_000, "is not JSON"),
        (b"[" * 100 + b"]" * 100, "nested too deeply"),
    ],
)
def test_invalid_snapshot_is_refused_with_the_fix(body: bytes, message: str) -> None:
    with pytest.raises(SnapshotError) as refused:
        Snapshot(body)
    assert message in str(refused.value)


def test_items_that_are_not_objects_are_reported() -> None:
    body = b'{"kind": "List", "items": [7, {"metadata": {}}, null, {"kind": "Node", "metadata": {"name": "\xff"}}]}'
    snapshot = Snapshot(body)
    assert list(snapshot.objects()) == []
    assert [one.object for one in snapshot.problems.found] == ["an item of the list"] * 3 + ["a node"]


def test_random_bytes_are_refused_or_read() -> None:
    rng = random.Random(5)
    good = listed(NODE, *TWO)
    for _ in range(2_000):
        body = bytearray(good)
        for _ in range(rng.randint(1, 4)):
            body[rng.randrange(len(body))] = rng.randrange(256)
        try:
            report(Snapshot(bytes(body)).objects())
        except SnapshotError:
            continue
