"""Queues of Volcano as a tree: deserved, guarantee and capability, parents, and which namespaces a queue serves."""

from __future__ import annotations

from typing import Any

import pytest

from multisched.model.quota_tree import QuotaNode
from multisched.model.quotas.drafts import Translation
from multisched.model.quotas.volcano import QUEUE_NAME, read_volcano
from tests.unit.model.quotas.quota_documents import Json


def queue(name: str, parent: str = "", **spec: Any) -> Json:
    found = spec | ({"parent": parent} if parent else {})
    version = "scheduling.volcano.sh/v1beta1"
    return {"apiVersion": version, "kind": "Queue", "metadata": {"name": name}, "spec": found}


def namespace(name: str, queue_name: Any) -> Json:
    metadata = {"name": name, "annotations": {QUEUE_NAME: queue_name}}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}


def pod_group(namespace: str, queue_name: str, name: str = "job") -> Json:
    metadata = {"name": name, "namespace": namespace}
    version = "scheduling.volcano.sh/v1beta1"
    return {"apiVersion": version, "kind": "PodGroup", "metadata": metadata, "spec": {"queue": queue_name}}


def nodes(found: Translation) -> dict[str, QuotaNode]:
    assert found.tree is not None, found.problems
    return {node.path: node for node in found.tree.nodes}


def lost_fields(found: Translation) -> list[tuple[str, str]]:
    return [(one.key, one.path) for one in found.losses]


def test_deserved_becomes_min_capability_becomes_max_and_guarantee_stays() -> None:
    amounts: Json = {
        "deserved": {"cpu": 4, "memory": "8Gi"},
        "capability": {"cpu": 8},
        "guarantee": {"resource": {"cpu": 1}},
    }
    found = read_volcano([queue("q1", weight=2, **amounts), namespace("x", "q1")])
    one = nodes(found)["root.q1"]
    assert (one.min, one.max) == ({"cpu": 4000, "memory": 8 * 2**30}, {"cpu": 8000})
    assert (one.guarantee, one.weight, one.namespaces) == ({"cpu": 1000}, 2, ("x",))
    assert found.losses == ()


def test_queue_without_deserved_has_min_of_guarantee_and_child_mins() -> None:
    found = nodes(
        read_volcano(
            [
                queue("parent", deserved={"memory": "9Gi"}),
                queue("a", "parent", guarantee={"resource": {"cpu": 2}}),
                queue("b", "parent", deserved={"cpu": 3, "memory": "4Gi"}),
            ]
        )
    )
    assert found["root.parent.a"].min == found["root.parent.a"].guarantee == {"cpu": 2000}
    assert found["root.parent"].min == {"cpu": 5000, "memory": 9 * 2**30}
    assert found["root"].min == {"cpu": 5000, "memory": 9 * 2**30}


def test_root_queue_bounds_the_whole_tree() -> None:
    found = nodes(read_volcano([queue("root", capability={"cpu": 40}), queue("a", "root", deserved={"cpu": 4})]))
    assert list(found) == ["root", "root.a"]
    assert (found["root"].min, found["root"].max) == ({"cpu": 4000}, {"cpu": 40_000})


def test_pod_groups_and_namespaces_map_namespaces_to_queues() -> None:
    found = read_volcano(
        [
            queue("parent"),
            queue("a", "parent"),
            queue("b", "parent"),
            namespace("x", "a"),
            pod_group("y", "b"),
            pod_group("y", "b", "other"),
            pod_group("x", "b"),
            pod_group("z", "parent"),
            pod_group("z", "gone", "second"),
        ]
    )
    assert found.tree is not None
    assert found.tree.leaf_of == {"x": 2, "y": 3}
    assert lost_fields(found) == [
        ("PodGroup x/job", "spec.queue"),
        ("PodGroup z/job", "spec.queue"),
        ("PodGroup z/second", "spec.queue"),
    ]


def test_lost_fields_are_reported_with_their_path() -> None:
    document = queue("a", reclaimable=False, priority=5, affinity={"nodeGroupAffinity": {}})
    document["metadata"]["annotations"] = {"volcano.sh/hierarchy": "root/a"}
    assert lost_fields(read_volcano([document])) == [
        ("Queue a", "spec.priority"),
        ("Queue a", "spec.affinity"),
        ("Queue a", "spec.reclaimable"),
        ("Queue a", "metadata.annotations[volcano.sh/hierarchy]"),
        ("Queue a", ""),
    ]
    assert read_volcano([queue("a", reclaimable=True), namespace("x", "a")]).losses == ()


@pytest.mark.parametrize(
    ("document", "path"),
    [
        (queue("a", deserved={"cpu": "much"}), "spec.deserved.cpu"),
        (queue("a", deserved=[]), "spec.deserved"),
        (queue("a", guarantee={"resource": {"cpu": 2}}, deserved={"cpu": 1}), "spec.guarantee.resource.cpu"),
        (queue("a", guarantee=5), "spec.guarantee"),
        (queue("a", deserved={"cpu": 3}, capability={"cpu": 2}), "spec.deserved.cpu"),
        (queue("a", weight=0), "spec.weight"),
        (queue("a", weight="2"), "spec.weight"),
        (queue("a", "gone"), "spec.parent"),
        (queue("a", "a"), "spec.parent"),
        (queue("a") | {"spec": {"parent": 5}}, "spec.parent"),
        (queue("a") | {"spec": []}, "spec"),
        (queue(""), "metadata.name"),
        (namespace("x", 5), f"metadata.annotations.{QUEUE_NAME}"),
    ],
)
def test_a_malformed_document_names_its_field(document: Json, path: str) -> None:
    found = read_volcano([document])
    assert found.tree is None
    (problems,) = found.problems.values()
    assert [one.path for one in problems] == [path]
    assert all(one.text and one.fix for one in problems)


def test_parent_cycle_is_a_problem_of_each_queue_in_it() -> None:
    found = read_volcano([queue("a", "b"), queue("b", "a")])
    assert {key: [one.path for one in of] for key, of in found.problems.items()} == {
        "Queue a": ["spec.parent"],
        "Queue b": ["spec.parent"],
    }
