"""`deploy/overlays/forecast` on a real API server and a real Prometheus: it learns with the rights it is given, and keeps that."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from domains.forecast.curves.profiles_file import PEAK_ERROR_MAX
from tests.real.admin import Admin, until
from tests.real.control_plane import ControlPlane
from tests.real.deployed import READY_LIMIT_S, USER, Deployed, Scheduler
from tests.real.prometheus_server import Series, make_blocks, serving
from tests.real.rendering import OVERLAYS

pytestmark = pytest.mark.timeout(300)

FOLDER: Final = OVERLAYS / "forecast"
SCRAPE_S: Final = 120
DAYS: Final = 3
LEARNED_LIMIT_S: Final = 120


def scraped(now_s: float) -> list[Series]:
    """What cAdvisor and kube-state-metrics say of one replica of `web`, which is busy in the evening."""
    moments = [now_s - (DAYS * 86_400 - n * SCRAPE_S) for n in range(DAYS * 86_400 // SCRAPE_S)]
    used, total = [], 0.0
    for at in moments:
        total += SCRAPE_S * (1 + math.cos(2 * math.pi * (at % 86_400 / 86_400 - 20 / 24)))
        used.append((at, total))
    pod = {"namespace": "default", "pod": "web-0"}
    container = pod | {"container": "main", "image": "web:1"}
    owner = pod | {"owner_kind": "StatefulSet", "owner_name": "web", "owner_is_controller": "true"}
    return [
        ("container_cpu_usage_seconds_total", container, used),
        ("container_memory_working_set_bytes", container, [(at, 2.0**30) for at in moments]),
        ("kube_pod_info", pod | {"node": "n1"}, [(at, 1.0) for at in moments]),
        ("kube_pod_owner", owner, [(at, 1.0) for at in moments]),
    ]


def settings(url: str, profiles: Path) -> dict[str, Any]:
    """The overlay's own, but for the two places that a process on this machine has elsewhere."""
    document = yaml.safe_load((FOLDER / "multisched.yaml").read_text())
    (plugin,) = document["domains"][0]["profile"]["plugins"]["enabled"]
    plugin["args"]["profilesFile"] = str(profiles)
    plugin["args"]["history"]["sources"][0]["url"] = url
    return {"domains": document["domains"]}


async def peaks(scheduler: Scheduler, token: str) -> dict[tuple[str, str], float]:
    """By service and dimension; empty while there are no profiles."""
    status, text = await scheduler.get("/api/v1/forecast/services", token)
    rows = json.loads(text)["services"] if status == 200 else []
    return {(row["service"], row["dimension"]): row["peak"] for row in rows}


async def may_read_loads(admin: Admin) -> bool:
    """Whether the account may list what metrics-server serves; nobody serves it here."""
    asked = {"group": "metrics.k8s.io", "resource": "pods", "verb": "list"}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": USER, "resourceAttributes": asked},
    }
    answer = await admin.request("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    return bool(answer["status"]["allowed"])


async def test_profiles_learned_from_prometheus_survive_a_restart(tmp_path: Path) -> None:
    make_blocks(tmp_path, scraped(time.time()))
    profiles = tmp_path / "profiles"
    async with (
        serving(tmp_path) as url,
        ControlPlane.start(tmp_path / "plane", controller_manager=False) as plane,
        Admin.open(plane) as admin,
    ):
        deployed = await Deployed.install(plane, FOLDER)
        await until(lambda: may_read_loads(admin), READY_LIMIT_S)
        scheduler = await deployed.start("first", settings(url, profiles))
        await scheduler.wait_ready()

        async def is_learned() -> bool:
            return bool(await peaks(scheduler, plane.token))

        await until(is_learned, LEARNED_LIMIT_S)
        learned = await peaks(scheduler, plane.token)
        assert learned.keys() == {("default/web", "cpu"), ("default/web", "memory")}
        assert 1.5 < learned["default/web", "cpu"] < 2.5, "cores, in the evening"
        assert scheduler.denials() == scheduler.failures() == []
        assert await scheduler.program.stop(30) == 0

        scheduler = await deployed.start("second", settings("http://127.0.0.1:1", profiles))
        await scheduler.wait_ready()
        await until(is_learned, LEARNED_LIMIT_S)
        assert await peaks(scheduler, plane.token) == pytest.approx(learned, rel=PEAK_ERROR_MAX), "as its file keeps it"
