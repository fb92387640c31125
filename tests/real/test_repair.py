"""Repair on the real control plane: real controllers, real evictions and budgets, with the rights of `deploy/` and no others.

A foreign scheduler has put all replicas of a service on one node, which the evening's logs would fill. The guard watches every
pod: at no moment are fewer replicas ready than the PodDisruptionBudget wants.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson
import pytest

from domains.forecast.curves.profiles_file import dumps
from tests.real.admin import PODS, Admin, until
from tests.real.audit_log import calls, denied
from tests.real.control_plane import ControlPlane
from tests.real.deployed import MULTISCHED, NAMESPACE, USER, Deployed, Scheduler
from tests.unit.domains.forecast.profiles import make_profiles

pytestmark = pytest.mark.timeout(600)

DEPLOYMENTS: Final = "/apis/apps/v1/namespaces/default/deployments"
BUDGETS: Final = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
RECORDS: Final = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
RECORD: Final = "multisched-repair-forecast"
SERVICE: Final = "chatty"
REPAIRED_LIMIT_S: Final = 240
"""An eviction whose client is killed while it is under way may have taken the budget and not the pod: the disruption controller gives
that back after two minutes."""
STATES: Final = ("reserving", "looking", "evicting", "leaving", "checking")
Document = dict[str, Any]


def node(name: str) -> Document:
    amounts = {"cpu": "4", "memory": "8Gi", "pods": "20"}
    metadata = {"name": name, "labels": {"kubernetes.io/hostname": name}}
    status = {"capacity": amounts, "allocatable": amounts}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": status}


def deployment(replicas: int) -> Document:
    labels = {"app": SERVICE}
    container = {"name": "c", "image": "app:1", "resources": {"requests": {"cpu": "100m"}}}
    pod = {"schedulerName": "forecast-scheduler", "terminationGracePeriodSeconds": 1, "containers": [container]}
    template = {"metadata": {"labels": labels}, "spec": pod}
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": SERVICE}, "spec": spec}


def settings(folder: Path, opens_in: timedelta) -> Document:
    """A window of six hours; leases that run out soon, so that the next process leads soon."""
    evening = np.where(np.arange(168) % 24 == 20, 60.0, 5.0)
    profiles = make_profiles(("cpu", "log"), chatty={"cpu": np.full(168, 0.01), "log": evening})
    folder.joinpath("profiles").write_bytes(dumps(profiles))
    opens = datetime.now(UTC) + opens_in
    window = {"from": f"{opens:%H:%M}", "to": f"{opens + timedelta(hours=6):%H:%M}"}
    args = {
        "dimensions": ["cpu", "log"],
        "capacities": {"log": 100},
        "profilesFile": str(folder / "profiles"),
        "repair": {"mode": "apply", "windows": [window], "thresholdPercent": 90, "intervalMinutes": 0.1},
    }
    domain = {"name": "forecast", "profile": {"plugins": {"enabled": [{"name": "PeakForecast", "args": args}]}}}
    return {
        "domains": [domain],
        "lease": {"duration": "6s", "renewDeadline": "4s", "retryPeriod": "1s"},
        "client": {"bindTimeout": "2s"},
    }


class Guard:
    """Watches the pods of the service."""

    def __init__(self) -> None:
        self.pods: dict[str, Document] = {}
        self.least = 1_000

    @property
    def ready(self) -> list[Document]:
        return [pod for pod in self.pods.values() if _is_ready(pod)]

    @property
    def spread(self) -> list[int]:
        """Ready replicas per node, most first."""
        return sorted(Counter(pod["spec"]["nodeName"] for pod in self.ready).values(), reverse=True)

    async def watch(self, admin: Admin) -> None:
        while True:
            found, version = await admin.listing(PODS)
            self.pods = {pod["metadata"]["uid"]: pod for pod in found}
            async for event in admin.watch(PODS, version):
                pod = event["object"]
                if event["type"] == "DELETED":
                    self.pods.pop(pod["metadata"]["uid"], None)
                else:
                    self.pods[pod["metadata"]["uid"]] = pod
                self.least = min(self.least, len(self.ready))


def _is_ready(pod: Document) -> bool:
    conditions = {one["type"]: one["status"] for one in pod["status"].get("conditions") or ()}
    return conditions.get("Ready") == "True" and "deletionTimestamp" not in pod["metadata"]


async def record(admin: Admin) -> Document:
    found = [one for one in await admin.items(RECORDS) if one["metadata"]["name"] == RECORD]
    return orjson.loads(found[0]["data"]["run.json"]) if found else {}


async def state(admin: Admin) -> str:
    run = (await record(admin)).get("run")
    return run["state"] if run else ""


@asynccontextmanager
async def uneven(folder: Path, replicas: int, nodes: int) -> AsyncIterator[tuple[ControlPlane, Admin, Deployed, Guard]]:
    """All replicas on n0, ready, with a budget that lets one of them go at a time."""
    async with ControlPlane.start(folder, audit=True) as plane, Admin.open(plane) as admin:
        await admin.create_all(node(f"n{number}") for number in range(nodes))
        deployed = await Deployed.install(plane)
        await plane.start_program("kubelets", [str(MULTISCHED), "kubelets", "--kubeconfig", str(plane.kubeconfig)])
        await admin.create(deployment(replicas))
        await until(lambda: _all_bound(admin, replicas), 90)
        spec = {"minAvailable": replicas - 1, "selector": {"matchLabels": {"app": SERVICE}}}
        await admin.request("POST", BUDGETS, {"metadata": {"name": SERVICE}, "spec": spec})
        guard = Guard()
        watching = asyncio.ensure_future(guard.watch(admin))
        try:
            await until(lambda: _is_true(len(guard.ready) == replicas), 90)
            await until(lambda: _allows_one(admin), 90)
            guard.least = replicas
            yield plane, admin, deployed, guard
        finally:
            watching.cancel()
        assert guard.least >= replicas - 1
        assert plane.audit_log is not None
        assert denied(calls(plane.audit_log), USER) == []


async def _all_bound(admin: Admin, replicas: int) -> bool:
    """A foreign hand binds whatever waits."""
    pods = await admin.items(PODS)
    for pod in pods:
        if not pod["spec"].get("nodeName"):
            binding = {"metadata": {"name": pod["metadata"]["name"]}, "target": {"kind": "Node", "name": "n0"}}
            await admin.request("POST", f"{PODS}/{pod['metadata']['name']}/binding", binding)
    return len(pods) == replicas


async def _allows_one(admin: Admin) -> bool:
    (budget,) = await admin.items(BUDGETS)
    return bool((budget.get("status") or {}).get("disruptionsAllowed") == 1)


async def _is_true(value: object) -> bool:
    return bool(value)


async def test_uneven_cluster_is_repaired_in_the_window(tmp_path: Path) -> None:
    async with uneven(tmp_path, replicas=3, nodes=4) as (_plane, admin, deployed, guard):
        closed = await deployed.start("closed", settings(tmp_path, timedelta(hours=6)))
        await closed.wait_ready()
        await until(lambda: _is_logged(closed, "lease acquired"), 90)
        assert await closed.program.stop(20) == 0
        assert (guard.spread, await record(admin)) == ([3], {})

        scheduler = await deployed.start("open", settings(tmp_path, timedelta(minutes=-5)))
        await until(lambda: _is_repaired(admin, guard, 3), REPAIRED_LIMIT_S)
        assert guard.least == 2
        assert len((await record(admin))["moved"]) == 2
        assert await scheduler.program.stop(20) == 0
        assert scheduler.denials() == scheduler.failures() == []


async def test_process_killed_in_any_state_keeps_every_replica_running(tmp_path: Path) -> None:
    async with uneven(tmp_path, replicas=4, nodes=6) as (_plane, admin, deployed, guard):
        chosen = settings(tmp_path, timedelta(minutes=-5))
        scheduler = await deployed.start("life-0", chosen)
        for number, word in enumerate(STATES, 1):
            assert await _reached_state(admin, word), f"mended before a run was {word}"
            await scheduler.program.kill()
            scheduler = await deployed.start(f"life-{number}", chosen)
        await until(lambda: _is_repaired(admin, guard, 4), REPAIRED_LIMIT_S)
        assert guard.least == 3
        await scheduler.wait_ready()  # the last life may have found all done, and be starting still
        assert await scheduler.program.stop(20) == 0


async def _reached_state(admin: Admin, word: str) -> bool:
    """Waits until a run is stored in this state; False if it is over first."""
    found, version = await admin.listing(RECORDS)
    del found
    async with asyncio.timeout(REPAIRED_LIMIT_S):
        async for event in admin.watch(RECORDS, version):
            if event["object"]["metadata"]["name"] != RECORD:
                continue
            run = orjson.loads(event["object"]["data"]["run.json"]).get("run")
            if run and run["state"] == word:
                return True
            if run and run["state"] == "finished":
                return False
    return False


async def _is_logged(scheduler: Scheduler, words: str) -> bool:
    scheduler.program.check_running()
    return words in scheduler.program.log.read_text()


async def _is_repaired(admin: Admin, guard: Guard, replicas: int) -> bool:
    return guard.spread == [1] * replicas and await state(admin) == "finished"
