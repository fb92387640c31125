"""The registry of watched kinds: what follows from one entry."""

from __future__ import annotations

import pytest

from multisched.framework.events import Resource
from multisched.model.decode_objects import decode_namespace
from multisched.model.object_kinds import KindDefinition, ObjectKind, kind_of


@pytest.mark.parametrize(
    ("name", "api_version", "group", "path"),
    [
        ("Widget", "v1", "", "/api/v1/widgets"),
        ("Widget", "example.org/v1beta1", "example.org", "/apis/example.org/v1beta1/widgets"),
        ("NetworkPolicy", "networking.k8s.io/v1", "networking.k8s.io", "/apis/networking.k8s.io/v1/networkpolicies"),
        ("PriorityClass", "scheduling.k8s.io/v1", "scheduling.k8s.io", "/apis/scheduling.k8s.io/v1/priorityclasses"),
    ],
)
def test_name_and_version_say_where_a_kind_is_listed(name: str, api_version: str, group: str, path: str) -> None:
    made_up = KindDefinition(name, api_version, decode_namespace)
    assert (made_up.group, made_up.path) == (group, path)
    assert made_up.path.endswith(f"/{made_up.plural}")


def test_no_two_things_that_have_events_go_by_one_name() -> None:
    names = [one.value for one in (*ObjectKind, *Resource)]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("name", "api_version", "kind"),
    [
        ("ElasticQuota", "scheduling.x-k8s.io/v1alpha1", ObjectKind.ELASTIC_QUOTA),
        ("ElasticQuota", "scheduling.sigs.k8s.io/v1alpha1", ObjectKind.KOORDINATOR_QUOTA),
        ("ElasticQuota", "", None),
        ("ElasticQuota", "example.org/v1", None),
        ("ElasticQuotaTree", "scheduling.sigs.k8s.io/v1beta1", ObjectKind.ELASTIC_QUOTA_TREE),
        ("Service", "v1", ObjectKind.SERVICE),
        ("Service", "", ObjectKind.SERVICE),
        ("Service", "serving.knative.dev/v1", None),
        ("Nothing", "v1", None),
    ],
)
def test_a_document_is_of_the_kind_of_its_name_and_group(name: str, api_version: str, kind: ObjectKind | None) -> None:
    assert kind_of(name, api_version) is kind


def test_kinds_of_one_name_go_by_their_apis_in_events_and_metrics() -> None:
    assert ObjectKind.ELASTIC_QUOTA.value == "elasticquotas.v1alpha1.scheduling.x-k8s.io"
    assert ObjectKind.KOORDINATOR_QUOTA.definition.metric_label == "elasticquotas.v1alpha1.scheduling.sigs.k8s.io"
    assert ObjectKind.SERVICE.definition.metric_label == "services"
    labels = [kind.definition.metric_label for kind in ObjectKind]
    assert len(set(labels)) == len(labels)


def test_wildcards_stand_for_what_upstream_unrolls_them_to_and_for_namespaces_and_attachments() -> None:
    assert {kind for kind in ObjectKind if kind.definition.is_in_wildcard} == {
        ObjectKind.NAMESPACE,
        ObjectKind.PERSISTENT_VOLUME,
        ObjectKind.PERSISTENT_VOLUME_CLAIM,
        ObjectKind.STORAGE_CLASS,
        ObjectKind.CSI_NODE,
        ObjectKind.CSI_DRIVER,
        ObjectKind.CSI_STORAGE_CAPACITY,
        ObjectKind.VOLUME_ATTACHMENT,
    }
