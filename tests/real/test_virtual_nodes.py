"""Fake virtual kubelets on the real control plane: pods of a Job are refused, retried and deleted as virtual-kubelet does it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from multisched.cluster.kubelet.provider import PROVIDER_ANNOTATION, ProviderSettings, ScriptedFailure
from multisched.cluster.virtual_nodes import virtual_nodes
from multisched.testing.builders import container, pod_document
from tests.real.control_plane import ControlPlane
from tests.real.deployed import MULTISCHED

pytestmark = pytest.mark.timeout(240)

NODE = "serverless-000"
OPEN = ProviderSettings(startupSeconds=0.2, createSeconds=0.01)
CLOSED = ProviderSettings(
    startupSeconds=0.2, createSeconds=0.01, failures=(ScriptedFailure("503 Service Unavailable"),)
)


def annotation(settings: ProviderSettings) -> str:
    annotations: dict[str, str] = virtual_nodes(1, settings)[0]["metadata"]["annotations"]
    return f"{PROVIDER_ANNOTATION}={annotations[PROVIDER_ANNOTATION]}"


async def test_pods_of_a_virtual_node_fail_wait_run_and_are_deleted(tmp_path: Path) -> None:
    async with ControlPlane.start(tmp_path) as plane:
        (node,) = virtual_nodes(1, CLOSED)
        await plane.kubectl("create", "-f", "-", document=json.dumps(node))
        await plane.start_program("kubelets", [str(MULTISCHED), "kubelets", "--kubeconfig", str(plane.kubeconfig)])
        for name, policy in (("never", "Never"), ("always", "Always")):
            pod = pod_document(name, container("c"), nodeName=NODE, restartPolicy=policy)
            await plane.kubectl("create", "-f", "-", document=json.dumps(pod))
        for name, phase in (("never", "Failed"), ("always", "Pending")):
            wait = ("wait", f"pod/{name}", "--for=jsonpath={.status.reason}=ProviderFailed", "--timeout=60s")
            await plane.kubectl(*wait)
            status = json.loads(await plane.kubectl("get", "pod", name, "-o", "json"))["status"]
            assert (status["phase"], status["message"]) == (phase, "503 Service Unavailable")

        await plane.kubectl("annotate", "--overwrite", f"node/{NODE}", annotation(OPEN))
        await plane.kubectl("label", "pod/always", "changed=yes")
        await plane.kubectl("wait", "pod/always", "--for=jsonpath={.status.phase}=Running", "--timeout=60s")
        status = json.loads(await plane.kubectl("get", "pod", "always", "-o", "json"))["status"]
        assert "reason" not in status
        events = json.loads(await plane.kubectl("get", "events", "-o", "json"))["items"]
        reasons = {(one["involvedObject"]["name"], one["reason"]) for one in events}
        assert reasons >= {
            ("never", "ProviderCreateFailed"),
            ("always", "ProviderCreateFailed"),
            ("always", "ProviderCreateSuccess"),
        }

        await plane.kubectl("delete", "pod/never", "pod/always", "--grace-period=2", "--timeout=60s")
        assert json.loads(await plane.kubectl("get", "pods", "-o", "json"))["items"] == []
