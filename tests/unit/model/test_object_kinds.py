"""The registry of watched kinds: what follows from one entry."""

from __future__ import annotations

from typing import cast

import msgspec
import pytest

from multisched.framework.events import Action, ClusterEvent, EventRegistration, Resource
from multisched.model.decode_objects import decode_namespace
from multisched.model.object_kinds import DefinedKind, KindDefinition, ObjectKind
from multisched.queueing.hints import HintTable
from multisched.shell.ingest.objects import ObjectIngest
from multisched.state.object_store import ObjectStore, _Shelf
from tests.unit.queueing.builders import FIT, Listening
from tests.unit.shell.shell_kit import Desk


@pytest.mark.parametrize(
    ("name", "api_version", "group", "path"),
    [
        ("Widget", "v1", "", "/api/v1/widgets"),
        ("Widget", "example.org/v1beta1", "example.org", "/apis/example.org/v1beta1/widgets"),
        ("NetworkPolicy", "networking.k8s.io/v1", "networking.k8s.io", "/apis/networking.k8s.io/v1/networkpolicies"),
        ("PriorityClass", "scheduling.k8s.io/v1", "scheduling.k8s.io", "/apis/scheduling.k8s.io/v1/priorityclasses"),
    ],
)
def test_kind_is_listed_at_its_group_version_and_plural(name: str, api_version: str, group: str, path: str) -> None:
    made_up = KindDefinition(name, api_version, decode_namespace)
    assert (made_up.group, made_up.path) == (group, path)
    assert made_up.path.endswith(f"/{made_up.plural}")


def test_names_of_event_resources_are_unique() -> None:
    names = [one.value for one in (*ObjectKind, *Resource)]
    assert len(set(names)) == len(names)


class Namesakes(DefinedKind):
    """A quota of Kubernetes', and one that another group calls the same."""

    OURS = KindDefinition("ResourceQuota", "v1", decode_namespace)
    THEIRS = KindDefinition("ResourceQuota", "quota.example.org/v1alpha1", decode_namespace)


def test_kinds_with_equal_names_in_two_groups_stay_distinct() -> None:
    assert [(kind.value, kind.resource, kind.definition.path) for kind in Namesakes] == [
        ("ResourceQuota", "resourcequotas", "/api/v1/resourcequotas"),
        (
            "ResourceQuota.quota.example.org",
            "resourcequotas.quota.example.org",
            "/apis/quota.example.org/v1alpha1/resourcequotas",
        ),
    ]


class TheirsFirst(DefinedKind):
    """The same two, in the other order."""

    THEIRS = KindDefinition("ResourceQuota", "quota.example.org/v1alpha1", decode_namespace)
    OURS = KindDefinition("ResourceQuota", "v1", decode_namespace)


def test_core_kind_registered_second_gets_the_core_suffix() -> None:
    assert [(kind.value, kind.resource) for kind in TheirsFirst] == [
        ("ResourceQuota", "resourcequotas"),
        ("ResourceQuota.core", "resourcequotas.core"),
    ]


def test_event_of_a_kind_with_an_equal_name_requeues_no_pod() -> None:
    ours, theirs = (cast(ObjectKind, kind) for kind in Namesakes)
    hints = HintTable([Listening(FIT, EventRegistration(ClusterEvent(theirs, Action.ALL)))], lambda *told: None)
    assert [hints.is_of_interest(ClusterEvent(kind, Action.ADD)) for kind in (ours, theirs)] == [False, True]


def test_events_of_kinds_with_equal_names_have_distinct_labels() -> None:
    told, store = list[str](), ObjectStore()
    for kind in Namesakes:
        known = cast(ObjectKind, kind)
        store._shelves[known] = _Shelf(lambda one: one.namespace)
        ingest = ObjectIngest(known, store, lambda event, old, new: told.append(event.label), Desk(), "ours")
        ingest.upsert("q", msgspec.Raw(b'{"metadata": {"name": "q", "uid": "u"}}'))
    assert told == ["ResourceQuotaAdd", "ResourceQuota.quota.example.orgAdd"]


def test_kind_registered_twice_is_refused() -> None:
    with pytest.raises((ValueError, RuntimeError)) as refused:

        class Twice(DefinedKind):
            FIRST = KindDefinition("Widget", "example.org/v1", decode_namespace)
            SECOND = KindDefinition("Widget", "example.org/v2", decode_namespace)

    cause = refused.value.__cause__ or refused.value  # older Pythons wrap it
    assert str(cause) == "Widget of example.org/v2 is defined twice"


def test_wildcard_covers_the_kinds_of_upstream_namespaces_and_attachments() -> None:
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
