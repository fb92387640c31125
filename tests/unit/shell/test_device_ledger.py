"""The program's books of GPU devices, over the embedded API server: they go by what the scheduler wrote at bind."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest

from multisched.cluster.api.direct import DirectTransport
from multisched.cluster.api.server import ApiServer
from multisched.config import loading
from multisched.shell.program import Program, ProgramPorts
from multisched.testing.checkers.invariants import differences
from multisched.testing.loop.sim_loop import SimClock, SimLoop, simulate
from multisched.testing.processes.quiet_observer import QuietObserver

CONFIGURATION = """
apiVersion: multisched.io/v1
kind: MultischedConfiguration
lease: {enabled: false}
"""
PODS = "/api/v1/namespaces/default/pods"
MILLI, DEVICES, ALLOCATED = (f"multisched.io/gpu-{name}" for name in ("milli", "devices", "allocated-milli"))
MERGE = "application/merge-patch+json"

Annotations = Mapping[str, str | None]


class Site:
    """A cluster, and programs that come and go over it."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self._clock = SimClock(loop)
        self.server = ApiServer(self._clock, rbac=False)
        self._api = DirectTransport(self.server)

    @asynccontextmanager
    async def program(self) -> Any:
        ports = ProgramPorts(
            self._api, self._clock, random.Random(1), "tester", "kube-system", observer=lambda domain: QuietObserver()
        )
        program = Program(loading.parse(CONFIGURATION, "test"), ports)
        running = self._loop.create_task(program.run())
        try:
            yield program
        finally:
            program.stop()
            await running

    async def send(
        self, method: str, path: str, document: object = None, content_type: str = "application/json"
    ) -> dict[str, Any]:
        body = orjson.dumps(document) if document is not None else None
        answer = await self._api.request(method, path, body=body, content_type=content_type)
        assert answer.status < 300, answer.body
        sent: dict[str, Any] = orjson.loads(answer.body)
        return sent

    async def add_node(self, name: str, gpus: int, **spec: object) -> None:
        allocatable = {"cpu": "96", "memory": "8Gi", "pods": "100", "nvidia.com/gpu": str(gpus)}
        status = {"allocatable": allocatable, "capacity": allocatable}
        await self.send(
            "POST", "/api/v1/nodes", {"kind": "Node", "metadata": {"name": name}, "spec": spec, "status": status}
        )

    async def add_pod(
        self,
        name: str,
        annotations: Annotations,
        *,
        scheduler: str = "gpu-scheduler",
        node: str = "",
        cpu: str = "10m",
        whole: int = 0,
    ) -> None:
        metadata = {"name": name, "annotations": dict(annotations)}
        limits = {"nvidia.com/gpu": str(whole)} if whole else {}
        containers = [{"name": "main", "image": "app", "resources": {"requests": {"cpu": cpu}, "limits": limits}}]
        spec = {"schedulerName": scheduler, "containers": containers, **({"nodeName": node} if node else {})}
        await self.send("POST", PODS, {"kind": "Pod", "metadata": metadata, "spec": spec})
        await asyncio.sleep(2.0)

    async def annotate(self, name: str, annotations: Annotations) -> None:
        await self.send("PATCH", f"{PODS}/{name}", {"metadata": {"annotations": dict(annotations)}}, MERGE)
        await asyncio.sleep(2.0)

    async def node_of(self, name: str) -> str:
        pod = await self.send("GET", f"{PODS}/{name}")
        return str(pod["spec"].get("nodeName", ""))


def play(scene: Callable[[Site], Coroutine[Any, Any, None]], gpu_nodes: Iterable[str] = ("n",)) -> None:
    """On nodes of one GPU each."""
    loop = SimLoop(seed=1)

    async def main() -> None:
        site = Site(loop)
        for name in gpu_nodes:
            await site.add_node(name, 1)
        await scene(site)

    simulate(main(), loop)


OTHERS = {f"example.com/note-{number}": "x" for number in range(1_100)}
CHANGES: dict[str, Annotations] = {
    "amount removed": {MILLI: None},
    "amount lowered": {MILLI: "1"},
    "1,100 others": OTHERS,
    "all removed": {MILLI: None, DEVICES: None, ALLOCATED: None},
}


@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES)
def test_a_device_is_not_given_twice_after_the_annotations_of_its_pod_changed(changes: Annotations) -> None:
    async def scene(site: Site) -> None:
        async with site.program() as program:
            await site.add_pod("first", {MILLI: "600"})
            await site.annotate("first", changes)
            await site.add_pod("second", {MILLI: "600"})
            await asyncio.sleep(125.0)

            assert await site.node_of("first") == "n"
            assert await site.node_of("second") == ""
            assert program.audit.statistics().differences == 0
            assert differences(program, site.server) == []

            await site.send("DELETE", f"{PODS}/first?gracePeriodSeconds=0")
            await asyncio.sleep(5.0)
            assert await site.node_of("second") == "n"

    play(scene)


@pytest.mark.parametrize("changes", [{MILLI: None}, {MILLI: "1"}, OTHERS], ids=list(CHANGES)[:3])
def test_the_next_process_goes_by_what_was_written_at_bind(changes: Annotations) -> None:
    async def scene(site: Site) -> None:
        async with site.program():
            await site.add_pod("first", {MILLI: "600"})
        await site.annotate("first", changes)
        async with site.program():
            await site.add_pod("second", {MILLI: "600"})
            await site.add_pod("third", {MILLI: "400"})

            assert await site.node_of("second") == ""
            assert await site.node_of("third") == "n"

    play(scene)


def test_a_pod_that_waits_with_1100_annotations_still_gets_the_gpu_it_asks_for() -> None:
    async def scene(site: Site) -> None:
        async with site.program():
            await site.add_pod("many", {**OTHERS, MILLI: "600"})

            pod = await site.send("GET", f"{PODS}/many")
            assert pod["metadata"]["annotations"][DEVICES] == "0"
            assert pod["metadata"]["annotations"][ALLOCATED] == "600"

    play(scene)


@pytest.mark.parametrize("scheduler", ["default-scheduler", "gpu-scheduler"])
def test_pods_of_strangers_that_request_no_gpu_block_none(scheduler: str) -> None:
    """A tenant with 10m of CPU on each node once shut all GPU nodes to everybody else."""
    names = [f"n{number}" for number in range(5)]

    async def scene(site: Site) -> None:
        async with site.program():
            for name in names:
                await site.add_pod(f"tiny-{name}", {MILLI: "1000"}, scheduler=scheduler, node=name)
            for name in names:
                await site.add_pod(f"work-{name}", {MILLI: "1000"})

            assert {await site.node_of(f"work-{name}") for name in names} == set(names)

    play(scene, names)


def test_tainted_gpu_nodes_are_for_pods_that_need_gpus() -> None:
    async def scene(site: Site) -> None:
        for name in ("a", "b"):
            taint = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
            await site.add_node(name, 1, taints=[taint])
        async with site.program():
            await site.add_pod("cpu", {}, cpu="90")
            await site.add_pod("fraction", {MILLI: "250"})
            await site.add_pod("whole", {}, whole=1)

            assert await site.node_of("cpu") == ""
            assert {await site.node_of("fraction"), await site.node_of("whole")} == {"a", "b"}

    play(scene, ())
