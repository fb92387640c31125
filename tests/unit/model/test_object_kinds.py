"""The registry of watched kinds: what follows from one entry."""

from __future__ import annotations

import pytest

from multisched.model.decode_objects import decode_namespace
from multisched.model.object_kinds import KindDefinition


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
