"""What would help a pod that its quota holds back: which levels to raise and to what, each tried before it is named."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from copy import deepcopy
from functools import cache
from typing import Any

import msgspec
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multisched.config import loading
from multisched.config.schema import Configuration
from multisched.observe.explain_view import ExplainQuery, Fix, PodView
from multisched.observe.explain_words import pod_text
from multisched.plugins.quota import quota_ledger
from multisched.testing.builders import Document
from multisched.whatif.explain_trial import DumpExplanations
from multisched.whatif.sandbox import DumpedCluster
from tests.unit.model.quotas.quota_documents import flat, linked
from tests.unit.plugins.quota.trees import Json, leaf
from tests.unit.plugins.quota.trees import node as level
from tests.unit.whatif.quota_clusters import NOW, node, pods, quota_tree


@cache
def configuration() -> Configuration:
    return loading.default()


def explained(*documents: Document, name: str) -> PodView:
    items = [msgspec.Raw(orjson.dumps(document)) for document in documents]
    with_dump = DumpExplanations(configuration(), DumpedCluster(items, NOW))
    namespace, _, pod = name.partition("/")
    return with_dump.pod(ExplainQuery(namespace, pod, with_fixes=True))


def fixes_of(*documents: Document, name: str) -> list[Fix]:
    return list(explained(*documents, name=name).fixes or ())


def halves(whole: int, most: int) -> Json:
    return level("root", {"cpu": whole}, {"cpu": whole}, leaf("a", whole // 2, most), leaf("b", whole // 2, most))


def test_gang_over_its_quota_gets_the_max_that_admits_all_members() -> None:
    crew = {"pod-group.scheduling.sigs.k8s.io/name": "crew", "pod-group.scheduling.sigs.k8s.io/min-available": "3"}
    waiting = pods("a", 0, 3, labels=crew)
    for name in ("a/pod-0", "a/pod-2"):
        view = explained(node(), quota_tree(halves(16, 12)), *waiting, name=name)
        assert "The smallest fix: raise max of root.a to 15 CPU; it is then placed on n" in pod_text(view)


def test_quota_level_numbers_and_smallest_fix_are_shown() -> None:
    view = explained(node(), quota_tree(halves(80, 40)), *pods("a", 8, 1), name="a/pod-8")
    text = pod_text(view)
    assert "quota root.a: cpu 40 used, 5 requested, max 40" in text
    assert "The smallest fix: raise max of root.a to 45 CPU; it is then placed on n" in text
    command = (
        "kubectl patch elasticquotatrees.scheduling.sigs.k8s.io teams -n kube-system --type=json -p "
        """'[{"op": "replace", "path": "/spec/root/children/0/max/cpu", "value": "45"}]'"""
    )
    assert command in text
    assert view.fixes is not None
    assert [fix.kind for fix in view.fixes] == ["quota"]
    assert view.fixes[0].change == {"object": "ElasticQuotaTree kube-system/teams", "max": {"root.a": {"cpu": "45"}}}


def test_edit_of_a_quota_with_many_pods_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = [node(), quota_tree(halves(80, 40)), *pods("a", 8, 1)]
    (expected,) = fixes_of(*cluster, name="a/pod-8")
    monkeypatch.setattr(quota_ledger, "PODS_AT_ONCE", 1)
    assert fixes_of(*cluster, name="a/pod-8") == [expected]


def test_pod_does_not_count_against_itself() -> None:
    """It is nominated, and counts for no more than it asks for."""
    cluster = pods("a", 8, 1)
    cluster[-1]["status"] = {"phase": "Pending", "nominatedNodeName": "n"}
    (fix,) = fixes_of(node(), quota_tree(halves(80, 40)), *cluster, name="a/pod-8")
    assert fix.text == "raise max of root.a to 45 CPU"


def test_one_edit_raises_all_limiting_levels() -> None:
    (fix,) = fixes_of(node(), quota_tree(halves(40, 40)), *pods("a", 8, 1), name="a/pod-8")
    assert fix.text == "raise max of root.a to 45 CPU and min and max of root to 45 CPU"
    operations = json.loads(shlex.split(fix.command)[-1])
    assert [(one["path"], one["value"]) for one in operations] == [
        ("/spec/root/children/0/max/cpu", "45"),
        ("/spec/root/max/cpu", "45"),
        ("/spec/root/min/cpu", "45"),
    ]


def test_command_finds_a_level_behind_a_sibling_with_children() -> None:
    first = level("first", {"cpu": 2}, {"cpu": 4}, leaf("a1", 1, 4), leaf("a2", 1, 4))
    root = level("root", {"cpu": 40}, {"cpu": 40}, first, level("second", {"cpu": 2}, {"cpu": 40}, leaf("b", 1, 5)))
    (fix, *_) = fixes_of(node(), quota_tree(root), *pods("b", 1, 1), name="b/pod-1")
    (operation,) = json.loads(shlex.split(fix.command)[-1])
    assert operation["path"] == "/spec/root/children/1/children/0/max/cpu"


def test_smaller_request_fits_the_remaining_quota() -> None:
    running = pods("a", 1, cpu="8")
    late = pods("a", 0, 1, cpu="5")
    late[0]["metadata"] |= {"name": "late", "uid": "late"}
    root = level("root", {"cpu": 40}, {"cpu": 40}, leaf("a", 5, 10))
    found = fixes_of(node(), quota_tree(root), *running, *late, name="a/late")
    assert [fix.text for fix in found] == ["lower the cpu request from 5 to 2", "raise max of root.a to 13 CPU"]


def test_quota_fix_is_omitted_without_a_feasible_node() -> None:
    assert fixes_of(node("n", "40"), quota_tree(halves(80, 40)), *pods("a", 8, 1), name="a/pod-8") == []


def test_quota_fixes_edit_the_objects_of_their_api() -> None:
    held = [node(), *pods("a", 2, 1, cpu="1")]
    (fix,) = fixes_of(*held, flat("a", 1, 2), flat("b", 4, 9), name="a/pod-2")
    assert fix.text == "raise max of a/quota to 3 CPU"
    assert shlex.split(fix.command)[-1] == '{"spec": {"max": {"cpu": "3"}}}'
    (fix,) = fixes_of(*held, flat("a", 2, 2), name="a/pod-2")
    assert fix.text == "raise min of a/quota to 3 CPU and max of a/quota to 3 CPU"
    (fix,) = fixes_of(*held, linked("web", 1, 2, namespaces=["a"]), name="a/pod-2")
    assert fix.text == "raise max of kube-system/web to 3 CPU"
    assert fix.command.startswith("kubectl patch elasticquotas.scheduling.sigs.k8s.io web -n kube-system --type=merge")


def test_pod_without_a_quota_gets_no_quota_fix() -> None:
    found = fixes_of(node("n", "4"), quota_tree(halves(80, 40)), *pods("free", 1, 1, cpu="3"), name="free/pod-1")
    assert [fix.kind for fix in found if fix.kind == "quota"] == []


def applied(documents: Sequence[Document], fix: Fix) -> list[Document]:
    """The cluster after somebody has given the command."""
    found = deepcopy(list(documents))
    tree: Any = next(one for one in found if one["kind"] == "ElasticQuotaTree")
    for one in json.loads(shlex.split(fix.command)[-1]):
        *path, last = [part.replace("~1", "/") for part in one["path"].split("/")[1:]]
        target = tree
        for part in path:
            target = target[int(part)] if isinstance(target, list) else target[part]
        target[last] = one["value"]
    return found


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 6), st.integers(0, 4), st.integers(1, 3), st.integers(1, 4))
def test_pod_fits_after_the_edit_and_the_tree_is_valid(running: int, beside: int, cpu: int, most: int) -> None:
    whole = (running + beside) * cpu
    root = level(
        "root",
        {"cpu": whole, "example.com/chip": 4},
        {"cpu": whole, "example.com/chip": 4},
        level("a", {"cpu": 0}, {"cpu": whole}, leaf("x", 0, min(whole, most * cpu), "x")),
        leaf("y", 0, whole),
    )
    cluster = [
        node(cpu="200"),
        quota_tree(root),
        *pods("x", running, 1, cpu=str(cpu)),
        *pods("y", beside, cpu=str(cpu)),
    ]
    name = f"x/pod-{running}"
    for fix in fixes_of(*cluster, name=name):
        if fix.kind == "quota":
            after = explained(*applied(cluster, fix), name=name)
            assert after.now is not None
            assert (after.now.outcome, after.now.node) == ("placed", fix.node)


def test_planned_pods_are_placed_within_their_quota() -> None:
    items = [msgspec.Raw(orjson.dumps(one)) for one in (node(), quota_tree(halves(80, 40)), *pods("a", 6))]
    (planned,) = pods("a", 0, 1)
    view = DumpExplanations(configuration(), DumpedCluster(items, NOW)).what_if(planned, 4)
    assert [bool(one.node) for one in view.placements] == [True, True, False, False]
    assert "quota root.a: cpu 40 used, 5 requested, max 40" in view.placements[2].message
