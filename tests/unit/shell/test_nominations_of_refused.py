"""A pod that is refused wherever it goes keeps no node from others."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from multisched.framework.points import CycleView
from multisched.framework.status import SUCCESS, Status
from multisched.model.objects import Pod
from multisched.testing.builders import container, pod_document
from multisched.testing.loop.sim_loop import SimLoop, simulate
from tests.unit.shell.shell_kit import House, as_served
from tests.unit.shell.test_domain_worker import NamespaceQuota
from tests.unit.state.state_kit import NamespaceRoom


def see(house: House, namespace: str, name: str, cpu: str, **fields: Any) -> None:
    status = {"phase": "Pending"} | fields.pop("status", {})
    spec = {"schedulerName": "ours", "containers": [container(cpu=cpu)], **fields}
    document = pod_document(name, metadata={"uid": f"uid-{name}", "namespace": namespace}, status=status, **spec)
    house.pods.upsert(f"{namespace}/{name}", as_served(document))


class RefusesAtReserve(NamespaceQuota):
    def reserve(self, cycle: CycleView, pod: Pod, node: str) -> Status:
        return Status.unschedulable("no room in the quota") if pod.name == "high" else SUCCESS


@pytest.mark.parametrize("where", ["its ledger", "Reserve"])
def test_a_pod_that_a_quota_refuses_keeps_no_nominated_node(where: str) -> None:
    loop = SimLoop(seed=1)

    async def main() -> None:
        house = House(loop, "a", plugins=[NamespaceQuota() if where == "its ledger" else RefusesAtReserve()])
        house.see_node("b", cpu="1", labels={"domain": "other"})
        if where == "its ledger":
            house.cache.ledgers.register(NamespaceRoom(1000))
        async with house.at_work():
            see(house, "team", "uses", "800m", nodeName="b")  # the quota of this namespace is nearly used up
            see(house, "team", "high", "500m", priority=10, status={"nominatedNodeName": "a"})
            await asyncio.sleep(5.0)
            assert house.domain.nominator.node_of("uid-high") == ""
            see(house, "free", "low-1", "1")
            see(house, "other", "low-2", "1")
            await asyncio.sleep(30.0)
            assert (house.node_of("low-1"), house.node_of("low-2")) == ("a", "a")

    simulate(main(), loop)
