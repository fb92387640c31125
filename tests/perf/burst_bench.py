"""Bursts of jobs: multisched against an echo on one real API server, in alternating rounds (scenarios of `kube_bench`).

job-burst  10,000 equal pods at once on 2,000 virtual nodes: the span from the first create to the last bind, beside the echo's.
           Also forecast pods at 50/s, with the burst and without it.
cron       1,000 pods with Job owners, created within 1.2 s: created to bound, beside the echo's.
turnover   500 slots, pods of 5 s, 5,000 of them waiting: how long a free slot waits for its next pod.

The echo (`bare_binder.py`) binds each pod that its watch shows to a precomputed node; nothing that decides can be faster.
All times are the client's. `scale` multiplies pods and nodes.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import anyio

from tests.perf import workload
from tests.perf.bench_client import NODES, PODS, BenchClient, BindWatch
from tests.perf.bench_figures import Bar
from tests.perf.burst_figures import (
    BurstRound,
    CronRound,
    TurnoverRound,
    burst_bars,
    burst_round,
    cron_bars,
    cron_round,
    turnover_bars,
    turnover_round,
)
from tests.perf.contenders import ECHO, MULTISCHED, Contender, bare_binder, multisched
from tests.real.control_plane import ControlPlane
from tests.real.program import Program

SCENARIOS: Final = ("job-burst", "cron", "turnover")
JOB: Final = "job-scheduler"
FORECAST: Final = "forecast-scheduler"

BURST_PODS: Final = 10_000
BURST_NODES: Final = 2_000
FORECAST_NODES: Final = 500
FORECAST_PODS_PER_S: Final = 50
ALONE: Final = "forecast alone"
BESIDE: Final = "both"
CRON_PODS: Final = 1_000
CRON_S: Final = 1.2
SLOTS: Final = 500
TURNOVER_PODS: Final = 5_000
POD_S: Final = 5.0

CREATES_IN_FLIGHT: Final = 64
STALL_S: Final = 60.0
SETTLE_S: Final = 3.0
STOP_GRACE_S: Final = 15.0


class BurstBench:
    """The rounds on one control plane. Nodes stay from round to round; everything else is removed after each."""

    def __init__(
        self,
        plane: ControlPlane,
        client: BenchClient,
        *,
        config: Path | None,
        scale: float,
        rounds: int,
        is_wrong: Callable[[], Awaitable[tuple[int, int]]],
        clean: Callable[[], Awaitable[None]],
        say: Callable[[str], None],
    ) -> None:
        """`is_wrong`: counts overcommitted nodes and pods against a rule. `clean`: removes all pods and events."""
        self._plane = plane
        self._client = client
        self._scale = scale
        self._rounds = rounds
        self._is_wrong = is_wrong
        self._clean = clean
        self._say = say
        self._ours = multisched(config)

    async def run(self, name: str) -> tuple[Mapping[str, Sequence[Any]], list[Bar]]:
        """Runs one of SCENARIOS: rounds per contender, and the bars."""
        if name == "turnover":
            return await self._turnover()
        nodes = list(workload.virtual_nodes(self._scaled(BURST_NODES)))
        await self._client.create_all(NODES, nodes)
        echo = bare_binder([str(node["metadata"]["name"]) for node in nodes], ECHO)
        return await (self._job_burst(echo) if name == "job-burst" else self._cron(echo))

    def _scaled(self, count: int) -> int:
        return max(1, round(count * self._scale))

    async def _job_burst(self, echo: Contender) -> tuple[Mapping[str, Sequence[Any]], list[Bar]]:
        await self._client.create_all(NODES, workload.work_nodes(self._scaled(FORECAST_NODES)))
        results: dict[str, list[BurstRound]] = {MULTISCHED: [], ECHO: [], ALONE: [], BESIDE: []}
        for number in range(self._rounds):
            kinds = list(results) if number % 2 == 0 else list(reversed(results))
            alone_s = 20.0 * self._scale
            for kind in kinds:
                contender = echo if kind == ECHO else self._ours
                found = await self._burst_round(
                    contender, has_burst=kind != ALONE, forecast_s=alone_s if kind in (ALONE, BESIDE) else 0.0
                )
                self._say(f"job-burst {number + 1}: {kind} {found}")
                results[kind].append(found)
        return results, burst_bars(results[MULTISCHED], results[ECHO], results[ALONE], results[BESIDE])

    async def _burst_round(self, contender: Contender, *, has_burst: bool, forecast_s: float) -> BurstRound:
        """`forecast_s`: seconds of forecast pods, at least; beside a burst they come until it is bound."""
        pods = list(workload.pods(self._scaled(BURST_PODS), contender.plain_name if contender.name == ECHO else JOB))
        pods = pods if has_burst else []
        names = {str(pod["metadata"]["name"]) for pod in pods}
        created: dict[str, float] = {}
        async with self._serving(contender) as watch:
            began_s = time.monotonic()
            async with anyio.create_task_group() as tasks:
                if forecast_s:
                    tasks.start_soon(self._send_forecast, created, watch, names, began_s + forecast_s)
                await self._client.create_all(PODS, pods, CREATES_IN_FLIGHT)
                created_s = time.monotonic() - began_s
                await watch.wait(names, STALL_S)
            await watch.wait(created, STALL_S)
        wrong = await self._is_wrong() if contender is self._ours else (0, 0)
        await self._clean()
        return burst_round(watch.bound_at, names, created, began_s, created_s, wrong, os.getloadavg()[0])

    async def _send_forecast(
        self, created: dict[str, float], watch: BindWatch, burst: set[str], until_s: float
    ) -> None:
        """Open loop: a pod every 20 ms, until `until_s` has passed and the burst is bound."""

        async def send(name: str) -> None:
            created[name] = await self._client.create(PODS, workload.pod(name, FORECAST))

        began_s, index = time.monotonic(), 0
        async with anyio.create_task_group() as sending:
            while time.monotonic() < until_s or not burst <= watch.bound_at.keys():
                sending.start_soon(send, f"steady-{index:05}")
                index += 1
                await anyio.sleep(max(0.0, began_s + index / FORECAST_PODS_PER_S - time.monotonic()))

    async def _cron(self, echo: Contender) -> tuple[Mapping[str, Sequence[Any]], list[Bar]]:
        results: dict[str, list[CronRound]] = {MULTISCHED: [], ECHO: []}
        for number in range(self._rounds):
            for contender in (self._ours, echo) if number % 2 == 0 else (echo, self._ours):
                found = await self._cron_round(contender)
                self._say(f"cron {number + 1}: {contender.name} {found}")
                results[contender.name].append(found)
        return results, cron_bars(results[MULTISCHED], results[ECHO])

    async def _cron_round(self, contender: Contender) -> CronRound:
        """Open loop: pods are sent evenly over CRON_S, each with a Job as its owner."""
        count = self._scaled(CRON_PODS)
        scheduler = contender.plain_name if contender.name == ECHO else JOB
        pods = [_owned(pod) for pod in workload.pods(count, scheduler)]
        sent: dict[str, float] = {}
        created: dict[str, float] = {}

        async def send(name: str, pod: Mapping[str, Any]) -> None:
            sent[name] = time.monotonic()
            created[name] = await self._client.create(PODS, pod)

        async with self._serving(contender) as watch:
            began_s = time.monotonic()
            async with anyio.create_task_group() as sending:
                for index, pod in enumerate(pods):
                    await anyio.sleep(max(0.0, began_s + index * CRON_S / CRON_PODS - time.monotonic()))
                    sending.start_soon(send, str(pod["metadata"]["name"]), pod)
            await watch.wait(created, STALL_S)
        wrong = await self._is_wrong() if contender is self._ours else (0, 0)
        await self._clean()
        return cron_round(watch.bound_at, sent, created, wrong, os.getloadavg()[0])

    async def _turnover(self) -> tuple[Mapping[str, Sequence[Any]], list[Bar]]:
        slots = self._scaled(SLOTS)
        nodes = list(workload.virtual_nodes(slots))
        for node in nodes:
            node["status"]["allocatable"] = node["status"]["capacity"] = node["status"]["capacity"] | {"pods": "1"}
        await self._client.create_all(NODES, nodes)
        rounds: list[TurnoverRound] = []
        for number in range(self._rounds):
            rounds.append(await self._turnover_round(slots))
            self._say(f"turnover {number + 1}: {rounds[-1]}")
        return {MULTISCHED: rounds}, turnover_bars(rounds)

    async def _turnover_round(self, slots: int) -> TurnoverRound:
        """All pods wait before the program starts; each Succeeds POD_S after the client has seen it bound.

        The first pods on the slots run up to POD_S longer: else all slots would be freed at once, every POD_S.
        """
        pods = list(workload.pods(self._scaled(TURNOVER_PODS), JOB))
        names = [str(pod["metadata"]["name"]) for pod in pods]
        await self._client.create_all(PODS, pods, CREATES_IN_FLIGHT)
        await anyio.sleep(SETTLE_S)

        async def end(name: str, after_s: float) -> None:
            await anyio.sleep(after_s)
            await self._client.end_pod(name)

        async with self._client.watch_slots() as watch, anyio.create_task_group() as kubelet:

            def run_pod(name: str) -> None:
                kubelet.start_soon(end, name, POD_S * (1.0 + max(0.0, 1.0 - len(watch.bound_at) / slots)))

            watch.on_bound = run_pod
            program = await self._ours.start(self._plane)
            try:
                await watch.wait(names, STALL_S)
                await watch.wait_ended(STALL_S)
            finally:
                await self._stop(program)
        await self._clean()
        return turnover_round(watch.bound_at, watch.ended_at, watch.node_of, slots, len(names), os.getloadavg()[0])

    @asynccontextmanager
    async def _serving(self, contender: Contender) -> AsyncIterator[BindWatch]:
        """Starts the contender and waits until it binds; yields a watch of all binds that follow."""
        probes = (contender.plain_name,) if contender.name == ECHO else (JOB, FORECAST)
        async with self._client.watch_binds() as watch:
            program = await contender.start(self._plane)
            try:
                names = [f"probe-{index}" for index in range(len(probes))]
                for name, scheduler in zip(names, probes, strict=True):
                    await self._client.create(PODS, workload.pod(name, scheduler))
                await watch.wait(names, STALL_S)
                await anyio.sleep(SETTLE_S)
                yield watch
            finally:
                await self._stop(program)

    async def _stop(self, program: Program) -> None:
        code = await program.stop(STOP_GRACE_S)
        if code not in (0, -15):  # the echo has no handler for SIGTERM
            self._say(f"{program.name} ended with {code} on SIGTERM; its log is {program.log}")


def _owned(pod: dict[str, Any]) -> dict[str, Any]:
    """The pod with a Job as its controller."""
    owner = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": f"cron-{pod['metadata']['name']}",
        "uid": str(uuid.uuid4()),
        "controller": True,
        "blockOwnerDeletion": True,
    }
    pod["metadata"]["ownerReferences"] = [owner]
    pod["spec"]["restartPolicy"] = "Never"
    return pod
