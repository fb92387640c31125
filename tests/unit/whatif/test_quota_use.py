"""What each level holds, borrows and lends: the walk-through of ACK's manual by its figures, and any tree by its sums."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from multisched.plugins.quota.level_use import LevelUse
from multisched.testing.builders import Document
from multisched.whatif.quota_use import QuotaUse, quota_use
from tests.unit.model.quotas.quota_documents import flat
from tests.unit.plugins.quota.trees import Json, leaf
from tests.unit.plugins.quota.trees import node as level
from tests.unit.whatif.quota_clusters import node, pods, quota_tree, snapshot_of, walk_through


def use_of(*documents: Document) -> QuotaUse:
    return quota_use(snapshot_of(documents))


def figures(found: QuotaUse, resource: str = "cpu") -> dict[str, tuple[int, int, int]]:
    """Path -> used, borrowed and lent, in whole CPUs."""
    uses = {one.path: one.resources[resource] for one in found.levels}
    return {path: (use.used // 1000, use.borrowed // 1000, use.lent // 1000) for path, use in uses.items()}


def test_each_walk_through_step_borrows_what_others_lend() -> None:
    assert figures(use_of(*walk_through(4))) == {
        "root": (20, 0, 0),
        "root.a": (20, 0, 0),
        "root.a.1": (20, 10, 0),
        "root.a.2": (0, 0, 10),
        "root.b": (0, 0, 0),
        "root.b.3": (0, 0, 0),
        "root.b.4": (0, 0, 0),
    }
    assert figures(use_of(*walk_through(3, 3, 2))) == {
        "root": (40, 0, 0),
        "root.a": (30, 10, 0),
        "root.a.1": (15, 5, 0),
        "root.a.2": (15, 5, 0),
        "root.b": (10, 0, 10),
        "root.b.3": (10, 0, 0),
        "root.b.4": (0, 0, 10),
    }
    assert {(borrowed, lent) for _, borrowed, lent in figures(use_of(*walk_through(2, 2, 2, 2))).values()} == {(0, 0)}


def test_pending_pods_are_requested_and_have_a_fair_share() -> None:
    found = use_of(*walk_through(3, 3, 2, 0))
    uses = {one.path: one.resources["cpu"] for one in found.levels}
    assert (uses["root"].requested, uses["root"].fair_share) == (100_000, 40_000)
    assert (uses["root.b.4"].requested, uses["root.b.4"].fair_share, uses["root.b.4"].used) == (25_000, 10_000, 0)


def test_idle_min_is_lent_proportionally_and_guarantees_are_not() -> None:
    guaranteed = leaf("c", 4, 4, attributes={"multisched.io/guarantee": "cpu=3"})
    root = level("root", {"cpu": 9}, {"cpu": 9}, leaf("a", 1, 9), leaf("b", 2, 9), guaranteed)
    found = use_of(node(), quota_tree(root), *pods("a", 3, cpu="1"))
    assert figures(found)["root.a"] == (3, 2, 0)
    lent = {one.path: one.resources["cpu"].lent for one in found.levels}
    assert lent == {"root": 0, "root.a": 0, "root.b": 0, "root.c": 0}, "the root has two that nobody is sure of"
    found = use_of(node(), quota_tree(root), *pods("a", 6, cpu="1"))
    assert {one.path: one.resources["cpu"].lent for one in found.levels} | {"root.a": 0} == {
        "root": 0,
        "root.a": 0,
        "root.b": 2000,
        "root.c": 1000,
    }


def test_other_apis_and_ineffective_objects_are_noted() -> None:
    found = use_of(node(), flat("a", 2, 3), flat("b", 2, 3), *pods("a", 1, cpu="1"))
    assert found.source == "ElasticQuotas (scheduling.x-k8s.io/v1alpha1)"
    assert figures(found)["root.a"] == (1, 0, 0)
    both = use_of(node(), quota_tree(level("root", {}, {})), flat("a", 2, 3))
    assert both.source == "ElasticQuotaTree kube-system/teams (scheduling.sigs.k8s.io/v1beta1)"
    assert ["one API is read at a time" in why for why in both.trouble.values()] == [True]
    broken = use_of(node(), quota_tree(level("root", {"cpu": 5}, {"cpu": 4})))
    assert (broken.source, broken.levels) == ("", ())
    assert "min 5 is over max 4" in broken.trouble["kube-system/teams"]


def test_invalid_tree_shows_the_last_good_one_and_notes_it() -> None:
    good = level("root", {"cpu": 4}, {"cpu": 4}, leaf("a", 2, 4, "a"))
    broken = quota_tree(level("root", {"cpu": 4}, {"cpu": 4}, leaf("a", 9, 4, "a")))
    assert use_of(node(), broken).source == ""
    found = use_of(node(), {**broken, "status": {"lastGood": {"root": good}}})
    assert [one.path for one in found.levels] == ["root", "root.a"]
    assert found.notes == ("kube-system/teams is in force in its last valid version",)
    assert list(found.trouble) == ["kube-system/teams"]


def test_quota_document_has_quantities() -> None:
    found = use_of(*walk_through(4)).document()
    (first,) = [one for one in found["levels"] if one["path"] == "root.a.1"]
    assert first["namespaces"] == ["namespace1"]
    assert first["resources"]["cpu"] == {
        "used": "20",
        "min": "10",
        "max": "20",
        "borrowed": "10",
        "lent": "0",
        "requested": "25",
        "fairShare": "20",
    }


# -- any tree ------------------------------------------------------------------------------------------------------------


@st.composite
def levels(draw: st.DrawFn, depth: int = 2) -> Json:
    """Any tree whose levels are sure of at least what those below them are."""
    children = [draw(levels(depth - 1)) for _ in range(draw(st.integers(0, 3)))] if depth else []
    least = sum(child["min"]["cpu"] for child in children) + draw(st.integers(0, 5))
    more: dict[str, Any] = {"children": children} if children else {"namespaces": []}
    if draw(st.integers(0, 9)) == 0:
        more["attributes"] = {"multisched.io/guarantee": "all"}
    return {"min": {"cpu": least}, **more}


def renamed(root: Json) -> list[str]:
    """Gives each level a name of its own; the namespaces."""
    waiting, names, number = [root], [], 0
    while waiting:
        one = waiting.pop()
        one["name"], number = f"l{number}", number + 1
        if "namespaces" in one:
            one["namespaces"] = [one["name"]]
            names.append(one["name"])
        waiting += one.get("children", [])
    root["max"] = dict(root["min"])
    return names


@settings(max_examples=60, deadline=None)
@given(levels(), st.data())
def test_idle_min_of_children_is_idle_or_lent_at_their_level(root: Json, data: st.DataObject) -> None:
    names = renamed(root)
    running = [one for name in names for one in pods(name, data.draw(st.integers(0, 4)), cpu="1")]
    uses = {one.path: one.resources["cpu"] for one in use_of(quota_tree(root), *running).levels}
    idle = {path: max(0, use.min - use.used) for path, use in uses.items()}
    guaranteed = "attributes" in str(root)
    for path, use in uses.items():
        assert use.borrowed == max(0, use.used - use.min)
        assert 0 <= use.lent <= idle[path]
        below = [name for name in uses if name.rpartition(".")[0] == path]
        if below and not guaranteed:
            whole = sum(idle[name] for name in below)
            assert sum(uses[name].lent for name in below) == min(whole, max(0, whole - idle[path]) + use.lent)


def test_level_use_lists_its_namespaces() -> None:
    found: tuple[LevelUse, ...] = use_of(*walk_through(1)).levels
    assert [one.namespaces for one in found if one.namespaces] == [(f"namespace{number}",) for number in range(1, 5)]
