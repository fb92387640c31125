"""A pod that a gate holds keeps no node from others, and nobody goes for it."""

from __future__ import annotations

import asyncio

from multisched.framework.status import SUCCESS, Status
from multisched.model.gang import GangApi, GangSpec
from multisched.model.objects import Pod
from multisched.testing.sim_loop import SimLoop, simulate
from tests.unit.shell.shell_kit import House
from tests.unit.shell.test_preemptor import preempting_house
from tests.unit.state.gang_kit import GANG_LABEL

ENDING = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
PREEMPTED = {"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]}
MEMBER = {"labels": {GANG_LABEL: "g"}}


class Gate:
    """Holds pods with a priority while it is closed."""

    name = "Gate"

    def __init__(self) -> None:
        self.is_closed = False

    def pre_enqueue(self, pod: Pod) -> Status:
        is_held = self.is_closed and pod.spec.priority
        return Status.unresolvable("the gate is closed") if is_held else SUCCESS


def test_gated_pod_loses_its_nomination_and_requeues_waiting_pods() -> None:
    loop, gate = SimLoop(seed=1), Gate()

    async def main() -> None:
        house = preempting_house(loop, "a", plugins=[gate])
        house.see_pod("low", cpu="500m", nodeName="a")
        async with house.at_work(house.preemptor.run):
            house.see_pod("high", cpu="2", priority=10)
            await asyncio.sleep(1.0)
            house.see_pod("low", cpu="500m", nodeName="a", metadata=ENDING, status=PREEMPTED)
            house.see_pod("waits")
            await asyncio.sleep(5.0)
            assert (house.domain.nominator.node_of("uid-high"), house.node_of("waits")) == ("a", None)
            gate.is_closed = True
            house.worker.queue.activate("uid-high", loop.time())
            await asyncio.sleep(5.0)
            assert (house.domain.nominator.node_of("uid-high"), house.node_of("waits")) == ("", "a")
            written = [condition for pod, condition in house.desk.conditions if pod == "high"][-1]
            assert (written.message, written.nominated_node) == ("the gate is closed", "")
            house.see_pod("high", cpu="2", priority=10, status={"nominatedNodeName": "a"})
            await asyncio.sleep(1.0)
            assert house.domain.nominator.node_of("uid-high") == "", "only a late version of the pod has the node"

    simulate(main(), loop)


def test_preemption_is_dropped_if_the_gang_lost_a_member_before_it() -> None:
    loop = SimLoop(seed=1)

    async def main() -> None:
        house = House(loop, "a", profile="default")
        house.cache.gangs.set_object(GangApi.SCHEDULER_PLUGINS, "default/g", GangSpec(2))
        house.see_pod("low", cpu="2", nodeName="a")
        async with house.at_work():
            for name in ("g0", "g1"):
                house.see_pod(name, priority=10, metadata=MEMBER)
            await asyncio.sleep(1.0)
            assert house.domain.nominator.node_of("uid-g1") == "a"
            house.lose_pod("g0")
            async with asyncio.TaskGroup() as tasks:
                preempting = tasks.create_task(house.preemptor.run())
                await asyncio.sleep(5.0)
                preempting.cancel()
            assert (house.desk.writes_sent, len(house.domain.nominator), len(house.removals)) == (
                [("clear", "g1")],
                0,
                0,
            )

    simulate(main(), loop)
