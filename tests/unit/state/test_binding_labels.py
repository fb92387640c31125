"""Labels that the API server copies from a node when it binds a pod: an assumed pod has them before the watch shows them."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from multisched.state import binding_labels
from multisched.state.cluster_cache import ClusterCache
from multisched.testing.builders import make_node
from tests.unit.state.state_kit import make_pod

ZONE, REGION = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"


def cache_of_zones() -> ClusterCache:
    cache = ClusterCache()
    for zone in ("a", "b"):
        cache.set_node(make_node(zone, labels={ZONE: zone, "disk": "ssd"}))
    return cache


def bind(cache: ClusterCache, name: str, node: str, shown: Mapping[str, str]) -> tuple[Mapping[str, str], int]:
    """Returns the labels of the assumed pod, and by how much its confirmation moves the version of its row."""
    pod, row = make_pod(name, labels={"app": "web"}), cache.nodes.row_of(node)
    assert row is not None
    cache.assume(pod, row)
    assumed, version = cache.nodes.pods_by_uid(row)[name].labels, cache.nodes.version(row)
    cache.place(replace(pod, node=node, labels={**pod.labels, **shown}))
    assert cache.nodes.pods_by_uid(row)[name].labels == {"app": "web", **shown}
    cache.validate()
    return assumed, cache.nodes.version(row) - version


def test_confirmed_bind_shows_that_labels_are_copied_and_later_confirmations_change_no_row() -> None:
    cache = cache_of_zones()
    assert bind(cache, "first", "a", {ZONE: "a"}) == ({"app": "web"}, 1)
    assert bind(cache, "second", "a", {ZONE: "a"}) == ({"app": "web", ZONE: "a"}, 0)
    assert bind(cache, "third", "b", {ZONE: "b"}) == ({"app": "web", ZONE: "b"}, 0)


def test_api_server_that_copies_no_labels_ends_the_expectation() -> None:
    cache = cache_of_zones()
    bind(cache, "first", "a", {ZONE: "a"})
    assert bind(cache, "second", "a", {}) == ({"app": "web", ZONE: "a"}, 1)
    assert bind(cache, "third", "a", {}) == ({"app": "web"}, 0)


def test_node_without_topology_labels_teaches_nothing() -> None:
    cache = cache_of_zones()
    cache.set_node(make_node("bare"))
    bind(cache, "first", "a", {ZONE: "a"})
    assert bind(cache, "second", "bare", {}) == ({"app": "web"}, 0)
    assert bind(cache, "third", "b", {ZONE: "b"})[1] == 0


def test_assumed_pod_keeps_the_expected_labels_when_the_watch_shows_a_newer_version() -> None:
    cache = cache_of_zones()
    bind(cache, "first", "a", {ZONE: "a"})
    pod = make_pod("second", labels={"app": "web"})
    cache.assume(pod, 0)
    cache.revise(replace(pod, labels={"app": "api"}))
    assert cache.nodes.pods_by_uid(0)["second"].labels == {"app": "api", ZONE: "a"}


def test_pods_with_equal_labels_share_one_object_and_few_are_kept() -> None:
    labels, node = {"app": "web"}, make_node("a", labels={ZONE: "a", REGION: "r"})
    expected = binding_labels.BindingLabels()
    expected.are_copied = True
    first, second = (expected.on_node(make_pod(name, labels=labels), node) for name in "xy")
    assert first.labels == {"app": "web", ZONE: "a", REGION: "r"}
    assert first.labels is second.labels
    for number in range(binding_labels.KNOWN_MAX):
        expected.on_node(make_pod(f"p{number}", labels={"job": str(number)}), node)
    assert len(expected._combined) <= binding_labels.KNOWN_MAX
