"""What quota objects say in their status: who is marked when, how figures are shared, and what is said of objects without effect."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import orjson
import pytest

from multisched.framework.object_status import ObjectKey, ObjectStatus
from multisched.model.cluster_objects import ElasticQuotaTree
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Pod
from multisched.model.quota_tree import read_tree
from multisched.plugins.quota import quota_status
from multisched.plugins.quota.level_use import requested_amounts
from multisched.plugins.quota.quota_ledger import QuotaLedger
from multisched.plugins.quota.quota_source import QuotaSource
from multisched.plugins.quota.quota_status import QuotaStatuses
from multisched.state.object_store import ObjectStore
from multisched.testing.builders import make_pod
from tests.unit.model.quotas.quota_documents import flat, kind_of, linked
from tests.unit.plugins.quota.trees import Json, leaf, node

TREE = ObjectKind.ELASTIC_QUOTA_TREE
KOORDINATOR = "quota.scheduling.koordinator.sh/"


class Hall:
    """Quota objects, the ledger over them, pods that wait, and what was marked."""

    def __init__(self) -> None:
        self.objects = ObjectStore()
        self.pending: list[Pod] = []
        self.marked: list[ObjectKey] = []
        self.all_marked = 0
        source = QuotaSource(self.objects)
        self.ledger = QuotaLedger(source, tuple)
        self.counts = 0
        self.statuses = QuotaStatuses(self.ledger, source, self.objects, self, self._waiting)
        self._version = 0

    def _waiting(self) -> Iterable[Pod]:
        self.counts += 1
        return self.pending

    def mark(self, kind: ObjectKind, namespace: str, name: str) -> None:
        self.marked.append((kind, namespace, name))

    def mark_all(self, kind: ObjectKind) -> None:
        self.all_marked += 1

    def set_tree(self, root: Json, name: str = "tree", namespace: str = "kube-system") -> None:
        tree, problems = read_tree(root)
        self._version += 1
        one = ElasticQuotaTree(
            name=name, namespace=namespace, uid=f"uid-{name}", version=self._version, tree=tree, problems=problems
        )
        self.objects.set(TREE, one)
        self.ledger.renew()

    def put(self, *documents: Json) -> None:
        for document in documents:
            kind = kind_of(document)
            self.objects.set(kind, kind.definition.decode(orjson.dumps(document)))
        self.ledger.renew()

    def take(self, name: str, namespace: str, cpu_milli: int = 1000) -> None:
        self.ledger.take(make_pod(name, namespace=namespace, cpu_milli=cpu_milli))

    def of(self, kind: ObjectKind, name: str = "tree", namespace: str = "kube-system") -> ObjectStatus:
        found = self.statuses.status_of(kind, namespace, name)
        assert found is not None
        return found

    def levels(self) -> Mapping[str, Any]:
        found = self.of(TREE).fields["levels"]
        assert isinstance(found, dict)
        return found

    def condition(self, kind: ObjectKind, name: str, namespace: str = "kube-system") -> tuple[str, str, str]:
        (found,) = self.of(kind, name, namespace).conditions
        return found.status, found.reason, found.message


def tree_document(*leaves: Json) -> Json:
    return {
        "apiVersion": "scheduling.sigs.k8s.io/v1beta1",
        "kind": "ElasticQuotaTree",
        "metadata": {"name": "tree", "namespace": "kube-system", "uid": "uid-tree"},
        "spec": {"root": node("root", {"cpu": 8}, {"cpu": 8}, *leaves)},
    }


def two_teams() -> Json:
    return node("root", {"cpu": 8}, {"cpu": 8}, leaf("a", 2, 8), leaf("b", 2, 8))


def test_added_or_removed_pod_marks_only_the_tree() -> None:
    hall = Hall()
    hall.set_tree(two_teams())
    hall.marked.clear()
    hall.take("p", "a")
    hall.ledger.release("uid-p")
    assert hall.marked == [(TREE, "kube-system", "tree")] * 2


def test_pod_with_a_quota_marks_the_tree_when_its_pending_state_changes() -> None:
    hall = Hall()
    hall.set_tree(two_teams())
    hall.marked.clear()
    hall.statuses.pending_changed(make_pod("p", namespace="a"))
    hall.statuses.pending_changed(make_pod("p", namespace="elsewhere"))
    assert hall.marked == [(TREE, "kube-system", "tree")]


def test_pod_marks_koordinator_ancestors_and_quotas_with_changed_shares() -> None:
    hall = Hall()
    kind = ObjectKind.KOORDINATOR_QUOTA
    hall.put(
        linked("top", 4, 4, is_parent="true"),
        linked("a", 0, 4, "top", namespaces=["a"]),
        linked("b", 0, 4, "top", namespaces=["b"]),
    )
    for name in ("top", "a", "b"):
        hall.of(kind, name)
    hall.pending = [make_pod(f"b{number}", namespace="b", cpu_milli=1000) for number in range(4)]
    hall.statuses.pending_changed(hall.pending[0])
    hall.marked.clear()
    for number in range(4):
        hall.take(f"a{number}", "a")
    assert {name for _, _, name in hall.marked} == {"a", "top"}

    hall.marked.clear()
    for _ in range(3):
        status = hall.of(kind, "a")
    assert (kind, "kube-system", "b") in hall.marked
    assert orjson.loads(status.annotations[f"{KOORDINATOR}runtime"]) == {"cpu": "2"}
    assert orjson.loads(hall.of(kind, "b").annotations[f"{KOORDINATOR}request"]) == {"cpu": "4"}


def test_level_figures_are_computed_once_for_many_objects() -> None:
    hall = Hall()
    names = [f"team-{number}" for number in range(50)]
    hall.put(*(flat(name, 1, 2) for name in names))
    kind = ObjectKind.ELASTIC_QUOTA
    for _ in range(2):
        for name in names:
            hall.take(f"{name}-{_}", name)
            hall.of(kind, "quota", name)
    assert hall.counts == 1
    hall.of(kind, "quota", names[0])
    assert hall.counts == 2
    assert [hall.of(kind, "quota", name).fields for name in names] == [{"used": {"cpu": "2"}}] * 50
    assert hall.counts == 2


def test_object_with_older_figures_is_marked_again() -> None:
    hall = Hall()
    hall.put(flat("a", 1, 2), flat("b", 1, 2))
    kind = ObjectKind.ELASTIC_QUOTA
    hall.of(kind, "quota", "a")
    hall.take("p", "b")
    hall.marked.clear()
    assert hall.of(kind, "quota", "b").fields == {"used": {"cpu": "0"}}
    assert (kind, "b", "quota") in hall.marked

    for _ in range(2):
        found = hall.of(kind, "quota", "b")
    assert found.fields == {"used": {"cpu": "1"}}


def test_largest_trees_show_only_the_top_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    hall = Hall()
    halves = [
        node(half, {"cpu": 0}, {"cpu": 8}, *(leaf(f"{half}{number}", 0, 8) for number in range(20))) for half in "ab"
    ]
    hall.set_tree(node("root", {"cpu": 8}, {"cpu": 8}, *halves))
    assert hall.of(TREE).fields["levelsLeftOut"] is None
    monkeypatch.setattr(quota_status, "LEVELS_BYTES_MAX", 1_000)
    found = hall.of(TREE).fields
    assert {"root", "root.a", "root.b"} <= set(hall.levels())
    assert found["levelsLeftOut"] == 43 - len(hall.levels())
    assert len(msgspec.json.encode(found["levels"])) <= 1_000


def test_tree_with_equal_level_count_shows_its_own_levels() -> None:
    hall = Hall()
    hall.set_tree(two_teams())
    hall.take("web", "a")
    assert list(hall.levels()) == ["root", "root.a", "root.b"]
    hall.set_tree(node("root", {"cpu": 8}, {"cpu": 8}, leaf("b", 3, 8), leaf("c", 2, 8)))
    assert {path: level["min"]["cpu"] for path, level in hall.levels().items()} == {
        "root": "8",
        "root.b": "3",
        "root.c": "2",
    }


def test_broken_tree_keeps_the_version_in_force_in_its_status() -> None:
    hall = Hall()
    good = tree_document(leaf("a", 2, 8, attributes={"multisched.io/guarantee": "cpu=1"}), leaf("b", 2, 8))
    hall.put(good)
    assert hall.of(TREE).fields["lastGood"] is None
    hall.put(tree_document(leaf("a", 9, 8)))
    remembered = hall.of(TREE).fields["lastGood"]
    started = Hall()
    broken = tree_document(leaf("a", 9, 8))
    started.put({**broken, "status": {"lastGood": remembered}})
    assert list(started.levels()) == ["root", "root.a", "root.b"]
    assert started.of(TREE).fields["lastGood"] == remembered
    assert started.condition(TREE, "tree")[2].endswith("; the last valid tree stays in force")
    started.put(good)
    assert started.of(TREE).fields["lastGood"] is None
    assert started.condition(TREE, "tree") == ("True", "InForce", "3 levels are in force")


def test_tree_too_large_to_repeat_is_not_stored_in_its_status(monkeypatch: pytest.MonkeyPatch) -> None:
    hall = Hall()
    hall.put(tree_document(leaf("a", 2, 8)))
    hall.put(tree_document(leaf("a", 9, 8)))
    assert hall.of(TREE).fields["lastGood"] is not None
    monkeypatch.setattr(quota_status, "LAST_GOOD_BYTES_MAX", 100)
    assert hall.of(TREE).fields["lastGood"] is None


def test_misplaced_or_second_tree_reports_why_it_has_no_effect() -> None:
    hall = Hall()
    hall.set_tree(two_teams())
    hall.set_tree(two_teams(), "second")
    hall.set_tree(two_teams(), "astray", "default")
    assert hall.condition(TREE, "tree") == ("True", "InForce", "3 levels are in force")
    assert hall.condition(TREE, "second")[:2] == ("False", "NoEffect")
    assert "kube-system" in hall.condition(TREE, "astray", "default")[2]
    assert hall.of(TREE, "second").fields == {"levels": None, "lastGood": None}


def test_only_the_invalid_quota_reports_not_in_force() -> None:
    hall = Hall()
    kind = ObjectKind.ELASTIC_QUOTA
    hall.put(flat("a", 1, 2), flat("b", 1, 2))
    hall.put(flat("b", 3, 2))
    status, reason, message = hall.condition(kind, "quota", "b")
    assert (status, reason) == ("False", "Broken")
    assert message.endswith("; its last valid version, if any, stays in force")
    assert hall.condition(kind, "quota", "a")[0] == "True"


def test_quota_below_a_never_valid_one_is_in_force() -> None:
    hall = Hall()
    hall.put(linked("a", 1, 2, "b"), linked("b", 3, 2, is_parent="true"))
    assert hall.condition(ObjectKind.KOORDINATOR_QUOTA, "a")[0] == "True"
    assert hall.condition(ObjectKind.KOORDINATOR_QUOTA, "b")[:2] == ("False", "Broken")


def test_koordinator_and_scheduler_plugins_quotas_are_in_force_together() -> None:
    hall = Hall()
    hall.put(flat("a", 1, 2), linked("q", 1, 2))
    assert hall.condition(ObjectKind.KOORDINATOR_QUOTA, "q") == ("True", "InForce", "2 levels are in force")
    assert hall.condition(ObjectKind.ELASTIC_QUOTA, "quota", "a")[:2] == ("False", "NoEffect")


def test_object_of_an_unused_api_reports_it() -> None:
    hall = Hall()
    hall.set_tree(two_teams())
    hall.put(flat("a", 1, 2))
    status, reason, message = hall.condition(ObjectKind.ELASTIC_QUOTA, "quota", "a")
    assert (status, reason) == ("False", "NoEffect")
    assert "one API is read at a time" in message


def test_deleted_object_gets_no_status_and_others_are_marked() -> None:
    hall = Hall()
    hall.set_tree(two_teams())
    hall.set_tree(two_teams(), "second")
    before = hall.all_marked
    hall.objects.remove(TREE, "kube-system", "tree")
    assert hall.statuses.status_of(TREE, "kube-system", "tree") is None
    assert hall.all_marked > before
    assert hall.condition(TREE, "second")[0] == "True"


def test_pending_pods_are_counted_once_and_gated_ones_are_not() -> None:
    hall = Hall()
    hall.set_tree(two_teams())
    hall.take("placed", "a")
    waiting = [make_pod(f"w{number}", namespace="a", cpu_milli=500) for number in range(3)]
    gated = msgspec.structs.replace(make_pod("gated", namespace="a", cpu_milli=500), gates=("g",))
    assumed = make_pod("placed", namespace="a", cpu_milli=1000)
    found = requested_amounts(hall.ledger, [*waiting, gated, assumed, make_pod("else", namespace="elsewhere")])
    assert [one.get("cpu", 0) for one in found] == [2500, 2500, 0]


def noted(hall: Hall, document: Json, number: int) -> Json:
    """Returns the document with the annotations that the program writes to it."""
    metadata = document["metadata"]
    written = hall.of(ObjectKind.KOORDINATOR_QUOTA, metadata["name"]).annotations
    annotations = {**metadata["annotations"], **written}
    return {**document, "metadata": {**metadata, "annotations": annotations, "resourceVersion": str(number)}}


def mins(hall: Hall) -> Mapping[str, int]:
    tree = hall.ledger.tree
    assert tree is not None
    return {one.name: one.min["cpu"] // 1000 for one in tree.nodes[1:]}


def of_three(least: int) -> list[Json]:
    """Returns a parent and two children; of b this min."""
    given = linked("p", 10, 10, is_parent="true"), linked("a", 6, 10, "p"), linked("b", least, 10, "p")
    return [{**one, "metadata": {**one["metadata"], "uid": one["metadata"]["name"]}} for one in given]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
@pytest.mark.parametrize("least", [6, 11], ids=["over its parent", "over its max"])
def test_new_process_restores_versions_in_force(least: int, order: tuple[int, ...]) -> None:
    hall, changed = Hall(), of_three(least)
    hall.put(*of_three(4))
    hall.put(changed[2])
    assert mins(hall) == {"p": 10, "a": 6, "b": 4}
    after = [noted(hall, one, number) for one, number in zip(changed, (9, 8, 7), strict=True)]
    started = Hall()
    started.put(*(after[number] for number in order))
    assert mins(started) == {"p": 10, "a": 6, "b": 4}
    assert started.condition(ObjectKind.KOORDINATOR_QUOTA, "b")[0] == "False"
    started.put(*of_three(3))
    assert mins(started) == {"p": 10, "a": 6, "b": 3}


def test_note_of_the_version_in_force_is_no_quota_change() -> None:
    hall = Hall()
    hall.put(*of_three(4))
    before = hall.all_marked
    hall.put(*(noted(hall, one, 9) for one in of_three(4)))
    assert hall.all_marked == before


@pytest.mark.parametrize("note", ["{", "5", '{"metadata": {"name": "b", "uid": "another"}}'])
def test_malformed_note_is_ignored(note: str) -> None:
    hall, documents = Hall(), of_three(6)
    documents[2]["metadata"]["annotations"]["multisched.io/in-force"] = note
    hall.put(*documents)
    assert mins(hall) == {"p": 10, "a": 6}


def test_contradicting_notes_do_not_remove_quotas_from_force() -> None:
    hall, before, other = Hall(), Hall(), Hall()
    before.put(*of_three(4))
    other.put(linked("p", 20, 20, is_parent="true"), of_three(9)[2])
    parent, first, _ = (noted(before, one, 9) for one in of_three(4))
    hall.put(parent, first, {**noted(other, of_three(9)[2], 9), "spec": of_three(8)[2]["spec"]})
    assert mins(hall) == {"p": 10, "a": 6}
