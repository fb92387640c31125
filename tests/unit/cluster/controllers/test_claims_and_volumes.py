"""Claims and volumes find each other, wait for their pods, and part again; in process and on virtual time."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest

from multisched.cluster.admission.volume_rules import BIND_COMPLETED, BOUND_BY_CONTROLLER, PROVISIONER, SELECTED_NODE
from multisched.cluster.client.object_client import CLAIMS, EVENTS, NODES, PODS, STORAGE_CLASSES, VOLUMES, Document
from multisched.cluster.controllers.fake_provisioner import FAKE_PROVISIONER, run_provisioner
from tests.unit.cluster.cluster_kit import Fleet, a_cluster, a_node, a_pod

pytestmark = pytest.mark.looptime
ZONE = "topology.kubernetes.io/zone"


def a_class(name: str, provisioner: str = FAKE_PROVISIONER, *, is_default: bool = False, **fields: Any) -> Document:
    annotations = {"storageclass.kubernetes.io/is-default-class": "true"} if is_default else {}
    return {"metadata": {"name": name, "annotations": annotations}, "provisioner": provisioner, **fields}


def a_claim(name: str, size: str = "1Gi", **spec: Any) -> Document:
    wanted = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}
    return {"metadata": {"name": name, "namespace": "default"}, "spec": {**wanted, **spec}}


def a_volume(name: str, size: str = "1Gi", **spec: Any) -> Document:
    source = {"capacity": {"storage": size}, "accessModes": ["ReadWriteOnce"], "nfs": {"server": "s", "path": "/"}}
    return {"metadata": {"name": name}, "spec": {**source, **spec}}


def is_in(phase: str) -> Any:
    return lambda found: (found.get("status") or {}).get("phase") == phase


async def phase_of_claim(cluster: Fleet, name: str) -> str:
    """After everything has come to rest."""
    await asyncio.sleep(1)
    found = await cluster.get(CLAIMS, name)
    assert found is not None
    return str(found["status"]["phase"])


async def events_of(cluster: Fleet, name: str) -> list[tuple[str, str]]:
    """Reason and message of the events about objects of this name."""
    await asyncio.sleep(1)
    events = await cluster.list_all(EVENTS)
    return [(e["reason"], e["message"]) for e in events if e["involvedObject"]["name"] == name]


async def test_a_claim_takes_the_smallest_volume_of_its_class_that_fits() -> None:
    async with a_cluster() as cluster:
        for name, size, fields in (
            ("small", "1Gi", {}),
            ("large", "9Gi", {}),
            ("fits", "3Gi", {}),
            ("other", "2Gi", {"storageClassName": "else"}),
            ("block", "2Gi", {"volumeMode": "Block"}),
            ("read", "2Gi", {"accessModes": ["ReadOnlyMany"]}),
        ):
            await cluster.create(VOLUMES, a_volume(name, size, **fields))
        await cluster.wait_until(VOLUMES, "fits", is_in("Available"))
        await cluster.create(CLAIMS, a_claim("c", "2Gi"))
        claim = await cluster.wait_until(CLAIMS, "c", is_in("Bound"))
        volume = await cluster.wait_until(VOLUMES, "fits", is_in("Bound"))

        assert claim["spec"]["volumeName"] == "fits"
        assert claim["status"]["capacity"] == {"storage": "3Gi"}
        assert claim["status"]["accessModes"] == ["ReadWriteOnce"]
        assert claim["metadata"]["annotations"] == {BIND_COMPLETED: "yes", BOUND_BY_CONTROLLER: "yes"}
        assert volume["metadata"]["annotations"] == {BOUND_BY_CONTROLLER: "yes"}
        assert volume["spec"]["claimRef"]["uid"] == claim["metadata"]["uid"]
        assert volume["status"]["lastPhaseTransitionTime"]


async def test_two_claims_never_share_a_volume() -> None:
    async with a_cluster() as cluster:
        for number in range(20):
            await cluster.create(VOLUMES, a_volume(f"v{number}"))
        for number in range(25):
            await cluster.create(CLAIMS, a_claim(f"c{number}"))
        await cluster.wait_listed(CLAIMS, lambda claims: sum(map(is_in("Bound"), claims)) == 20)
        await asyncio.sleep(5)
        claims, volumes = await cluster.list_all(CLAIMS), await cluster.list_all(VOLUMES)

        pairs = {c["spec"]["volumeName"]: c["metadata"]["uid"] for c in claims if c["spec"].get("volumeName")}
        assert len(pairs) == 20
        assert {v["metadata"]["name"]: v["spec"]["claimRef"]["uid"] for v in volumes} == pairs
        assert sum(map(is_in("Pending"), claims)) == 5


async def test_volume_reserved_for_a_claim_binds_only_to_it() -> None:
    async with a_cluster() as cluster:
        await cluster.create(VOLUMES, a_volume("kept", claimRef={"namespace": "default", "name": "heir"}))
        await cluster.create(CLAIMS, a_claim("greedy"))
        assert await phase_of_claim(cluster, "greedy") == "Pending"
        no_class = "no persistent volumes available for this claim and no storage class is set"
        assert await events_of(cluster, "greedy") == [("FailedBinding", no_class)]
        await cluster.create(CLAIMS, a_claim("heir"))
        claim = await cluster.wait_until(CLAIMS, "heir", is_in("Bound"))
        assert claim["spec"]["volumeName"] == "kept"
        volume = await cluster.wait_until(VOLUMES, "kept", is_in("Bound"))
        assert BOUND_BY_CONTROLLER not in (volume["metadata"].get("annotations") or {})


async def test_claim_that_names_its_volume_gets_it_or_the_reason() -> None:
    async with a_cluster() as cluster:
        await cluster.create(VOLUMES, a_volume("v"))
        await cluster.create(CLAIMS, a_claim("big", "2Gi", volumeName="v"))
        assert await phase_of_claim(cluster, "big") == "Pending"
        why = 'Cannot bind to requested volume "v": requested PV is too small'
        assert await events_of(cluster, "big") == [("VolumeMismatch", why)]
        await cluster.create(CLAIMS, a_claim("right", volumeName="v"))
        await cluster.wait_until(CLAIMS, "right", is_in("Bound"))
        await cluster.create(CLAIMS, a_claim("late", volumeName="v"))
        assert ("FailedBinding", 'volume "v" already bound to a different claim.') in await events_of(cluster, "late")
        await cluster.create(CLAIMS, a_claim("early", volumeName="not-yet"))
        assert await phase_of_claim(cluster, "early") == "Pending"
        await cluster.create(VOLUMES, a_volume("not-yet"))
        await cluster.wait_until(CLAIMS, "early", is_in("Bound"))


async def test_immediate_claim_is_provisioned_at_once() -> None:
    async with a_cluster() as cluster:
        topology = [{"matchLabelExpressions": [{"key": ZONE, "values": ["a", "b"]}]}]
        await cluster.create(STORAGE_CLASSES, a_class("now", allowedTopologies=topology))
        await cluster.create(CLAIMS, a_claim("c", "5Gi", storageClassName="now"))
        claim = await cluster.wait_until(CLAIMS, "c", is_in("Bound"))
        name = f"pvc-{claim['metadata']['uid']}"
        volume = await cluster.wait_until(VOLUMES, name, is_in("Bound"))

        assert claim["spec"]["volumeName"] == name
        assert claim["metadata"]["annotations"][PROVISIONER] == FAKE_PROVISIONER
        assert volume["spec"]["csi"] == {"driver": FAKE_PROVISIONER, "volumeHandle": name}
        assert volume["spec"]["persistentVolumeReclaimPolicy"] == "Delete"
        (term,) = volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
        assert term == {"matchExpressions": [{"key": ZONE, "operator": "In", "values": ["a", "b"]}]}
        reasons = [reason for reason, _ in await events_of(cluster, "c")]
        assert reasons == ["ExternalProvisioning", "Provisioning", "ProvisioningSucceeded"]


async def test_wait_for_first_consumer_claim_is_provisioned_for_the_node_of_its_pod() -> None:
    async with a_cluster(a_node("n", **{ZONE: "b"})) as cluster:
        await cluster.create(STORAGE_CLASSES, a_class("late", volumeBindingMode="WaitForFirstConsumer"))
        await cluster.create(CLAIMS, a_claim("c", storageClassName="late"))
        assert await phase_of_claim(cluster, "c") == "Pending"
        waits = ("WaitForFirstConsumer", "waiting for first consumer to be created before binding")
        assert await events_of(cluster, "c") == [waits]
        await cluster.patch(CLAIMS, "c", {"metadata": {"annotations": {SELECTED_NODE: "n"}}})
        claim = await cluster.wait_until(CLAIMS, "c", is_in("Bound"))
        volume = await cluster.get(VOLUMES, claim["spec"]["volumeName"])

        assert volume is not None
        (term,) = volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
        assert term == {"matchExpressions": [{"key": ZONE, "operator": "In", "values": ["b"]}]}


async def test_wait_for_first_consumer_claim_is_not_bound_by_the_controller() -> None:
    async with a_cluster() as cluster:
        late = a_class("late", "kubernetes.io/no-provisioner", volumeBindingMode="WaitForFirstConsumer")
        await cluster.create(STORAGE_CLASSES, late)
        await cluster.create(VOLUMES, a_volume("v", storageClassName="late"))
        await cluster.create(CLAIMS, a_claim("c", storageClassName="late"))
        assert await phase_of_claim(cluster, "c") == "Pending"
        claim = await cluster.get(CLAIMS, "c")
        assert claim is not None
        # What the scheduler does once it has chosen a node for the pod.
        reference = {"namespace": "default", "name": "c", "uid": claim["metadata"]["uid"]}
        await cluster.patch(VOLUMES, "v", {"spec": {"claimRef": reference}})
        claim = await cluster.wait_until(CLAIMS, "c", is_in("Bound"))
        assert claim["spec"]["volumeName"] == "v"


async def test_deleted_selected_node_is_removed_from_the_claim() -> None:
    async with a_cluster() as cluster:
        await cluster.create(STORAGE_CLASSES, a_class("late", volumeBindingMode="WaitForFirstConsumer"))
        await cluster.create(CLAIMS, a_claim("c", storageClassName="late"))
        await cluster.patch(CLAIMS, "c", {"metadata": {"annotations": {SELECTED_NODE: "gone"}}})
        claim = await cluster.wait_until(
            CLAIMS, "c", lambda c: SELECTED_NODE not in c["metadata"]["annotations"], "default"
        )
        assert claim["status"]["phase"] == "Pending"
        why = ("ProvisioningFailed", 'failed to get target node: nodes "gone" not found')
        assert why in await events_of(cluster, "c")


@pytest.mark.parametrize(
    ("name", "fields", "sentence"),
    [
        ("none", {"provisioner": "kubernetes.io/no-provisioner"}, "no volume plugin matched name: kubernetes.io/no-p"),
        ("gone", None, 'storageclass.storage.k8s.io "gone" not found'),
    ],
)
async def test_claim_without_a_provisioner_gets_an_event_with_the_reason(
    name: str, fields: Document | None, sentence: str
) -> None:
    async with a_cluster() as cluster:
        if fields is not None:
            await cluster.create(STORAGE_CLASSES, a_class(name, **fields))
        await cluster.create(CLAIMS, a_claim("c", storageClassName=name))
        ((reason, message),) = await events_of(cluster, "c")
        assert reason == "ProvisioningFailed"
        assert message.startswith(sentence)


async def test_default_class_is_set_on_claims_without_one_even_later() -> None:
    async with a_cluster() as cluster:
        await cluster.create(CLAIMS, a_claim("before"))
        await cluster.create(CLAIMS, a_claim("without", storageClassName=""))
        assert await phase_of_claim(cluster, "before") == "Pending"
        await cluster.create(STORAGE_CLASSES, a_class("standard", is_default=True))
        await cluster.create(CLAIMS, a_claim("after"))
        for name in ("before", "after"):
            claim = await cluster.wait_until(CLAIMS, name, is_in("Bound"))
            assert claim["spec"]["storageClassName"] == "standard"
        assert await phase_of_claim(cluster, "without") == "Pending"


@pytest.mark.parametrize("policy", ["Retain", "Delete"])
async def test_released_volume_follows_its_reclaim_policy(policy: str) -> None:
    async with a_cluster() as cluster:
        await cluster.create(STORAGE_CLASSES, a_class("now", reclaimPolicy=policy))
        await cluster.create(CLAIMS, a_claim("c", storageClassName="now"))
        claim = await cluster.wait_until(CLAIMS, "c", is_in("Bound"))
        name = claim["spec"]["volumeName"]
        await cluster.delete(CLAIMS, "c")
        await cluster.wait_gone(CLAIMS, "c")
        if policy == "Delete":
            await cluster.wait_gone(VOLUMES, name)
            return
        await cluster.wait_until(VOLUMES, name, is_in("Released"))
        await cluster.create(CLAIMS, a_claim("c", storageClassName="now"))
        again = await cluster.wait_until(CLAIMS, "c", is_in("Bound"))
        assert again["spec"]["volumeName"] != name


async def test_static_volume_without_a_deleter_fails_with_an_event() -> None:
    async with a_cluster() as cluster:
        await cluster.create(VOLUMES, a_volume("v", persistentVolumeReclaimPolicy="Delete"))
        await cluster.create(CLAIMS, a_claim("c"))
        await cluster.wait_until(CLAIMS, "c", is_in("Bound"))
        await cluster.delete(CLAIMS, "c")
        volume = await cluster.wait_until(VOLUMES, "v", is_in("Failed"))
        assert volume["status"]["message"].endswith("no deletable volume plugin matched")


async def test_claim_in_use_is_deleted_only_after_its_pods() -> None:
    async with a_cluster(a_node()) as cluster:
        await cluster.create(VOLUMES, a_volume("v"))
        await cluster.create(CLAIMS, a_claim("c"))
        volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "c"}}]
        await cluster.create(PODS, a_pod("user", volumes=volumes))
        await cluster.create(PODS, a_pod("waiting", node="", volumes=volumes))
        await cluster.wait_until(PODS, "user", is_in("Running"))
        await cluster.delete(CLAIMS, "c")
        await asyncio.sleep(5)
        claim = await cluster.get(CLAIMS, "c")
        assert claim is not None
        assert claim["metadata"]["deletionTimestamp"]
        assert claim["metadata"]["finalizers"] == ["kubernetes.io/pvc-protection"]
        await cluster.delete(PODS, "user", grace_s=0)
        await cluster.wait_gone(CLAIMS, "c")
        await cluster.wait_until(VOLUMES, "v", is_in("Released"))


async def test_bound_volume_is_protected_and_its_removal_makes_the_claim_lost() -> None:
    async with a_cluster() as cluster:
        await cluster.create(VOLUMES, a_volume("v"))
        await cluster.create(CLAIMS, a_claim("c"))
        await cluster.wait_until(CLAIMS, "c", is_in("Bound"))
        await cluster.delete(VOLUMES, "v")
        await asyncio.sleep(2)
        volume = await cluster.get(VOLUMES, "v")
        assert volume is not None
        assert volume["metadata"]["finalizers"] == ["kubernetes.io/pv-protection"]
        await cluster.patch(VOLUMES, "v", {"metadata": {"finalizers": None}})
        await cluster.wait_until(CLAIMS, "c", is_in("Lost"))
        text = "Bound claim has lost its PersistentVolume. Data on the volume is lost!"
        assert ("ClaimLost", text) in await events_of(cluster, "c")


async def test_claim_of_an_ephemeral_volume_is_deleted_with_its_pod() -> None:
    async with a_cluster(a_node()) as cluster:
        await cluster.create(STORAGE_CLASSES, a_class("now"))
        template = {"metadata": {"labels": {"a": "b"}}, "spec": a_claim("", storageClassName="now")["spec"]}
        scratch = [{"name": "scratch", "ephemeral": {"volumeClaimTemplate": template}}]
        pod = await cluster.create(PODS, a_pod("p", volumes=scratch))
        claim = await cluster.wait_until(CLAIMS, "p-scratch", is_in("Bound"))
        volume = claim["spec"]["volumeName"]

        (owner,) = claim["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"], owner["controller"]) == ("Pod", pod["metadata"]["uid"], True)
        assert claim["metadata"]["labels"] == {"a": "b"}
        await cluster.delete(PODS, "p", grace_s=0)
        await cluster.wait_gone(CLAIMS, "p-scratch")
        await cluster.wait_gone(VOLUMES, volume)


async def test_foreign_claim_with_the_name_of_an_ephemeral_volume_is_reported() -> None:
    async with a_cluster(a_node()) as cluster:
        await cluster.create(CLAIMS, a_claim("p-scratch"))
        await asyncio.sleep(1)
        scratch = [{"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": a_claim("")["spec"]}}}]
        await cluster.create(PODS, a_pod("p", node="", volumes=scratch))
        sentence = "PVC default/p-scratch was not created for pod default/p (pod is not owner)"
        assert ("FailedBinding", f"ephemeral volume scratch: {sentence}") in await events_of(cluster, "p")


async def test_volume_is_released_if_its_claim_was_bound_to_another() -> None:
    async with a_cluster() as cluster:
        await cluster.create(VOLUMES, a_volume("v"))
        await cluster.create(CLAIMS, a_claim("c", volumeName="v"))
        claim = await cluster.wait_until(CLAIMS, "c", is_in("Bound"))
        reference = {"namespace": "default", "name": "c", "uid": claim["metadata"]["uid"]}
        other = a_volume("other", claimRef=reference)
        other["metadata"]["annotations"] = {BOUND_BY_CONTROLLER: "yes"}
        await cluster.create(VOLUMES, other)
        volume = await cluster.wait_until(VOLUMES, "other", is_in("Available"))
        assert "claimRef" not in volume["spec"]


@pytest.mark.parametrize(
    ("resource", "document", "cause"),
    [
        (CLAIMS, a_claim("x", accessModes=[]), "spec.accessModes: Required value: at least 1 access mode is required"),
        (CLAIMS, a_claim("x", resources={}), "spec.resources[storage]: Required value"),
        (CLAIMS, a_claim("x", "0"), "spec.resources[storage]: Invalid value"),
        (CLAIMS, a_claim("x", accessModes=["ReadWriteOncePod", "ReadOnlyMany"]), "may not use ReadWriteOncePod with"),
        (CLAIMS, a_claim("x", volumeMode="Tape"), 'supported values: "Block", "Filesystem"'),
        (VOLUMES, a_volume("x", capacity={}), "spec.capacity: Required value"),
        (VOLUMES, a_volume("x", nfs=None), "spec: Required value: must specify a volume type"),
        (VOLUMES, a_volume("x", hostPath={"path": "/"}), "may not specify more than 1 volume type"),
        (VOLUMES, a_volume("x", persistentVolumeReclaimPolicy="Burn"), "spec.persistentVolumeReclaimPolicy: Unsupp"),
        (STORAGE_CLASSES, a_class("x", ""), "provisioner: Required value"),
        (STORAGE_CLASSES, a_class("x", volumeBindingMode="Soon"), 'volumeBindingMode: Unsupported value: "Soon"'),
    ],
)
async def test_invalid_storage_objects_are_refused_as_by_kubernetes(
    resource: Any, document: Document, cause: str
) -> None:
    async with a_cluster(controllers=False) as cluster:
        body = {"apiVersion": resource.api_version, "kind": resource.kind, **document}
        answer = await cluster.client.create(resource, "default" if resource.is_namespaced else "", body)
        assert answer.status == 422
        assert cause in answer.message


@pytest.mark.parametrize(
    ("resource", "change", "cause"),
    [
        (CLAIMS, {"spec": {"accessModes": ["ReadWriteMany"]}}, "spec is immutable after creation except"),
        (CLAIMS, {"spec": {"storageClassName": "else"}}, "spec is immutable after creation except"),
        (VOLUMES, {"spec": {"nfs": {"path": "/else"}}}, "spec.persistentvolumesource is immutable after creation"),
        (VOLUMES, {"spec": {"volumeMode": "Block"}}, "volumeMode: Invalid value"),
        (STORAGE_CLASSES, {"provisioner": "else.io"}, "provisioner: Invalid value"),
    ],
)
async def test_immutable_fields_cannot_be_changed(resource: Any, change: Document, cause: str) -> None:
    async with a_cluster(controllers=False) as cluster:
        made = {CLAIMS: a_claim("x", storageClassName="s"), VOLUMES: a_volume("x"), STORAGE_CLASSES: a_class("x")}
        await cluster.create(resource, made[resource])
        namespace = "default" if resource.is_namespaced else ""
        answer = await cluster.client.patch(resource, namespace, "x", body=change)
        assert answer.status == 422
        assert cause in answer.message


async def test_selected_node_is_read_when_a_volume_is_provisioned() -> None:
    """A node without a zone: its volume can be used from everywhere."""
    async with a_cluster(a_node("n")) as cluster:
        assert await cluster.get(NODES, "n") is not None
        await cluster.create(STORAGE_CLASSES, a_class("late", volumeBindingMode="WaitForFirstConsumer"))
        await cluster.create(CLAIMS, a_claim("c", storageClassName="late"))
        await cluster.patch(CLAIMS, "c", {"metadata": {"annotations": {SELECTED_NODE: "n"}}})
        claim = await cluster.wait_until(CLAIMS, "c", is_in("Bound"))
        volume = await cluster.get(VOLUMES, claim["spec"]["volumeName"])
        assert volume is not None
        assert "nodeAffinity" not in volume["spec"]


async def test_provisioner_works_without_the_other_controllers() -> None:
    async with a_cluster(controllers=False) as cluster:
        await cluster.create(STORAGE_CLASSES, a_class("now"))
        await cluster.create(STORAGE_CLASSES, a_class("theirs", "else.example"))
        for name in ("now", "theirs"):
            claim = a_claim(name, storageClassName=name)
            claim["metadata"]["annotations"] = {PROVISIONER: FAKE_PROVISIONER if name == "now" else "else.example"}
            await cluster.create(CLAIMS, claim)
        running = asyncio.create_task(run_provisioner(cluster.transport, clock=cluster.clock, rng=Random(1)))
        (volume,) = await cluster.wait_listed(VOLUMES, lambda volumes: volumes)
        await asyncio.sleep(2)

        assert volume["spec"]["claimRef"]["name"] == "now"
        assert len(await cluster.list_all(VOLUMES)) == 1
        assert {reason for reason, _ in await events_of(cluster, "now")} == {"Provisioning", "ProvisioningSucceeded"}
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_wait_for_first_consumer_claim_names_its_pending_pods() -> None:
    async with a_cluster() as cluster:
        await cluster.create(STORAGE_CLASSES, a_class("late", volumeBindingMode="WaitForFirstConsumer"))
        volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "c"}}]
        for name in ("one", "two"):
            await cluster.create(PODS, a_pod(name, node="", volumes=volumes))
        await asyncio.sleep(1)
        await cluster.create(CLAIMS, a_claim("c", storageClassName="late"))
        assert await events_of(cluster, "c") == [("WaitForPodScheduled", "waiting for pods one,two to be scheduled")]
