"""Which API a document is of, what is lost of each, and that no document whatever costs more than a problem."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multisched.model.quota_tree import read_tree
from multisched.model.quotas.drafts import Json, Translation
from multisched.model.quotas.translation import WHOLE, QuotaApi, api_of, checked, is_namespace, translate, tree_name
from tests.unit.model.quotas import test_kueue, test_volcano
from tests.unit.model.quotas.quota_documents import flat, linked
from tests.unit.plugins.quota.trees import acks_example, leaf, node


def ack(root: Any, name: str = "teams") -> dict[str, Any]:
    metadata = {"name": name, "namespace": "kube-system"}
    version = "scheduling.sigs.k8s.io/v1beta1"
    return {"apiVersion": version, "kind": "ElasticQuotaTree", "metadata": metadata, "spec": {"root": root}}


EXAMPLES: dict[QuotaApi, list[dict[str, Any]]] = {
    QuotaApi.ACK: [ack(acks_example())],
    QuotaApi.KOORDINATOR: [
        linked("company", 4, 8, is_parent="true"),
        linked("web", 2, 8, "company", namespaces=["web"]),
    ],
    QuotaApi.SCHEDULER_PLUGINS: [flat("web", 2, 9), flat("batch", 4, 5)],
    QuotaApi.KUEUE: [
        test_kueue.queue("web", "all", [test_kueue.quota("cpu", 9, 3)]),
        test_kueue.cohort("all"),
        test_kueue.local("web", "web"),
    ],
    QuotaApi.VOLCANO: [test_volcano.queue("web", deserved={"cpu": 4}), test_volcano.pod_group("web", "web")],
}
each_api = pytest.mark.parametrize("api", QuotaApi, ids=lambda api: api.name)


@each_api
def test_api_of_every_document_is_found(api: QuotaApi) -> None:
    assert {api_of(one) for one in EXAMPLES[api]} == {api}


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"kind": "ElasticQuota"},
        {"kind": "Queue", "apiVersion": "batch.volcano.sh/v1"},
        {"kind": ["Queue"], "apiVersion": "scheduling.volcano.sh/v1beta1"} | {"kind": "Job"},
        {"kind": "ElasticQuotaTree", "apiVersion": 5},
        {"kind": "ResourceQuota", "apiVersion": "v1"},
    ],
)
def test_other_kinds_have_no_quota_api(document: Json) -> None:
    assert api_of(document) is None
    assert not is_namespace(document)


@each_api
def test_each_api_becomes_a_tree_without_problems(api: QuotaApi) -> None:
    tree, translation = checked(translate(api, EXAMPLES[api]), tree_name(api, EXAMPLES[api]))
    assert translation.problems == {}
    assert tree is not None
    assert tree.document["metadata"]["name"] == ("teams" if api is QuotaApi.ACK else "elasticquotatree")
    found, problems = read_tree(tree.document["spec"]["root"])
    assert problems == ()
    assert found is not None
    assert ("web" in found.leaf_of) == (api is not QuotaApi.ACK)


@each_api
def test_a_namespace_among_the_documents_is_no_quota(api: QuotaApi) -> None:
    other = test_volcano.namespace("other", "none")
    assert is_namespace(other)
    alone, both = translate(api, EXAMPLES[api]), translate(api, [other, *EXAMPLES[api]])
    assert (alone.tree, alone.problems) == (both.tree, both.problems)


def lost_fields(translation: Translation) -> list[tuple[str, str]]:
    return [(one.key, one.path) for one in translation.losses]


def test_attributes_and_bounds_of_jobs_of_ack_are_lost() -> None:
    team = leaf("a", 1, 2, attributes={"resourceflavors": ["x"]})
    root = node("root", {"cpu": 4}, {"cpu": 4, "kube-queue/max-jobs": 3}, team)
    assert lost_fields(translate(QuotaApi.ACK, [ack(root)])) == [
        ("ElasticQuotaTree kube-system/teams", "root.max.kube-queue/max-jobs"),
        ("ElasticQuotaTree kube-system/teams", "root.a.attributes.resourceflavors"),
    ]


def test_losses_of_an_unnamed_level_have_its_index_in_the_path() -> None:
    nameless = {"min": {"cpu": 1}, "attributes": {"x": "y"}, "children": [leaf("b", 1, 1, attributes={"z": "y"})]}
    root = node("root", {"cpu": 4}, {"cpu": 4}, leaf("a", 1, 2), nameless)
    assert [path for _, path in lost_fields(translate(QuotaApi.ACK, [ack(root)]))] == [
        "root.children[1].attributes.x",
        "root.children[1].b.attributes.z",
    ]


def test_unread_labels_and_annotations_of_koordinator_are_lost() -> None:
    document = linked("web", 2, 8, tree_id="", preemptible="false", allow_lent_resource="false", runtime="{}")
    _, translation = checked(translate(QuotaApi.KOORDINATOR, [document]))
    assert lost_fields(translation) == [
        ("ElasticQuota kube-system/web", "metadata.labels[quota.scheduling.koordinator.sh/preemptible]"),
        ("", ""),
        ("", "koordinator-root-quota.max.cpu"),
    ]


@pytest.mark.parametrize(
    ("api", "documents", "key", "path"),
    [
        (QuotaApi.ACK, [ack(node("root", {"cpu": 5}, {"cpu": 4}))], "ElasticQuotaTree kube-system/teams", "root.min.cpu"),
        (QuotaApi.ACK, [ack(acks_example()), ack(acks_example(), "b")], "ElasticQuotaTree kube-system/b", "metadata.name"),
        (QuotaApi.ACK, [ack(acks_example()) | {"metadata": 5}], "ElasticQuotaTree ", "metadata"),
        (QuotaApi.KOORDINATOR, [linked("a", 2, 1)], "ElasticQuota kube-system/a", "spec.min.cpu"),
        (QuotaApi.SCHEDULER_PLUGINS, [flat("a", 2, 1)], "ElasticQuota a/quota", "spec.min.cpu"),
        (QuotaApi.SCHEDULER_PLUGINS, [flat("", 1, 1)], "ElasticQuota quota", "metadata.namespace"),
        (
            QuotaApi.VOLCANO,
            [test_volcano.queue("p", deserved={"cpu": 1}), test_volcano.queue("a", "p", deserved={"cpu": 2})],
            WHOLE,
            "root.p.min.cpu",
        ),
    ],
    ids=["min over max", "two trees", "no metadata", "koordinator", "flat", "no namespace", "whole"],
)  # fmt: skip
def test_problem_names_its_object_and_field(api: QuotaApi, documents: list[Json], key: str, path: str) -> None:
    tree, translation = checked(translate(api, documents))
    assert tree is None
    assert path in [one.path for one in translation.problems[key]]


# -- whatever stands in a file -------------------------------------------------------------------------------------------

scalars = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=4)
names = st.sampled_from([
    "name", "namespace", "labels", "annotations", "min", "max", "children", "namespaces", "attributes", "root", "parent",
    "resourceGroups", "flavors", "resources", "nominalQuota", "lendingLimit", "fairSharing", "weight", "cohortName",
    "deserved", "guarantee", "resource", "capability", "clusterQueue", "cpu", "memory", "queue", "parentName",
])  # fmt: skip
anything = st.recursive(
    scalars, lambda below: st.lists(below, max_size=3) | st.dictionaries(names, below, max_size=5), max_leaves=30
)


@each_api
@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_every_document_is_read_or_reported_as_a_problem(api: QuotaApi, data: st.DataObject) -> None:
    documents = [
        {**one, **data.draw(st.dictionaries(st.sampled_from(["metadata", "spec"]), anything))} for one in EXAMPLES[api]
    ]
    tree, translation = checked(translate(api, documents))
    assert (tree is None) == bool(translation.problems)
    assert all(one.path and one.text for problems in translation.problems.values() for one in problems)
