"""The demo's workload on a real control plane: real controllers make the pods, `multisched kubelets` run them, and
`multisched run` schedules them with the rights of `deploy/` and no others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from multisched.cluster.seed import demo_nodes, demo_storage, demo_workload
from tests.real.admin import JOBS, Admin, until
from tests.real.audit_log import bound, calls, denied, unknown
from tests.real.control_plane import ControlPlane
from tests.real.deployed import MULTISCHED, USER, Deployed
from tests.real.witness import GPU, Witness, device_overlaps

pytestmark = pytest.mark.timeout(300)

NODE_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
NODES = 100
JOB_PODS = 300
BOUND_LIMIT_S = 90
DONE_LIMIT_S = 90
STOP_GRACE_S = 30.0
SCHEDULERS = {"forecast-scheduler", "gpu-scheduler", "job-scheduler"}


def pods_of(documents: Iterable[dict[str, Any]]) -> Counter[str]:
    """schedulerName -> pods that the documents lead to."""
    found: Counter[str] = Counter()
    for document in documents:
        spec = document["spec"]
        pod = spec if document["kind"] == "Pod" else spec["template"]["spec"]
        found[pod["schedulerName"]] += spec.get("replicas", spec.get("completions", 1))
    return found


async def all_complete(admin: Admin) -> bool:
    """Whether the controller has marked every Job as done."""
    jobs = await admin.items(JOBS)
    return all({"Complete": "True"}.items() <= _conditions(job).items() for job in jobs)


def _conditions(document: Mapping[str, Any]) -> dict[str, str]:
    return {entry["type"]: entry["status"] for entry in document["status"].get("conditions", ())}


async def test_demo_runs_with_only_the_rights_of_deploy(tmp_path: Path) -> None:
    nodes, workload = demo_nodes(NODES), demo_workload(JOB_PODS, NODES)
    expected = pods_of(workload)
    assert expected.keys() == SCHEDULERS
    async with ControlPlane.start(tmp_path, audit=True) as plane, Admin.open(plane) as admin:
        await admin.create_all([*nodes, *demo_storage(nodes)])
        deployed = await Deployed.install(plane)
        await plane.start_program("kubelets", [str(MULTISCHED), "kubelets", "--kubeconfig", str(plane.kubeconfig)])
        scheduler = await deployed.start("first")
        async with Witness.watching(admin) as witness:
            await admin.create_all(workload)

            def all_are_bound() -> bool:
                scheduler.program.check_running()
                return witness.bound == expected.total()

            await witness.wait(all_are_bound, BOUND_LIMIT_S)
            await until(lambda: all_complete(admin), DONE_LIMIT_S)
            heartbeats = await admin.items(NODE_LEASES)
            assert {lease["metadata"]["name"] for lease in heartbeats} == {node["metadata"]["name"] for node in nodes}
            running = [pod for pod in witness.pods.values() if pod["metadata"]["namespace"] == "default"]
            assert await scheduler.program.stop(STOP_GRACE_S) == 0

        assert witness.moved == []
        assert witness.overcommitted == []
        devices = {n["metadata"]["name"]: int(n["status"]["allocatable"].get(GPU, 0)) for n in nodes}
        assert device_overlaps(running, devices) == []
        assert (
            sum("multisched.io/gpu-devices" in p["metadata"].get("annotations", {}) for p in running)
            == expected["gpu-scheduler"]
        )
        assert scheduler.denials() == scheduler.failures() == []
        assert plane.audit_log is not None
        seen = calls(plane.audit_log)
        assert denied(seen, USER) == []
        accepted = bound(seen)
        assert set(accepted.values()) == {1}
        # A loaded API server binds now and then a pod without knowing it in time: it answers 504.
        assert len(accepted.keys() | {uid for uid, _node in unknown(seen)}) == expected.total()
        assert {call.user for call in seen if call.is_bind} == {USER}
