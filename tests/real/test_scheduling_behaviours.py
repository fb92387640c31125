"""What every conformant cluster does, on the real control plane: the eight [Conformance] behaviours that concern a scheduler,
and three that users rely on as much. Source: kubernetes 1.36, test/e2e/scheduling/{predicates,preemption}.go.

`multisched run` has the rights of `deploy/` and no others; the real kube-controller-manager keeps ReplicaSets, Deployments
and PodDisruptionBudgets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.real.admin import NODES, PODS, Admin, until
from tests.real.control_plane import ControlPlane
from tests.real.deployed import MULTISCHED, Deployed
from tests.real.witness import Witness

pytestmark = pytest.mark.timeout(300)

ZONE, HOST = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
PRIORITY_CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
REPLICA_SETS = "/apis/apps/v1/namespaces/default/replicasets"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
SYSTEM_PODS = "/api/v1/namespaces/kube-system/pods"
MERGE_PATCH = "application/merge-patch+json"
FINALIZER = "example.com/kept"

NODE_CPU = "2"
LIMIT_S = 90
STOP_GRACE_S = 30.0
Document = dict[str, Any]


def node(name: str, zone: str) -> Document:
    amounts = {"cpu": NODE_CPU, "memory": "8Gi", "pods": "20"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {HOST: name, ZONE: zone}},
        "status": {"capacity": amounts, "allocatable": amounts},
    }


def pod(name: str, cpu: str = "100m", **spec: Any) -> Document:
    metadata: Document = {"name": name, "finalizers": spec.pop("finalizers", [])}
    ports = spec.pop("ports", [])
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {
            "schedulerName": "forecast-scheduler",
            "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "c", "image": "app:1", "resources": {"requests": {"cpu": cpu}}, "ports": ports}],
            **spec,
        },
    }


def replicas(kind: str, name: str, count: int, template: Document) -> Document:
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": template["spec"]}
    spec = {"replicas": count, "selector": {"matchLabels": labels}, "template": template}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}


@asynccontextmanager
async def cluster(folder: Path, *nodes: Document) -> AsyncIterator[Admin]:
    """Nodes with fake kubelets, and multisched; at its end nothing was bound twice or overcommitted, and no right lacked."""
    async with ControlPlane.start(folder, audit=True) as plane, Admin.open(plane) as admin:
        await admin.create_all(nodes)
        for name, value in (("low", 1), ("high", 1_000)):
            document = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}}
            await admin.request("POST", PRIORITY_CLASSES, document | {"value": value})
        deployed = await Deployed.install(plane)
        await plane.start_program("kubelets", [str(MULTISCHED), "kubelets", "--kubeconfig", str(plane.kubeconfig)])
        scheduler = await deployed.start("only")
        async with Witness.watching(admin) as witness:
            yield admin
            assert await scheduler.program.stop(STOP_GRACE_S) == 0
        assert witness.moved == witness.overcommitted == []
        assert scheduler.denials() == scheduler.failures() == []


async def find(admin: Admin, name: str, path: str = PODS) -> Document | None:
    return next((item for item in await admin.items(path) if item["metadata"]["name"] == name), None)


def condition(found: Document, kind: str) -> Document:
    return next((c for c in found["status"].get("conditions") or () if c["type"] == kind), {})


async def becomes_bound(admin: Admin, name: str, path: str = PODS) -> str:
    """The node that the pod comes to."""
    node = ""

    async def is_bound() -> bool:
        nonlocal node
        found = await find(admin, name, path)
        node = found["spec"].get("nodeName", "") if found is not None else ""
        return bool(node)

    await until(is_bound, LIMIT_S)
    return node


async def stays_pending(admin: Admin, name: str, sentence: str) -> None:
    """The pod is told why, in upstream's words."""

    async def is_told() -> bool:
        found = await find(admin, name)
        return found is not None and sentence in condition(found, "PodScheduled").get("message", "")

    await until(is_told, LIMIT_S)
    found = await find(admin, name)
    assert found is not None
    assert "nodeName" not in found["spec"]


async def wait_deleted(admin: Admin, name: str, path: str = PODS) -> None:
    async def is_gone() -> bool:
        return await find(admin, name, path) is None

    await until(is_gone, LIMIT_S)


async def test_pods_are_bound_only_where_they_fit(tmp_path: Path) -> None:
    async with cluster(tmp_path, node("n0", "a"), node("n1", "b")) as admin:
        # Resource limits: a pod too large for what is left waits, and is bound once there is room.
        await admin.create_all([pod("filler-0", cpu="1500m"), pod("filler-1", cpu="1500m")])
        assert {await becomes_bound(admin, f"filler-{n}") for n in range(2)} == {"n0", "n1"}
        await admin.create(pod("additional", cpu="1"))
        await stays_pending(admin, "additional", "0/2 nodes are available: 2 Insufficient cpu.")
        await admin.request("DELETE", f"{PODS}/filler-0")
        await becomes_bound(admin, "additional")
        # A node selector that matches no node, and then one.
        await admin.create(pod("restricted", nodeSelector={"wanted": "yes"}))
        await stays_pending(admin, "restricted", "2 node(s) didn't match Pod's node affinity/selector")
        await admin.request("PATCH", f"{NODES}/n1", {"metadata": {"labels": {"wanted": "yes"}}}, MERGE_PATCH)
        assert await becomes_bound(admin, "restricted") == "n1"
        # One host port, for all addresses and for one of them.
        here = {HOST: "n1"}
        port = {"containerPort": 80, "hostPort": 54322, "protocol": "TCP"}
        await admin.create(pod("everywhere", ports=[port], nodeSelector=here))
        assert await becomes_bound(admin, "everywhere") == "n1"
        await admin.create(pod("loopback", ports=[port | {"hostIP": "127.0.0.1"}], nodeSelector=here))
        await stays_pending(admin, "loopback", "1 node(s) didn't have free ports for the requested pod ports")


async def test_higher_priority_pods_preempt_lower_ones(tmp_path: Path) -> None:
    async with cluster(tmp_path, node("n0", "a"), node("n1", "b")) as admin:
        # Basic: the least important pod goes; it is told why, for as long as a finalizer keeps it.
        kept = pod("victim", cpu="1500m", priorityClassName="low", finalizers=[FINALIZER])
        await admin.create(kept)
        await becomes_bound(admin, "victim")
        await admin.create(pod("stays", cpu="1500m", priorityClassName="high"))
        await becomes_bound(admin, "stays")
        await admin.create(pod("preemptor", cpu="1500m", priorityClassName="high"))

        async def is_told() -> bool:
            found = await find(admin, "victim")
            assert found is not None
            target = condition(found, "DisruptionTarget")
            return bool(found["metadata"].get("deletionTimestamp")) and (
                (target.get("status"), target.get("reason")) == ("True", "PreemptionByScheduler")
            )

        await until(is_told, LIMIT_S)
        await admin.request("PATCH", f"{PODS}/victim", {"metadata": {"finalizers": None}}, MERGE_PATCH)
        await wait_deleted(admin, "victim")
        assert await becomes_bound(admin, "preemptor") != await becomes_bound(admin, "stays")
        # A critical pod of the system takes the place of one that is merely important.
        critical = pod("critical", cpu="1500m", priorityClassName="system-cluster-critical")
        await admin.request("POST", SYSTEM_PODS, critical)
        place = await becomes_bound(admin, "critical", SYSTEM_PODS)
        left = [p["metadata"]["name"] for p in await admin.items(PODS) if p["spec"].get("nodeName") == place]
        assert left == []
        # ReplicaSets: the low one is cut to what is left beside the high one, and comes back with the room.
        await admin.request("DELETE", f"{SYSTEM_PODS}/critical")
        await wait_deleted(admin, "critical", SYSTEM_PODS)
        for name in ("stays", "preemptor"):
            if await find(admin, name) is not None:
                await admin.request("DELETE", f"{PODS}/{name}")
                await wait_deleted(admin, name)
        await admin.request("POST", REPLICA_SETS, replicas("ReplicaSet", "low", 2, _ranked("low")))
        await _has_bound(admin, "low", 2)
        await admin.request("POST", REPLICA_SETS, replicas("ReplicaSet", "high", 1, _ranked("high")))
        await _has_bound(admin, "high", 1)
        await _has_bound(admin, "low", 1)
        await admin.request("DELETE", f"{REPLICA_SETS}/high")
        await _has_bound(admin, "low", 2)


async def test_preemption_spares_pods_protected_by_a_budget(tmp_path: Path) -> None:
    async with cluster(tmp_path, node("n0", "a"), node("n1", "b")) as admin:
        guard = {"minAvailable": 1, "selector": {"matchLabels": {"app": "guarded"}}}
        budget = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "guard"}}
        await admin.request("POST", BUDGETS, budget | {"spec": guard})
        for name in ("guarded", "loose"):
            await admin.request("POST", DEPLOYMENTS, replicas("Deployment", name, 1, _ranked("low", "1500m")))
            await _has_bound(admin, name, 1)
        (guarded,) = await _of(admin, "guarded")
        (loose,) = await _of(admin, "loose")

        async def is_protecting() -> bool:
            (found,) = await admin.items(BUDGETS)
            status = found.get("status", {})
            return (status.get("currentHealthy"), status.get("disruptionsAllowed")) == (1, 0)

        await until(is_protecting, LIMIT_S)
        await admin.create(pod("preemptor", cpu="1500m", priorityClassName="high"))
        assert await becomes_bound(admin, "preemptor") == loose["spec"]["nodeName"]
        (still,) = [p for p in await _of(admin, "guarded") if p["spec"].get("nodeName")]
        assert still["metadata"]["uid"] == guarded["metadata"]["uid"]


async def test_spread_deployment_stays_spread_after_a_rolling_update(tmp_path: Path) -> None:
    nodes = [node(f"n{number}", f"zone-{number % 3}") for number in range(6)]
    async with cluster(tmp_path, *nodes) as admin:
        constraint = {
            "maxSkew": 1,
            "topologyKey": ZONE,
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"app": "web"}},
            "matchLabelKeys": ["pod-template-hash"],
        }
        template = pod("unused", topologySpreadConstraints=[constraint])
        await admin.request("POST", DEPLOYMENTS, replicas("Deployment", "web", 9, template))
        assert await _zones_once_rolled(admin, 1) == {"zone-0": 3, "zone-1": 3, "zone-2": 3}
        image = {"spec": {"template": {"metadata": {"annotations": {"release": "two"}}}}}
        await admin.request("PATCH", f"{DEPLOYMENTS}/web", image, MERGE_PATCH)
        assert await _zones_once_rolled(admin, 2) == {"zone-0": 3, "zone-1": 3, "zone-2": 3}


def _ranked(priority: str, cpu: str = "1500m") -> Document:
    return pod("unused", cpu=cpu, priorityClassName=priority)


async def _of(admin: Admin, app: str) -> list[Document]:
    """The pods of a workload that are not on their way out."""
    found = await admin.items(PODS, f"&labelSelector=app%3D{app}")
    return [p for p in found if not p["metadata"].get("deletionTimestamp")]


async def _has_bound(admin: Admin, app: str, count: int) -> None:
    async def has() -> bool:
        return sum(bool(p["spec"].get("nodeName")) for p in await _of(admin, app)) == count

    await until(has, LIMIT_S)


async def _zones_once_rolled(admin: Admin, generation: int) -> Counter[str]:
    """Pods by zone, once the Deployment has only pods of this generation, all of them ready."""

    async def is_rolled() -> bool:
        (found,) = await admin.items(DEPLOYMENTS)
        status, wanted = found.get("status", {}), found["spec"]["replicas"]
        counts = [status.get(name, 0) for name in ("replicas", "updatedReplicas", "readyReplicas")]
        return status.get("observedGeneration", 0) >= generation and counts == [wanted] * 3

    await until(is_rolled, LIMIT_S)
    zones = {n["metadata"]["name"]: n["metadata"]["labels"][ZONE] for n in await admin.items(NODES)}
    return Counter(zones[p["spec"]["nodeName"]] for p in await _of(admin, "web"))
