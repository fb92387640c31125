"""What open pages cost: bytes per page, how long they keep the event loop busy, and each document; 5,000 nodes, 100,000 pods.

`--pages` streams are open, in a process of their own; nothing else happens, so that the loop is busy with the documents only.
Pods are made in the API server of the embedded cluster, in the same process, before the measurement begins. `--browser`: frames and
updates in Chromium, too. Throughput with open pages: `kube_bench --scenario pages`.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import numpy as np
import orjson

from multisched.app import SystemClock
from multisched.cluster.api.direct import DirectTransport
from multisched.cluster.api.server import ApiServer
from multisched.config import loading
from multisched.observe.health import Health
from multisched.observe.metrics import Metrics
from multisched.observe.page_routes import PageSources
from multisched.observe.server import ServerSettings, Sources, serve
from multisched.shell.page.nodes import ProgramNodes
from multisched.shell.page.overview import ProgramOverview
from multisched.shell.page.pending import ProgramPending
from multisched.shell.page.preemptions import ProgramPreemptions
from multisched.shell.plugin_views import ProgramViews
from multisched.shell.program import Program, ProgramPorts
from multisched.shell.telemetry import ProgramQueues
from multisched.testing.builders import container, node_document, pod_document
from multisched.testing.quiet_observer import QuietObserver
from multisched.whatif.explain_source import ProgramExplanations
from multisched.whatif.repair_source import RepairPlans, plans_of
from tests.perf.page_frames import measure_frames
from tests.perf.page_readers import POLL_S, VIEWS, open_pages

CONFIGURATION: Final = """
apiVersion: multisched.io/v1
kind: MultischedConfiguration
lease: {enabled: false}
client: {auditPeriod: 1h}
domains: [{name: tests}]
"""
"""Without audits, which list all objects from the API server in this process."""
DOCUMENTS: Final = (
    "overview", "pending", "pending?group=tests/unschedulable/NodeResourcesFit", "nodes?limit=500", "nodes?match=77",
    "nodes/node-00001", "decisions?limit=100", "quotas/now", "gangs/now",
)  # fmt: skip
TIMES: Final = 5
"""Readings of each document."""
REST_S: Final = 10.0
TICK_S: Final = 0.001


class Stalls:
    """CPU time of the loop's thread between two turns of a task that wakes every TICK_S: how long others wait for the loop.

    CPU time, because other processes of the machine delay the task, too.
    """

    def __init__(self) -> None:
        self.busy_s: list[float] = []

    async def watch(self) -> None:
        while True:
            began_s = time.thread_time()
            await asyncio.sleep(TICK_S)
            self.busy_s.append(time.thread_time() - began_s)

    async def during(self, label: str, work: Callable[[], Awaitable[Any]]) -> None:
        """Prints these times, the wall time and the share of a CPU while the work runs."""
        self.busy_s.clear()
        cpu_s, began_s = time.process_time(), time.monotonic()
        result = await work()
        took_s = time.monotonic() - began_s
        cpu, busy_ms = (time.process_time() - cpu_s) / took_s, 1000 * np.array(self.busy_s or [0.0])
        said = f"{label:<55} {took_s:7.2f} s {cpu:6.1%} CPU   busy P99 {np.percentile(busy_ms, 99):6.1f} ms, max {busy_ms.max():6.1f} ms"
        print(said, "" if result is None else result, flush=True)


@asynccontextmanager
async def filled_program(nodes: int, bound: int, pending: int) -> AsyncIterator[Program]:
    """Runs a program over so many nodes and pods; the pending ones fit on no node."""
    clock = SystemClock()
    transport = DirectTransport(ApiServer(clock, seed=0, rbac=False))

    async def post(path: str, document: dict[str, Any]) -> None:
        answer = await transport.request("POST", path, body=orjson.dumps(document))
        assert answer.status == 201, answer.body

    def pod(name: str, cpu: str, **spec: Any) -> dict[str, Any]:
        return pod_document(name, container(cpu=cpu, image="app:v1"), schedulerName="tests-scheduler", **spec)

    pods = "/api/v1/namespaces/default/pods"
    for number in range(nodes):
        await post("/api/v1/nodes", node_document(f"node-{number:05}", cpu="64", memory="256Gi"))
    for number in range(bound):
        await post(pods, pod(f"bound-{number:06}", "100m", nodeName=f"node-{number % nodes:05}"))
    ports = ProgramPorts(
        transport, clock, random.Random(0), "bench", "kube-system", observer=lambda _: QuietObserver(), plan_repairs=plans_of
    )  # fmt: skip
    program = Program(loading.parse(CONFIGURATION, "bench"), ports)
    running = asyncio.create_task(program.run())
    for number in range(pending):
        await post(pods, pod(f"pending-{number:06}", str(100 + number % 7)))
    [worker] = program.router.workers()
    while not program.is_ready or worker.queue.statistics().pending["unschedulable"] < pending:  # noqa: ASYNC110
        await asyncio.sleep(0.5)
    await asyncio.sleep(POLL_S)  # events and conditions of the last pods
    gc.collect()
    gc.freeze()  # the objects of the API server, which a program of its own does not have
    yield program
    program.stop()
    await running


def sources_of(program: Program) -> Sources:
    queues = ProgramQueues(program, "bench")
    page = PageSources(
        ProgramOverview(program, queues, "bench"),
        ProgramPending(program, queues),
        ProgramNodes(program, queues),
        ProgramPreemptions(program),
    )
    explain, repair, views = ProgramExplanations(program), RepairPlans(program), ProgramViews(program)
    return Sources(Health(), Metrics(), queues, explain, repair, views, page=page)


async def measure(program: Program, pages: int, *, with_browser: bool) -> None:
    """Prints what the pages cost the loop of the program, which is idle otherwise; and a browser, if there is one."""
    stalls = Stalls()
    watching = asyncio.create_task(stalls.watch())
    async with serve(ServerSettings(port=0), sources_of(program)) as url:
        await stalls.during("without a page", lambda: asyncio.sleep(REST_S))
        async with open_pages(url, pages) as readers:
            await stalls.during(f"{pages} streams at rest", lambda: readers.tell("rest", REST_S))
            for path in DOCUMENTS:
                await stalls.during(f"{TIMES} x {path}", lambda path=path: readers.tell("read", TIMES, path))  # type: ignore[misc]
            await stalls.during(f"{TIMES} x {pages} pages at once", lambda: readers.tell("crowd", TIMES, *VIEWS))
        watching.cancel()
        if with_browser:
            await measure_frames(url)


async def main(nodes: int, bound: int, pending: int, pages: int, *, with_browser: bool) -> None:
    async with filled_program(nodes, bound, pending) as program:
        print(f"{nodes:,} nodes, {bound:,} bound and {pending:,} pending pods, {pages} pages")
        await measure(program, pages, with_browser=with_browser)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("nodes", 5_000), ("bound", 90_000), ("pending", 10_000), ("pages", 10)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--browser", action="store_true", help="measure frames and updates in Chromium, too")
    wanted = parser.parse_args()
    asyncio.run(main(wanted.nodes, wanted.bound, wanted.pending, wanted.pages, with_browser=wanted.browser))
