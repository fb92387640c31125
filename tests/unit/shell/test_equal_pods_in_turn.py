"""Equal pods that are tried one after another when a pod has left its node."""

from __future__ import annotations

import asyncio

from multisched.testing.sim_loop import SimLoop, simulate
from tests.unit.shell.shell_kit import WorkerHarness


def test_freed_node_is_filled_with_equal_pods_and_one_more_is_tried() -> None:
    loop = SimLoop(seed=1)

    async def main() -> None:
        harness = WorkerHarness(loop, "a")
        async with harness.at_work():
            harness.see_pod("large", cpu="1900m", nodeName="a")
            names = [f"equal-{number}" for number in range(50)]
            for name in names:
                harness.see_pod(name, cpu="600m")
            await asyncio.sleep(20.0)
            before = harness.worker.counters.attempts
            harness.lose_pod("large")
            await asyncio.sleep(0.1)
            assert [harness.node_of(name) for name in names].count("a") == 3
            assert harness.worker.counters.attempts - before == 4

    simulate(main(), loop)
