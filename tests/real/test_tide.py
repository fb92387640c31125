"""The tide on the real control plane: real controllers, evictions and admission, with the rights of `deploy/` and no others.

Inference takes the cards of a Job whose pods form a gang, after a notice and a call of an HTTPS hook; the gang returns afterwards.
Seconds stand for minutes. No verdict depends on how fast the machine is.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import orjson
import pytest
from aiohttp import web

from multisched.cluster.access.certificates import Authority, server_context
from multisched.model.api_time import parse_timestamp
from tests.real.admin import EVENTS, JOBS, PODS, Admin, until
from tests.real.audit_log import calls, denied
from tests.real.control_plane import ControlPlane
from tests.real.deployed import MULTISCHED, USER, Deployed
from tests.unit.client.servers import serving

pytestmark = pytest.mark.timeout(600)

DEPLOYMENTS: Final = "/apis/apps/v1/namespaces/default/deployments"
ACK: Final = "pod-group.scheduling.sigs.k8s.io"
NOTICE: Final = "multisched.io/tide-notice"
NOTICE_S, MIN_RUN_S = 5.0, 10.0
LIMIT_S: Final = 120
Document = dict[str, Any]


def node(name: str) -> Document:
    amounts = {"cpu": "64", "memory": "512Gi", "pods": "100", "nvidia.com/gpu": "8"}
    metadata = {"name": name, "labels": {"kubernetes.io/hostname": name}}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": metadata,
        "status": {"capacity": amounts, "allocatable": amounts},
    }


def template(cards: int, labels: Document, **spec: Any) -> Document:
    container = {"name": "c", "image": "app:1", "resources": {"limits": {"nvidia.com/gpu": str(cards)}}}
    pod = {"schedulerName": "gpu-scheduler", "terminationGracePeriodSeconds": 1, "containers": [container], **spec}
    return {"metadata": {"labels": labels, "annotations": {"multisched.io/run-seconds": "100000"}}, "spec": pod}


def job() -> Document:
    labels = {f"{ACK}/name": "train", f"{ACK}/min-available": "2"}
    spec = {
        "completions": 2,
        "parallelism": 2,
        "backoffLimit": 100,
        "template": template(8, labels, restartPolicy="Never"),
    }
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train"}, "spec": spec}


def deployment(replicas: int) -> Document:
    labels = {"app": "chat", "tier": "serving"}
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": "chat"}}, "template": template(1, labels)}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "chat"}, "spec": spec}


def settings(hook: str, ca_file: Path) -> Document:
    args = {
        "inference": {"selector": {"matchLabels": {"tier": "serving"}}},
        "notice": f"{NOTICE_S:g}s",
        "grace": "1s",
        "minRunTime": f"{MIN_RUN_S:g}s",
        "growth": {"quiet": "8s", "ahead": f"{MIN_RUN_S:g}s"},
        "headroom": {"min": 0},
        "hook": {"url": f"{hook}/tide", "timeout": "5s", "caFile": str(ca_file)},
    }
    enabled = [{"name": "GpuTide", "args": args}]
    return {"domains": [{"name": "gpu", "profile": {"plugins": {"enabled": enabled}}}]}


@asynccontextmanager
async def hook_server(folder: Path) -> AsyncIterator[tuple[str, Path, list[Document]]]:
    """An HTTPS server; its address, the file of its authority, and the bodies that it gets."""
    authority, bodies = Authority(datetime.now(UTC)), list[Document]()
    ca_file = folder / "hook-ca.crt"
    ca_file.write_bytes(authority.certificate)

    async def handler(request: web.BaseRequest) -> web.Response:
        bodies.append(orjson.loads(await request.read()))
        return web.Response()

    async with serving(handler, server_context(authority, ["127.0.0.1"])) as url:
        yield url, ca_file, bodies


async def running(admin: Admin, prefix: str) -> list[Document]:
    return [
        pod
        for pod in await admin.items(PODS)
        if pod["metadata"]["name"].startswith(prefix)
        and pod["status"].get("phase") == "Running"
        and "deletionTimestamp" not in pod["metadata"]
    ]


def run_exactly(admin: Admin, prefix: str, count: int) -> Callable[[], Awaitable[bool]]:
    async def holds() -> bool:
        return len(await running(admin, prefix)) == count

    return holds


async def test_inference_takes_a_gang_after_notice_and_hook_and_the_gang_returns(tmp_path: Path) -> None:
    async with (
        ControlPlane.start(tmp_path, audit=True) as plane,
        Admin.open(plane) as admin,
        hook_server(tmp_path) as (hook, ca_file, bodies),
    ):
        await admin.create_all(node(name) for name in ("a", "b"))
        deployed = await Deployed.install(plane)
        await plane.start_program("kubelets", [str(MULTISCHED), "kubelets", "--kubeconfig", str(plane.kubeconfig)])
        scheduler = await deployed.start("tide", settings(hook, ca_file))
        await scheduler.wait_ready()
        await admin.create(job())
        await until(run_exactly(admin, "train", 2), LIMIT_S)
        uids = {pod["metadata"]["uid"] for pod in await running(admin, "train")}
        await asyncio.sleep(MIN_RUN_S)  # before, the gang may not be evicted

        await admin.create(deployment(4))
        await until(run_exactly(admin, "chat", 4), LIMIT_S)
        assert await running(admin, "train") == []
        (body,) = bodies
        assert (body["gang"], {pod["uid"] for pod in body["pods"]}) == ("default/train", uids)
        events = [one for one in await admin.items(EVENTS) if one["reason"] == "TideEvicted"]
        assert {one["regarding"]["uid"] for one in events} == uids
        deadline = parse_timestamp(body["deadline"])
        assert min(parse_timestamp(one["eventTime"]) for one in events) >= deadline

        await plane.kubectl("scale", "deployment", "chat", "--replicas=0")
        await until(run_exactly(admin, "train", 2), LIMIT_S)
        assert len(bodies) == 1
        assert plane.audit_log is not None
        assert denied(calls(plane.audit_log), USER) == []
        assert await admin.items(JOBS)
