"""QuotaLedger: to which leaf a pod counts, what a pod costs, and what guarantees keep free."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from multisched.model.objects import Pod
from multisched.model.quota_tree import GUARANTEE_ATTRIBUTE, QuotaTree
from multisched.model.quotas.koordinator import POD_LABEL, read_linked
from multisched.plugins.quota.quota_ledger import QuotaLedger
from multisched.testing.builders import make_pod
from tests.unit.model.quotas.quota_documents import decoded_linked, linked
from tests.unit.plugins.quota.test_quota_source import Desk, tree
from tests.unit.plugins.quota.trees import leaf, node, tree_of


def ledger_of(tree: QuotaTree) -> QuotaLedger:
    ledger = QuotaLedger(None, tuple)
    ledger._put_in_force(tree)
    return ledger


def pod(name: str, namespace: str = "web", cpu: int = 1, labels: Mapping[str, str] | None = None) -> Pod:
    return msgspec.structs.replace(make_pod(name, namespace=namespace, cpu_milli=cpu * 1000), labels=dict(labels or {}))


def by_labels() -> QuotaLedger:
    found = read_linked(
        map(
            decoded_linked,
            [
                linked("a", 1, 4, namespaces=["web"]),
                linked("b", 1, 2, namespaces=["web"]),
                linked("p", 0, 9, is_parent="true"),
            ],
        )
    )
    assert found.tree is not None
    return ledger_of(found.tree)


def leaf_name(ledger: QuotaLedger, one: Pod) -> str:
    levels = ledger.levels_of(one)
    return levels[0].path.rpartition(".")[2] if levels else ""


def test_label_names_a_leaf_that_lists_the_namespace() -> None:
    ledger = by_labels()
    assert leaf_name(ledger, pod("p")) == "a"
    assert leaf_name(ledger, pod("p", labels={POD_LABEL: "b"})) == "b"
    assert leaf_name(ledger, pod("p", "elsewhere", labels={POD_LABEL: "b"})) == "", "b does not list its namespace"
    assert leaf_name(ledger, pod("p", labels={POD_LABEL: "gone"})) == "a", "nobody leaves a quota by a label"
    assert leaf_name(ledger, pod("p", labels={POD_LABEL: "p"})) == "a", "no pod stands on a parent"
    assert leaf_name(ledger, pod("p", "elsewhere")) == ""


def test_pods_of_a_namespace_count_for_the_leaves_of_their_labels() -> None:
    ledger = by_labels()
    ledger.take(pod("one"))
    ledger.take(pod("two", cpu=2, labels={POD_LABEL: "b"}))
    assert {level.path: level.used["cpu"] for level in ledger.levels if level.used} == {
        "koordinator-root-quota": 3000,
        "koordinator-root-quota.a": 1000,
        "koordinator-root-quota.b": 2000,
    }
    assert "max 2" in ledger.fits(pod("three", labels={POD_LABEL: "b"}))
    assert ledger.fits(pod("three")) == ""


def test_relabelled_pod_counts_for_its_new_leaf() -> None:
    ledger = by_labels()
    ledger.restore(pod("one"))
    version = ledger.version()
    ledger.restore(pod("one", labels={POD_LABEL: "b"}))
    assert ledger.version() > version
    assert ledger.held() == {"uid-one": ("koordinator-root-quota.b", (("cpu", 1000), ("pods", 1)))}
    assert ledger.levels[1].used["cpu"] == 0


def test_resized_pod_counts_with_its_new_requests() -> None:
    ledger = by_labels()
    ledger.restore(pod("one", cpu=3))
    version = ledger.version()
    ledger.restore(pod("one", cpu=1))
    assert ledger.version() > version
    assert [level.used.get("cpu", 0) for level in ledger.levels] == [1000, 1000, 0, 0]


def test_pods_of_a_leaf_are_found_by_every_name_of_it() -> None:
    ledger = by_labels()
    ledger.restore(pod("other"))
    for number in range(50):
        ledger.restore(pod(f"p{number}", labels={POD_LABEL: "b"}))
    (leaf,) = (level.at for level in ledger.levels if level.path.endswith(".b"))
    assert set(ledger.uids_of(leaf)) == {f"uid-p{number}" for number in range(50)}
    for number in range(50):
        ledger.release(f"uid-p{number}")
    assert list(ledger.uids_of(leaf)) == []


def test_deleting_pods_count_until_removed() -> None:
    ledger = by_labels()
    ledger.restore(pod("p"))
    assert list(ledger.terminating) == []
    ledger.restore(msgspec.structs.replace(pod("p"), is_deleting=True))
    assert list(ledger.terminating) == ["uid-p"]
    ledger.release("uid-p")
    assert list(ledger.terminating) == []


def test_deleting_pods_count_under_the_next_tree() -> None:
    desk = Desk()
    standing = [pod("stays"), msgspec.structs.replace(pod("goes"), is_deleting=True)]
    ledger = QuotaLedger(desk.source, lambda: standing)
    for most in (4, 3):
        desk.apply(tree(most=most))
        ledger.renew()
        assert list(ledger.terminating) == ["uid-goes"]
        assert ledger.levels[1].used["cpu"] == 2000, "it holds its room until it is gone"


def test_guaranteed_amounts_are_not_lent() -> None:
    kept = {GUARANTEE_ATTRIBUTE: "cpu=3"}
    ledger = ledger_of(tree_of({"cpu": 10}, {"cpu": 10}, leaf("a", 4, 10, attributes=kept), leaf("b", 2, 10)))
    assert ledger.fits(pod("p", "b", 8)) == ("quota root: cpu 0 used and 3 guaranteed to others, 8 requested, max 10")
    assert ledger.fits(pod("p", "b", 7)) == ""
    assert ledger.fits(pod("p", "a", 10)) == ""
    ledger.take(pod("p", "b", 7))
    assert ledger.fits(pod("own", "a", 3)) == ""
    assert "4 requested, max 10" not in ledger.fits(pod("own", "a", 3))
    assert ledger.fits(pod("own", "a", 4)) == "quota root: cpu 7 used and 3 guaranteed to others, 1 requested, max 10"


@st.composite
def kept_trees(draw: st.DrawFn) -> tuple[QuotaTree, list[str]]:
    names: list[str] = []

    def kept(least: int) -> dict[str, Any]:
        return (
            {"attributes": {GUARANTEE_ATTRIBUTE: f"cpu={draw(st.integers(0, least))}"}} if draw(st.booleans()) else {}
        )

    def one(name: str, depth: int) -> dict[str, Any]:
        if depth == 2 or draw(st.booleans()):
            names.append(name)
            least = draw(st.integers(0, 5))
            return leaf(name, least, 40, **kept(least))
        children = [one(f"{name}{at}", depth + 1) for at in range(draw(st.integers(1, 3)))]
        least = sum(child["min"]["cpu"] for child in children) + draw(st.integers(0, 3))
        return node(name, {"cpu": least}, {"cpu": 40}, *children, **kept(least))

    top = [one(name, 1) for name in "ab"]
    return tree_of({"cpu": 40}, {"cpu": 40}, *top), names


@given(kept_trees(), st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9), st.booleans()), max_size=12))
def test_level_holds_use_and_reserves_of_its_children(
    made: tuple[QuotaTree, list[str]], steps: list[tuple[int, int, bool]]
) -> None:
    tree, names = made
    ledger = ledger_of(tree)
    used = dict.fromkeys(names, 0)
    standing: list[Pod] = []

    def held(at: int, more: tuple[str, int] = ("", 0)) -> int:
        one = tree.nodes[at]
        if not one.children:
            return used[one.name] + (more[1] if one.name == more[0] else 0)
        below = ((child, held(child, more)) for child in one.children)
        return sum(max(amount, tree.nodes[child].guarantee.get("cpu", 0)) for child, amount in below)

    def check() -> None:
        wanted = [held(at) for at in range(len(tree.nodes))]
        assert [level.used_and_reserved("cpu") for level in ledger.levels] == wanted

    check()
    for number, (which, cpu, is_leaving) in enumerate(steps):
        if is_leaving and standing:
            gone = standing.pop(which % len(standing))
            ledger.release(gone.uid)
            used[gone.namespace] -= gone.requests["cpu"]
        else:
            name = names[which % len(names)]
            came = pod(f"p{number}", name, cpu)
            path = tree.paths[tree.leaf_of[name]]
            grown = {at: held(at, (name, cpu * 1000)) for at in path}
            assert bool(ledger.fits(came)) == any(held(at) < more > 40_000 for at, more in grown.items())
            ledger.restore(came)
            standing.append(came)
            used[name] += cpu * 1000
        check()
    ledger.recount()
    check()
