"""The steps of sliced loans on the core alone: `python -m tests.perf.slice_core_bench [--nodes 5000] [--rate 200] [--check]`.

One process leads the lender and the borrower of a loan of `--nodes` nodes, over an API server in memory and in virtual time. First all
nodes are offered; then pods of the borrower arrive, wait for claims, run for half a minute and end, while pods of the lender
come and go. One row per figure: the longest step of the event loop that slices cause, and their CPU time per pod. All times are CPU times.
`--check` holds the figures against the bars and exits 1 when one is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import random
import sys
import time
from asyncio import events
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from multisched.cycle.waiting_pods import WaitingPodTable
from multisched.framework.background import BackgroundPorts
from multisched.framework.context import PluginContext
from multisched.framework.slice_writes import SliceReply, SliceRequest
from multisched.framework.status import Code, Status
from multisched.model.cluster_objects import SliceSet
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Node, Pod
from multisched.plugins.loans.sliced_loans import SlicedLoans
from multisched.plugins.loans.terms import BORROWERS_ARG, DOMAIN_ARG, SLICED, Borrower, LoanTerms, ReturnTerms
from multisched.shell.garbage import disable_gc
from multisched.state.cluster_cache import ClusterCache
from multisched.state.domain_rows import DomainRows
from multisched.testing.builders import make_node, make_pod
from multisched.testing.sim_loop import SimClock, SimLoop, simulate
from tests.unit.plugins.loans.slices.slice_api import SliceApi
from tests.unit.plugins.loans.slices.slice_judge import SliceJudge

LENDER: Final = "gpu"
BORROWER: Final = "job"
NODE_MILLI: Final = 16_000
POD_MILLI: Final = 500
RUN_S: Final = 30.0
ARRIVAL_S: Final = 0.1
WRITE_S: Final = 0.01
"""Until a write is answered."""
WATCH_S: Final = 0.02
FIRST, LOAD = "first offers", "load"
BARS: Final = {f"longest step of {FIRST}, ms": 10.0, f"longest step of {LOAD}, ms": 5.0, "CPU per pod, us": 2_000.0}


class Steps:
    """The longest step of the event loop, by phase and by the function of its task or callback."""

    def __init__(self) -> None:
        self.phase = FIRST
        self.longest: dict[str, float] = defaultdict(float)
        self.total_s: dict[str, float] = defaultdict(float)
        self.by_name: dict[tuple[str, str], float] = defaultdict(float)
        self._genuine = events.Handle._run

    def __enter__(self) -> Steps:
        genuine, steps = self._genuine, self

        def run(handle: Any) -> None:
            began_s = time.thread_time()
            genuine(handle)
            steps.note(handle, time.thread_time() - began_s)

        events.Handle._run = run  # type: ignore[method-assign,assignment]
        return self

    def __exit__(self, *error: object) -> None:
        events.Handle._run = self._genuine  # type: ignore[method-assign]

    def note(self, handle: Any, took_s: float) -> None:
        task = getattr(handle._callback, "__self__", None)
        name = getattr(task.get_coro(), "__qualname__", "") if isinstance(task, asyncio.Task) else ""
        if not name.startswith("SliceDriver"):
            return
        self.total_s[self.phase] += took_s
        self.by_name[self.phase, name] = max(self.by_name[self.phase, name], took_s)
        self.longest[self.phase] = max(self.longest[self.phase], took_s)


class Ports:
    """`SlicePorts` over an API server in memory, whose watch fills the cache's objects."""

    namespace = "default"

    def __init__(self, api: SliceApi, cache: ClusterCache) -> None:
        self._api, self._cache = api, cache
        self._shown = 0
        self.writes = 0

    def term(self) -> int:
        return 1

    def may_write(self) -> bool:
        return True

    async def list(self) -> Sequence[SliceSet]:
        return self._api.listed()

    async def send(self, request: SliceRequest) -> SliceReply:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[SliceReply] = loop.create_future()
        self.writes += 1
        loop.call_later(WRITE_S, lambda: answer.set_result(self._api.handle(request)))
        loop.call_later(WRITE_S + WATCH_S, self._watch)
        return await answer

    def _watch(self) -> None:
        for exists, found in self._api.slice_events[self._shown :]:
            assert exists, "none is removed here"
            self._cache.objects.set(ObjectKind.SLICE_SET, found)
        self._shown = len(self._api.slice_events)

    async def has_no_leader(self, domain: str) -> bool:
        return False

    async def relist(self) -> None:
        return None


class Process:
    """One process with both domains."""

    def __init__(self, nodes: int) -> None:
        self.cache = ClusterCache()
        self.cache.add_domain(DomainRows(LENDER, lambda node: True))
        self.waiting = {name: WaitingPodTable() for name in (LENDER, BORROWER)}
        loan = LoanTerms(
            LENDER,
            BORROWER,
            lambda node: True,
            "nodes",
            resources=SLICED,
            returns=ReturnTerms(60.0, 10.0, 120.0, 6),
            is_sliced=True,
            users={LENDER: frozenset({"gpu-scheduler"})},
            schedulers=frozenset({"gpu-scheduler", "job-scheduler"}),
        )
        borrowers = (Borrower(BORROWER, frozenset({"job-scheduler"}), (loan,)),)
        self.plugins = {
            name: SlicedLoans(
                PluginContext(name, self.cache.nodes, self.waiting[name], self.cache.ledgers, self.cache.objects),
                {BORROWERS_ARG: borrowers, DOMAIN_ARG: name},
            )
            for name in (LENDER, BORROWER)
        }
        self.judge = SliceJudge(defaultdict(lambda: (NODE_MILLI, 64 << 30, 110)))
        self.api = SliceApi(self.judge)
        self.ports = Ports(self.api, self.cache)
        for number in range(nodes):
            self.cache.set_node(made_node(number))
        self.bound = 0
        self.refused = 0

    async def arrive(self, rate: float, seconds: float, clock: SimClock, rng: random.Random) -> None:
        """Pods of the borrower, and a tenth as many of the lender, arrive in small lots and end after RUN_S."""
        ends: list[tuple[float, str]] = []
        number, began_s = 0, clock.monotonic()
        while clock.monotonic() < began_s + seconds:
            await asyncio.sleep(ARRIVAL_S)
            while ends and ends[0][0] <= clock.monotonic():
                self.cache.remove(heapq.heappop(ends)[1])
            for _ in range(int(rate * ARRIVAL_S)):
                number += 1
                row = rng.randrange(self.cache.nodes.node_count)
                domain = LENDER if number % 10 == 0 else BORROWER
                pod = make_pod_like(number, f"{domain}-scheduler")
                if not self.cache.ledgers.fits(pod, row):
                    self.place(domain, pod, row)
                    heapq.heappush(ends, (clock.monotonic() + RUN_S * rng.uniform(0.5, 1.5), pod.uid))
                else:
                    self.refused += 1

    def place(self, domain: str, pod: Pod, row: int) -> None:
        self.cache.assume(pod, row)
        node = self.cache.nodes.node(row).name

        def decided(status: Status) -> None:
            if status.code is Code.SUCCESS:
                self.bound += 1
                self.cache.place(replace(pod, node=node, version=2))
            else:
                self.refused += 1
                self.cache.forget(pod.uid)
                plugin.ledger.slices.forget_claim(pod.uid)

        plugin = self.plugins[domain]
        result = plugin.permit(None, pod, node)  # type: ignore[arg-type]
        if result.status.code is Code.WAIT:
            self.waiting[domain].hold(pod, {plugin.name: result.timeout_s}, 0.0, decided)
        else:
            decided(result.status)


def made_node(number: int) -> Node:
    return make_node(f"n{number}", cpu_milli=NODE_MILLI, memory_bytes=64 << 30, pods=110)


TEMPLATES: Final[dict[str, Pod]] = {}


def make_pod_like(number: int, scheduler: str) -> Pod:
    if scheduler not in TEMPLATES:
        TEMPLATES[scheduler] = make_pod("p", cpu_milli=POD_MILLI, memory_bytes=64 << 20, scheduler=scheduler)
    return replace(TEMPLATES[scheduler], name=f"p{number}", uid=f"uid-p{number}")


class Found(msgspec.Struct):
    steps: Steps
    pods: int
    refused: int
    writes: int


def run(nodes: int, rate: float, seconds: float) -> Found:
    loop = SimLoop(1)
    clock = SimClock(loop)
    process, steps = Process(nodes), Steps()

    async def main() -> None:
        ports = BackgroundPorts(clock, random.Random(1), in_thread=None)  # type: ignore[arg-type]
        for plugin in process.plugins.values():
            await plugin.own_slices(process.ports)
        for plugin in process.plugins.values():
            plugin.settle_slices()
        tasks = [asyncio.create_task(plugin.driver.run(ports)) for plugin in process.plugins.values()]
        await asyncio.sleep(15.0)
        steps.phase = LOAD
        await process.arrive(rate, seconds, clock, random.Random(2))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    with steps:
        simulate(main(), loop)
    assert not process.judge.violations, process.judge.violations[0]
    return Found(steps, process.bound, process.refused, process.ports.writes)


def figures_of(found: Found) -> Mapping[str, float]:
    longest = {f"longest step of {phase}, ms": 1000.0 * took_s for phase, took_s in found.steps.longest.items()}
    return {**longest, "CPU per pod, us": 1e6 * found.steps.total_s[LOAD] / max(1, found.pods)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=5_000)
    parser.add_argument("--rate", type=float, default=200.0, help="pods per second")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    disable_gc()
    found = run(options.nodes, options.rate, options.seconds)
    for (phase, name), took_s in sorted(found.steps.by_name.items()):
        print(f"{phase:12} longest step of {name:40} {1000.0 * took_s:9.2f} ms")
    figures = figures_of(found)
    print(f"pods {found.pods}, refused {found.refused}, writes {found.writes}")
    for name, value in figures.items():
        print(f"{name:30} {value:10.2f}   (bar {BARS[name]:g})")
    missed = [name for name, value in figures.items() if value > BARS[name]]
    return 1 if options.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
