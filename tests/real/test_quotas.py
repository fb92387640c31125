"""Elastic quotas on the real control plane: the walk-through of ACK's manual with kubectl, Deployments and forecast-scheduler.

The definitions come from `deploy/crds`, the rights from `deploy/base`; the real kube-controller-manager keeps the Deployments.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, Final

import anyio
import pytest

from tests.real.admin import Admin, until
from tests.real.control_plane import ControlPlane
from tests.real.deployed import MULTISCHED, Deployed
from tests.unit.plugins.quota.trees import acks_example

pytestmark = pytest.mark.timeout(300)

CRDS: Final = Path(__file__).parents[2] / "deploy" / "crds"
NODE_CPU: Final = "56"
LIMIT_S: Final = 60
LOOKS: Final = 20
LOOK_S: Final = 0.25
"""The last counts stay for five seconds: a reclaim that is undone would show at once."""
STOP_GRACE_S: Final = 30.0


def node(name: str) -> dict[str, Any]:
    amounts = {"cpu": NODE_CPU, "memory": "200Gi", "pods": "110"}
    status = {"capacity": amounts, "allocatable": amounts}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": status}


def tree() -> dict[str, Any]:
    metadata = {"name": "teams", "namespace": "kube-system"}
    spec = {"root": acks_example()}
    return {
        "apiVersion": "scheduling.sigs.k8s.io/v1beta1",
        "kind": "ElasticQuotaTree",
        "metadata": metadata,
        "spec": spec,
    }


def deployment(namespace: str) -> dict[str, Any]:
    labels = {"app": "nginx"}
    container = {"name": "nginx", "image": "nginx", "resources": {"requests": {"cpu": 5}, "limits": {"cpu": 5}}}
    spec = {"schedulerName": "forecast-scheduler", "terminationGracePeriodSeconds": 1, "containers": [container]}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "nginx", "namespace": namespace},
        "spec": {
            "replicas": 5,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }


async def running(admin: Admin) -> list[int]:
    """Pods that run, by namespace."""
    pods = await admin.items("/api/v1/pods")
    found = Counter(
        pod["metadata"]["namespace"]
        for pod in pods
        if pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
    )
    return [found[name] for name in sorted(found)]


async def pending(admin: Admin, namespace: str) -> list[dict[str, Any]]:
    return [p for p in await admin.items(f"/api/v1/namespaces/{namespace}/pods") if "nodeName" not in p["spec"]]


async def test_example_of_the_ack_manual_gives_its_documented_placement(tmp_path: Path) -> None:
    async with ControlPlane.start(tmp_path, audit=True) as plane, Admin.open(plane) as admin:
        await plane.apply_definitions(CRDS)
        await admin.create(node("virtual"))
        for number in range(1, 5):
            await plane.kubectl("create", "namespace", f"namespace{number}")
        await plane.kubectl("apply", "-f", "-", document=json.dumps(tree()))
        deployed = await Deployed.install(plane)
        await plane.start_program("kubelets", [str(MULTISCHED), "kubelets", "--kubeconfig", str(plane.kubeconfig)])
        scheduler = await deployed.start("only")
        await scheduler.wait_ready()
        for number, counts in enumerate(([4], [4, 4], [3, 3, 2], [2, 2, 2, 2]), 1):
            await plane.kubectl("apply", "-f", "-", document=json.dumps(deployment(f"namespace{number}")))

            async def has_come(counts: list[int] = counts) -> bool:
                return await running(admin) == counts

            await until(has_come, LIMIT_S)
        for _ in range(LOOKS):
            assert await running(admin) == [2, 2, 2, 2]
            await anyio.sleep(LOOK_S)
        held = (await pending(admin, "namespace1"))[0]["metadata"]["name"]
        said = await plane.kubectl("describe", "pod", held, "--namespace", "namespace1")
        assert "quota root: cpu 40 used, 5 requested, max 40" in said
        assert await scheduler.program.stop(STOP_GRACE_S) == 0
        assert scheduler.denials() == scheduler.failures() == []
