"""Pods that somebody else binds while we hold them."""

from __future__ import annotations

import asyncio
import random

import pytest

from multisched.config import loading
from multisched.framework.points import CycleView, PermitResult
from multisched.framework.status import Code, Status
from multisched.model.objects import Pod
from multisched.shell.program import Program, ProgramPorts
from multisched.testing.quiet_observer import QuietObserver
from multisched.testing.sim_loop import SimLoop, simulate
from multisched.testing.virtual_workers import VirtualThreads
from tests.kit.checkers.invariants import differences
from tests.unit.shell.program_kit import Site

CONFIGURATION = """
apiVersion: multisched.io/v1
kind: MultischedConfiguration
lease: {enabled: false}
domains:
- name: forecast
  profile: {plugins: {enabled: [{name: "tests.unit.shell.test_foreign_binds:HoldAll"}]}}
"""


class HoldAll:
    """Nobody ever allows a pod."""

    name = "HoldAll"

    def permit(self, cycle: CycleView, pod: Pod, node: str) -> PermitResult:
        return PermitResult(Status(Code.WAIT), 2.0)


@pytest.mark.parametrize("is_same_node", [True, False], ids=["where we wanted it", "elsewhere"])
def test_foreign_bind_during_permit_is_accepted(is_same_node: bool) -> None:
    loop = SimLoop(seed=1)

    async def main() -> None:
        site = Site(loop)
        for name in ("a", "b"):
            await site.add_node(name)
        ports = ProgramPorts(
            site.api,
            site.clock,
            random.Random(1),
            "me",
            "kube-system",
            observer=lambda name: QuietObserver(),
            background_threads=VirtualThreads,
        )
        program = Program(loading.parse(CONFIGURATION, "test"), ports)
        running = loop.create_task(program.run())
        await site.add_pod("held")
        await asyncio.sleep(0.5)
        (assumed,) = program.cache
        other = "a" if assumed.node == "b" else "b"
        await site.bind("held", assumed.node if is_same_node else other)

        await asyncio.sleep(30.0)

        assert not running.done()
        assert differences(program, site.server) == []
        (worker,) = program.router.workers()
        assert len(worker.queue) == 0
        assert worker.is_drained
        program.stop()
        await running

    simulate(main(), loop)
