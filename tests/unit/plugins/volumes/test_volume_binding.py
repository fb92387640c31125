"""VolumeBinding by its rules: claims that are wrong, rows that serve them or do not, promises, scores."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multisched.framework.status import SKIP, SUCCESS, Code, Status
from multisched.model.objects import Pod
from multisched.plugins.resource_scoring import ShapePoint
from multisched.plugins.volumes.assumed_volumes import AssumedProvision, AssumedVolume
from multisched.plugins.volumes.volume_binding import ScoringVolumeBinding
from multisched.plugins.volumes.volume_binding_args import VolumeBindingArgs
from multisched.plugins.volumes.volume_planner import (
    BIND_CONFLICT,
    NODE_CONFLICT,
    NOT_ENOUGH_SPACE,
    UNBOUND_IMMEDIATE,
    VOLUME_MISSING,
)
from multisched.testing.builders import decode_node, decode_pod, node_document, pod_document
from tests.unit.plugins.volumes.storage_documents import csi_node, ephemeral
from tests.unit.plugins.volumes.volume_scenes import (
    CAPACITY,
    CLASS,
    CSI_DRIVER,
    CSI_NODE,
    PV,
    PVC,
    ZONES,
    Document,
    Storage,
    capacity,
    claim,
    driver,
    pod,
    storage_class,
    volume,
)

EVERY = set(ZONES)
NO_QUANTITY = "spec.resources.requests.storage: 'much' is not a quantity; write for example 500m, 2, 1.5Gi or 2e3"


# -- claims ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (None, 'persistentvolumeclaim "c" not found'),
        (claim("c", phase="Lost", volume="v"), 'persistentvolumeclaim "c" bound to non-existent persistentvolume "v"'),
        (claim("c", deleting=True), 'persistentvolumeclaim "c" is being deleted'),
        (claim("c", "now"), UNBOUND_IMMEDIATE),
        (claim("c", None), UNBOUND_IMMEDIATE),
        (claim("c", "gone"), UNBOUND_IMMEDIATE),
        (claim("c", "wait", volume="v"), UNBOUND_IMMEDIATE),
        (claim("c", size="much"), f'persistentvolumeclaim "c" cannot be read: {NO_QUANTITY}'),
    ],
)
def test_claim_excludes_its_pod_from_every_node(found: Document | None, words: str) -> None:
    storage = Storage()
    if found is not None:
        storage.put(PVC, found)
    status = storage.pre_filter(pod("p", "c"))
    assert status == Status(Code.UNSCHEDULABLE_AND_UNRESOLVABLE, "VolumeBinding", (words,))


def test_storage_class_without_binding_mode_is_an_error() -> None:
    storage = Storage()
    storage.put(CLASS, storage_class("odd", mode=None))
    storage.put(PVC, claim("c", "odd"))
    words = 'VolumeBindingMode not set for StorageClass "odd"'
    assert storage.pre_filter(pod("p", "c")) == Status(Code.ERROR, "VolumeBinding", (words,))


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (None, 'waiting for ephemeral volume controller to create the persistentvolumeclaim "p-own"'),
        (claim("p-own"), "PVC default/p-own was not created for pod default/p (pod is not owner)"),
        (claim("p-own", owner="another"), "PVC default/p-own was not created for pod default/p (pod is not owner)"),
        (claim("p-own", owner="uid-p"), ""),
    ],
)
def test_ephemeral_claim_must_be_owned_by_the_pod(found: Document | None, words: str) -> None:
    storage = Storage()
    own = decode_pod(pod_document("p", volumes=[ephemeral("own")]))
    if found is not None:
        storage.put(PVC, found)
    assert storage.pre_filter(own).message == words
    assert storage.plugin.sign(own) is None


def test_cached_result_of_a_bound_volume_survives_other_claims() -> None:
    storage = Storage()
    storage.put(PV, volume("v", claim="p-own"))
    storage.put(PVC, claim("p-own", owner="uid-p", bound="v"))
    own = decode_pod(pod_document("p", volumes=[ephemeral("own")]))
    before = storage.plugin.cache_key(storage.view(), own)

    storage.put(PVC, claim("another"))
    storage.put(PV, volume("free", host="n0"))
    assert storage.plugin.cache_key(storage.view(), own) == before


def test_pod_without_claims_is_skipped() -> None:
    storage = Storage()
    for volumes in ([], [{"name": "v", "emptyDir": {}}], [{"name": "v", "awsElasticBlockStore": {"volumeID": "v"}}]):
        plain = decode_pod(pod_document("p", volumes=volumes))
        assert storage.pre_filter(plain) is SKIP
        assert storage.plugin.cache_key(storage.view(), plain) is None
        assert not storage.ledger.is_used_by(plain)


# -- bound claims ------------------------------------------------------------------------------------------------------


def test_bound_volumes_restrict_the_pod_to_their_nodes() -> None:
    storage = Storage()
    storage.put(PV, volume("near", zone="a"), volume("nearer", host="n1"), volume("anywhere"))
    storage.put(PVC, claim("x", bound="near"), claim("y", bound="nearer"), claim("z", bound="anywhere"))

    assert storage.refused(pod("p", "z")) == {}
    assert storage.refused(pod("p", "x")) == dict.fromkeys(("n2", "n3"), (NODE_CONFLICT,))
    assert storage.refused(pod("p", "x", "y", "z")) == dict.fromkeys(EVERY - {"n1"}, (NODE_CONFLICT,))


def test_deleted_volume_refuses_remaining_rows() -> None:
    storage = Storage()
    storage.put(PV, volume("near", zone="a"))
    storage.put(PVC, claim("x", bound="near"), claim("y", bound="gone"))

    there, elsewhere = (VOLUME_MISSING,), (NODE_CONFLICT,)
    assert storage.refused(pod("p", "y")) == dict.fromkeys(EVERY, there)
    assert storage.refused(pod("p", "x", "y")) == {"n0": there, "n1": there, "n2": elsewhere, "n3": elsewhere}


def test_migrated_volume_uses_driver_zones_where_migration_is_active() -> None:
    storage = Storage()
    for name in ("n0", "n2"):
        labels = {"topology.ebs.csi.aws.com/zone": "z1", "zone": ZONES[name]}
        storage.nodes.set_node(decode_node(node_document(name, labels=labels)))
    labels = {"topology.kubernetes.io/zone": "z1"}
    storage.put(PV, volume("old", labels=labels, source={"awsElasticBlockStore": {"volumeID": "vol-1"}}))
    storage.put(PVC, claim("c", bound="old"))
    assert storage.refused(pod("p", "c")) == {}

    for name in ("n0", "n1"):
        node = csi_node(name)
        node["metadata"]["annotations"] = {"storage.alpha.kubernetes.io/migrated-plugins": "kubernetes.io/aws-ebs"}
        storage.put(CSI_NODE, node)
    storage.put(CSI_NODE, csi_node("n3"))
    assert storage.refused(pod("p", "c")) == {"n1": (NODE_CONFLICT,)}, "on n3 the driver has not taken it over"


def test_results_for_migratable_volumes_depend_on_node_drivers() -> None:
    """Of other volumes they do not: a node's drivers come and go with its pods."""
    storage = Storage()
    storage.put(PV, volume("old", source={"awsElasticBlockStore": {"volumeID": "vol-1"}}), volume("plain", host="n0"))
    storage.put(PVC, claim("taken", bound="old"), claim("plain", bound="plain"))
    pods = [pod("p", "taken"), pod("q", "plain"), pod("r", "plain", "taken"), pod("s")]
    before = [storage.plugin.cache_key(storage.view(), one) for one in pods]
    assert before[3] is None
    storage.put(CSI_NODE, csi_node("n0"))
    after = [storage.plugin.cache_key(storage.view(), one) for one in pods]
    assert [was != now for was, now in zip(before, after, strict=True)] == [True, False, True, False]


def test_volume_with_beta_labels_uses_driver_zones_and_current_region_labels() -> None:
    """Upstream renames the region only where the zone was a beta one too."""
    beta = {"failure-domain.beta.kubernetes.io/zone": "z1", "failure-domain.beta.kubernetes.io/region": "r1"}
    terms = [{"key": key, "operator": "In", "values": [value]} for key, value in beta.items()]
    document = volume("old", source={"awsElasticBlockStore": {"volumeID": "vol-1"}})
    document["spec"]["nodeAffinity"] = {"required": {"nodeSelectorTerms": [{"matchExpressions": terms}]}}
    storage = Storage()
    new = {"topology.ebs.csi.aws.com/zone": "z1", "topology.kubernetes.io/region": "r1"}
    for name, labels in (("n0", new), ("n1", beta), ("n2", {**new, "topology.kubernetes.io/region": "r2"})):
        storage.nodes.set_node(decode_node(node_document(name, labels=labels)))
        node = csi_node(name)
        node["metadata"]["annotations"] = {"storage.alpha.kubernetes.io/migrated-plugins": "kubernetes.io/aws-ebs"}
        storage.put(CSI_NODE, node)
    storage.put(PV, document)
    storage.put(PVC, claim("c", bound="old"))
    assert sorted(storage.refused(pod("p", "c"))) == ["n1", "n2", "n3"]


@pytest.mark.parametrize(
    ("zones", "words"),
    [
        ("a__b", "zone in unexpected format, expected: {locale}-{region}-{zone}, got: a"),
        (
            "us-east1-a__eu-west1-b",
            "multiple or no regions gotten from zones, got: map[eu-west1:{} us-east1:{}]",
        ),
    ],
)
def test_untranslatable_volume_is_an_error_on_nodes_with_the_driver(zones: str, words: str) -> None:
    """Upstream's sentence; and only about rows that an earlier claim leaves."""
    storage = Storage()
    labels = {"topology.kubernetes.io/zone": zones}
    storage.put(
        PV, volume("old", labels=labels, source={"gcePersistentDisk": {"pdName": "d"}}), volume("near", host="n2")
    )
    storage.put(PVC, claim("c", bound="old"), claim("near", bound="near"))
    assert storage.refused(pod("p", "c")) == {}
    for name in ("n0", "n2"):
        node = csi_node(name)
        node["metadata"]["annotations"] = {"storage.alpha.kubernetes.io/migrated-plugins": "kubernetes.io/gce-pd"}
        storage.put(CSI_NODE, node)

    error = Status(Code.ERROR, "VolumeBinding", (f"could not translate pv: failed to get region from zones: {words}",))
    conflict = Status(Code.UNSCHEDULABLE_AND_UNRESOLVABLE, "VolumeBinding", (NODE_CONFLICT,))
    assert storage.statuses(pod("p", "c")) == {"n0": error, "n2": error}
    assert storage.statuses(pod("p", "near", "c")) == {"n0": conflict, "n1": conflict, "n2": error, "n3": conflict}
    assert storage.ledger.fits(pod("p", "c"), storage.row("n0")) == error.message


# -- unbound claims ----------------------------------------------------------------------------------------------------


def test_local_volumes_are_found_on_their_nodes() -> None:
    storage = Storage()
    storage.put(PV, volume("a", host="n0"), volume("b", host="n0"), volume("c", host="n2"))
    storage.put(PVC, claim("x", "local"), claim("y", "local"))

    assert storage.refused(pod("p", "x")) == dict.fromkeys(("n1", "n3"), (BIND_CONFLICT,))
    assert storage.refused(pod("p", "x", "y")) == dict.fromkeys(EVERY - {"n0"}, (BIND_CONFLICT,))


def test_smallest_claim_is_matched_first_to_the_smallest_volume() -> None:
    storage = Storage()
    storage.put(PV, volume("big", size="10Gi"), volume("mid", size="3Gi"), volume("small", size="2Gi"))
    storage.put(PVC, claim("large", "local", size="3Gi"), claim("little", "local", size="1Gi"))
    storage.assume(pod("p", "large", "little"), "n0")

    promise = storage.ledger.assumed_volumes.of("uid-p")
    assert promise is not None
    assert promise.volumes == (
        AssumedVolume("small", "default/little", "claim-little"),
        AssumedVolume("mid", "default/large", "claim-large"),
    )


def test_unmatched_claim_is_provisioned_where_the_class_allows() -> None:
    storage = Storage()
    storage.put(CLASS, storage_class("b-only", zones=["b"]))
    storage.put(PVC, claim("x"), claim("y", "b-only"), claim("z", "local"))

    assert storage.refused(pod("p", "x")) == {}
    assert storage.refused(pod("p", "x", "y")) == dict.fromkeys(("n0", "n1"), (BIND_CONFLICT,))
    assert storage.refused(pod("p", "x", "z")) == dict.fromkeys(EVERY, (BIND_CONFLICT,))


def test_claim_being_provisioned_keeps_its_pods_on_that_node() -> None:
    storage = Storage()
    storage.put(PV, volume("v", zone="a"))
    storage.put(PVC, claim("x", node="n2"), claim("y", bound="v"))

    assert storage.refused(pod("p", "x")) == dict.fromkeys(EVERY - {"n2"}, (BIND_CONFLICT,))
    assert storage.refused(pod("p", "x", "y")) == {
        "n0": (BIND_CONFLICT,),
        "n1": (BIND_CONFLICT,),
        "n2": (NODE_CONFLICT,),
        "n3": (NODE_CONFLICT, BIND_CONFLICT),
    }


def test_match_fields_of_volume_affinity_are_ignored() -> None:
    """As kube-scheduler, which asks about a node without a name."""
    field = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
    in_zone = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}], **field}
    storage = Storage()
    for name, term in (("anywhere", field), ("in-zone", in_zone)):
        affinity = {"nodeAffinity": {"required": {"nodeSelectorTerms": [term]}}}
        storage.put(PV, volume(name, source=affinity))
        storage.put(PVC, claim(name, bound=name))

    assert storage.refused(pod("p", "anywhere")) == {}
    assert storage.refused(pod("p", "in-zone")) == dict.fromkeys(("n2", "n3"), (NODE_CONFLICT,))


def test_capacity_tracking_driver_needs_room_for_each_claim() -> None:
    storage = Storage()
    storage.put(PVC, claim("x", size="5Gi"))
    storage.put(CAPACITY, capacity("a", "a", "10Gi"), capacity("b", "b", "10Gi", largest="4Gi"))
    assert storage.refused(pod("p", "x")) == {}

    storage.put(CSI_DRIVER, driver(tracks_capacity=True))
    assert storage.refused(pod("p", "x")) == dict.fromkeys(("n2", "n3"), (NOT_ENOUGH_SPACE,))
    storage.put(CAPACITY, capacity("b", "b", "10Gi"))
    assert storage.refused(pod("p", "x")) == {}
    storage.put(CAPACITY, capacity("a", "a", None), capacity("b", "b", None))
    assert storage.refused(pod("p", "x")) == dict.fromkeys(EVERY, (NOT_ENOUGH_SPACE,))


def test_prebound_volume_serves_only_its_claim() -> None:
    storage = Storage()
    storage.put(PV, volume("own", "wait", host="n3", claim="x", phase="Bound"), volume("free", "wait"))
    storage.put(PVC, claim("x"), claim("y"))
    storage.put(CLASS, storage_class("wait", "kubernetes.io/no-provisioner"))

    assert storage.refused(pod("p", "x")) == dict.fromkeys(EVERY - {"n3"}, (BIND_CONFLICT,))
    assert storage.refused(pod("p", "y")) == {}


async def test_assumed_volumes_are_not_bound_without_writes() -> None:
    """A sandbox writes nothing."""
    storage = Storage()
    storage.put(PV, volume("only", zone="a"))
    storage.put(PVC, claim("x", "local"))
    user = pod("user", "x")
    assert await storage.plugin.pre_bind(storage.view(), user, "n0") is SUCCESS
    storage.assume(user, "n0")
    status = await storage.plugin.pre_bind(storage.view(), user, "n0")
    assert (status.code, status.reasons) == (Code.ERROR, ("this process is read-only and cannot bind volumes",))


def test_deleting_bound_claim_changes_the_signature() -> None:
    storage = Storage()
    storage.put(PV, volume("v", claim="x"))
    storage.put(PVC, claim("x", bound="v"))
    user = pod("user", "x")
    before = storage.plugin.cache_key(storage.view(), user)
    assert storage.plugin.cache_key(storage.view(), user) == before

    storage.put(PVC, claim("x", bound="v", deleting=True))
    assert not storage.plugin.pre_filter(storage.view(), user).status.is_success
    assert storage.plugin.cache_key(storage.view(), user) != before


# -- promises ----------------------------------------------------------------------------------------------------------


def test_assumed_volume_is_unavailable_until_released() -> None:
    storage = Storage()
    storage.put(PV, volume("only", zone="a"))
    storage.put(PVC, claim("x", "local"), claim("y", "local"))
    first, second = pod("first", "x"), pod("second", "y")
    before = storage.ledger.version(0), storage.plugin.cache_key(storage.view(), second)
    storage.assume(first, "n0")

    assert storage.ledger.version(0) > before[0]
    assert storage.plugin.cache_key(storage.view(), second) != before[1]
    assert storage.refused(second) == dict.fromkeys(EVERY, (BIND_CONFLICT,))
    assert storage.ledger.fits(second, storage.row("n1")) == BIND_CONFLICT
    assert storage.plugin.pre_bind_pre_flight(storage.view(), first, "n0") is SUCCESS

    storage.ledger.release(first.uid)
    assert storage.refused(second) == dict.fromkeys(("n2", "n3"), (BIND_CONFLICT,))
    assert storage.ledger.held() == {}
    assert storage.plugin.pre_bind_pre_flight(storage.view(), first, "n0") is SKIP


def test_pods_of_one_claim_share_its_assumption_and_node() -> None:
    storage = Storage()
    storage.put(PVC, claim("x"))
    first, second = pod("first", "x"), pod("second", "x")
    storage.assume(first, "n1")
    promise = storage.ledger.assumed_volumes.of(first.uid)
    assert promise is not None
    assert promise.provisions == (AssumedProvision("default/x", "claim-x", "n1"),)

    assert storage.refused(second) == dict.fromkeys(EVERY - {"n1"}, (BIND_CONFLICT,))
    storage.assume(second, "n1")
    storage.ledger.release(first.uid)
    assert storage.refused(pod("third", "x")) == dict.fromkeys(EVERY - {"n1"}, (BIND_CONFLICT,))
    storage.ledger.release(second.uid)
    assert storage.refused(pod("third", "x")) == {}


def test_placed_pod_has_no_assumed_volumes() -> None:
    storage = Storage()
    storage.put(PVC, claim("x"))
    first = pod("first", "x")
    storage.assume(first, "n1")
    storage.ledger.take(first, storage.row("n1"))
    storage.ledger.restore(first, storage.row("n1"))
    assert storage.ledger.held() == storage.ledger.empty_copy().held() == {}


def test_assumption_yields_to_the_api_state() -> None:
    storage = Storage()
    storage.put(PV, volume("only"))
    storage.put(PVC, claim("x", "local"), claim("y", "local"))
    storage.assume(pod("first", "x"), "n0")
    storage.put(PV, volume("only", claim="y", claim_uid="claim-y", phase="Bound"))

    assert storage.refused(pod("second", "y")) == {}
    assert storage.refused(pod("third", "x")) == dict.fromkeys(EVERY, (BIND_CONFLICT,))


steps = st.lists(
    st.tuples(st.sampled_from(("take", "release", "restore")), st.integers(0, 4), st.sampled_from(sorted(ZONES))),
    max_size=25,
)


@given(steps)
def test_no_volume_is_assumed_for_two_claims(walk: list[tuple[str, int, str]]) -> None:
    storage = Storage()
    storage.put(PV, volume("a", host="n0"), volume("b", zone="a"), volume("c", zone="b"), volume("d", host="n3"))
    pods: list[Pod] = []
    for number, claims in enumerate((("x",), ("y",), ("x", "z"), ("z",), ("w",))):
        storage.put(PVC, *(claim(name, "local" if name != "w" else "wait") for name in claims))
        pods.append(pod(f"p{number}", *claims))
    for step, number, node in walk:
        one, row = pods[number], storage.row(node)
        if step == "release":
            storage.ledger.release(one.uid)
        elif step == "restore":
            storage.ledger.restore(one, row)
        elif storage.ledger.fits(one, row) == "":
            storage.ledger.take(one, row)
            assert storage.ledger.fits(one, row) == ""
        held = [storage.ledger.assumed_volumes.of(p.uid) for p in pods]
        owners: dict[str, set[str]] = {}
        nodes: dict[str, set[str]] = {}
        for promise in filter(None, held):
            for given_volume in promise.volumes:
                owners.setdefault(given_volume.volume, set()).add(given_volume.claim)
            for provision in promise.provisions:
                nodes.setdefault(provision.claim, set()).add(provision.node)
        assert all(len(of) == 1 for of in (*owners.values(), *nodes.values()))
        assert storage.ledger.assumed_volumes.volumes.keys() == owners.keys()
        assert len(storage.ledger.assumed_volumes.nodes) == len(nodes)


# -- scores ------------------------------------------------------------------------------------------------------------

SHAPE = (ShapePoint(0, 0), ShapePoint(100, 10))


def scores(storage: Storage, one: Pod) -> dict[str, int]:
    plugin = storage.plugin
    assert isinstance(plugin, ScoringVolumeBinding)
    view = storage.view()
    assert plugin.pre_filter(view, one).status.is_success
    rows = np.array([storage.row(name) for name in ZONES], np.intp)
    assert plugin.pre_score(view, one, rows) is SUCCESS
    found = plugin.score(view, one, rows)
    assert found.dtype == np.int64
    return dict(zip(ZONES, found.tolist(), strict=True))


def test_volumes_are_not_scored_without_a_shape() -> None:
    assert not hasattr(Storage().plugin, "score")


def test_volumes_are_scored_by_utilization_per_class() -> None:
    storage = Storage(VolumeBindingArgs(shape=SHAPE))
    storage.put(PV, volume("a", size="2Gi", host="n0"), volume("b", size="4Gi", host="n1"), volume("c", zone="b"))
    storage.put(PVC, claim("x", "local"))
    assert scores(storage, pod("p", "x")) == {"n0": 50, "n1": 25, "n2": 100, "n3": 100}

    storage.put(CLASS, storage_class("other", "kubernetes.io/no-provisioner"))
    storage.put(PV, volume("d", "other", size="10Gi"))
    storage.put(PVC, claim("y", "other"))
    assert scores(storage, pod("p", "x", "y")) == {"n0": 30, "n1": 18, "n2": 55, "n3": 55}


def test_provisioned_volumes_are_scored_by_driver_capacity() -> None:
    storage = Storage(VolumeBindingArgs(shape=SHAPE))
    storage.put(CSI_DRIVER, driver(tracks_capacity=True))
    storage.put(CAPACITY, capacity("a", "a", "10Gi"), capacity("b", "b", "4Gi"))
    storage.put(PVC, claim("x", size="1Gi"), claim("y", size="1Gi"))
    assert scores(storage, pod("p", "x")) == {"n0": 10, "n1": 10, "n2": 25, "n3": 25}
    assert scores(storage, pod("p", "x", "y")) == {"n0": 20, "n1": 20, "n2": 50, "n3": 50}


def test_exbibyte_volumes_are_scored_exactly() -> None:
    """Beyond 2**53 a float64 has no odd numbers: what is almost full is not full."""
    storage = Storage(VolumeBindingArgs(shape=SHAPE))
    storage.put(PV, volume("a", size=str(2**62), host="n0"), volume("b", size=str(2**61), host="n1"))
    storage.put(PVC, claim("x", "local", size=str(2**61 - 1)))
    assert {name: score for name, score in scores(storage, pod("p", "x")).items() if name in ("n0", "n1")} == {
        "n0": 49,
        "n1": 99,
    }
