"""Quotas before they are applied: rules within the files and with what the cluster has, and what is odd."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from multisched.model.quotas.translation import QuotaApi
from multisched.testing.builders import Document
from multisched.whatif.quota_lint import NAMED_MAX, Finding, Linted, lint
from tests.unit.model.quotas import test_kueue
from tests.unit.model.quotas.quota_documents import flat, linked
from tests.unit.plugins.quota.trees import Json, acks_example, leaf
from tests.unit.plugins.quota.trees import node as level
from tests.unit.whatif.quota_clusters import namespace, node, pods, quota_tree, snapshot_of, walk_through

ACK, KOORDINATOR, FLAT, KUEUE = (
    QuotaApi.ACK,
    QuotaApi.KOORDINATOR,
    QuotaApi.SCHEDULER_PLUGINS,
    QuotaApi.KUEUE,
)


def linted(api: QuotaApi, documents: Sequence[Json], *cluster: Document) -> Linted:
    return lint(api, documents, snapshot_of(cluster) if cluster else None)


def named(found: Sequence[Finding]) -> list[tuple[str, str]]:
    assert all(one.text and one.fix for one in found)
    return [(one.key, one.path) for one in found]


def test_valid_tree_has_no_findings() -> None:
    found = linted(ACK, [quota_tree(acks_example())])
    assert (found.problems, found.warnings, found.after) == ((), (), None)


def test_every_rule_is_reported_with_path_and_fix() -> None:
    root = level(
        "root",
        {"cpu": 5},
        {"cpu": 4, "disk drives": 1},
        leaf("a", 3, 9, "x"),
        leaf("a", 3, 2, "x", "y"),
        level("b", {"cpu": "much"}, {}, leaf("c", 1, 1), namespaces=["z"]),
    )
    found = linted(ACK, [quota_tree(root)])
    assert {path for _, path in named(found.problems)} >= {
        "root.max.'disk drives'",
        "root.children[1].name",
        "root.a.namespaces",
        "root.b.min.cpu",
        "root.b.namespaces",
    }
    levels = linted(ACK, [quota_tree(level("root", {"cpu": 5}, {"cpu": 4}, leaf("a", 3, 9), leaf("b", 3, 2)))])
    assert [path for _, path in named(levels.problems)] == [
        "root.min.cpu",
        "root.min.cpu",
        "root.a.max.cpu",
        "root.b.min.cpu",
    ]


def test_only_one_tree_in_one_namespace_is_valid() -> None:
    elsewhere = linted(ACK, [quota_tree(acks_example(), namespace="default")])
    assert named(elsewhere.problems) == [("ElasticQuotaTree default/teams", "metadata.namespace")]
    second = linted(ACK, [quota_tree(acks_example(), "second")], quota_tree(acks_example()), node())
    assert named(second.problems) == [("ElasticQuotaTree kube-system/second", "metadata.name")]
    same = linted(ACK, [quota_tree(acks_example())], quota_tree(acks_example()), node())
    assert same.problems == ()
    both = linted(ACK, [quota_tree(acks_example()), quota_tree(acks_example(), "b")])
    assert {path for _, path in named(both.problems)} == {"metadata.name"}


def test_one_quota_api_is_in_force() -> None:
    found = linted(FLAT, [flat("a", 1, 2)], quota_tree(acks_example()))
    assert named(found.problems) == [("ElasticQuota a/quota", "apiVersion")]
    assert "multisched quota convert" in found.problems[0].fix
    assert linted(ACK, [quota_tree(acks_example())], flat("a", 1, 2), node("n", "900")).problems == ()


def test_cluster_objects_are_checked_too() -> None:
    child = linked("web", 2, 4, "company", namespaces=["web"])
    assert named(linted(KOORDINATOR, [child]).problems) == [
        ("ElasticQuota kube-system/web", "metadata.labels[quota.scheduling.koordinator.sh/parent]")
    ]
    parent = linked("company", 4, 8, is_parent="true")
    assert linted(KOORDINATOR, [child], parent, node()).problems == ()
    smaller = linked("company", 1, 8, is_parent="true")
    assert named(linted(KOORDINATOR, [smaller], parent, child, node()).problems) == [
        ("ElasticQuota kube-system/company", "spec.min.cpu")
    ]


def test_kueue_quotas_are_checked_as_a_tree() -> None:
    queue = test_kueue.queue("web", "", [test_kueue.quota("cpu", 9)])
    found = linted(KUEUE, [queue, test_kueue.local("web", "web")], quota_tree(acks_example()), node(), namespace("web"))
    assert (found.problems, found.warnings) == ((), ())
    assert found.after is not None
    assert [one.name for _, one in found.after.objects] == ["web", "elasticquotatree"], (
        "in place of the tree that is there"
    )
    wrong = linted(KUEUE, [test_kueue.queue("web", "", [test_kueue.quota("cpu", -1)])])
    assert named(wrong.problems) == [
        ("ClusterQueue web", "spec.resourceGroups[0].flavors[0].resources[0].nominalQuota")
    ]


def test_a_namespace_among_the_documents_is_no_quota() -> None:
    assert linted(FLAT, [namespace("a"), flat("a", 1, 2)]).problems == ()


@pytest.mark.parametrize(
    ("api", "document", "path"),
    [
        (ACK, quota_tree(acks_example()) | {"metadata": 5}, "metadata"),
        (ACK, quota_tree(acks_example()) | {"spec": 5}, "spec"),
        (FLAT, flat("", 1, 2), "metadata.namespace"),
        (KOORDINATOR, linked("a", 1, 2) | {"spec": []}, "spec"),
    ],
)
def test_a_malformed_document_is_a_problem(api: QuotaApi, document: Json, path: str) -> None:
    assert path in [found for _, found in named(linted(api, [document]).problems)]


def test_unusual_settings_are_warnings() -> None:
    root = level("root", {"cpu": 9}, {"cpu": 9}, leaf("a", 1, 2, "x"), level("b", {"cpu": 1}, {"cpu": 2}))
    found = linted(ACK, [quota_tree(root)], node("n", "4"), namespace("y"), *pods("x", 3, cpu="1"))
    assert found.problems == ()
    assert [path for _, path in named(found.warnings)] == [
        "root.b.namespaces",
        "root.a.namespaces",
        "root.min.cpu",
        "root.a.max.cpu",
    ]
    assert [one.text for one in found.warnings] == [
        "no namespace belongs to this leaf",
        "there is no namespace x",
        "9 exceeds the 4 of all nodes",
        "3 is used, over max 2: its pods stay, and no other is admitted",
    ]


def test_full_quota_is_no_warning() -> None:
    root = level("root", {"cpu": 4}, {"cpu": 4}, leaf("x", 1, 3))
    assert linted(ACK, [quota_tree(root)], node("n", "4"), namespace("x"), *pods("x", 3, cpu="1")).warnings == ()


def test_misspelt_field_is_a_warning_with_a_suggestion() -> None:
    """The API server takes any field below the root."""
    team = leaf("team", 1, 4, "team", attributes={"multisched.io/weigth": "2", "resourceflavors": ["a"]})
    team["mim"] = {"cpu": 1}
    root = level("root", {"cpu": 4}, {"cpu": 4}, level("root.half", {"cpu": 1}, {}, team), colour="red")
    found = linted(ACK, [quota_tree(root)])
    assert found.problems == ()
    assert [str(one) for one in found.warnings] == [
        "root.colour: it has no effect; leave it out",
        "root.half.team.mim: it has no effect; did you mean min?",
        "root.half.team.attributes[multisched.io/weigth]: it has no effect; did you mean multisched.io/weight?",
    ]
    by_number: Any = 5  # as YAML has keys
    numbers = {**leaf("a", 1, 4, attributes=5), by_number: 5}
    odd = level("root", {"cpu": 4}, {"cpu": 4}, numbers, leaf("b", 1, 4, attributes={5: 5}))
    assert [one.path for one in linted(ACK, [quota_tree(odd)]).warnings] == ["root.a.5"]
    with_cluster = linted(ACK, [quota_tree(root)], namespace("team"), node())
    assert [one.path for one in with_cluster.warnings][:3] == [one.path for one in found.warnings]


def test_equal_warnings_are_counted_beyond_a_limit() -> None:
    leaves = [level(f"l{number}", {}, {}) for number in range(NAMED_MAX + 5)]
    found = linted(ACK, [quota_tree(level("root", {}, {}, *leaves))])
    assert len(found.warnings) == NAMED_MAX + 1
    assert found.warnings[-1].text == "5 more like those above"


def test_resulting_cluster_contains_the_objects() -> None:
    root = level("root", {"cpu": 9}, {"cpu": 9}, leaf("a", 1, 2, "namespace1"))
    found = linted(ACK, [quota_tree(root)], *walk_through(4))
    assert found.after is not None
    (tree,) = [one for kind, one in found.after.objects if kind.definition.name == "ElasticQuotaTree"]
    assert getattr(tree, "tree", None) is not None
    assert len(found.after.placed) == 4
