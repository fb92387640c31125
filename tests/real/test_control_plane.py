"""The real control plane itself: it serves, survives the death of its API server, and gives ServiceAccounts tokens."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.perf import gangs, workload
from tests.real.control_plane import ControlPlane

pytestmark = pytest.mark.timeout(180)

SECRET_READER = """
apiVersion: v1
kind: ServiceAccount
metadata: {name: reader, namespace: kept}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: reader, namespace: kept}
rules: [{apiGroups: [""], resources: [pods], verbs: [get, list]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: reader, namespace: kept}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: reader}
subjects: [{kind: ServiceAccount, name: reader, namespace: kept}]
"""


async def test_stored_objects_survive_a_killed_api_server(tmp_path: Path) -> None:
    async with ControlPlane.start(tmp_path, controller_manager=False) as plane:
        await plane.kubectl("create", "namespace", "kept")
        before = plane.api_server.pid

        await plane.kill_api_server()
        with pytest.raises(subprocess.CalledProcessError, match="returned non-zero"):
            await plane.kubectl("get", "namespace", "kept", "--request-timeout=2s")
        await plane.restart_api_server()

        assert plane.api_server.pid != before
        kept = json.loads(await plane.kubectl("get", "namespace", "kept", "-o", "json"))
        assert kept["status"]["phase"] == "Active"
        version = json.loads(await plane.kubectl("version", "-o", "json"))
        assert version["serverVersion"]["gitVersion"] == version["clientVersion"]["gitVersion"] == "v1.36.3"


async def test_service_account_token_has_only_the_rights_of_its_role(tmp_path: Path) -> None:
    async with ControlPlane.start(tmp_path, controller_manager=False) as plane:
        await plane.kubectl("create", "namespace", "kept")
        await plane.kubectl("apply", "-f", "-", document=SECRET_READER)
        reader = await plane.service_account_kubeconfig("kept", "reader")

        assert (
            json.loads(await plane.kubectl("get", "pods", "-n", "kept", "-o", "json", kubeconfig=reader))["items"] == []
        )
        with pytest.raises(subprocess.CalledProcessError) as refused:
            await plane.kubectl("get", "nodes", kubeconfig=reader)
        assert "Forbidden" in refused.value.stderr


async def test_deployments_get_pods_and_kube_scheduler_binds_them(tmp_path: Path) -> None:
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "only"},
        "status": {"capacity": {"cpu": "4", "memory": "8Gi", "pods": "110"}},
    }
    async with ControlPlane.start(tmp_path, scheduler=True) as plane:
        await plane.kubectl("create", "-f", "-", document=json.dumps(node))
        await plane.kubectl("create", "deployment", "web", "--image=registry.k8s.io/pause:3.10.2", "--replicas=3")
        await plane.kubectl("wait", "deployment/web", "--for=jsonpath={.status.replicas}=3", "--timeout=90s")
        await plane.kubectl("wait", "pod", "-l", "app=web", "--for=condition=PodScheduled", "--timeout=90s")

        pods = json.loads(await plane.kubectl("get", "pods", "-l", "app=web", "-o", "json"))["items"]
        assert [pod["spec"].get("nodeName") for pod in pods] == ["only"] * 3
        assert plane.etcd.usage().peak_rss_bytes > 0


async def test_kube_scheduler_with_gangs_starts_all_members_or_none(tmp_path: Path) -> None:
    kube_scheduler = "default-scheduler"
    sizes = {"gang-00000": 3, gangs.ROOMLESS: gangs.ROOMLESS_SIZE}
    objects = [
        *workload.work_nodes(2),
        *(gangs.workload_of(*each) for each in sizes.items()),
        *(gangs.pod_group_of(*each) for each in sizes.items()),
        *gangs.pods(3, 3, kube_scheduler),
        *gangs.roomless(kube_scheduler),
    ]
    async with ControlPlane.start(tmp_path, controller_manager=False, scheduler=True, gangs=True) as plane:
        await plane.kubectl("create", "namespace", workload.NAMESPACE)
        document = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
        in_namespace = ("--namespace", workload.NAMESPACE)
        await plane.kubectl("create", *in_namespace, "-f", "-", document=document)

        for gang, answer in (("gang-00000", "True"), (gangs.ROOMLESS, "False")):
            condition = f"--for=condition={gangs.SCHEDULED[0]}={answer}"
            await plane.kubectl("wait", *in_namespace, condition, f"podgroup/{gang}", "--timeout=50s")
        is_bound = "--for=jsonpath={.spec.nodeName}"
        await plane.kubectl("wait", *in_namespace, is_bound, "pod/gang-00000-00002", "--timeout=50s")
        pods = json.loads(await plane.kubectl("get", *in_namespace, "pods", "-o", "json"))["items"]

        bound = [pod["metadata"]["name"] for pod in pods if pod["spec"].get("nodeName")]
        assert gangs.started(bound, 3) == (1, 0)
