"""Reviews of quotas: what is refused is what lint refuses, whoever mends is not kept from it, and no pod is named."""

from __future__ import annotations

import json
from typing import Any, Final

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multisched.config import loading
from multisched.model.quotas.translation import api_of
from multisched.observe.admission_view import NotReviewedError
from multisched.testing.builders import Document
from multisched.whatif import quota_admission
from multisched.whatif.quota_admission import reviewed
from multisched.whatif.quota_lint import lint
from tests.unit.model.quotas import test_kueue
from tests.unit.model.quotas.quota_documents import flat, linked
from tests.unit.plugins.quota.trees import Json, acks_example, leaf
from tests.unit.plugins.quota.trees import node as level
from tests.unit.whatif.quota_clusters import node, quota_tree, snapshot_of, walk_through

CONFIGURATION: Final = loading.default()


def review(document: object, old: object = None, operation: str = "") -> Json:
    """As kube-apiserver sends it."""
    operation = operation or ("UPDATE" if old else "CREATE")
    request = {"uid": "705ab4f5", "operation": operation, "object": document, "oldObject": old, "dryRun": False}
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


def answer(asked: Json, *cluster: Document) -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads(reviewed(json.dumps(asked).encode(), snapshot_of(cluster), CONFIGURATION))
    assert (found["apiVersion"], found["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    assert found["response"]["uid"] == "705ab4f5"
    response: dict[str, Any] = found["response"]
    return response


def fields(response: dict[str, Any]) -> list[str]:
    assert response["allowed"] is False
    return [cause["field"] for cause in response["status"]["details"]["causes"]]


def test_valid_tree_is_admitted_without_a_message() -> None:
    assert answer(review(quota_tree(acks_example()))) == {"uid": "705ab4f5", "allowed": True}


def test_invalid_tree_is_refused_with_rules_paths_and_fixes() -> None:
    broken = quota_tree(level("root", {"cpu": 5}, {"cpu": 4}, leaf("a", 3, 9), leaf("b", 3, 2)))
    found = answer(review(broken), node())
    assert fields(found) == ["root.min.cpu", "root.min.cpu", "root.a.max.cpu", "root.b.min.cpu"]
    status = found["status"]
    assert (status["code"], status["reason"], status["status"]) == (422, "Invalid", "Failure")
    api = api_of(broken)
    assert api is not None
    for one in lint(api, [broken], None).problems:
        assert str(one) in status["message"]


def test_number_of_shown_problems_is_limited() -> None:
    leaves = [leaf(f"l{number}", 2, 1) for number in range(50)]
    found = answer(review(quota_tree(level("root", {"cpu": 100}, {"cpu": 100}, *leaves))))
    assert len(fields(found)) == quota_admission.PROBLEMS_SHOWN
    assert found["status"]["message"].endswith("30 more; multisched quota lint shows all")


def test_evictions_are_warned_about_by_quota_without_pod_names() -> None:
    cluster = walk_through(3, 3, 2, 0)
    without = [one for one in cluster if one["kind"] != "ElasticQuotaTree"]
    found = answer(review(quota_tree(acks_example())), *without)
    assert found["allowed"] is True
    assert found["warnings"] == [
        "root.min.memory: 40Gi exceeds the 8Gi of all nodes; lower it, or add nodes",
        "root.min.nvidia.com/gpu: 4 exceeds the 0 of all nodes; lower it, or add nodes",
        "1 pod of root.a.1 would be evicted: root.a.1 holds cpu 15, over its min 10; root.b.4 holds 0 of its min 10",
        "1 pod of root.a.2 would be evicted: root.a.2 holds cpu 15, over its min 10; root.b.4 holds 5 of its min 10",
    ]


def test_unchanged_object_is_admitted_despite_problems() -> None:
    broken = quota_tree(level("root", {"cpu": 5}, {"cpu": 4}))
    labelled = broken | {"metadata": broken["metadata"] | {"labels": {"a": "b"}}}
    assert answer(review(labelled, broken), broken) == {"uid": "705ab4f5", "allowed": True}
    assert answer(review(broken, quota_tree(level("root", {"cpu": 4}, {"cpu": 4}))), node())["allowed"] is False


def test_second_tree_is_refused_and_the_first_can_be_changed() -> None:
    first, second = quota_tree(acks_example()), quota_tree(acks_example(), "second")
    assert fields(answer(review(second), first)) == ["metadata.name"]
    smaller = quota_tree(level("root", {"cpu": 4}, {"cpu": 4}))
    found = answer(review(smaller, first), first, second)
    assert found["allowed"] is True
    assert "not in force: ElasticQuotaTree kube-system/teams: metadata.name" in found["warnings"][0]


def test_existing_problems_of_others_do_not_block_a_fix() -> None:
    orphan, other = linked("web", 2, 4, "company"), linked("batch", 2, 4, "company")
    found = answer(review(linked("web", 2, 4), orphan), orphan, other)
    assert found["allowed"] is True
    assert found["warnings"][0].startswith("not in force: ElasticQuota kube-system/batch: metadata.labels[")
    assert fields(answer(review(orphan), other)) == ["metadata.labels[quota.scheduling.koordinator.sh/parent]"]


def test_new_problems_of_others_are_refused() -> None:
    parent, child = linked("company", 4, 8, is_parent="true"), linked("web", 2, 4, "company")
    found = answer(review(linked("company", 1, 8, is_parent="true"), parent), parent, child)
    assert fields(found) == ["spec.min.cpu"]
    found = answer(review(linked("company", 4, 8), parent), parent, child)
    label = "metadata.labels[quota.scheduling.koordinator.sh/parent]"
    assert fields(found) == [f"ElasticQuota kube-system/web: {label}"], "the parent would be one no more"


def test_quota_of_an_unused_api_is_refused() -> None:
    assert fields(answer(review(flat("a", 1, 2)), quota_tree(acks_example()))) == ["apiVersion"]


def test_deletions_are_admitted() -> None:
    tree, second = quota_tree(acks_example()), quota_tree(acks_example(), "second")
    gone = answer(review(None, tree, "DELETE"), tree)
    assert gone["allowed"] is True
    assert "stay in force until another tree exists" in gone["warnings"][0]
    (left,) = answer(review(None, flat("a", 1, 2), "DELETE"), flat("a", 1, 2))["warnings"]
    assert left == "no quota is in force without it: its pods are not limited"
    assert answer(review(None, second, "DELETE"), tree, second) == {"uid": "705ab4f5", "allowed": True}
    parent, child = linked("company", 4, 8, is_parent="true"), linked("web", 2, 4, "company")
    left = answer(review(None, parent, "DELETE"), parent, child)
    assert left["warnings"] == ["ElasticQuota kube-system/company stays in force while other quotas are below it"]
    broken = quota_tree(level("root", {"cpu": 5}, {"cpu": 4}), "broken")
    for beside in (broken, flat("web", 3, 2)):
        gone = answer(review(None, tree, "DELETE"), tree, beside)
        assert "stay in force until another tree exists" in gone["warnings"][0]
    assert answer(review(None, broken, "DELETE"), broken) == {"uid": "705ab4f5", "allowed": True}, "it held nobody"


@pytest.mark.parametrize(
    "document",
    [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}},
        test_kueue.queue("a", "", [test_kueue.quota("cpu", -1)]),
        {},
    ],
)
def test_other_kinds_are_admitted(document: Json) -> None:
    assert answer(review(document)) == {"uid": "705ab4f5", "allowed": True}


def test_large_cluster_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota_admission, "PODS_TRIED_MAX", 3)
    cluster = [one for one in walk_through(4) if one["kind"] != "ElasticQuotaTree"]
    found = answer(review(quota_tree(acks_example())), *cluster)
    assert "with 5 pods it takes too long to try which pods would be evicted" in found["warnings"][-1]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "not an AdmissionReview"),
        (b"[]", "not an AdmissionReview"),
        (b"\xff", "not an AdmissionReview"),
        (b"[" * 100_000, "not an AdmissionReview"),
        (b'{"request": {}}', "not an AdmissionReview"),
        (orjson.dumps(review({}) | {"apiVersion": "admission.k8s.io/v1beta1"}), "is not admission.k8s.io/v1"),
        (orjson.dumps(review(None)), "request.object is not an object"),
        (orjson.dumps(review([5])), "request.object is not an object"),
        (orjson.dumps(review(None, operation="DELETE")), "request.object is not an object"),
    ],
)
def test_malformed_review_is_an_error(body: bytes, why: str) -> None:
    with pytest.raises(NotReviewedError, match=why):
        reviewed(body, snapshot_of([]), CONFIGURATION)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda below: (
        st.lists(below, max_size=3)
        | st.dictionaries(
            st.sampled_from(["root", "min", "max", "name", "children", "labels", "cpu"]), below, max_size=4
        )
    ),
    max_leaves=20,
)


@settings(max_examples=40, deadline=None)
@given(anything, anything, st.sampled_from([quota_tree(acks_example()), flat("a", 1, 2), linked("a", 1, 2)]))
def test_every_object_gets_a_response(metadata: object, spec: object, good: Json) -> None:
    found = answer(review({**good, "metadata": metadata, "spec": spec}))
    assert found["allowed"] or all(cause["message"] for cause in found["status"]["details"]["causes"])
    assert answer(review(good, {**good, "metadata": metadata, "spec": spec}))["allowed"] is True
