"""Loans on the real control plane: real controllers, evictions and admission, with the rights of `deploy/` and no others.

Jobs fill half of the free CPU of GPU nodes. A Deployment of the lender needs it, and gets it after the notice. The document of loans equals
the sums over the API server's pods at each step. No verdict depends on how fast the machine is.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from multisched.model.api_time import parse_timestamp
from tests.real.admin import EVENTS, PODS, Admin, until
from tests.real.audit_log import calls, denied
from tests.real.control_plane import ControlPlane
from tests.real.deployed import MULTISCHED, USER, Deployed, Scheduler

pytestmark = pytest.mark.timeout(600)

NOTICE_S: Final = 5.0
LIMIT_S: Final = 120
Document = dict[str, Any]
SETTINGS: Final = {
    "domains": [
        {"name": "gpu"},
        {
            "name": "job",
            "loans": [
                {"from": "gpu", "sharePercent": 50, "return": {"notice": f"{NOTICE_S:g}s", "grace": "5s"}},
            ],
        },
    ]
}


def node(name: str) -> Document:
    amounts = {"cpu": "16", "memory": "64Gi", "pods": "100", "nvidia.com/gpu": "8"}
    metadata = {"name": name, "labels": {"kubernetes.io/hostname": name}}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": metadata,
        "status": {"capacity": amounts, "allocatable": amounts},
    }


def template(scheduler: str, labels: Document, cpu: str, **spec: Any) -> Document:
    container = {"name": "c", "image": "app:1", "resources": {"requests": {"cpu": cpu}}}
    pod = {"schedulerName": scheduler, "terminationGracePeriodSeconds": 1, "containers": [container], **spec}
    return {"metadata": {"labels": labels, "annotations": {"multisched.io/run-seconds": "100000"}}, "spec": pod}


def job(count: int) -> Document:
    pod = template("job-scheduler", {"app": "images"}, "1", restartPolicy="Never")
    spec = {"completions": count, "parallelism": count, "backoffLimit": 100, "template": pod}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "images"}, "spec": spec}


def deployment(replicas: int) -> Document:
    labels = {"app": "chat"}
    spec = {
        "replicas": replicas,
        "selector": {"matchLabels": labels},
        "template": template("gpu-scheduler", labels, "6"),
    }
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "chat"}, "spec": spec}


async def held(admin: Admin, prefix: str) -> list[Document]:
    """The pods with this prefix that hold capacity of a node, leaving ones included."""
    return [
        pod
        for pod in await admin.items(PODS)
        if pod["metadata"]["name"].startswith(prefix)
        and pod["spec"].get("nodeName")
        and pod["status"].get("phase") in ("Pending", "Running")
    ]


async def chat_runs(admin: Admin) -> bool:
    """Reports whether all four pods of the Deployment run."""
    pods = await held(admin, "chat")
    return len(pods) == 4 and all(pod["status"]["phase"] == "Running" for pod in pods)


async def shown_equals_api(admin: Admin, scheduler: Scheduler, token: str) -> bool:
    """Whether what the program shows of held capacity is the sum over the API server's pods."""
    status, text = await scheduler.get("/api/v1/loans/now", token)
    assert status == 200, text
    (loan,) = json.loads(text)["loans"]
    pods = await held(admin, "images")
    return bool(loan["pods"] == len(pods) and loan["held"]["cpuMilli"] == 1000 * len(pods))


async def test_lender_gets_lent_cpu_back_after_the_notice(tmp_path: Path) -> None:
    async with ControlPlane.start(tmp_path, audit=True) as plane, Admin.open(plane) as admin:
        await admin.create_all(node(name) for name in ("a", "b"))
        deployed = await Deployed.install(plane)
        await plane.start_program("kubelets", [str(MULTISCHED), "kubelets", "--kubeconfig", str(plane.kubeconfig)])
        scheduler = await deployed.start("loans", SETTINGS)
        await scheduler.wait_ready()
        await admin.create(job(40))

        async def jobs_run() -> bool:
            return len(await held(admin, "images")) == 16 and await shown_equals_api(admin, scheduler, plane.token)

        await until(jobs_run, LIMIT_S)
        await admin.create(deployment(4))
        await until(partial(chat_runs, admin), LIMIT_S)

        async def jobs_fill_the_rest() -> bool:
            # 16 - 2 x 6 = 4 cores of each node are left, of which half is lent
            return len(await held(admin, "images")) == 4 and await shown_equals_api(admin, scheduler, plane.token)

        await until(jobs_fill_the_rest, LIMIT_S)
        events = await admin.items(EVENTS)
        told = {one["regarding"]["uid"]: one for one in events if one["reason"] == "LoanRecalled"}
        evicted = [one for one in events if one["reason"] == "LoanReturned"]
        assert len(evicted) == 12
        for one in evicted:
            since = parse_timestamp(told[one["regarding"]["uid"]]["eventTime"])
            assert (parse_timestamp(one["eventTime"]) - since).total_seconds() >= NOTICE_S - 1.0
        assert plane.audit_log is not None
        assert denied(calls(plane.audit_log), USER) == []
        assert scheduler.failures() == []
