"""A tree written down as an ElasticQuotaTree: nothing lost of a tree of ACK, and what is changed of others."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multisched.model.quota_tree import QuotaNode, QuotaTree, read_tree
from multisched.model.quotas.drafts import Draft, sum_of, tree_of
from multisched.model.quotas.writing import exact_root, written
from tests.unit.model.quotas.quota_documents import Json
from tests.unit.plugins.quota.trees import acks_example, leaf, node


def drafted(name: str, least: int = 0, most: int | None = None, *children: Draft, **more: Any) -> Draft:
    """In CPUs of a thousandth."""
    draft = Draft(name)
    draft.min = {"cpu": least} if least else {}
    draft.max = {} if most is None else {"cpu": most}
    draft.children = list(children)
    for field, value in more.items():
        setattr(draft, field, value)
    return draft


def root_of(tree: QuotaTree, **total: int) -> Json:
    root: Json = written(tree, total=total).document["spec"]["root"]
    return root


def losses(tree: QuotaTree, **total: int) -> list[tuple[str, str]]:
    return [(one.path, one.text) for one in written(tree, total=total).losses]


@pytest.mark.parametrize(
    "root",
    [
        acks_example(),
        node("root", {"cpu": 4}, {"cpu": 4}, leaf("a", 1, 3, attributes={"multisched.io/weight": "7"}), leaf("b", 0, 4)),
        node("root", {"cpu": 4}, {"cpu": 4}, leaf("a", 4, 4, "x", "y", attributes={"multisched.io/guarantee": "all"})),
        node("root", {"cpu": 4}, {"cpu": 4}, leaf("a", 4, 4, attributes={"multisched.io/guarantee": "cpu=500m"})),
        node("root", {}, {}, leaf("a", 0, 7)),
    ],
    ids=["ack", "weight", "all guaranteed", "some guaranteed", "open root"],
)  # fmt: skip
def test_valid_tree_is_equal_after_writing_and_reading(root: Json) -> None:
    tree, problems = read_tree(root)
    assert tree is not None, problems
    found = written(tree)
    again, problems = read_tree(found.document["spec"]["root"])
    assert problems == ()
    if root["max"]:
        assert again == tree
        assert found.losses == ()


def test_written_object_is_in_the_namespace_that_is_read() -> None:
    document = written(tree_of(drafted("root")), "teams").document
    assert document["metadata"] == {"name": "teams", "namespace": "kube-system"}
    assert (document["apiVersion"], document["kind"]) == ("scheduling.sigs.k8s.io/v1beta1", "ElasticQuotaTree")


def test_written_names_are_unique() -> None:
    tree = tree_of(drafted("root", 0, 9, drafted("a.b", 0, 9), drafted("a.b", 0, 9), drafted("root", 0, 9)))
    assert [one["name"] for one in root_of(tree)["children"]] == ["a.b", "a.b-2", "root-2"]
    assert [path for path, _ in losses(tree)] == ["root.a.b", "root.root"]


def test_unbounded_root_gets_the_sum_of_child_max() -> None:
    tree = tree_of(drafted("root", 0, None, drafted("a", 1000, 3000), drafted("b", 0, 2000)))
    assert (root_of(tree)["min"], root_of(tree)["max"]) == ({"cpu": "5"}, {"cpu": "5"})
    ((path, text),) = losses(tree)
    assert path == "root.max.cpu"
    assert "written with 5: the sum of its children's max; set the cluster's total with --total cpu=AMOUNT" in text


def test_root_with_an_unbounded_child_gets_the_sum_of_child_min() -> None:
    tree = tree_of(drafted("root", 0, None, drafted("a", 1000), drafted("b", 2000, 5000)))
    assert root_of(tree)["max"] == {"cpu": "3"}
    ((_, text),) = losses(tree)
    assert "root.a may borrow no more" in text
    assert root_of(tree)["children"][1]["max"] == {"cpu": "3"}, "more is never reached"


def test_unbounded_root_gets_the_capacity_of_the_cluster() -> None:
    tree = tree_of(drafted("root", 0, None, drafted("a", 1000), drafted("b", 2000, 5000)))
    assert root_of(tree, cpu=40_000, pods=110)["max"] == {"cpu": "40", "pods": "110"}
    assert losses(tree, cpu=40_000) == []
    bounded = tree_of(drafted("root", 1000, 2000))
    assert root_of(bounded, cpu=40_000)["max"] == root_of(bounded)["min"] == {"cpu": "2"}


def test_weights_by_resource_and_labels_of_pods_are_lost() -> None:
    nodes = [
        QuotaNode("root", "root", -1, (1, 2), {"cpu": 9}, {"cpu": 9}),
        QuotaNode("a", "root.a", 0, (), {}, {"cpu": 9}, weights={"cpu": 5}),
        QuotaNode("b", "root.b", 0, (), {}, {"cpu": 9}, weights={"cpu": 9}),
    ]
    found = losses(QuotaTree.of(nodes, "team", {"a": 1}))
    assert [path for path, _ in found] == ["", "root.a"], "weights that are the max say nothing new"
    assert "label team of pods is not converted" in found[0][1]


# -- any tree ------------------------------------------------------------------------------------------------------------

amounts = st.dictionaries(st.sampled_from(["cpu", "memory", "nvidia.com/gpu"]), st.integers(0, 2**40), max_size=3)


@st.composite
def drafts(draw: st.DrawFn, depth: int = 3) -> Draft:
    """Trees that are sure of no more than they hold, of names as objects have them."""
    draft = Draft(draw(st.from_regex(r"[a-z]([-a-z0-9.]{0,6}[a-z0-9])?", fullmatch=True)))
    count = draw(st.integers(0, 3)) if depth else 0
    draft.children = [draw(drafts(depth - 1)) for _ in range(count)]
    draft.weight = draw(st.none() | st.integers(0, 999_999_999))
    own = draw(amounts)
    draft.min = sum_of([own, *(child.min for child in draft.children)])
    draft.max = {resource: draft.min.get(resource, 0) + more for resource, more in draw(amounts).items()}
    draft.guarantee = {resource: amount for resource, amount in draft.min.items() if draw(st.booleans())}
    for child in draft.children:  # what the level above bounds, it can hold
        child.min = {r: min(amount, draft.max.get(r, amount)) for r, amount in child.min.items()}
    return draft


def with_namespaces(root: Draft) -> QuotaTree:
    for at, one in enumerate(root.below()):
        one.namespaces = [] if one.children else [f"namespace-{at}"]
    return tree_of(root)


@settings(max_examples=60, deadline=None)
@given(drafts())
def test_every_written_tree_is_valid_and_keeps_all_namespaces(root: Draft) -> None:
    tree = with_namespaces(root)
    again, problems = read_tree(written(tree).document["spec"]["root"])
    assert problems == ()
    assert again is not None
    assert again.leaf_of == tree.leaf_of
    for before, after in zip(tree.nodes[1:], again.nodes[1:], strict=True):
        kept = {resource: amount for resource, amount in after.guarantee.items() if amount}
        assert (before.min, before.weight, before.guarantee) == (after.min, after.weight, kept)
        assert all(amount <= before.max[resource] for resource, amount in after.max.items())


@settings(max_examples=60, deadline=None)
@given(drafts())
def test_exactly_written_ack_tree_is_equal_in_every_field(root: Draft) -> None:
    tree, problems = read_tree(written(with_namespaces(root)).document["spec"]["root"])
    assert tree is not None, problems
    assert read_tree(exact_root(tree)) == (tree, ())


def test_unbounded_root_is_written_exactly_without_a_bound() -> None:
    tree, _ = read_tree(node("root", {}, {}, leaf("a", 0, 7), node("b", {}, {"memory": "5"})))
    assert tree is not None
    assert read_tree(exact_root(tree)) == (tree, ())
