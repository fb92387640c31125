"""Quotas of Kueue as a tree: nominalQuota, borrowingLimit and lendingLimit, cohorts in cohorts, and whose pods LocalQueues bring."""

from __future__ import annotations

from typing import Any

import pytest

from multisched.model.quota_tree import QuotaNode
from multisched.model.quotas.drafts import Translation
from multisched.model.quotas.kueue import read_kueue
from tests.unit.model.quotas.quota_documents import Json

V1BETA2 = "kueue.x-k8s.io/v1beta2"


def quota(resource: str, nominal: Any, borrowing: Any = None, lending: Any = None, **more: Any) -> Json:
    found = {"name": resource, "nominalQuota": nominal, "borrowingLimit": borrowing, "lendingLimit": lending}
    return {key: value for key, value in found.items() if value is not None} | more


def groups(*flavors: list[Json]) -> list[Json]:
    """One resource group with so many flavors."""
    return [{"flavors": [{"name": f"flavor-{at}", "resources": quotas} for at, quotas in enumerate(flavors)]}]


def queue(name: str, cohort: str = "", *flavors: list[Json], **spec: Any) -> Json:
    found = {"resourceGroups": groups(*flavors), **spec} | ({"cohortName": cohort} if cohort else {})
    return {"apiVersion": V1BETA2, "kind": "ClusterQueue", "metadata": {"name": name}, "spec": found}


def cohort(name: str, parent: str = "", *flavors: list[Json], **spec: Any) -> Json:
    found = {"resourceGroups": groups(*flavors), **spec} | ({"parentName": parent} if parent else {})
    return {"apiVersion": V1BETA2, "kind": "Cohort", "metadata": {"name": name}, "spec": found}


def local(namespace: str, cluster_queue: str, name: str = "queue") -> Json:
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": V1BETA2, "kind": "LocalQueue", "metadata": metadata, "spec": {"clusterQueue": cluster_queue}}


def nodes(found: Translation) -> dict[str, QuotaNode]:
    assert found.tree is not None, found.problems
    return {node.path: node for node in found.tree.nodes}


def lost_fields(found: Translation) -> list[tuple[str, str]]:
    return [(one.key, one.path) for one in found.losses]


def test_nominal_quota_becomes_min_and_borrowing_limit_becomes_max() -> None:
    first = queue("a", "all", [quota("cpu", 9, 3), quota("memory", "36Gi")])
    found = read_kueue([first, queue("b", "all", [quota("cpu", "500m", 0)]), local("x", "a"), local("y", "b")])
    tree = nodes(found)
    assert list(tree) == ["root", "root.all", "root.all.a", "root.all.b"]
    assert tree["root.all.a"].min == {"cpu": 9000, "memory": 36 * 2**30}
    assert tree["root.all.a"].max == {"cpu": 12_000}, "without a limit it may borrow all that its cohort has"
    assert (tree["root.all.b"].min, tree["root.all.b"].max) == ({"cpu": 500}, {"cpu": 500})
    for path in ("root", "root.all"):
        assert tree[path].min == tree[path].max == {"cpu": 9500, "memory": 36 * 2**30}
    assert found.tree is not None
    assert found.tree.leaf_of == {"x": 2, "y": 3}
    assert found.losses == ()


def test_quota_above_the_lending_limit_becomes_guarantee() -> None:
    found = nodes(read_kueue([queue("a", "all", [quota("cpu", 9, lending=4)]), queue("b", "all", [quota("cpu", 9)])]))
    assert found["root.all.a"].guarantee == {"cpu": 5000}
    assert found["root.all.b"].guarantee == {}


def test_lending_limit_above_the_quota_has_no_effect() -> None:
    found = nodes(read_kueue([queue("a", "all", [quota("cpu", 4, lending=9)])]))
    assert found["root.all.a"].guarantee.get("cpu", 0) == 0


def test_a_queue_without_a_cohort_borrows_nothing() -> None:
    found = nodes(read_kueue([queue("a", "", [quota("cpu", 9)])]))
    assert (found["root.a"].min, found["root.a"].max, found["root.a"].guarantee) == ({"cpu": 9000}, {"cpu": 9000}, {})


def test_cohort_has_the_sum_of_its_own_and_its_members_quotas() -> None:
    found = nodes(
        read_kueue(
            [
                cohort("company", "", [quota("cpu", 1)]),
                cohort("team", "company", [quota("cpu", 2, 3, 4)]),
                queue("a", "team", [quota("cpu", 9)]),
                queue("b", "company", [quota("cpu", 5)]),
            ]
        )
    )
    assert (found["root.company"].min, found["root.company"].max) == ({"cpu": 17_000}, {"cpu": 17_000})
    team = found["root.company.team"]
    assert (team.min, team.max, team.guarantee) == ({"cpu": 11_000}, {"cpu": 14_000}, {"cpu": 7000})


def test_cohort_without_an_object_has_no_limits() -> None:
    found = nodes(read_kueue([cohort("team", "company"), queue("a", "team", [quota("cpu", 9)])]))
    assert (found["root.company.team"].min, found["root.company.team"].max) == ({"cpu": 9000}, {})


def test_flavors_are_added_and_one_without_a_limit_removes_the_limit() -> None:
    flavors = [quota("cpu", 9, 3, 4)], [quota("cpu", 1, 2)]
    found = read_kueue([queue("a", "all", *flavors), queue("b", "all", flavors[0], [quota("cpu", 1)])])
    tree = nodes(found)
    assert (tree["root.all.a"].min, tree["root.all.a"].max) == ({"cpu": 10_000}, {"cpu": 15_000})
    assert tree["root.all.a"].guarantee == {"cpu": 5000}
    assert tree["root.all.b"].max == {}
    assert ("ClusterQueue a", "spec.resourceGroups") in lost_fields(found)


@pytest.mark.parametrize(
    ("weights", "written"),
    [(("1", "2"), (1, 2)), (("0.5", "2"), (1, 4)), (("0", "3"), (0, 1)), ((None, "0.5"), (2, 1)), ((None, None), (None, None))],
)  # fmt: skip
def test_weights_keep_their_proportions(weights: tuple[str | None, ...], written: tuple[int | None, ...]) -> None:
    sharing = [{} if weight is None else {"fairSharing": {"weight": weight}} for weight in weights]
    found = nodes(read_kueue([queue(f"q{at}", "", [quota("cpu", 9)], **one) for at, one in enumerate(sharing)]))
    assert (found["root.q0"].weight, found["root.q1"].weight) == written


def test_field_names_of_older_versions_are_read() -> None:
    old, older = queue("a", "", [quota("cpu", 9)]), cohort("team", "", [quota("cpu", 1)])
    old["spec"]["cohort"], older["spec"]["parent"] = "team", "company"
    assert "root.company.team.a" in nodes(read_kueue([old, older]))


def test_lost_fields_are_reported_with_their_path() -> None:
    spec: Json = {"preemption": {"reclaimWithinCohort": "Any"}, "stopPolicy": "Hold", "queueingStrategy": ""}
    flavor = {"apiVersion": V1BETA2, "kind": "ResourceFlavor", "metadata": {"name": "spot"}}
    flavor |= {"spec": {"nodeLabels": {"a": "b"}}}
    found = read_kueue(
        [
            queue("a", "", [quota("cpu", 9, 1, 1)], **spec),
            queue("b", "", [quota("cpu", 9)]),
            local("x", "a"),
            local("x", "b", "second"),
            local("y", "gone"),
            flavor,
        ]
    )
    assert lost_fields(found) == [
        ("ClusterQueue a", "spec.resourceGroups"),
        ("ClusterQueue a", "spec.resourceGroups"),
        ("ClusterQueue a", "spec.preemption"),
        ("ClusterQueue a", "spec.stopPolicy"),
        ("LocalQueue x/second", "spec.clusterQueue"),
        ("LocalQueue y/queue", "spec.clusterQueue"),
        ("ResourceFlavor spot", "spec.nodeLabels"),
        ("ClusterQueue b", ""),
    ]
    assert found.tree is not None
    assert found.tree.leaf_of == {"x": 1}, "the first queue of a namespace has its pods"


@pytest.mark.parametrize(
    ("document", "path"),
    [
        (queue("a", "", [quota("cpu", "much")]), "spec.resourceGroups[0].flavors[0].resources[0].nominalQuota"),
        (queue("a", "", [quota("cpu", -1)]), "spec.resourceGroups[0].flavors[0].resources[0].nominalQuota"),
        (queue("a", "", [quota("cpu", None)]), "spec.resourceGroups[0].flavors[0].resources[0].nominalQuota"),
        (queue("a", "c", [quota("cpu", 1, True)]), "spec.resourceGroups[0].flavors[0].resources[0].borrowingLimit"),
        (queue("a", "", [{"nominalQuota": 1}]), "spec.resourceGroups[0].flavors[0].resources[0].name"),
        (queue("a", "", [5]), "spec.resourceGroups[0].flavors[0].resources"),  # type: ignore[list-item] # what it must bear
        (queue("a", resourceGroups=5), "spec.resourceGroups"),
        (queue("a", cohortName=5), "spec.cohortName"),
        (queue("a", fairSharing={"weight": "-1"}), "spec.fairSharing.weight"),
        (queue("a", fairSharing=[]), "spec.fairSharing"),
        (queue("a") | {"spec": 5}, "spec"),
        (queue(""), "metadata.name"),
        (cohort("a", "a"), "spec.parentName"),
        (local("", "a"), "metadata.namespace"),
        (local("x", ""), "spec.clusterQueue"),
    ],
)
def test_a_malformed_document_names_its_field(document: Json, path: str) -> None:
    found = read_kueue([document])
    assert found.tree is None
    (problems,) = found.problems.values()
    assert [one.path for one in problems] == [path]
    assert all(one.text and one.fix for one in problems)


def test_cohort_cycles_and_duplicate_names_are_problems() -> None:
    circle = read_kueue([cohort("a", "b"), cohort("b", "c"), cohort("c", "a")])
    assert {key: [one.path for one in of] for key, of in circle.problems.items()} == {"Cohort a": ["spec.parentName"]}
    twice = read_kueue([queue("a"), queue("a")])
    assert {key: [one.path for one in of] for key, of in twice.problems.items()} == {
        "ClusterQueue a": ["metadata.name"]
    }
