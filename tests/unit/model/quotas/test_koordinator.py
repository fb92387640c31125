"""ElasticQuotas of Koordinator: labels make a tree, and each rule that one can break is told at its object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multisched.model.quota_tree import DEPTH_MAX, QuotaTree
from multisched.model.quotas.koordinator import POD_LABEL, ROOT, read_linked
from multisched.model.quotas.reading import ReadQuotas
from tests.unit.model.quotas.quota_documents import Json, decoded_linked, linked


def read(*documents: Json) -> ReadQuotas:
    return read_linked(map(decoded_linked, documents))


def tree(*documents: Json) -> QuotaTree:
    found = read(*documents)
    assert found.tree is not None, found.problems
    return found.tree


def test_tree_is_built_from_labels() -> None:
    found = tree(
        linked("b", 4, 8, "company"),
        linked("company", 10, 20, is_parent="true", allow_lent_resource="false"),
        linked("a", 5, 20, "company", shared_weight={"cpu": "3"}, namespaces=["team-a", "web"]),
        linked("alone", 1, 2, ROOT, namespace="alone"),
        linked("koordinator-default-quota", None, 99),
    )
    assert [node.path for node in found.nodes] == [
        ROOT,
        f"{ROOT}.alone",
        f"{ROOT}.company",
        f"{ROOT}.company.a",
        f"{ROOT}.company.b",
    ]
    root, alone, company, first, second = found.nodes
    assert (root.min, root.max, root.children) == ({"cpu": 11_000}, {}, (1, 2))
    assert (company.children, company.guarantee, company.weights) == ((3, 4), {"cpu": 10_000}, None)
    assert (first.weights, first.guarantee, first.max) == ({"cpu": 3000}, {}, {"cpu": 20_000})
    assert (alone.namespaces, second.namespaces) == (("alone",), ())
    assert found.leaf_of == {"alone": 1, "team-a": 3, "web": 3}
    assert (found.pod_label, found.leaf_named) == (POD_LABEL, {"alone": 1, "a": 3, "b": 4})


@pytest.mark.parametrize("other", ["other", "zone"])
def test_quota_in_the_namespace_takes_precedence_over_an_annotation(other: str) -> None:
    found = tree(linked("team", 1, 2, namespace="team"), linked(other, 1, 2, namespaces=["team", "web"]))
    assert {name: found.nodes[at].name for name, at in found.leaf_of.items()} == {"team": "team", "web": other}


def test_label_chooses_among_quotas_that_list_the_namespace() -> None:
    found = tree(linked("b", 1, 3, namespaces=["x"]), linked("a", 1, 3, namespaces=["x", "y"]), linked("c", 1, 3))
    assert found.nodes[found.leaf_of["x"]].name == "a", "the first by name, for pods without a label"
    assert found.named_in == {"a": frozenset(("x", "y")), "b": frozenset(("x",)), "c": frozenset()}


def test_total_bounds_the_tree() -> None:
    root = linked("tree", 2, 100, is_root="true", is_parent="true", tree_id="t", total_resource={"cpu": "8"})
    found = tree(root, linked("leaf", 1, 50, "tree", tree_id="t"))
    assert found.nodes[1].max == {"cpu": 8000}


def test_total_below_a_min_limits_that_min() -> None:
    assert tree(linked("a", 5, 8, total_resource={"cpu": "3"})).nodes[1].max == {"cpu": 5000}


def test_weight_may_be_a_fraction_of_a_device() -> None:
    found = tree(linked("a", 1, 3, shared_weight={"nvidia.com/gpu": "1.5", "cpu": "0.5"}))
    assert found.nodes[1].weights == {"nvidia.com/gpu": 1500, "cpu": 500}


def test_no_quotas_give_no_tree() -> None:
    assert read(linked("koordinator-root-quota", None, None)) == ReadQuotas(None)


PARENT: Json = linked("p", 4, 8, is_parent="true")


@pytest.mark.parametrize(
    ("documents", "told"),
    [
        ([linked("a", 5, 3)], {"kube-system/a": ["spec.min.cpu"]}),
        ([linked("a", 5, None)], {"kube-system/a": ["spec.min.cpu"]}),
        ([linked("a", 1, 3, "gone")], {"kube-system/a": ["parent"]}),
        ([linked("a", 1, 3, "b"), linked("b", 1, 3)], {"kube-system/a": ["parent"]}),
        ([PARENT, linked("a", 1, 3, "p", tree_id="t")], {"kube-system/a": ["tree-id"]}),
        ([PARENT, linked("a", 3, 8, "p"), linked("b", 3, 8, "p")], {"kube-system/p": ["spec.min.cpu"]}),
        (
            [linked("a", 1, 3, "b", is_parent="true"), linked("b", 1, 3, "a", is_parent="true")],
            {"kube-system/a": ["parent"], "kube-system/b": ["parent"]},
        ),
        ([linked("a", 1, 3), linked("a", 1, 3, namespace="web")], {"web/a": ["metadata.name"]}),
        ([linked("p", 1, 3, is_parent="true", namespaces=["x"])], {"kube-system/p": ["namespaces"]}),
        ([linked("a", 1, 3, namespaces="team-a")], {"kube-system/a": ["namespaces"]}),
        ([linked("a", 1, 3, namespaces=["web", "No_Name", "a.b"])], {"kube-system/a": ["namespaces", "namespaces"]}),
        ([linked("a", 1, 3, namespaces=[1])], {"kube-system/a": ["namespaces"]}),
        ([linked("a", 1, 3, shared_weight={"cpu": "lots"})], {"kube-system/a": ["shared-weight"]}),
        ([linked("a", 1, 3, shared_weight=[1])], {"kube-system/a": ["shared-weight"]}),
        ([linked("a", 1, 3, is_parent="True")], {"kube-system/a": ["is-parent"]}),
        ([linked("a", 1, 3, allow_lent_resource="no")], {"kube-system/a": ["allow-lent-resource"]}),
        ([linked("a", 1, 3) | {"spec": 5}], {"kube-system/a": ["spec"]}),
    ],
)
def test_each_violation_is_reported_at_its_object(documents: list[Json], told: Mapping[str, list[str]]) -> None:
    found = read(*documents)
    assert found.tree is None
    places = {key: [one.path for one in problems] for key, problems in found.problems.items()}
    assert {key: len(paths) for key, paths in places.items()} == {key: len(paths) for key, paths in told.items()}
    assert all(word in path for key, words in told.items() for word, path in zip(words, places[key], strict=True))
    assert all(one.text and one.fix for problems in found.problems.values() for one in problems)


def test_too_many_levels_are_refused() -> None:
    chain = [linked("n0", 0, 1, is_parent="true")]
    chain += [linked(f"n{at}", 0, 1, f"n{at - 1}", is_parent="true") for at in range(1, DEPTH_MAX + 3)]
    assert read(*chain).tree is None


@st.composite
def forests(draw: st.DrawFn) -> list[Json]:
    """Quotas whose parents come before them; a parent is sure of what its children are sure of, and more."""
    count = draw(st.integers(1, 8))
    parents = [draw(st.integers(-1, at - 1)) for at in range(count)]
    least = [draw(st.integers(0, 5)) for _ in range(count)]
    for at in reversed(range(count)):
        if parents[at] >= 0:
            least[parents[at]] += least[at]
    found: list[Json] = []
    for at in range(count):
        fields: dict[str, Any] = {"is_parent": "true" if at in parents else "false"}
        if draw(st.booleans()):
            fields["allow_lent_resource"] = "false"
        if draw(st.booleans()):
            fields["shared_weight"] = {"cpu": str(draw(st.integers(0, 9)))}
        if at not in parents and draw(st.booleans()):
            fields["namespaces"] = [f"ns-{at}"]
        parent = f"q{parents[at]}" if parents[at] >= 0 else draw(st.sampled_from(["", ROOT]))
        found.append(linked(f"q{at}", least[at], least[at] + draw(st.integers(0, 9)), parent, **fields))
    return found


@given(forests(), st.randoms(use_true_random=False))
def test_good_quotas_make_the_same_tree_in_any_order(documents: list[Json], random: Any) -> None:
    found = tree(*documents)
    mixed = list(documents)
    random.shuffle(mixed)
    assert tree(*mixed) == found
    assert len(found.nodes) == len(documents) + 1
    for at, node in enumerate(found.nodes):
        assert all(found.nodes[child].parent == at for child in node.children)
        assert sum(found.nodes[child].min["cpu"] for child in node.children) <= node.min["cpu"]
    assert set(found.leaf_named.values()) == set(found.leaves()) - {0}


@pytest.mark.parametrize("label", ["is_parent", "allow_lent_resource"])
@pytest.mark.parametrize("value", ["True", "no", "1"])
def test_label_that_is_neither_true_nor_false_is_a_problem_of_its_quota(label: str, value: str) -> None:
    found = read(linked("team", 1, 2, **{label: value}))
    key = f"quota.scheduling.koordinator.sh/{label.replace('_', '-')}"
    assert any(
        key in problem.path and "neither true nor false" in problem.text
        for told in found.problems.values()
        for problem in told
    )
