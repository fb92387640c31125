"""A loan between two processes on the real control plane, with the rights of `deploy/` and no others.

Each process leads one domain. The test itself sums the requests of the pods on each node, several times a second.
"""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from tests.real.admin import PODS, Admin, until
from tests.real.audit_log import calls, denied
from tests.real.control_plane import ControlPlane
from tests.real.deployed import LEASES, MULTISCHED, USER, Deployed
from tests.real.test_loans import SETTINGS, chat_runs, deployment, held, job, node

pytestmark = pytest.mark.timeout(600)

DEFINITION: Final = Path(__file__).parents[2] / "deploy" / "crds" / "slicesets.yaml"
SLICES: Final = "/apis/multisched.io/v1alpha1/slicesets"
LIMIT_S: Final = 120
LOOK_S: Final = 0.2
NODE_MILLI: Final = 16_000
Document = dict[str, Any]


class Judge:
    """What pods request of each node, looked at as often as the API server answers."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self.over: list[str] = []
        self.looks = 0

    async def run(self) -> None:
        while True:
            totals: dict[str, int] = {}
            for pod in await self._admin.items(PODS):
                if pod["spec"].get("nodeName") and pod["status"].get("phase") in ("Pending", "Running"):
                    cores = int(pod["spec"]["containers"][0]["resources"]["requests"]["cpu"])
                    totals[pod["spec"]["nodeName"]] = totals.get(pod["spec"]["nodeName"], 0) + 1000 * cores
            self.looks += 1
            self.over += [f"{name} holds {total}" for name, total in totals.items() if total > NODE_MILLI]
            await asyncio.sleep(LOOK_S)


async def holders(admin: Admin) -> dict[str, str]:
    leases = await admin.items(LEASES)
    return {one["metadata"]["name"]: one["spec"].get("holderIdentity") or "" for one in leases}


async def test_two_processes_share_nodes_without_overcommitting_them(tmp_path: Path) -> None:
    async with ControlPlane.start(tmp_path, audit=True) as plane, Admin.open(plane) as admin:
        await admin.create_all(node(name) for name in ("a", "b"))
        deployed = await Deployed.install(plane)
        await plane.kubectl("apply", "--server-side", "-f", str(DEFINITION))
        await plane.kubectl("wait", "crd/slicesets.multisched.io", "--for=condition=Established", "--timeout=30s")
        await plane.start_program("kubelets", [str(MULTISCHED), "kubelets", "--kubeconfig", str(plane.kubeconfig)])
        settings = {**SETTINGS, "lease": {"perDomain": True, "spread": True}}
        first, second = await deployed.start("first", settings), await deployed.start("second", settings)
        judge = Judge(admin)
        watching = asyncio.create_task(judge.run())

        async def each_leads_one() -> bool:
            led = {name: holder.rpartition("-")[0] for name, holder in (await holders(admin)).items()}
            return led.keys() == {"multisched-gpu", "multisched-job"} and all(led.values())

        await until(each_leads_one, LIMIT_S)
        assert len(set((await holders(admin)).values())) == 2, "each leads one domain"
        await admin.create(job(40))

        async def jobs_run() -> bool:
            return len(await held(admin, "images")) == 16

        await until(jobs_run, LIMIT_S)
        (slices,) = await admin.items(SLICES)
        assert sum(one["cpuMilli"] for one in slices["status"]["held"].values()) >= 16_000
        await admin.create(deployment(4))
        await until(partial(chat_runs, admin), LIMIT_S)

        async def jobs_fill_the_rest() -> bool:
            return len(await held(admin, "images")) == 4  # half of the 4 cores that are left of each node

        await until(jobs_fill_the_rest, LIMIT_S)
        borrower = (await holders(admin))["multisched-job"]
        killed, left = (first, second) if borrower.startswith("first") else (second, first)
        await killed.program.kill()
        await plane.kubectl("scale", "deployment/chat", "--replicas=1")

        async def the_other_one_goes_on() -> bool:
            is_led = (await holders(admin))["multisched-job"].startswith(left.identity)
            return is_led and len(await held(admin, "images")) == 13  # half of 16 and of 10

        await until(the_other_one_goes_on, LIMIT_S)
        watching.cancel()
        assert judge.over == []
        assert judge.looks > 20
        assert plane.audit_log is not None
        assert denied(calls(plane.audit_log), USER) == []
        assert left.failures() == []
