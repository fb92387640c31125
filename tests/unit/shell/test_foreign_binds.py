"""Pods that somebody else binds while we hold them."""

from __future__ import annotations

import asyncio
import random

import orjson
import pytest

from multisched.cluster.api.direct import DirectTransport
from multisched.cluster.api.server import ApiServer
from multisched.config import loading
from multisched.framework.points import CycleView, PermitResult
from multisched.framework.status import Code, Status
from multisched.model.objects import Pod
from multisched.shell.program import Program, ProgramPorts
from multisched.testing.checkers.invariants import differences
from multisched.testing.loop.sim_loop import SimClock, SimLoop, simulate
from multisched.testing.processes.quiet_observer import QuietObserver

CONFIGURATION = """
apiVersion: multisched.io/v1
kind: MultischedConfiguration
lease: {enabled: false}
domains:
- name: forecast
  profile: {plugins: {enabled: [{name: "tests.unit.shell.test_foreign_binds:HoldAll"}]}}
"""
PODS = "/api/v1/namespaces/default/pods"


class HoldAll:
    """Nobody ever allows a pod."""

    name = "HoldAll"

    def permit(self, cycle: CycleView, pod: Pod, node: str) -> PermitResult:
        return PermitResult(Status(Code.WAIT), 2.0)


@pytest.mark.parametrize("is_same_node", [True, False], ids=["where we wanted it", "elsewhere"])
def test_a_pod_that_somebody_binds_while_permit_holds_it_is_theirs(is_same_node: bool) -> None:
    loop = SimLoop(seed=1)

    async def main() -> None:
        clock = SimClock(loop)
        server = ApiServer(clock, rbac=False)
        api = DirectTransport(server)
        for name in ("a", "b"):
            amounts = {"cpu": "4", "memory": "8Gi", "pods": "10"}
            node = {"metadata": {"name": name}, "status": {"allocatable": amounts, "capacity": amounts}}
            await api.request("POST", "/api/v1/nodes", body=orjson.dumps(node))
        outside = ProgramPorts(api, clock, random.Random(1), "me", "kube-system", observer=lambda name: QuietObserver())
        program = Program(loading.parse(CONFIGURATION, "test"), outside)
        running = loop.create_task(program.run())
        spec = {"schedulerName": "forecast-scheduler", "containers": [{"name": "main", "image": "app"}]}
        await api.request("POST", PODS, body=orjson.dumps({"metadata": {"name": "held"}, "spec": spec}))
        await asyncio.sleep(0.5)
        (assumed,) = program.cache
        other = "a" if assumed.node == "b" else "b"
        target = {"metadata": {"name": "held"}, "target": {"name": assumed.node if is_same_node else other}}
        await api.request("POST", f"{PODS}/held/binding", body=orjson.dumps(target))

        await asyncio.sleep(30.0)

        assert not running.done()
        assert differences(program, server) == []
        (worker,) = program.router.workers()
        assert len(worker.queue) == 0
        assert worker.is_drained
        program.stop()
        await running

    simulate(main(), loop)
