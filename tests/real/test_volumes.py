"""Pods with volumes on a real control plane: the real persistent volume controller binds what `multisched run` has chosen,
with the rights of `deploy/` and no others. Volumes are made by the provisioner of `multisched kubelets`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from multisched.cluster.seed import demo_nodes, demo_storage
from tests.real.admin import CLAIMS, NODES, PODS, VOLUMES, Admin, until
from tests.real.control_plane import ControlPlane
from tests.real.deployed import MULTISCHED, Deployed
from tests.real.witness import Witness

pytestmark = pytest.mark.timeout(300)

ZONE, HOST = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
NODE_COUNT = 12
LATE, LOCAL, SCRATCH = 40, 5, 8
"""Pods with a claim that is provisioned where they go, with a disk of one node, with an ephemeral volume."""
BOUND_LIMIT_S = 90
REFUSED_LIMIT_S = 90
STOP_GRACE_S = 30.0
IN_USE = (
    "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod"
)
Document = dict[str, Any]


def claim(name: str, storage_class: str | None = None, mode: str = "ReadWriteOnce") -> Document:
    spec: Document = {"accessModes": [mode], "resources": {"requests": {"storage": "1Gi"}}}
    if storage_class is not None:
        spec["storageClassName"] = storage_class
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec}


def disk_on(node: str, name: str) -> Document:
    """A disk that only this node has."""
    term = {"matchExpressions": [{"key": HOST, "operator": "In", "values": [node]}]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "local",
            "local": {"path": "/disk"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
        },
    }


def pod(name: str, volume: Mapping[str, Any]) -> Document:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "schedulerName": "forecast-scheduler",
            "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "c", "image": "app:1", "resources": {"requests": {"cpu": "100m"}}}],
            "volumes": [{"name": "data", **volume}],
        },
    }


def by_claim(name: str) -> Document:
    return {"persistentVolumeClaim": {"claimName": name}}


def named(items: list[Document]) -> dict[str, Document]:
    return {item["metadata"]["name"]: item for item in items}


async def refusal(admin: Admin, name: str) -> str:
    found = named(await admin.items(PODS))[name]["status"].get("conditions") or ()
    return next(
        (str(c.get("message", "")) for c in found if c["type"] == "PodScheduled" and c["status"] == "False"), ""
    )


async def test_pods_are_bound_where_their_volumes_are_reachable(tmp_path: Path) -> None:
    nodes = demo_nodes(NODE_COUNT)
    work = [n["metadata"]["name"] for n in nodes if n["metadata"]["name"].startswith("work")]
    local_class = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": "local"},
        "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": "WaitForFirstConsumer",
    }
    async with ControlPlane.start(tmp_path, audit=True) as plane, Admin.open(plane) as admin:
        await admin.create_all([*nodes, *demo_storage(nodes), local_class])
        await admin.create_all(disk_on(work[number % len(work)], f"disk-{number}") for number in range(LOCAL))
        deployed = await Deployed.install(plane)
        await plane.start_program("kubelets", [str(MULTISCHED), "kubelets", "--kubeconfig", str(plane.kubeconfig)])
        scheduler = await deployed.start("first")
        async with Witness.watching(admin) as witness:
            claims = [claim(f"late-{n}") for n in range(LATE)] + [claim(f"local-{n}", "local") for n in range(LOCAL)]
            await admin.create_all([*claims, claim("only", mode="ReadWriteOncePod")])
            template = {"volumeClaimTemplate": {"spec": claim("")["spec"]}}
            pods = [pod(c["metadata"]["name"], by_claim(c["metadata"]["name"])) for c in claims]
            pods += [pod(f"scratch-{n}", {"ephemeral": template}) for n in range(SCRATCH)]
            await admin.create_all([*pods, pod("only-0", by_claim("only"))])

            def all_are_bound() -> bool:
                scheduler.program.check_running()
                return witness.bound == len(pods) + 1

            await witness.wait(all_are_bound, BOUND_LIMIT_S)
            await admin.create_all([pod("only-1", by_claim("only")), pod("lost", by_claim("nowhere"))])
            await until(lambda: _has_message(admin, "only-1", IN_USE), REFUSED_LIMIT_S)
            missing = 'persistentvolumeclaim "nowhere" not found'
            await until(lambda: _has_message(admin, "lost", missing), REFUSED_LIMIT_S)
            await _check_places(admin)
            await admin.request("DELETE", f"{PODS}/only-0")
            await witness.wait(lambda: witness.bound == len(pods) + 2, BOUND_LIMIT_S)
            assert await scheduler.program.stop(STOP_GRACE_S) == 0
        assert witness.moved == witness.overcommitted == []
        assert scheduler.denials() == scheduler.failures() == []


async def _has_message(admin: Admin, name: str, sentence: str) -> bool:
    return sentence in await refusal(admin, name)


async def _check_places(admin: Admin) -> None:
    """Every claim is bound to a volume of its own, and every pod stands where its volume can be used."""
    nodes, volumes = named(await admin.items(NODES)), named(await admin.items(VOLUMES))
    claims = named(await admin.items(CLAIMS))
    assert {c["status"]["phase"] for c in claims.values()} == {"Bound"}
    assert max(Counter(c["spec"]["volumeName"] for c in claims.values()).values()) == 1
    for placed in await admin.items(PODS):
        if not placed["spec"].get("nodeName"):
            continue
        labels = nodes[placed["spec"]["nodeName"]]["metadata"]["labels"]
        (source,) = (v for v in placed["spec"]["volumes"] if v["name"] == "data")
        name = f"{placed['metadata']['name']}-data"
        if "persistentVolumeClaim" in source:
            name = source["persistentVolumeClaim"]["claimName"]
        volume = volumes[claims[name]["spec"]["volumeName"]]
        (term,) = volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
        (need,) = term["matchExpressions"]
        assert need["key"] in (ZONE, HOST)
        assert labels[need["key"]] in need["values"], placed["metadata"]["name"]
