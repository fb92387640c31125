"""The program's ledger of GPU devices, over the embedded API server: it goes by what the scheduler wrote at bind."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from multisched.config import loading
from multisched.shell.program import Program, ProgramPorts
from multisched.testing.builders import GPU
from multisched.testing.quiet_observer import QuietObserver
from multisched.testing.sim_loop import SimLoop, simulate
from multisched.testing.virtual_workers import VirtualThreads
from tests.kit.checkers.invariants import differences
from tests.unit.shell.program_kit import PODS, Site

CONFIGURATION = """
apiVersion: multisched.io/v1
kind: MultischedConfiguration
lease: {enabled: false}
"""
MILLI, DEVICES, ALLOCATED = (f"multisched.io/gpu-{name}" for name in ("milli", "devices", "allocated-milli"))

Annotations = Mapping[str, Any]


class GpuSite(Site):
    """A cluster with GPUs, and programs that come and go over it."""

    @asynccontextmanager
    async def program(self) -> AsyncIterator[Program]:
        ports = ProgramPorts(
            self.api,
            self.clock,
            random.Random(1),
            "tester",
            "kube-system",
            observer=lambda domain: QuietObserver(),
            background_threads=VirtualThreads,
        )
        program = Program(loading.parse(CONFIGURATION, "test"), ports)
        running = self.loop.create_task(program.run())
        try:
            yield program
        finally:
            program.stop()
            await running

    async def add_gpu_pod(self, name: str, annotations: Annotations, *, cpu: str = "10m", **fields: Any) -> None:
        """It is bound, if it can be, when this returns."""
        scheduler = fields.pop("scheduler", "gpu-scheduler")
        await self.add_pod(name, cpu=cpu, scheduler=scheduler, annotations=annotations, **fields)
        await asyncio.sleep(2.0)

    async def annotate(self, name: str, annotations: Annotations) -> None:
        await self.change_metadata(name, annotations=dict(annotations))
        await asyncio.sleep(2.0)


def play(scene: Callable[[GpuSite], Coroutine[Any, Any, None]], gpu_nodes: Iterable[str] = ("n",)) -> None:
    """On nodes of one GPU each."""
    loop = SimLoop(seed=1)

    async def main() -> None:
        site = GpuSite(loop)
        for name in gpu_nodes:
            await site.add_node(name, cpu="96", gpus=1)
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
def test_device_is_not_allocated_twice_after_changed_annotations(changes: Annotations) -> None:
    async def scene(site: GpuSite) -> None:
        async with site.program() as program:
            await site.add_gpu_pod("first", {MILLI: "600"})
            await site.annotate("first", changes)
            await site.add_gpu_pod("second", {MILLI: "600"})
            await asyncio.sleep(125.0)

            assert await site.node_of("first") == "n"
            assert await site.node_of("second") == ""
            assert program.audit.statistics().differences == 0
            assert differences(program, site.server) == []

            await site.delete_pod("first")
            await asyncio.sleep(5.0)
            assert await site.node_of("second") == "n"

    play(scene)


@pytest.mark.parametrize("changes", [{MILLI: None}, {MILLI: "1"}, OTHERS], ids=list(CHANGES)[:3])
def test_next_process_uses_the_allocation_written_at_bind(changes: Annotations) -> None:
    async def scene(site: GpuSite) -> None:
        async with site.program():
            await site.add_gpu_pod("first", {MILLI: "600"})
        await site.annotate("first", changes)
        async with site.program():
            await site.add_gpu_pod("second", {MILLI: "600"})
            await site.add_gpu_pod("third", {MILLI: "400"})

            assert await site.node_of("second") == ""
            assert await site.node_of("third") == "n"

    play(scene)


def test_pod_with_1100_annotations_still_gets_its_gpu() -> None:
    async def scene(site: GpuSite) -> None:
        async with site.program():
            await site.add_gpu_pod("many", {**OTHERS, MILLI: "600"})

            pod = await site.send("GET", f"{PODS}/many")
            assert pod["metadata"]["annotations"][DEVICES] == "0"
            assert pod["metadata"]["annotations"][ALLOCATED] == "600"

    play(scene)


@pytest.mark.parametrize("scheduler", ["default-scheduler", "gpu-scheduler"])
def test_foreign_pods_without_gpu_requests_block_no_gpu(scheduler: str) -> None:
    """A tenant with 10m of CPU on each node once shut all GPU nodes to everybody else."""
    names = [f"n{number}" for number in range(5)]

    async def scene(site: GpuSite) -> None:
        async with site.program():
            for name in names:
                await site.add_gpu_pod(f"tiny-{name}", {MILLI: "1000"}, scheduler=scheduler, node=name)
            for name in names:
                await site.add_gpu_pod(f"work-{name}", {MILLI: "1000"})

            assert {await site.node_of(f"work-{name}") for name in names} == set(names)

    play(scene, names)


def test_tainted_gpu_nodes_are_for_pods_that_need_gpus() -> None:
    async def scene(site: GpuSite) -> None:
        for name in ("a", "b"):
            taint = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
            await site.add_node(name, cpu="96", gpus=1, taints=[taint])
        async with site.program():
            await site.add_gpu_pod("cpu", {}, cpu="90")
            await site.add_gpu_pod("fraction", {MILLI: "250"})
            await site.add_gpu_pod("whole", {}, limits={GPU: "1"})

            assert await site.node_of("cpu") == ""
            assert {await site.node_of("fraction"), await site.node_of("whole")} == {"a", "b"}

    play(scene, ())
