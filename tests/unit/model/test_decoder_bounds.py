"""Pods over a bound of the decoder: a pending one is told which; a placed one still holds all that others are judged by."""

from __future__ import annotations

from typing import Any

import pytest

from multisched.model.decode import CONTAINERS_MAX, LABELS_MAX, MAP_BYTES_MAX, SPEC_BYTES_MAX, TOLERATIONS_MAX, Decoder
from multisched.model.decode_placement import SPREAD_CONSTRAINTS_MAX
from multisched.model.decode_selectors import AFFINITY_TERMS_MAX, SELECTOR_VALUES_MAX
from multisched.model.decode_volumes import RBD_MONITORS_MAX, RESOURCE_CLAIMS_MAX, VOLUMES_MAX
from multisched.model.objects import CPU, MEMORY, HostPort, Pod
from multisched.model.volumes import PodVolume
from tests.unit.model.documents import Document, container, decode_node, decode_pod, node_document, pod_document

REQUIRED, PREFERRED = (
    "requiredDuringSchedulingIgnoredDuringExecution",
    "preferredDuringSchedulingIgnoredDuringExecution",
)


def term(app: str = "web", **more: Any) -> Document:
    return {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": app}}, **more}


def numbered_values(count: int) -> list[str]:
    return [f"v{number}" for number in range(count)]


def wide_selector(count: int) -> Document:
    return {"matchExpressions": [{"key": "app", "operator": "In", "values": ["web", *numbered_values(count)]}]}


NODE_TERM = {"matchExpressions": [{"key": "k", "operator": "In", "values": numbered_values(SELECTOR_VALUES_MAX + 1)}]}
OVER: dict[str, tuple[Document, str]] = {
    "tolerations": ({"tolerations": [{"key": k} for k in numbered_values(TOLERATIONS_MAX + 1)]}, "spec.tolerations"),
    "node selector": (
        {"nodeSelector": dict.fromkeys(numbered_values(SELECTOR_VALUES_MAX + 1), "")},
        "spec.nodeSelector",
    ),
    "node affinity": (
        {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [NODE_TERM]}}}},
        "spec.affinity.nodeAffinity",
    ),
    "node affinity terms": (
        {"affinity": {"nodeAffinity": {PREFERRED: [{"weight": 1}] * (AFFINITY_TERMS_MAX + 1)}}},
        "spec.affinity.nodeAffinity",
    ),
    "spread": (
        {"topologySpreadConstraints": [{"topologyKey": k} for k in numbered_values(SPREAD_CONSTRAINTS_MAX + 1)]},
        "spec.topologySpreadConstraints",
    ),
    "resource claims": (
        {"resourceClaims": [{"name": k} for k in numbered_values(RESOURCE_CLAIMS_MAX + 1)]},
        "spec.resourceClaims",
    ),
    "volumes": (
        {"volumes": [{"name": k, "persistentVolumeClaim": {"claimName": k}} for k in numbered_values(VOLUMES_MAX + 1)]},
        "spec.volumes",
    ),
    "labels": ({"labels": dict.fromkeys(numbered_values(LABELS_MAX + 1), "")}, "metadata.labels"),
}


def placed_pod(**spec: Any) -> Pod:
    """A pod with something of everything, on a node."""
    labels = {"app": "web", **spec.pop("labels", {})}
    affinity = {"podAntiAffinity": {REQUIRED: [term()]}, **spec.pop("affinity", {})}
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}, *spec.pop("volumes", ())]
    main = container(cpu="2", memory="1Gi") | {"ports": [{"hostPort": 80}]}
    metadata = {"labels": labels}
    return decode_pod(
        pod_document(main, metadata=metadata, nodeName="n", affinity=affinity, volumes=volumes, priority=7, **spec)
    )


@pytest.mark.parametrize(("spec", "field"), OVER.values(), ids=OVER)
def test_oversized_placed_pod_keeps_its_requests_and_ports(spec: Document, field: str) -> None:
    pod = placed_pod(**spec)
    assert pod.malformed.startswith(field)
    assert (pod.requests[CPU], pod.requests[MEMORY]) == (2000, 2**30)
    assert pod.spec.host_ports == (HostPort("", "TCP", 80),)
    assert pod.labels["app"] == "web"
    assert pod.spec.priority == 7
    assert pod.spec.volumes[0] == PodVolume(claim="data")
    assert pod.spec.pod_affinity is not None
    (anti,) = pod.spec.pod_affinity.anti_required
    assert anti.selector is not None
    assert anti.selector.matches({"app": "web"})


@pytest.mark.parametrize("kind", ["podAffinity", "podAntiAffinity"])
def test_all_affinity_terms_of_an_oversized_placed_pod_count(kind: str) -> None:
    anti = {kind: {REQUIRED: [term(app) for app in numbered_values(AFFINITY_TERMS_MAX + 1)]}}
    pod = placed_pod(affinity=anti)
    assert str(AFFINITY_TERMS_MAX) in pod.malformed
    assert pod.spec.pod_affinity is not None
    terms = pod.spec.pod_affinity.required if kind == "podAffinity" else pod.spec.pod_affinity.anti_required
    assert len(terms) == AFFINITY_TERMS_MAX + 1


@pytest.mark.parametrize(
    "changed",
    [
        {"labelSelector": wide_selector(SELECTOR_VALUES_MAX)},
        {"namespaces": ["default", *numbered_values(SELECTOR_VALUES_MAX)]},
        {"namespaceSelector": wide_selector(SELECTOR_VALUES_MAX)},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_oversized_term_of_a_placed_pod_is_kept_unchanged(changed: Document) -> None:
    pod = placed_pod(affinity={"podAntiAffinity": {REQUIRED: [term(**changed)]}})
    assert str(SELECTOR_VALUES_MAX) in pod.malformed
    assert pod.spec.pod_affinity is not None
    (anti,) = pod.spec.pod_affinity.anti_required
    assert anti.selector is not None
    assert anti.selector.matches({"app": "web"})
    assert len(anti.namespaces) == len(changed.get("namespaces", ()))
    assert (anti.namespace_selector is not None) is ("namespaceSelector" in changed)


def test_unparsable_term_drops_only_itself() -> None:
    """As upstream, which passes over what it cannot parse of a placed pod."""
    bad = term() | {"labelSelector": {"matchExpressions": [{"key": "a b", "operator": "In", "values": ["x"]}]}}
    weighted = [{"weight": 5, "podAffinityTerm": term()}, {"weight": 5, "podAffinityTerm": bad}]
    pod = placed_pod(affinity={"podAntiAffinity": {REQUIRED: [bad, term()]}, "podAffinity": {PREFERRED: weighted}})
    assert "labelSelector" in pod.malformed
    assert pod.spec.pod_affinity is not None
    assert len(pod.spec.pod_affinity.anti_required) == 1
    assert len(pod.spec.pod_affinity.preferred) == 1
    assert pod.spec.host_ports


def test_disk_with_many_monitors_is_kept() -> None:
    disk = {"name": "d", "rbd": {"image": "i", "monitors": numbered_values(RBD_MONITORS_MAX + 1)}}
    pod = placed_pod(volumes=[disk])
    assert str(RBD_MONITORS_MAX) in pod.malformed
    assert pod.spec.volumes[1].disk is not None
    assert len(pod.spec.volumes[1].disk.monitors) == RBD_MONITORS_MAX + 1


def test_every_container_counts_in_an_oversized_pod() -> None:
    one = container(cpu="1m") | {"ports": [{"hostPort": 80}]}
    pod = decode_pod(pod_document(*[one] * (CONTAINERS_MAX + 1), nodeName="n"))
    assert "spec.containers" in pod.malformed
    assert pod.requests[CPU] == CONTAINERS_MAX + 1
    assert len(pod.spec.host_ports) == CONTAINERS_MAX + 1


def test_unreadable_request_drops_no_other_request() -> None:
    main = container(cpu="2", memory="lots") | {"ports": [{"hostPort": 80}]}
    pod = decode_pod(pod_document(main, container("other", memory="1Gi"), nodeName="n", overhead={"cpu": "-1"}))
    assert "memory" in pod.malformed
    assert (pod.requests[CPU], pod.requests[MEMORY]) == (2000, 2**30)
    assert pod.spec.host_ports


def test_node_with_too_many_labels_is_malformed_and_keeps_its_zone() -> None:
    """Else the pods on it would be in no zone, and others be placed against them."""
    labels = {"zone": "a", **dict.fromkeys(numbered_values(LABELS_MAX), "")}
    node = decode_node(node_document({"labels": labels}, cpu="4"))
    assert node.malformed.startswith("metadata.labels")
    assert node.labels["zone"] == "a"


def test_cache_of_shared_specs_and_labels_is_bounded_in_bytes() -> None:
    decoder = Decoder()
    tolerations = [{"key": "k" * 200} for _ in range(5_000)]
    labels = {f"k{number}": "v" * 60 for number in range(15_000)}
    for number in range(80):
        pod = decode_pod(pod_document(priority=number, tolerations=tolerations), decoder)
        decode_pod(pod_document(metadata={"labels": labels | {"own": str(number)}}), decoder)
        assert decode_pod(pod_document(priority=number, tolerations=tolerations), decoder).spec is pod.spec
        assert decoder._spec_bytes <= SPEC_BYTES_MAX
        assert decoder._map_bytes <= MAP_BYTES_MAX
