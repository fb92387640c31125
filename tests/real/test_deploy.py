"""`deploy/base` on a real API server: every object is accepted, its pods pass Pod Security, its server lets readers in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.real.admin import Admin, until
from tests.real.control_plane import ControlPlane
from tests.real.deployed import NAMESPACE, Deployed
from tests.real.witness import Witness

pytestmark = pytest.mark.timeout(300)


async def test_base_creates_its_pods_and_its_account_has_enough_rights(tmp_path: Path) -> None:
    async with ControlPlane.start(tmp_path) as plane, Admin.open(plane) as admin, Witness.watching(admin) as witness:
        deployed = await Deployed.install(plane)
        await witness.wait(lambda: len(witness.pods) == 2, 90)
        assert {pod["spec"]["schedulerName"] for pod in witness.pods.values()} == {"default-scheduler"}
        assert {pod["spec"]["priority"] for pod in witness.pods.values()} == {2_000_000_000}

        scheduler = await deployed.start("first")
        await scheduler.wait_ready()
        assert (await scheduler.get("/livez"))[0] == 200
        assert (await scheduler.get("/metrics"))[0] == 401
        assert (await scheduler.get("/metrics", "not-a-token"))[0] == 401
        token = (await plane.kubectl("create", "token", "default", "-n", "default")).strip()
        assert (await scheduler.get("/metrics", token))[0] == 403
        reader = ["create", "clusterrolebinding", "readers", "--clusterrole=multisched-reader"]
        await plane.kubectl(*reader, "--serviceaccount=kube-system:default")
        token = (await plane.kubectl("create", "token", "default", "-n", "kube-system")).strip()

        async def is_let_in() -> bool:
            return (await scheduler.get("/metrics", token))[0] == 200

        await until(is_let_in, 90)  # the authorizer of the API server learns of bindings a moment after they are stored
        status, text = await scheduler.get("/metrics", token)
        assert (status, "multisched_" in text) == (200, True)

        async def leads_all() -> bool:
            status, text = await scheduler.get("/api/v1/queue", token)
            assert status == 200
            return {domain["domain"] for domain in json.loads(text)["domains"]} == {"forecast", "gpu", "job"}

        await until(leads_all, 90)  # it is ready before it has taken over
        leases = json.loads(await plane.kubectl("get", "leases", "-n", NAMESPACE, "-o", "json"))["items"]
        (holder,) = {lease["spec"]["holderIdentity"] for lease in leases}
        assert holder.startswith("first-")
        assert await scheduler.program.stop(30) == 0
        assert scheduler.denials() == scheduler.failures() == []
