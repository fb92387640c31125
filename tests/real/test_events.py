"""Events on the real API server: one per bound pod, and one series for a pod that is refused again and again."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.real import burst
from tests.real.admin import EVENTS, PODS, Admin, until
from tests.real.audit_log import calls, denied
from tests.real.control_plane import ControlPlane
from tests.real.deployed import USER, Deployed, Scheduler
from tests.real.witness import Witness

pytestmark = pytest.mark.timeout(180)

COUNT = 600
REFUSALS = 3
STORED_WITHIN_S = 60.0
LIMIT_S = 60.0
STOP_GRACE_S = 30.0
WITHOUT_TLS: dict[str, Any] = {"server": {}}
GIANT = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "giant"},
    "spec": {
        "schedulerName": "forecast-scheduler",
        "containers": [{"name": "main", "image": "x", "resources": {"requests": {"cpu": "1000"}}}],
    },
}


async def events(admin: Admin, reason: str) -> list[dict[str, Any]]:
    return await admin.items(EVENTS, f"&fieldSelector=reason%3D{reason}")


async def attempts(scheduler: Scheduler, name: str) -> int:
    """How often the pod was refused, as `multisched queue` would show it."""
    view = json.loads((await scheduler.get("/api/v1/queue"))[1])
    return next((pod["attempts"] for pod in view["pods"] if pod["name"] == name), 0)


async def test_every_bound_pod_has_an_event_and_every_refused_pod_a_series(tmp_path: Path) -> None:
    async with ControlPlane.start(tmp_path, controller_manager=False, audit=True) as plane, Admin.open(plane) as admin:
        await admin.create_all(burst.nodes())
        deployed = await Deployed.install(plane)
        scheduler = await deployed.start("first", WITHOUT_TLS)
        await scheduler.wait_leading(admin)
        async with Witness.watching(admin) as witness:
            await admin.create_all(burst.pods("pod", COUNT))
            await witness.wait(lambda: witness.bound == COUNT, LIMIT_S)

            async def all_are_told() -> bool:
                return len(await events(admin, "Scheduled")) >= COUNT

            await until(all_are_told, STORED_WITHIN_S)
            told = {event["regarding"]["uid"]: event for event in await events(admin, "Scheduled")}
            assert told.keys() == witness.node_of.keys()
            for uid, pod in witness.pods.items():
                name, event = pod["metadata"]["name"], told[uid]
                assert event["note"] == f"Successfully assigned default/{name} to {witness.node_of[uid]}"
                assert (event["type"], event["action"]) == ("Normal", "Binding")
                assert event["reportingInstance"].startswith("first-")
                assert event["reportingController"] == pod["spec"]["schedulerName"]

            await admin.create(GIANT)
            for refused in range(1, REFUSALS + 1):

                async def was_refused_again(times: int = refused) -> bool:
                    return await attempts(scheduler, "giant") >= times

                await until(was_refused_again, LIMIT_S)
                # Room that becomes free is the news on which it is tried again.
                await admin.request("DELETE", f"{PODS}/pod-{4 + 8 * refused:05}?gracePeriodSeconds=0")
        assert await scheduler.program.stop(STOP_GRACE_S) == 0
        (series,) = await events(admin, "FailedScheduling")
        assert series["regarding"]["name"] == "giant"
        sentence = (
            r"0/(\d+) nodes are available: \1 Insufficient cpu\. no new claims to deallocate, preemption: "
            r"0/\1 nodes are available: \1 Preemption is not helpful for scheduling\."
        )
        assert re.fullmatch(sentence, series["note"])
        assert series["series"]["count"] >= REFUSALS
        assert plane.audit_log is not None
        assert denied(calls(plane.audit_log), USER) == []
        assert scheduler.denials() == scheduler.failures() == []
