"""The API server is killed in the middle of a burst and started again: nothing is lost, and nobody has to help."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import anyio
import pytest

from tests.real import burst
from tests.real.admin import Admin
from tests.real.audit_log import bound, calls, denied, premature_rebinds
from tests.real.control_plane import ControlPlane
from tests.real.deployed import USER, Deployed
from tests.real.witness import GPU, Witness, device_overlaps

pytestmark = pytest.mark.timeout(240)

PODS = 2_400
KILL_AT = 500
BOUND_LIMIT_S = 90.0
STOP_GRACE_S = 30.0
LEASE = {"lease": {"duration": "60s", "renewDeadline": "50s"}}
"""Longer than any API server needs to start: the same process has to get over it, not its successor."""


async def test_burst_continues_after_the_api_server_was_killed(tmp_path: Path) -> None:
    async with ControlPlane.start(tmp_path, controller_manager=False, audit=True) as plane, Admin.open(plane) as admin:
        await admin.create_all(burst.nodes())
        deployed = await Deployed.install(plane)
        scheduler = await deployed.start("only", LEASE)
        await scheduler.wait_leading(admin)
        async with Witness.watching(admin) as witness, anyio.create_task_group() as tasks:
            tasks.start_soon(admin.create_all, burst.pods("pod", PODS))
            await witness.wait(lambda: witness.bound >= KILL_AT, BOUND_LIMIT_S)
            killed_at = datetime.now(UTC)
            await plane.kill_api_server()
            assert witness.bound < PODS, "the burst was over before the API server was killed"
            await plane.restart_api_server()
            ready_at = datetime.now(UTC)
            await witness.wait(lambda: witness.bound == PODS, BOUND_LIMIT_S)
        await scheduler.wait_ready()
        assert await scheduler.program.stop(STOP_GRACE_S) == 0

        assert len(witness.pods) == PODS
        assert witness.moved == []
        assert witness.overcommitted == []
        devices = {n["metadata"]["name"]: int(n["status"]["allocatable"].get(GPU, 0)) for n in burst.nodes()}
        assert device_overlaps(witness.pods.values(), devices) == []
        assert plane.audit_log is not None
        seen = calls(plane.audit_log)
        assert set(bound(seen).values()) == {1}
        assert premature_rebinds(seen) == []
        # Before it is ready, an API server refuses everybody: it has not read its own roles yet.
        assert denied((call for call in seen if not killed_at < call.received_at < ready_at), USER) == []
        assert scheduler.failures() == []
