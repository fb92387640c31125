"""QuotaSource: of three APIs one is in force, and the last good objects of it as long as somebody wants some."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from multisched.model.object_kinds import ObjectKind
from multisched.model.quotas.koordinator import LinkedQuotas
from multisched.model.quotas.reading import Problems
from multisched.plugins.quota.quota_source import QuotaSource
from multisched.shell.ingest.objects import ObjectIngest
from multisched.state.object_store import ObjectStore
from tests.unit.model.quotas.quota_documents import Json, flat, kind_of, linked
from tests.unit.plugins.quota.trees import leaf, node
from tests.unit.shell.shell_kit import Desk as EventDesk

SCHEDULER_PLUGINS = "elasticquotas.scheduling.x-k8s.io"
KOORDINATOR = "elasticquotas.scheduling.sigs.k8s.io"


def tree(least: int = 1, most: int = 4, **metadata: Any) -> Json:
    return {
        "apiVersion": "scheduling.sigs.k8s.io/v1beta1",
        "kind": "ElasticQuotaTree",
        "metadata": {"name": "tree", "namespace": "kube-system", "uid": "tree", **metadata},
        "spec": {"root": node("root", {"cpu": 4}, {"cpu": 4}, leaf("web", least, most))},
    }


class Desk:
    """A store, and the source over it."""

    def __init__(self) -> None:
        self.store = ObjectStore()
        self.source = QuotaSource(self.store)

    def apply(self, *documents: Json) -> None:
        for document in documents:
            kind = kind_of(document)
            self.store.set(kind, kind.definition.decode(orjson.dumps(document)))

    def delete(self, document: Json) -> None:
        metadata = document["metadata"]
        self.store.remove(kind_of(document), metadata["namespace"], metadata["name"])

    def paths(self) -> list[str]:
        self.source.renew()
        found = self.source.tree
        return [] if found is None else [one.path for one in found.nodes]


OF_TREE, OF_KOORDINATOR, OF_SP = (
    ["root", "root.web"],
    ["koordinator-root-quota", "koordinator-root-quota.q"],
    ["root", "root.team"],
)


def test_single_quota_api_is_used() -> None:
    for document, paths in ((tree(), OF_TREE), (linked("q", 1, 2), OF_KOORDINATOR), (flat("team", 1, 2), OF_SP)):
        desk = Desk()
        desk.apply(document)
        assert desk.paths() == paths
        assert desk.source.trouble == {}
        desk.delete(document)
        assert desk.paths() == (paths if paths is OF_TREE else [])


def test_quota_tree_takes_precedence_over_other_apis_and_they_are_reported() -> None:
    desk = Desk()
    desk.apply(flat("team", 1, 2), linked("q", 1, 2), tree())
    assert desk.paths() == OF_TREE
    why = "ElasticQuotaTree of scheduling.sigs.k8s.io/v1beta1 is in force; one API is read at a time"
    assert desk.source.trouble == {f"{KOORDINATOR} kube-system/q": why, f"{SCHEDULER_PLUGINS} team/quota": why}
    desk.delete(tree())
    assert desk.paths() == OF_KOORDINATOR
    assert list(desk.source.trouble) == [f"{SCHEDULER_PLUGINS} team/quota"]
    desk.delete(linked("q", 1, 2))
    assert desk.paths() == OF_SP
    assert desk.source.trouble == {}


def test_tree_in_another_namespace_does_not_hide_other_apis() -> None:
    desk = Desk()
    desk.apply(tree(namespace="default"), flat("team", 1, 2))
    assert desk.paths() == OF_SP
    assert "move it there" in desk.source.trouble["default/tree"]


def test_never_valid_tree_leaves_other_quotas_in_force() -> None:
    desk = Desk()
    desk.apply(flat("team", 1, 2))
    desk.paths()
    desk.apply(tree(least=9))
    assert desk.paths() == OF_SP
    assert "over max" in desk.source.trouble["kube-system/tree"]
    desk.apply(flat("team", 1, 3))
    assert desk.paths() == OF_SP
    assert desk.source.tree is not None
    assert desk.source.tree.nodes[1].max == {"cpu": 3000}


def test_never_valid_tree_does_not_affect_others_in_any_order() -> None:
    bad, good = tree(least=9, name="a", uid="a"), tree(name="b", uid="b")
    for first, second in ((bad, good), (good, bad)):
        desk = Desk()
        desk.apply(first)
        desk.paths()
        desk.apply(second)
        assert desk.paths() == OF_TREE
        assert "kube-system/b is in force" in desk.source.trouble["kube-system/a"]


def test_invalid_edit_keeps_the_last_good_tree_in_force() -> None:
    change = "its latest change is not in force: "
    for good, bad, place, said in (
        (tree(), tree(least=9), "kube-system/tree", "not in force: "),
        (linked("q", 1, 2), linked("q", 9, 2), f"{KOORDINATOR} kube-system/q", change),
        (flat("team", 1, 2), flat("team", 9, 2), f"{SCHEDULER_PLUGINS} team/quota", change),
    ):
        desk = Desk()
        desk.apply(good)
        before, generation = desk.paths(), desk.source.generation
        desk.apply(bad)
        assert desk.paths() == before
        assert desk.source.generation == generation
        assert desk.source.trouble[place].startswith(said)
        desk.apply(good)
        assert desk.paths() == before
        assert desk.source.trouble == {}


def test_health_names_ineffective_objects_without_a_prior_request() -> None:
    desk = Desk()
    desk.apply(tree())
    assert desk.source.trouble_text() == ""
    desk.apply(tree(least=9))
    assert desk.source.trouble_text().startswith("kube-system/tree has no effect: not in force: ")
    desk.apply(*(tree(name=f"t{number}", namespace="shop") for number in range(9)))
    told = desk.source.trouble_text()
    assert (told.count("has no effect"), told.endswith(", and 7 more")) == (3, True)


def test_valid_tree_is_in_force_although_it_was_never_requested_before() -> None:
    """As in a process that did not lead: its leader may have died before it wrote the last good one."""
    desk = Desk()
    for document in (tree(most=3), tree(least=9), tree(least=8)):
        desk.apply(document)
    assert desk.paths() == OF_TREE
    assert desk.source.tree is not None
    assert desk.source.tree.nodes[1].max == {"cpu": 3000}
    assert "over max" in desk.source.trouble["kube-system/tree"]
    desk = Desk()
    desk.apply(tree(uid="another"), tree(least=9))
    assert desk.paths() == [], "it is another object"


def test_new_process_restores_the_last_good_tree_from_a_status() -> None:
    good, broken = tree(), tree(least=9)
    broken["status"] = {"lastGood": {"root": good["spec"]["root"]}}
    desk = Desk()
    desk.apply(broken)
    assert desk.paths() == OF_TREE
    assert "over max" in desk.source.trouble["kube-system/tree"]
    generation = desk.source.generation
    desk.apply(good)
    assert desk.paths() == OF_TREE
    assert (desk.source.trouble, desk.source.generation) == ({}, generation)


@pytest.mark.parametrize("is_kept_first", [True, False])
def test_new_process_restores_the_last_good_tree_from_the_kept_one(*, is_kept_first: bool) -> None:
    """The leader before it ended before it wrote a status of the mistake."""
    kind = ObjectKind.ELASTIC_QUOTA_TREE
    desk = Desk()
    ingest = ObjectIngest(kind, desk.store, lambda event, old, new: None, EventDesk(), "ours")
    for is_kept in (is_kept_first, not is_kept_first):
        if is_kept:
            ingest.restore_deleted(orjson.dumps(tree(most=3)))
        else:
            desk.apply(tree(least=9))
    assert desk.paths() == OF_TREE
    assert desk.source.tree is not None
    assert desk.source.tree.nodes[1].max == {"cpu": 3000}
    assert "over max" in desk.source.trouble["kube-system/tree"]
    assert not desk.source.is_deleted


def test_malformed_status_puts_nothing_in_force() -> None:
    for status in (
        5,
        None,
        {"lastGood": 5},
        {"lastGood": {"root": 5}},
        {"lastGood": {"root": tree(9)["spec"]["root"]}},
    ):
        broken = tree(least=9)
        broken["status"] = status
        desk = Desk()
        desk.apply(broken)
        assert desk.paths() == []
        assert "over max" in desk.source.trouble["kube-system/tree"]


def test_valid_tree_overrides_the_remembered_one() -> None:
    good = tree(most=3)
    good["status"] = {"lastGood": {"root": tree()["spec"]["root"]}}
    desk = Desk()
    desk.apply(good)
    assert desk.paths() == OF_TREE
    assert desk.source.tree is not None
    assert desk.source.tree.nodes[1].max == {"cpu": 3000}


def test_older_of_two_trees_is_in_force_in_every_process() -> None:
    old = tree(name="z", uid="z", creationTimestamp="2026-01-01T00:00:09Z")
    new = tree(name="a", uid="a", creationTimestamp="2026-01-01T00:00:10Z")
    for first, second in ((old, new), (new, old)):
        desk = Desk()
        desk.apply(first, second)
        desk.paths()
        assert desk.source.name == "kube-system/z"
        assert "kube-system/z is in force" in desk.source.trouble["kube-system/a"]


def test_older_tree_with_a_good_version_precedes_a_newer_one() -> None:
    old = tree(least=9, name="z", uid="z", creationTimestamp="2026-01-01T00:00:00Z")
    old["status"] = {"lastGood": {"root": tree()["spec"]["root"]}}
    desk = Desk()
    desk.apply(tree(name="a", uid="a", creationTimestamp="2026-01-02T00:00:00Z"), old)
    desk.paths()
    assert desk.source.name == "kube-system/z"


def bounds(desk: Desk) -> dict[str, tuple[int, int]]:
    """CPUs of each level below the root: min and max."""
    desk.source.renew()
    assert desk.source.tree is not None
    nodes = desk.source.tree.nodes[1:]
    return {one.name: (one.min.get("cpu", 0) // 1000, one.max.get("cpu", 0) // 1000) for one in nodes}


def version(document: Json, number: int) -> Json:
    return {**document, "metadata": {**document["metadata"], "resourceVersion": str(number)}}


def test_only_the_invalid_change_is_left_out() -> None:
    for first, second, bad, good in (
        (linked("q", 1, 2), linked("r", 1, 2), linked("q", 9, 2), linked("r", 2, 5)),
        (flat("q", 1, 2), flat("r", 1, 2), flat("q", 9, 2), flat("r", 2, 5)),
    ):
        desk = Desk()
        desk.apply(version(first, 1), version(second, 2))
        desk.paths()
        desk.apply(version(bad, 3), version(good, 4))
        assert bounds(desk) == {"q": (1, 2), "r": (2, 5)}
        (why,) = desk.source.trouble.values()
        assert why.startswith("its latest change is not in force: spec.min.cpu: min 9 is over max 2")


def test_newest_change_is_left_out_if_children_exceed_their_parent() -> None:
    desk = Desk()
    parent = linked("p", 4, 8, is_parent="true")
    desk.apply(version(parent, 1), version(linked("a", 1, 8, "p"), 2), version(linked("b", 2, 8, "p"), 3))
    desk.paths()
    desk.apply(version(linked("b", 1, 7, "p"), 4), version(linked("a", 9, 9, "p"), 5), version(linked("c", 1, 1), 6))
    assert bounds(desk) == {"p": (4, 8), "a": (1, 8), "b": (1, 7), "c": (1, 1)}
    (place,) = desk.source.trouble
    assert place.endswith(" kube-system/a")
    desk.apply(version(linked("a", 3, 9, "p"), 7))
    assert bounds(desk)["a"] == (3, 9)
    assert desk.source.trouble == {}


def test_invalid_change_keeps_later_valid_changes_of_siblings() -> None:
    desk = Desk()
    parent = linked("p", 4, 8, is_parent="true")
    desk.apply(version(parent, 1), version(linked("a", 1, 8, "p"), 2), version(linked("b", 2, 8, "p"), 3))
    desk.paths()
    desk.apply(version(linked("a", 9, 9, "p"), 4))
    desk.paths()
    desk.apply(version(linked("b", 1, 7, "p"), 5))
    assert bounds(desk) == {"p": (4, 8), "a": (1, 8), "b": (1, 7)}
    assert list(desk.source.trouble) == [f"{KOORDINATOR} kube-system/a"]


def test_invalid_change_keeps_valid_changes_made_with_it() -> None:
    desk = Desk()
    parent = linked("p", 4, 8, is_parent="true")
    desk.apply(version(parent, 1), version(linked("a", 1, 8, "p"), 2), version(linked("b", 2, 8, "p"), 3))
    desk.paths()
    desk.apply(version(linked("a", 9, 9, "p"), 4), version(linked("b", 1, 7, "p"), 5))
    assert bounds(desk) == {"p": (4, 8), "a": (1, 8), "b": (1, 7)}
    assert list(desk.source.trouble) == [f"{KOORDINATOR} kube-system/a"]


def test_change_enabled_by_a_newer_one_applies_despite_an_invalid_one() -> None:
    desk = Desk()
    parent = linked("p", 4, 8, is_parent="true")
    desk.apply(version(parent, 1), version(linked("a", 1, 8, "p"), 2), version(linked("b", 3, 8, "p"), 3))
    desk.paths()
    desk.apply(
        version(linked("a", 3, 8, "p"), 4), version(linked("b", 1, 8, "p"), 5), version(linked("c", 9, 9, "p"), 6)
    )
    assert bounds(desk) == {"p": (4, 8), "a": (3, 8), "b": (1, 8)}
    assert list(desk.source.trouble) == [f"{KOORDINATOR} kube-system/c"]


def test_new_process_leaves_out_only_the_excessive_quota() -> None:
    desk = Desk()
    names = [f"q{number}" for number in range(40)]
    desk.apply(version(linked("p", 50, 80, is_parent="true"), 1), version(linked("greedy", 60, 60, "p"), 2))
    desk.apply(*(version(linked(name, 1, 8, "p"), 3 + number) for number, name in enumerate(names)))
    assert bounds(desk) == {"p": (50, 80), **dict.fromkeys(names, (1, 8))}
    assert list(desk.source.trouble) == [f"{KOORDINATOR} kube-system/greedy"]


def test_status_write_does_not_make_a_quota_newer() -> None:
    """A status raises the version of its object and changes nothing that is read of it."""
    desk = Desk()
    parent = linked("p", 4, 8, is_parent="true")
    desk.apply(version(parent, 1), version(linked("a", 1, 8, "p"), 2), version(linked("b", 2, 8, "p"), 3))
    desk.paths()
    desk.apply(version(linked("a", 9, 9, "p"), 4), version(linked("b", 2, 8, "p"), 5))
    assert bounds(desk)["a"] == (1, 8)
    assert list(desk.source.trouble) == [f"{KOORDINATOR} kube-system/a"]


def test_quota_without_a_parent_is_below_the_root_and_a_deleted_parent_stays() -> None:
    desk = Desk()
    parent = version(linked("p", 2, 2, is_parent="true"), 1)
    desk.apply(parent, version(linked("a", 1, 8, "p"), 2), version(linked("lost", 1, 3, "nobody"), 3))
    assert bounds(desk) == {"p": (2, 2), "a": (1, 8), "lost": (1, 3)}
    assert list(desk.source.trouble) == [f"{KOORDINATOR} kube-system/lost"]
    desk.delete(parent)
    assert bounds(desk)["p"] == (2, 2), "or else the limit of all that is below it would be lifted"
    desk.delete(linked("a", 1, 8, "p"))
    desk.paths()
    assert "p" not in bounds(desk)


def test_standby_knows_the_last_valid_version() -> None:
    desk = Desk()
    desk.apply(version(flat("team", 1, 2), 1), version(flat("team", 9, 2), 2))
    assert bounds(desk) == {"team": (1, 2)}


@pytest.mark.parametrize(
    ("good", "broken", "paths"),
    [
        (linked("q", 1, 2), linked("broken", 9, 2), OF_KOORDINATOR),
        (flat("team", 1, 2), flat("broken", 9, 2), OF_SP),
    ],
)
def test_new_process_with_a_broken_quota_enforces_the_others(good: Json, broken: Json, paths: list[str]) -> None:
    desk = Desk()
    desk.apply(broken)
    assert desk.paths() == []
    desk = Desk()
    desk.apply(good, broken)
    assert desk.paths() == paths
    assert all("over max" in why for why in desk.source.trouble.values())
    assert len(desk.source.trouble) == 1


def test_unreadable_kind_counts_as_unchanged() -> None:
    desk = Desk()
    desk.apply(tree())
    desk.paths()
    desk.store.set_unreadable(ObjectKind.ELASTIC_QUOTA_TREE, "403")
    desk.delete(tree())
    assert desk.paths() == OF_TREE
    desk.store.set_unreadable(ObjectKind.ELASTIC_QUOTA_TREE, "")
    assert desk.paths() == OF_TREE, "nobody has consented to its deletion"


def test_unreadable_kind_of_lower_precedence_does_not_block_others() -> None:
    desk = Desk()
    desk.store.set_unreadable(ObjectKind.ELASTIC_QUOTA, "403")
    desk.apply(tree())
    assert desk.paths() == OF_TREE
    desk.delete(tree())
    assert desk.source.is_deleted


def lifted(document: Json) -> Json:
    return {**document, "metadata": {**document["metadata"], "annotations": {"multisched.io/lift-quotas": "true"}}}


@pytest.mark.parametrize("is_leading", [True, False])
def test_tree_deleted_without_consent_stays_until_replaced(*, is_leading: bool) -> None:
    """A process that does not lead asks for no quota before it takes over."""
    desk = Desk()
    desk.apply(tree(most=3))
    if is_leading:
        desk.paths()
    desk.delete(tree())
    assert desk.paths() == OF_TREE
    assert "kube-system/tree was deleted, but stays in force" in desk.source.trouble_text()
    desk.apply(tree(least=9, uid="broken"))
    assert bounds(desk) == {"web": (1, 3)}
    desk.apply(tree(most=2, uid="another"))
    assert bounds(desk) == {"web": (1, 2)}
    assert not desk.source.is_deleted


def test_deleted_tree_stays_deleted_after_its_replacement_ends() -> None:
    desk, other = Desk(), flat("team", 1, 2)
    desk.apply(tree())
    desk.paths()
    desk.delete(tree())
    desk.apply(other)
    assert desk.paths() == OF_SP
    desk.delete(other)
    assert desk.paths() == []
    desk.apply(tree(uid="again"))
    desk.paths()
    desk.delete(tree())
    assert desk.paths() == OF_TREE


def test_tree_changed_and_deleted_between_reads_keeps_the_change() -> None:
    desk = Desk()
    desk.apply(tree(most=3))
    desk.paths()
    desk.apply(tree(most=2))
    desk.delete(tree(most=2))
    assert bounds(desk) == {"web": (1, 2)}


def test_tree_listed_again_after_a_false_deletion_stays_when_deleted() -> None:
    """Lists that are refused or empty for a while look like deletions."""
    desk = Desk()
    desk.apply(tree())
    desk.paths()
    desk.delete(tree())
    desk.apply(tree())
    desk.paths()
    desk.delete(tree())
    assert desk.paths() == OF_TREE


def test_deletion_with_consent_lifts_the_limits(caplog: pytest.LogCaptureFixture) -> None:
    for text, paths in (("true", []), ("True", OF_TREE), ("yes", OF_TREE)):
        desk = Desk()
        document = lifted(tree())
        document["metadata"]["annotations"] = {"multisched.io/lift-quotas": text}
        desk.apply(document)
        assert desk.paths() == OF_TREE
        desk.delete(document)
        assert desk.paths() == paths
    desk.apply(lifted(tree(uid="again")))
    desk.paths()
    desk.delete(tree())
    assert desk.paths() == [], "of one that was deleted without consent, too, once there is consent"
    assert [vars(one)["namespaces"] for one in caplog.records if "no longer have a quota" in one.message][-1] == ["web"]


def test_new_tree_with_equal_content_keeps_the_generation() -> None:
    desk = Desk()
    desk.apply(tree())
    desk.paths()
    generation = desk.source.generation
    again: Any = tree(uid="another")
    desk.delete(tree())
    desk.apply(again)
    assert desk.paths() == OF_TREE
    assert desk.source.generation == generation


def test_first_created_quota_is_in_force_without_notes() -> None:
    desk = Desk()
    first, second = linked("b", 6, 8, "p"), linked("a", 6, 8, "p")
    first["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    second["metadata"]["creationTimestamp"] = "2026-01-02T00:00:00Z"
    desk.apply(version(linked("p", 10, 10, is_parent="true"), 30), version(first, 20), version(second, 10))
    assert bounds(desk) == {"p": (10, 10), "b": (6, 8)}


def test_status_write_does_not_renew_a_left_out_change() -> None:
    desk = Desk()
    desk.apply(version(linked("p", 10, 10, is_parent="true"), 1))
    desk.apply(version(linked("a", 4, 8, "p"), 2), version(linked("b", 4, 8, "p"), 3))
    desk.paths()
    desk.apply(version(linked("a", 7, 8, "p"), 4))
    desk.paths()
    desk.apply(version(linked("b", 7, 8, "p"), 5))
    desk.paths()
    desk.apply(version(linked("a", 7, 8, "p"), 6), version(linked("p", 11, 11, is_parent="true"), 7))
    assert bounds(desk) == {"p": (11, 11), "a": (7, 8), "b": (4, 8)}


def test_one_contradiction_among_many_quotas_needs_few_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    genuine, readings = LinkedQuotas.problems, 0

    def counted(self: LinkedQuotas) -> Problems:
        nonlocal readings
        readings += 1
        return genuine(self)

    monkeypatch.setattr(LinkedQuotas, "problems", counted)
    desk = Desk()
    desk.apply(version(linked("p", 199, 999, is_parent="true"), 1))
    desk.apply(*(version(linked(f"c{number:03}", 1, 8, "p"), 2 + number) for number in range(200)))
    assert len(bounds(desk)) == 200
    assert readings <= 6
    assert list(desk.source.trouble) == [f"{KOORDINATOR} kube-system/c199"]
