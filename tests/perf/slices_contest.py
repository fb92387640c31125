"""Both domains of a loan in one process against a process for each, on the same machine (`slices_bench --one-process`).

In each round equal pods of the lender and of the borrower are created, half of each. Rounds alternate. The lender's nodes have room for
all, and lend a share of it; if that is all, each pod of the lender has to take back what it needs. Before that, some pods are bound that
do not count: slices are offered and claimed then, and connections open. Rates are between the first and the last bind, while pods are
created on the same machine. CPU time is that of all processes from the creation of the pods until their events are stored, without what
the processes use in as much time without pods.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

import anyio

from tests.perf.bench_client import NODES, PODS, BenchClient
from tests.perf.slices_load import BORROWER, LENDER, NODE_PODS, node, pod
from tests.real.control_plane import ControlPlane
from tests.real.program import Program

DEFINITION: Final = Path(__file__).parents[2] / "deploy" / "crds" / "slicesets.yaml"
EVENTS: Final = "/apis/events.k8s.io/v1/namespaces/bench/events"
ONE: Final = "one process"
TWO: Final = "two processes"
STALL_S: Final = 90.0
SETTLE_S: Final = 3.0
IDLE_S: Final = 6.0
POLL_S: Final = 0.5
WARM_PODS: Final = 1_000
LED_S: Final = 60.0
LEASES: Final = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
LOAN: Final[Mapping[str, Any]] = {"from": LENDER, "resources": ["cpu", "memory"], "return": {"notice": "30s"}}


def configuration(kind: str, share_percent: int) -> dict[str, Any]:
    loan = {**LOAN, "sharePercent": share_percent}
    return {
        "apiVersion": "multisched.io/v1",
        "kind": "MultischedConfiguration",
        "server": {"port": 0},
        "lease": {"perDomain": kind == TWO, "spread": kind == TWO},
        "domains": [{"name": LENDER}, {"name": BORROWER, "loans": [loan]}],
    }


async def play(folder: Path, *, rounds: int, pods: int, nodes: int, share_percent: int) -> dict[str, Any]:
    """Returns the figures of each round, and the ratios of their medians."""
    found: dict[str, list[dict[str, float]]] = {ONE: [], TWO: []}
    async with ControlPlane.start(folder, controller_manager=False) as plane, BenchClient.open(plane) as client:
        await plane.kubectl("apply", "--server-side", "-f", str(DEFINITION))
        count = max(nodes, 2 * (pods + WARM_PODS) // NODE_PODS + 1)
        await client.create_all(NODES, map(node, range(count)))
        for number in range(rounds):
            for kind in (ONE, TWO) if number % 2 == 0 else (TWO, ONE):
                found[kind].append(await _round(plane, client, kind, pods, share_percent))
                print(f"{number + 1}: {kind} {found[kind][-1]}", file=sys.stderr, flush=True)
    ratios = {
        name: round(median(one[name] for one in found[TWO]) / median(one[name] for one in found[ONE]), 3)
        for name in ("podsPerS", "cpuMsPerPod")
    }
    missed = [f"podsPerS: {ratios['podsPerS']} < 0.95"] * (ratios["podsPerS"] < 0.95)
    missed += [f"cpuMsPerPod: {ratios['cpuMsPerPod']} > 1.10"] * (ratios["cpuMsPerPod"] > 1.10)
    return {"rounds": found, "twoByOne": ratios, "missed": missed}


async def _round(
    plane: ControlPlane, client: BenchClient, kind: str, pods: int, share_percent: int
) -> dict[str, float]:
    """The processes lead before the pods come; the round ends with the last bind, and its CPU a moment later, with the events."""
    path = plane.folder / f"{kind.replace(' ', '-')}.json"
    await anyio.Path(path).write_text(json.dumps(configuration(kind, share_percent)))
    command = [sys.executable, "-P", "-m", "multisched", "run", "--kubeconfig", str(plane.kubeconfig)]
    programs = [
        await Program.start(
            f"{kind} {number}", [*command, "--config", str(path)], path.with_suffix(f".{number}.log"), {**os.environ}
        )
        for number in range(2 if kind == TWO else 1)
    ]
    try:
        await _wait_led(client, len(programs))
        await asyncio.sleep(SETTLE_S)
        idle_s = -_cpu_s(programs)
        await asyncio.sleep(IDLE_S)
        idle_s = (idle_s + _cpu_s(programs)) / IDLE_S
        await _bound(client, "warm", WARM_PODS)
        before_s, began_s = _cpu_s(programs), time.monotonic()
        times, created_s = await _bound(client, "", pods)
        cpu_s = _cpu_s(programs) - before_s - idle_s * (time.monotonic() - began_s)
    finally:
        for program in programs:
            await program.stop(SETTLE_S * 5)
    for collection in (PODS, EVENTS):
        await client.empty(collection)
    await client.delete_leases("multisched")
    await client.compact()
    return {
        "bound": len(times),
        "podsPerS": round(len(times) / (max(times) - min(times)), 1),
        "createdInS": round(created_s, 1),
        "cpuMsPerPod": round(1000 * cpu_s / len(times), 3),
        "idleCpuMsPerS": round(1000 * idle_s, 1),
    }


async def _bound(client: BenchClient, prefix: str, pods: int) -> tuple[list[float], float]:
    """Creates pods of both domains, and waits until they are bound and their events are stored.

    Returns when each was bound, and how long the creation took.
    """
    waiting = [pod(domain, number, "100m", "64Mi") for number in range(pods // 2) for domain in (LENDER, BORROWER)]
    for one in waiting:
        one["metadata"]["name"] = prefix + one["metadata"]["name"]
    names = {one["metadata"]["name"] for one in waiting}
    events = await client.count(EVENTS)
    async with client.watch_binds() as watch:
        began_s = time.monotonic()
        await client.create_all(PODS, waiting)
        created_s = time.monotonic() - began_s
        await watch.wait(names, STALL_S)
    await _wait_events(client, events + len(waiting))
    return list(watch.bound_at.values()), created_s


async def _wait_led(client: BenchClient, count: int) -> None:
    """Waits until so many Leases of domains are held by different processes."""
    async with asyncio.timeout(LED_S):
        while True:
            leases = [one async for one in client.items(LEASES)]
            if (
                len({one["spec"].get("holderIdentity") for one in leases if "multisched" in one["metadata"]["name"]})
                >= count
            ):
                return
            await asyncio.sleep(SETTLE_S / 10)


async def _wait_events(client: BenchClient, count: int) -> None:
    """Waits until so many events are stored, or no further one is."""
    before, since_s = -1, time.monotonic()
    while before < count and time.monotonic() < since_s + SETTLE_S:
        if (stored := await client.count(EVENTS)) != before:
            before, since_s = stored, time.monotonic()
        await asyncio.sleep(POLL_S)


def _cpu_s(programs: Sequence[Program]) -> float:
    return sum(program.usage().cpu_s for program in programs)
