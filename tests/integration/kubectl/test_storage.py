"""Volumes, claims and storage classes as their users see them: binding, waiting, provisioning, protection, descriptions."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from multisched.cluster.controllers.fake_provisioner import FAKE_PROVISIONER
from tests.integration.kubectl.conftest import Document, Kubectl, pod, rows

PATIENCE = "--timeout=60s"
LOOKS_MAX = 50


def claim(name: str, storage_class: str, size: str = "1Gi") -> Document:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": storage_class,
            "resources": {"requests": {"storage": size}},
        },
    }


def volume(name: str, storage_class: str, size: str = "1Gi") -> Document:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": size},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": storage_class,
            "nfs": {"server": "nfs.example", "path": "/"},
        },
    }


def using(name: str, claim_name: str, *, on: str = "") -> Document:
    """A pod with the claim."""
    document = pod(name, on=on)
    document["spec"]["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": claim_name}}]
    return document


def is_phase(phase: str) -> str:
    return f"--for=jsonpath={{.status.phase}}={phase}"


@pytest.fixture
def classes(ctl: Kubectl) -> Iterator[dict[str, str]]:
    """Storage classes of the test's own: mode -> name."""
    names = {mode: f"{ctl.namespace}-{mode.lower()}" for mode in ("Immediate", "WaitForFirstConsumer")}
    for mode, name in names.items():
        document = {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": name},
            "provisioner": FAKE_PROVISIONER,
            "volumeBindingMode": mode,
        }
        ctl("create", "-f", "-", stdin=document)
    yield names
    ctl("delete", "storageclass", *names.values())


def is_told(ctl: Kubectl, name: str, told: tuple[str, str]) -> bool:
    """Whether an event about the object has this reason and message, now or soon."""
    for _ in range(LOOKS_MAX):
        found = ctl.get("events", "--field-selector", f"involvedObject.name={name}")["items"]
        if told in [(event["reason"], event["message"]) for event in found]:
            return True
    return False


def test_volume_and_claim_are_bound_and_released(ctl: Kubectl) -> None:
    name = f"{ctl.namespace}-static"
    ctl("create", "-f", "-", stdin=volume(name, name, "5Gi"))
    ctl("wait", is_phase("Available"), f"pv/{name}", PATIENCE)
    ctl("create", "-f", "-", stdin=claim("data", name, "2Gi"))
    ctl("wait", is_phase("Bound"), "pvc/data", PATIENCE)
    ctl("wait", is_phase("Bound"), f"pv/{name}", PATIENCE)

    (seen,) = rows(ctl("get", "pvc", "data"))
    assert (seen["STATUS"], seen["VOLUME"], seen["CAPACITY"]) == ("Bound", name, "5Gi")
    assert (seen["ACCESS MODES"], seen["STORAGECLASS"]) == ("RWO", name)
    (seen,) = rows(ctl("get", "pv", name))
    assert (seen["STATUS"], seen["RECLAIM POLICY"], seen["CLAIM"]) == ("Bound", "Retain", f"{ctl.namespace}/data")
    told = ctl("describe", "pvc", "data")
    assert re.search(r"^Used By: +<none>$", told, re.M)
    assert re.search(r"^Finalizers: +\[kubernetes.io/pvc-protection\]$", told, re.M)
    assert re.search(rf"^Claim: +{ctl.namespace}/data$", ctl("describe", "pv", name), re.M)

    ctl("delete", "pvc", "data", PATIENCE)
    ctl("wait", is_phase("Released"), f"pv/{name}", PATIENCE)
    ctl("delete", "pv", name, PATIENCE)


def test_late_binding_claim_waits_for_a_pod_and_reports_it(ctl: Kubectl, classes: dict[str, str]) -> None:
    ctl("create", "-f", "-", stdin=claim("late", classes["WaitForFirstConsumer"]))
    ctl("wait", is_phase("Pending"), "pvc/late", PATIENCE)
    waits = ("WaitForFirstConsumer", "waiting for first consumer to be created before binding")
    assert is_told(ctl, "late", waits)
    assert "WaitForFirstConsumer" in ctl("describe", "pvc", "late")
    (seen,) = rows(ctl("get", "storageclass", classes["WaitForFirstConsumer"]))
    assert (seen["PROVISIONER"], seen["RECLAIMPOLICY"]) == (FAKE_PROVISIONER, "Delete")
    assert seen["VOLUMEBINDINGMODE"] == "WaitForFirstConsumer"


def test_late_binding_claim_is_provisioned_for_the_selected_node(
    ctl: Kubectl, node: str, classes: dict[str, str]
) -> None:
    """The annotation is what a scheduler writes; none runs here."""
    ctl("label", "node", node, "topology.kubernetes.io/zone=here")
    ctl("create", "-f", "-", stdin=claim("late", classes["WaitForFirstConsumer"]))
    ctl("annotate", "pvc", "late", f"volume.kubernetes.io/selected-node={node}")
    ctl("wait", is_phase("Bound"), "pvc/late", PATIENCE)
    name = ctl.get("pvc", "late")["spec"]["volumeName"]
    made = ctl.get("pv", name)

    assert made["spec"]["csi"]["driver"] == FAKE_PROVISIONER
    (term,) = made["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
    assert term["matchExpressions"] == [{"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["here"]}]
    ctl("delete", "pvc", "late", PATIENCE)
    ctl("wait", "--for=delete", f"pv/{name}", PATIENCE)


def test_claim_in_use_stays_until_its_pod_is_deleted(ctl: Kubectl, node: str, classes: dict[str, str]) -> None:
    ctl("create", "-f", "-", stdin=claim("data", classes["Immediate"]))
    ctl("wait", is_phase("Bound"), "pvc/data", PATIENCE)
    ctl("create", "-f", "-", stdin=using("user", "data", on=node))
    ctl("wait", is_phase("Running"), "pod/user", PATIENCE)
    assert re.search(r"^Used By: +user$", ctl("describe", "pvc", "data"), re.M)
    ctl("delete", "pvc", "data", "--wait=false")
    assert rows(ctl("get", "pvc", "data"))[0]["STATUS"] == "Terminating"
    ctl("delete", "pod", "user", "--now")
    ctl("wait", "--for=delete", "pvc/data", PATIENCE)


def test_ephemeral_volume_lasts_as_long_as_its_pod(ctl: Kubectl, node: str, classes: dict[str, str]) -> None:
    document = pod("scratchy", on=node)
    template = {"spec": claim("", classes["Immediate"])["spec"]}
    document["spec"]["volumes"] = [{"name": "scratch", "ephemeral": {"volumeClaimTemplate": template}}]
    ctl("create", "-f", "-", stdin=document)
    ctl("wait", "--for=create", "pvc/scratchy-scratch", PATIENCE)
    ctl("wait", is_phase("Bound"), "pvc/scratchy-scratch", PATIENCE)
    (owner,) = ctl.get("pvc", "scratchy-scratch")["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"]) == ("Pod", "scratchy")
    ctl("delete", "pod", "scratchy", "--now")
    ctl("wait", "--for=delete", "pvc/scratchy-scratch", PATIENCE)


def test_immutable_claim_and_class_fields_are_refused(ctl: Kubectl, classes: dict[str, str]) -> None:
    ctl("create", "-f", "-", stdin=claim("data", classes["WaitForFirstConsumer"]))
    change = '{"spec":{"accessModes":["ReadWriteMany"]}}'
    assert "spec is immutable after creation" in ctl.fails("patch", "pvc", "data", "-p", change)
    change = '{"provisioner":"else.example"}'
    complaint = ctl.fails("patch", "storageclass", classes["Immediate"], "-p", change)
    assert "provisioner: Invalid value" in complaint
    assert "field is immutable" in complaint
    empty = claim("empty", classes["Immediate"])
    empty["spec"]["accessModes"] = []
    assert "at least 1 access mode is required" in ctl.fails("create", "-f", "-", stdin=empty)
