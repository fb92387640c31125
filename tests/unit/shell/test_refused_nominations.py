"""A pod that is refused wherever it goes keeps no node from others."""

from __future__ import annotations

import asyncio

import pytest

from multisched.framework.points import CycleView
from multisched.framework.status import SUCCESS, Status
from multisched.model.objects import Pod
from multisched.testing.sim_loop import SimLoop, simulate
from tests.unit.shell.shell_kit import WorkerHarness
from tests.unit.shell.test_domain_worker import NamespaceQuota
from tests.unit.state.state_kit import NamespaceRoom

TEAM = {"namespace": "team"}
"""Metadata of pods whose namespace has nearly used up its quota."""


class RefusesAtReserve(NamespaceQuota):
    def reserve(self, cycle: CycleView, pod: Pod, node: str) -> Status:
        return Status.unschedulable("no room in the quota") if pod.name == "high" else SUCCESS


@pytest.mark.parametrize("where", ["its ledger", "Reserve"])
def test_pod_refused_by_quota_loses_its_nomination(where: str) -> None:
    loop = SimLoop(seed=1)

    async def main() -> None:
        harness = WorkerHarness(loop, "a", plugins=[NamespaceQuota() if where == "its ledger" else RefusesAtReserve()])
        harness.see_node("b", cpu="1", labels={"domain": "other"})
        if where == "its ledger":
            harness.cache.ledgers.register(NamespaceRoom(1000))
        async with harness.at_work():
            harness.see_pod("uses", cpu="800m", metadata=TEAM, nodeName="b")
            harness.see_pod("high", cpu="500m", metadata=TEAM, priority=10, status={"nominatedNodeName": "a"})
            await asyncio.sleep(5.0)
            assert harness.domain.nominator.node_of("uid-high") == ""
            assert next(condition.nominated_node for pod, condition in harness.desk.conditions if pod == "high") == ""
            harness.see_pod("low-1", metadata={"namespace": "free"})
            harness.see_pod("low-2", metadata={"namespace": "other"})
            await asyncio.sleep(30.0)
            assert (harness.node_of("low-1"), harness.node_of("low-2")) == ("a", "a")

    simulate(main(), loop)
