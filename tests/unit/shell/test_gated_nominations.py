"""A pod that a gate holds keeps no node from others, and nobody goes for it."""

from __future__ import annotations

import asyncio

from multisched.framework.status import SUCCESS, Status
from multisched.model.gang import GangApi, GangSpec
from multisched.model.objects import Pod
from multisched.testing.sim_loop import SimLoop, simulate
from tests.unit.shell.shell_kit import WorkerHarness
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
        harness = preempting_house(loop, "a", plugins=[gate])
        harness.see_pod("low", cpu="500m", nodeName="a")
        async with harness.at_work(harness.preemptor.run):
            harness.see_pod("high", cpu="2", priority=10)
            await asyncio.sleep(1.0)
            harness.see_pod("low", cpu="500m", nodeName="a", metadata=ENDING, status=PREEMPTED)
            harness.see_pod("waits")
            await asyncio.sleep(5.0)
            assert (harness.domain.nominator.node_of("uid-high"), harness.node_of("waits")) == ("a", None)
            gate.is_closed = True
            harness.worker.queue.activate("uid-high", loop.time())
            await asyncio.sleep(5.0)
            assert (harness.domain.nominator.node_of("uid-high"), harness.node_of("waits")) == ("", "a")
            written = [condition for pod, condition in harness.desk.conditions if pod == "high"][-1]
            assert (written.message, written.nominated_node) == ("the gate is closed", "")
            harness.see_pod("high", cpu="2", priority=10, status={"nominatedNodeName": "a"})
            await asyncio.sleep(1.0)
            assert harness.domain.nominator.node_of("uid-high") == "", "only a late version of the pod has the node"

    simulate(main(), loop)


def test_preemption_is_dropped_if_the_gang_lost_a_member_before_it() -> None:
    loop = SimLoop(seed=1)

    async def main() -> None:
        harness = WorkerHarness(loop, "a", profile="default")
        harness.cache.gangs.set_object(GangApi.SCHEDULER_PLUGINS, "default/g", GangSpec(2))
        harness.see_pod("low", cpu="2", nodeName="a")
        async with harness.at_work():
            for name in ("g0", "g1"):
                harness.see_pod(name, priority=10, metadata=MEMBER)
            await asyncio.sleep(1.0)
            assert harness.domain.nominator.node_of("uid-g1") == "a"
            harness.lose_pod("g0")
            async with asyncio.TaskGroup() as tasks:
                preempting = tasks.create_task(harness.preemptor.run())
                await asyncio.sleep(5.0)
                preempting.cancel()
            assert (harness.desk.writes_sent, len(harness.domain.nominator), len(harness.removals)) == (
                [("clear", "g1")],
                0,
                0,
            )

    simulate(main(), loop)
