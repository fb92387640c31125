"""A loan between two processes on the real control plane, with the rights of `deploy/` and no others.

Each process leads one domain. `SliceJudge` sums the requests of the pods on each node at every version.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from tests.real.admin import PODS, Admin, until
from tests.real.audit_log import calls, denied
from tests.real.control_plane import ControlPlane
from tests.real.deployed import MULTISCHED, USER, Deployed, Scheduler
from tests.real.slice_judge import ALL_PODS, SLICES, SliceJudge
from tests.real.test_loans import SETTINGS, chat_runs, deployment, held, job, node, template

pytestmark = pytest.mark.timeout(600)

DEFINITION: Final = Path(__file__).parents[2] / "deploy" / "crds" / "slicesets.yaml"
DEFINITIONS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
LENDER: Final = "multisched-gpu"
BORROWER: Final = "multisched-job"
LIMIT_S: Final = 120
LONG_LEASE: Final = {"duration": "40s", "renewDeadline": "30s"}
"""A process leaves a free lease to others for as long, so that the survivor leads one domain only for a while."""
Document = dict[str, Any]


@dataclass(frozen=True)
class Shared:
    """Two nodes with 16 cores each, and two processes that lead one domain each."""

    plane: ControlPlane
    admin: Admin
    judge: SliceJudge
    schedulers: tuple[Scheduler, Scheduler]

    def leader(self, lease: str) -> Scheduler:
        """Returns the process that holds a lease, or did so last."""
        identity = self.judge.holder(lease).rpartition("-")[0]
        return next(one for one in self.schedulers if one.identity == identity)

    async def slices(self) -> Document:
        """Returns the only SliceSet."""
        (found,) = await self.admin.items(SLICES)
        return found

    async def add(self, domain: str, count: int, cpu: str) -> None:
        """Creates pods without controllers."""
        since = self.judge.versions[ALL_PODS]
        for number in range(count):
            found = template(f"{domain}-scheduler", {}, cpu)
            name = f"{domain}-{cpu}-{since}-{number}"
            metadata = {**found["metadata"], "name": name}
            await self.admin.create({"apiVersion": "v1", "kind": "Pod", **found, "metadata": metadata})

    async def until_bound(self, prefix: str, count: int) -> None:
        async def are_bound() -> bool:
            return self.judge.bound(prefix) == count

        await until(are_bound, LIMIT_S)

    async def delete(self, prefix: str, count: int) -> None:
        """Removes bound pods at once, as if they had ended."""
        for pod in (await held(self.admin, prefix))[:count]:
            path = f"{PODS}/{pod['metadata']['name']}"
            await self.admin.request("DELETE", path, {"gracePeriodSeconds": 0})

    async def readiness(self, lease: str) -> str:
        """Returns what the leader says at /readyz?verbose."""
        _, text = await self.leader(lease).get("/readyz?verbose", self.plane.token)
        return text


@asynccontextmanager
async def shared(folder: Path, **lease: str) -> AsyncIterator[Shared]:
    """Nothing may ever be over allocatable while the block runs; the rights suffice, and no process fails."""
    async with ControlPlane.start(folder, audit=True) as plane, Admin.open(plane) as admin:
        await admin.create_all(node(name) for name in ("a", "b"))
        deployed = await Deployed.install(plane)
        await define(plane)
        await plane.start_program("kubelets", [str(MULTISCHED), "kubelets", "--kubeconfig", str(plane.kubeconfig)])
        all_leases: Document = {"perDomain": True, "spread": True, **lease}
        settings = {**SETTINGS, "lease": all_leases}
        async with SliceJudge.watching(admin) as judge:
            first, second = await deployed.start("first", settings), await deployed.start("second", settings)
            here = Shared(plane, admin, judge, (first, second))

            async def each_leads_one() -> bool:
                return len({judge.holder(LENDER), judge.holder(BORROWER)} - {""}) == 2

            await until(each_leads_one, LIMIT_S)
            yield here
            await judge.check_against_list()
            judge.check_slices()
        assert judge.violations == []
        assert judge.slices.above_offer == []
        assert plane.audit_log is not None
        refused = denied(calls(plane.audit_log), USER)
        assert [one for one in refused if "custom resource definition is terminating" not in one] == []
        assert [line for one in here.schedulers for line in one.failures()] == []


async def define(plane: ControlPlane) -> None:
    """Applies the definition of SliceSet."""
    await plane.apply_definitions(DEFINITION)


async def test_two_processes_share_nodes_without_overcommitting_them(tmp_path: Path) -> None:
    async with shared(tmp_path) as here:
        admin = here.admin
        await admin.create(job(40))
        await here.until_bound("images", 16)
        slices = await here.slices()
        assert sum(one["cpuMilli"] for one in slices["status"]["held"].values()) >= 16_000
        await admin.create(deployment(4))
        await until(partial(chat_runs, admin), LIMIT_S)
        await here.until_bound("images", 4)  # half of the 4 cores that are left of each node
        killed = here.leader(BORROWER)
        (left,) = (one for one in here.schedulers if one is not killed)
        await killed.program.kill()
        await here.plane.kubectl("scale", "deployment/chat", "--replicas=1")

        async def the_other_one_goes_on() -> bool:
            is_led = here.judge.holder(BORROWER).startswith(f"{left.identity}-")
            return is_led and here.judge.bound("images") == 13  # half of 16 and of 10

        await until(the_other_one_goes_on, LIMIT_S)


async def test_lender_takes_back_what_a_dead_borrower_held_unused(tmp_path: Path) -> None:
    async with shared(tmp_path, **LONG_LEASE) as here:
        await here.add("job", 16, "1")
        await here.until_bound("job", 16)
        dead = here.judge.holder(BORROWER)
        await here.leader(BORROWER).program.kill()
        await here.delete("job", 12)
        await here.add("gpu", 4, "6")
        await here.until_bound("gpu", 4)
        assert here.judge.holder(BORROWER) == dead, "no other process has taken its lease yet"
        slices = await here.slices()
        assert sum(one["cpuMilli"] for one in slices["status"]["held"].values()) == 4_000
        assert slices["status"]["borrowerEpoch"] >= 2, "old claims cannot take effect any more"


async def test_borrower_keeps_to_the_offers_of_a_dead_lender(tmp_path: Path) -> None:
    async with shared(tmp_path, **LONG_LEASE) as here:
        await here.add("job", 4, "1")
        await here.until_bound("job", 4)
        dead, offers = here.judge.holder(LENDER), (await here.slices())["spec"]
        assert sum(one["cpuMilli"] for one in offers["offers"].values()) == 16_000
        await here.leader(LENDER).program.kill()
        await here.add("job", 20, "1")
        await here.until_bound("job", 16)
        await here.delete("job", 8)
        await here.until_bound("job", 16)
        assert here.judge.holder(LENDER) == dead, "no other process has taken its lease yet"
        assert (await here.slices())["spec"] == offers

        async def is_taken_over() -> bool:
            return (
                here.judge.holder(LENDER) != dead
                and (await here.slices())["spec"]["lenderEpoch"] > offers["lenderEpoch"]
            )

        await until(is_taken_over, LIMIT_S)
        await here.add("gpu", 1, "14")
        await here.until_bound("gpu", 1)


async def test_nothing_is_borrowed_after_the_definition_was_deleted(tmp_path: Path) -> None:
    async with shared(tmp_path) as here:
        await here.add("job", 16, "1")
        await here.until_bound("job", 16)
        await here.plane.kubectl("delete", "crd/slicesets.multisched.io", "--wait=false")
        await here.add("job", 8, "2")

        async def is_gone() -> bool:
            return "slicesets.multisched.io" not in {
                one["metadata"]["name"] for one in await here.admin.items(DEFINITIONS)
            }

        await until(is_gone, LIMIT_S)
        assert here.judge.bound("job") == 0, "what was held has been returned before the object was removed"
        await here.add("gpu", 2, "8")
        await here.until_bound("gpu", 2)
        for lease in (LENDER, BORROWER):

            async def is_reported(lease: str = lease) -> bool:
                return "apply deploy/crds/slicesets.yaml" in await here.readiness(lease)

            await until(is_reported, LIMIT_S)
        assert here.judge.bound("job") == 0
        await here.delete("gpu", 2)
        await define(here.plane)
        await here.until_bound("job", 8)
