"""Whatever shape volumes, claims, classes and CSINodes have, the volume plugins answer and never raise.

Each document is right at first, so that its names lead to the others; then some of its fields become something else.
"""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from multisched.cycle.results import Placed, Unplaced
from multisched.model.decode import DecodeError, Decoder
from multisched.model.object_kinds import ObjectKind
from multisched.testing.builders import make_node, pod_document
from tests.unit.cycle.cycle_kit import Domain
from tests.unit.plugins.volumes.storage_documents import attachment, ephemeral, uses
from tests.unit.plugins.volumes.volume_scenes import (
    CAPACITY,
    CLASS,
    CSI_DRIVER,
    CSI_NODE,
    PV,
    PVC,
    Document,
    capacity,
    claim,
    driver,
    storage_class,
    volume,
)

PLUGINS = ("VolumeRestrictions", "NodeVolumeLimits", "VolumeBinding", "VolumeZone")
MIGRATED = ",".join(
    f"kubernetes.io/{name}"
    for name in ("aws-ebs", "gce-pd", "azure-disk", "cinder", "portworx-volume", "vsphere-volume")
)
SOURCES: tuple[Document, ...] = (
    {"csi": {"driver": "csi.example.com", "volumeHandle": "h"}},
    {"gcePersistentDisk": {"pdName": "disk"}},
    {"awsElasticBlockStore": {"volumeID": "aws://zone/vol-1"}},
    {"azureDisk": {"diskName": "d", "diskURI": "/d", "kind": "Managed"}},
    {"cinder": {"volumeID": "v"}},
)
ZONES = ("a", "us-east1-a__us-east1-b", "us-east1-a__eu-west1-b", "a__b", "__", "", "us-east1-a", "a-b-c-d__a-b-c")
ZONE_LABELS = ("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone")

_TEXTS = (None, "", "x", "-1", "1e400", "1e20", "10Gi", "aws://[", "aws://z/x", "In", -1, 0, 2**63, 2**70, 1.5, True)
_SHAPES: tuple[Any, ...] = ([], {}, [None], [[]], ["x"], [{}], {"": ""}, {"x": None}, {"x": {}})
_junk = st.sampled_from((*_TEXTS, *_SHAPES))


def _csi_node(name: str) -> Document:
    found = {
        "name": name,
        "uid": f"csi-{name}",
        "annotations": {"storage.alpha.kubernetes.io/migrated-plugins": MIGRATED},
    }
    drivers = [{"name": "csi.example.com", "nodeID": name, "topologyKeys": ["zone"], "allocatable": {"count": 1}}]
    return {"metadata": found, "spec": {"drivers": drivers}}


@st.composite
def _clusters(draw: st.DrawFn) -> list[tuple[ObjectKind, Document]]:
    """Two claims, what they are bound to or may get, and the drivers' objects; some mangled."""
    labels = {key: draw(st.sampled_from(ZONES)) for key in draw(st.sets(st.sampled_from(ZONE_LABELS)))}
    source = draw(st.sampled_from(SOURCES))
    bound = claim("bound", "wait", bound="taken")
    free = claim("free", draw(st.sampled_from(("wait", "local", "now"))), selector={"matchLabels": {"a": "b"}})
    free["spec"]["selector"] = draw(st.sampled_from((None, free["spec"]["selector"])))
    found: list[tuple[ObjectKind, Document]] = [
        (CLASS, storage_class("wait", zones=["a"])),
        (CLASS, storage_class("local", "kubernetes.io/no-provisioner")),
        (CLASS, storage_class("now", mode="Immediate")),
        (PV, volume("taken", "wait", claim="bound", claim_uid="claim-bound", labels=labels, source=deepcopy(source))),
        (PV, volume("spare", "local", host="n0", labels=labels)),
        (PVC, bound),
        (PVC, free),
        (PVC, claim("p-own", "wait", owner="uid-p")),
        (CSI_NODE, _csi_node("n0")),
        (CSI_DRIVER, driver(tracks_capacity=True)),
        (CAPACITY, capacity("room", "a", "100Gi", "50Gi")),
        (ObjectKind.VOLUME_ATTACHMENT, attachment("one", "n0", "taken", "csi.example.com")),
    ]
    for _ in range(draw(st.integers(0, 3))):
        _mangle(draw, found[draw(st.integers(0, len(found) - 1))][1])
    return found


def _mangle(draw: st.DrawFn, document: Document) -> None:
    """Makes one field, at any depth, something else, or nothing."""
    here: Any = document
    while True:
        keys = sorted(here) if isinstance(here, dict) else list(range(len(here)))
        key = draw(st.sampled_from(keys))
        inside = here[key]
        if isinstance(inside, dict | list) and inside and draw(st.booleans()):
            here = inside
            continue
        here[key] = draw(_junk)
        return


def surprises(domain: Domain) -> list[tuple[str, str, str]]:
    """Failures of plugins but for the one that upstream calls so: a class that the API server did not default."""
    return [failure for failure in domain.heard.failures if not failure[2].startswith("VolumeBindingMode not set for")]


@given(
    cluster=_clusters(),
    volumes=st.lists(
        st.sampled_from(
            [*uses("bound", "bound"), *uses("free", "free"), *uses(""), ephemeral("own"), {"name": "d", **SOURCES[3]}]
        ),
        min_size=1,
        max_size=3,
    ),
)
def test_arbitrary_storage_objects_raise_no_exception(
    cluster: list[tuple[ObjectKind, Document]], volumes: list[Document]
) -> None:
    nodes = (
        make_node("n0", labels={"host": "n0", "zone": "a"}),
        make_node("n1", labels={ZONE_LABELS[0]: "us-east1-a"}),
    )
    domain = Domain(*nodes, in_tree=PLUGINS)
    for kind, document in cluster:
        try:
            item = kind.definition.decode(json.dumps(document).encode())
        except DecodeError:
            continue
        domain.cache.objects.set(kind, item)
    pod = Decoder().pod(orjson.dumps(pod_document("p", volumes=volumes)))

    cold = domain.schedule(pod)
    assert surprises(domain) == []
    assert isinstance(cold, Placed | Unplaced)
    if isinstance(cold, Unplaced):
        warm = domain.schedule(pod)
        assert isinstance(warm, Unplaced)
        assert warm.message == cold.message
        assert surprises(domain) == []
