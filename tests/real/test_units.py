"""ResourcePolicy on the real control plane, with the rights of `deploy/` and no others: each case of `unit_cases`.

The definition is installed after the scheduler has started, as on a cluster that gets it later. Seconds stand for minutes. No verdict
depends on how fast the machine is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from tests.integration.job.unit_cases import CASES, World
from tests.real.admin import Admin, UnexpectedAnswerError
from tests.real.audit_log import calls, denied
from tests.real.control_plane import ControlPlane
from tests.real.deployed import USER, Deployed

pytestmark = pytest.mark.timeout(900)

DEFINITION: Final = Path(__file__).parents[2] / "deploy" / "crds" / "resourcepolicies.yaml"
LIMIT_S: Final = 120.0
SETTINGS: Final = {"domains": [{"name": "job"}]}


class RealApi:
    """Implements `unit_cases.Api`."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin

    async def send(
        self, method: str, path: str, document: Mapping[str, Any] | None = None, content_type: str = ""
    ) -> Any:
        return await self._admin.request(method, path, document, content_type)

    async def until(self, holds: Callable[[], Awaitable[str]]) -> None:
        deadline_s = asyncio.get_running_loop().time() + LIMIT_S
        while why := await holds():
            assert asyncio.get_running_loop().time() < deadline_s, why
            await asyncio.sleep(0.05)


async def test_each_case_holds_on_the_real_control_plane(tmp_path: Path) -> None:
    async with ControlPlane.start(tmp_path, audit=True) as plane, Admin.open(plane) as admin:
        deployed = await Deployed.install(plane)
        scheduler = await deployed.start("units", SETTINGS)
        await scheduler.wait_ready()
        await plane.apply_definitions(DEFINITION)
        world = World(RealApi(admin))
        failed: dict[str, str] = {}
        for case in CASES:
            try:
                await case(world)
            except (AssertionError, UnexpectedAnswerError) as error:
                failed[case.__name__] = str(error)
            await world.clear()
        assert failed == {}
        assert scheduler.failures() == []
        assert plane.audit_log is not None
        found = calls(plane.audit_log)
        assert denied(found, USER) == []
