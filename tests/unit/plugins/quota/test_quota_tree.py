"""Trees of quotas as people write them: what is read, and each rule that one can break, with its place and its mend."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multisched.model.quota_tree import DEPTH_MAX, GUARANTEE_ATTRIBUTE, WEIGHT_ATTRIBUTE, read_tree, shown_amount
from tests.unit.plugins.quota.trees import Json, acks_example, leaf, node, tree_of

TEN: Json = {"cpu": 10}
GUARANTEES = f"root.a.attributes[{GUARANTEE_ATTRIBUTE}"


def test_ack_example_is_read_with_its_levels() -> None:
    tree, problems = read_tree(acks_example())
    assert problems == ()
    assert tree is not None
    assert [one.path for one in tree.nodes] == [
        "root",
        "root.a",
        "root.a.1",
        "root.a.2",
        "root.b",
        "root.b.3",
        "root.b.4",
    ]
    assert tree.nodes[0].max == {"cpu": 40_000, "memory": 40 * 2**30, "nvidia.com/gpu": 4000}
    assert tree.paths[tree.leaf_of["namespace3"]] == (5, 4, 0)
    assert list(tree.leaves()) == [2, 3, 5, 6]


def test_names_with_dots_have_an_unambiguous_path() -> None:
    """ACK's manual itself names its levels so."""
    tree = tree_of(TEN, TEN, node("root.a", TEN, TEN, leaf("root.a.1", 1, 5, "x"), leaf("b.c", 1, 5, "y")))
    assert [one.path for one in tree.nodes] == ["root", "root.a", "root.a.1", "root.a.b.c"]


def test_every_requestable_resource_may_be_named() -> None:
    names = ["cpu", "memory", "ephemeral-storage", "pods", "hugepages-2Mi", "attachable-volumes-aws-ebs", "a.b/c"]
    assert tree_of(dict.fromkeys(names, 1), dict.fromkeys(names, 1)).resources == set(names)


def test_amounts_may_be_fractions() -> None:
    amounts = {"cpu": "1500m", "memory": "1.5Gi", "nvidia.com/gpu": "4000m", "x.y/fpga": "0.5", "pods": "1k"}
    whole = {"cpu": 1500, "memory": 3 * 2**29, "nvidia.com/gpu": 4000, "x.y/fpga": 500, "pods": 1000}
    assert tree_of(amounts, amounts, node("a", {}, amounts, namespaces=["team-1", "t" * 63])).nodes[1].max == whole


def test_misspelt_resource_gets_a_suggestion() -> None:
    (problem, *_) = read_tree(node("root", {"memori": 1}, {"memori": 1}))[1]
    assert str(problem) == "root.min.'memori': no pod can ask for such a resource; did you mean memory?"


def test_weight_and_max_jobs_are_not_resources() -> None:
    tree = tree_of(
        TEN, TEN, leaf("a", 1, 10, attributes={WEIGHT_ATTRIBUTE: "3"}), node("b", {}, {"kube-queue/max-jobs": 5})
    )
    assert [one.weight for one in tree.nodes] == [None, 3, None]
    assert tree.resources == {"cpu"}


@pytest.mark.parametrize(("text", "kept"), [("all", 4000), ("cpu=1500m", 1500), ("cpu=1, memory=0", 1000)])
def test_guarantee_is_at_most_the_min(text: str, kept: int) -> None:
    tree = tree_of(TEN, TEN, leaf("a", 4, 10, attributes={GUARANTEE_ATTRIBUTE: text}))
    assert [one.guarantee.get("cpu") for one in tree.nodes] == [None, kept]


@pytest.mark.parametrize(
    ("root", "places"),
    [
        (None, ["spec.root"]),
        ([], ["spec.root"]),
        (node("", TEN, TEN), ["spec.root.name"]),
        (node("root", {"cpu": 5}, {"cpu": 3}), ["root.min.cpu"]),
        (node("root", {"cpu": 3}, TEN), ["root.cpu"]),
        (node("root", {}, TEN), ["root.cpu"]),
        (node("root", TEN, TEN, leaf("a", 6, 10), leaf("b", 6, 10)), ["root.min.cpu"]),
        (node("root", TEN, TEN, leaf("a", 6, 11)), ["root.a.max.cpu"]),
        (node("root", TEN, TEN, node("a", {}, {}, leaf("b", 1, 5))), ["root.a.min.cpu"]),
        (node("root", TEN, TEN, leaf("a", 1, 5), leaf("a", 1, 5, "other")), ["root.children[1].name"]),
        (node("root", TEN, TEN, leaf("root", 1, 5)), ["root.children[0].name"]),
        (
            node("root", TEN, TEN, leaf("a", 1, 5), {}, {"name": ["b"]}),
            ["root.children[1].name", "root.children[2].name"],
        ),
        (node("root", TEN, TEN, children=[None]), ["root.children[0]"]),
        (node("root", TEN, TEN, node("a", {}, {}, {"min": 5})), ["root.a.children[0].name", "root.a.children[0].min"]),
        (node("root", TEN, TEN, leaf("a", 1, 5, "x"), leaf("b", 1, 5, "x")), ["root.b.namespaces"]),
        (node("root", TEN, TEN, node("a", {}, {}, leaf("b", 0, 5), namespaces=["x"])), ["root.a.namespaces"]),
        (node("root", TEN, TEN, children="all"), ["root.children"]),
        (node("root", TEN, TEN, leaf("a", 1, 5) | {"namespaces": "x"}), ["root.a.namespaces"]),
        *(
            (node("root", TEN, TEN, leaf("a", 1, 5, name)), ["root.a.namespaces"])
            for name in ("Team", "team.a", "-team", "team/a", "t" * 64, "team\n")
        ),
        *(
            (node("root", TEN, TEN, node("a", {}, {resource: text})), [f"root.a.max.{resource}"])
            for resource, text in (("nvidia.com/gpu", "1.5m"), ("pods", 2.5), ("a.b/c", "1500u"), ("a.b/c", "1n"))
        ),
        (node("root", {"cpu": "ten"}, {"cpu": "ten"}), ["root.min.cpu", "root.max.cpu"]),
        (node("root", {"cpu": -1}, {"cpu": -1}), ["root.min.cpu", "root.max.cpu"]),
        (node("root", {"cpu": True}, {"cpu": True}), ["root.min.cpu", "root.max.cpu"]),
        (node("root", {"a b": 1}, TEN), ["root.min.'a b'", "root.cpu"]),
        (node("root", {"gpus": 1}, {"gpus": 1}), ["root.min.'gpus'", "root.max.'gpus'"]),
        ({"name": "root", "min": [1], "max": TEN}, ["root.min"]),
        (
            node("root", TEN, TEN, leaf("a", 1, 5, attributes={WEIGHT_ATTRIBUTE: "-1"})),
            [f"root.a.attributes[{WEIGHT_ATTRIBUTE}]"],
        ),
        *(
            (node("root", TEN, TEN, leaf("a", 1, 5, attributes={GUARANTEE_ATTRIBUTE: text})), [f"{GUARANTEES}{where}"])
            for text, where in (
                ("some", "]"),
                ("cpu=2", "].cpu"),
                ("memory=1Gi", "].memory"),
                ("cpu=x", "].cpu"),
                (5, "]"),
            )
        ),
    ],
)
def test_each_violated_rule_is_reported_with_its_path(root: Any, places: list[str]) -> None:
    tree, problems = read_tree(root)
    assert tree is None
    assert [problem.path for problem in problems] == places
    assert all(problem.text and problem.fix for problem in problems)


def test_all_problems_are_reported_with_fixes() -> None:
    root = node("root", TEN, TEN, leaf("a", 6, 5), leaf("b", 6, 20))
    assert [str(one) for one in read_tree(root)[1]] == [
        "root.min.cpu: min of its children is 12 in all, over its own 10; raise min of root, or lower that of its children",
        "root.a.min.cpu: min 6 is over max 5; lower min or raise max of root.a",
        "root.b.max.cpu: max 20 is over 10 of root; lower it, or raise max of root",
    ]


def test_missing_or_duplicate_name_is_reported_with_the_other_node() -> None:
    root = node("root", TEN, TEN, node("a", {}, {}, leaf("web", 0, 1)), node("b", {}, {}, leaf("web", 0, 1, "x"), {}))
    assert [str(one) for one in read_tree(root)[1]][:2] == [
        "root.b.children[0].name: root.a.web has the same name 'web'; give each node a unique name",
        "root.b.children[1].name: it has no name; write a name",
    ]


def test_too_deep_tree_is_refused() -> None:
    root = leaf("deepest", 0, 1)
    for level in range(DEPTH_MAX):
        root = node(f"n{level}", {}, {}, root)
    tree, problems = read_tree(root)
    assert tree is None
    assert "levels" in problems[0].text


FIELDS = st.sampled_from(["name", "min", "max", "children", "namespaces", "cpu"])
json = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS, inner, max_size=4),
    max_leaves=12,
)


@given(json)
def test_arbitrary_documents_do_not_raise(root: Any) -> None:
    tree, problems = read_tree(root)
    assert (tree is None) is bool(problems)


@pytest.mark.parametrize(
    ("resource", "amount", "shown"),
    [
        ("cpu", 40_000, "40"),
        ("cpu", 1500, "1500m"),
        ("memory", 2**31, "2Gi"),
        ("memory", 5, "5"),
        ("x/y", 0, "0"),
        ("x/y", 8000, "8"),
        ("x/y", 500, "500m"),
        ("x/y", 2**31 * 1000, "2147483648"),
    ],
)
def test_amounts_are_shown_in_user_units(resource: str, amount: int, shown: str) -> None:
    assert shown_amount(resource, amount) == shown
