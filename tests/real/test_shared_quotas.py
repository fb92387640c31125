"""One quota tree for two processes on the real control plane, each of which leads a domain: never over a max, also while one dies."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.real.admin import PODS, Admin, until
from tests.real.control_plane import ControlPlane
from tests.real.deployed import LEASES, Deployed, Scheduler
from tests.real.test_loans import node, template

pytestmark = pytest.mark.timeout(400)

CRDS: Final = Path(__file__).parents[2] / "deploy" / "crds"
SLICES: Final = "/apis/multisched.io/v1alpha1/namespaces/multisched-system/slicesets"
LENDER, BORROWER = "gpu", "forecast"
SETTINGS: Final = {"lease": {"perDomain": True, "spread": True}, "domains": [{"name": LENDER}, {"name": BORROWER}]}
MAX_CORES: Final = 20
EACH: Final = 16
"""Pods of one core per domain; all of them together do not fit."""
LIMIT_S: Final = 120
STOP_GRACE_S: Final = 30.0
TREE: Final = {
    "apiVersion": "scheduling.sigs.k8s.io/v1beta1",
    "kind": "ElasticQuotaTree",
    "metadata": {"name": "teams", "namespace": "kube-system"},
    "spec": {
        "root": {
            "name": "root",
            "min": {"cpu": "40"},
            "max": {"cpu": "40"},
            "children": [
                {"name": "team", "namespaces": ["default"], "min": {"cpu": "8"}, "max": {"cpu": str(MAX_CORES)}}
            ],
        }
    },
}


class Judge:
    """Counts the pods of one core with a node at every version of its own watch."""

    def __init__(self) -> None:
        self.bound: dict[str, str] = {}
        """uid -> name."""
        self.most = 0

    def count(self, domain: str = "") -> int:
        return sum(name.startswith(domain) for name in self.bound.values())

    @classmethod
    @asynccontextmanager
    async def watching(cls, admin: Admin) -> AsyncIterator[Judge]:
        self = cls()
        _, version = await admin.listing(PODS)
        following = asyncio.create_task(self._follow(admin, version))
        yield self
        assert not following.done(), "the judge has seen everything"
        following.cancel()

    async def _follow(self, admin: Admin, version: str) -> None:
        async for event in admin.watch(PODS, version):
            assert event["type"] in ("ADDED", "MODIFIED", "DELETED"), event
            metadata, spec = event["object"]["metadata"], event["object"]["spec"]
            if event["type"] == "DELETED":
                self.bound.pop(metadata["uid"], None)
            elif spec.get("nodeName"):
                self.bound[metadata["uid"]] = metadata["name"]
            self.most = max(self.most, len(self.bound))


async def create(admin: Admin, domain: str, first: int, count: int) -> None:
    for number in range(first, first + count):
        found = template(f"{domain}-scheduler", {}, "1")
        await admin.create(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                **found,
                "metadata": {"name": f"{domain}-{number}", **found["metadata"]},
            }
        )


async def test_two_processes_fill_one_quota_and_never_exceed_it(tmp_path: Path) -> None:
    async with ControlPlane.start(tmp_path, controller_manager=False) as plane, Admin.open(plane) as admin:
        await plane.apply_definitions(CRDS)
        await plane.kubectl("apply", "-f", "-", document=json.dumps(TREE))
        plain: dict[str, Any] = node("work")
        del plain["status"]["capacity"]["nvidia.com/gpu"]
        await admin.create_all([node("cards-1"), node("cards-2"), plain, {**plain, "metadata": {"name": "work-2"}}])
        deployed = await Deployed.install(plane)
        schedulers = await deployed.start("first", SETTINGS), await deployed.start("second", SETTINGS)

        async def leader(domain: str) -> Scheduler | None:
            leases = {one["metadata"]["name"]: one["spec"] for one in await admin.items(LEASES)}
            holder = leases.get(f"multisched-{domain}", {}).get("holderIdentity") or ""
            return next((one for one in schedulers if holder.startswith(f"{one.identity}-")), None)

        async def each_leads_one() -> bool:
            return {await leader(LENDER), await leader(BORROWER)} == {*schedulers}

        await until(each_leads_one, LIMIT_S)
        async with Judge.watching(admin) as judge, asyncio.TaskGroup() as tasks:
            for domain in (LENDER, BORROWER):
                tasks.create_task(create(admin, domain, 0, EACH))

            async def is_full() -> bool:
                return len(judge.bound) == MAX_CORES

            await until(is_full, LIMIT_S)
            assert min(judge.count(LENDER), judge.count(BORROWER)) >= MAX_CORES - EACH
            assert await admin.items(SLICES), "room is shared by an object"

            killed = await leader(BORROWER)
            assert killed is not None
            await killed.program.kill()
            for name in [name for name in judge.bound.values() if name.startswith(BORROWER)]:
                await admin.request("DELETE", f"{PODS}/{name}", {"gracePeriodSeconds": 0})
            await create(admin, BORROWER, EACH, EACH)
            await until(is_full, LIMIT_S)
            (left,) = (one for one in schedulers if one is not killed)

            async def leads_both() -> bool:
                return await leader(BORROWER) is left

            await until(leads_both, LIMIT_S)
            await create(admin, LENDER, EACH, 1)
            assert judge.most == MAX_CORES
        assert await left.program.stop(STOP_GRACE_S) == 0
        assert left.denials() == left.failures() == []
