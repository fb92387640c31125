"""The embedded API server and the real program in one process, in virtual time. A workload creates the nodes and pods.

Once the cluster is idle, a workload may let the wall clock jump while the monotonic clock does not advance, as on a
suspended machine. So hours in which nothing happens cost no computation, and waits by the monotonic clock
(backoff, flush) advance only while something happens.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import orjson

from multisched.cluster.api.direct import DirectTransport
from multisched.cluster.api.server import ApiServer
from multisched.cluster.api.watch import WatchStream
from multisched.cluster.base.request import ApiRequest
from multisched.config.plugins import plugin_registry
from multisched.config.schema import Configuration
from multisched.framework.points import Plugin
from multisched.framework.registry import Registry
from multisched.model.wire import MERGE_PATCH, Response
from multisched.shell.program import Program, ProgramPorts
from multisched.testing.quiet_observer import QuietObserver
from multisched.testing.sim_loop import SimLoop
from multisched.testing.virtual_workers import VirtualThreads, VirtualWorkers
from multisched.whatif.repair_source import plans_of

NODES = "/api/v1/nodes"
PODS = "/api/v1/namespaces/default/pods"
PACE_S = 0.05
"""Pause after a pod, so that it is placed before the next is created: decisions follow the order of creation."""
READY_MAX_S = 60.0
STOP_MAX_S = 30.0

_POST_TO_POD = re.compile(r"/pods/([^/?]+)/(binding|eviction)(?:\?|$)")


class JumpingClock:
    """Virtual time whose wall clock can jump."""

    def __init__(self, loop: SimLoop, begin_s: float) -> None:
        self._loop = loop
        self._base_s = begin_s

    def monotonic(self) -> float:
        return self._loop.time()

    def epoch_s(self) -> float:
        return self._base_s + self._loop.time()

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.epoch_s(), UTC)

    def jump_to(self, epoch_s: float) -> None:
        """Advances the wall clock to this time. Never sets it back: if an event took too long, the next one is late."""
        self._base_s += max(0.0, epoch_s - self.epoch_s())


class PodRecord:
    """Implements `server.Interceptor`: records binds and evictions of pods."""

    def __init__(self, clock: JumpingClock) -> None:
        self._clock = clock
        self.bound: dict[str, tuple[str, float]] = {}
        """Pod -> node and epoch second. A workload removes the pods that it deletes or replaces."""
        self.evicted: list[str] = []
        """Evicted pods, in order. A workload removes the pods that it has replaced."""
        self.evictions = 0
        """Number of evictions since the start."""

    def before(self, request: ApiRequest) -> Response | None:
        return None

    def after(self, request: ApiRequest, answer: Response | WatchStream) -> Response | WatchStream:
        found = _POST_TO_POD.search(request.path) if request.method == "POST" and answer.status == 201 else None
        if found is None:
            return answer
        if found[2] == "binding":
            node = orjson.loads(request.body or b"{}")["target"]["name"]
            self.bound[found[1]] = (node, self._clock.epoch_s())
        else:
            self.evicted.append(found[1])
            self.evictions += 1
        return answer


class VirtualCluster:
    """The cluster of one run. The same arguments and calls of the workload give the same result."""

    def __init__(
        self,
        configuration: Configuration,
        seed: int,
        begin_s: float,
        loop: SimLoop,
        registry: Registry | None = None,
    ) -> None:
        """`begin_s`: the wall clock at the start, in epoch seconds. `registry`: the plugins; by default the shipped ones."""
        self.clock = JumpingClock(loop, begin_s)
        self.server = ApiServer(self.clock, seed=seed, rbac=False)
        self.pods = PodRecord(self.clock)
        self.server.interceptors.append(self.pods)
        self._api = DirectTransport(self.server)
        self._observer = QuietObserver()
        self._program = self._built(configuration, seed, registry or plugin_registry())

    def _built(self, configuration: Configuration, seed: int, registry: Registry) -> Program:
        """Builds the program as `multisched run` does, with the in-process transport and virtual time."""
        rng = random.Random(seed)  # noqa: S311 - ties, a scenario's own
        ports = ProgramPorts(
            self._api,
            self.clock,
            random.Random(rng.random()),  # noqa: S311 - as above
            "simulate",
            "kube-system",
            observer=lambda domain: self._observer,
            registry=registry,
            worker_factory=VirtualWorkers(rng),
            background_threads=VirtualThreads,
            plan_repairs=plans_of,
        )
        return Program(configuration, ports)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Starts the program and waits until it is ready; stops it at the end. Nodes may be created before."""
        running = asyncio.create_task(self._program.run())
        try:
            is_ready = await self.until(lambda: self._program.is_ready or running.done(), READY_MAX_S)
            assert is_ready, f"the program was not ready after {READY_MAX_S:.0f} s"
            yield
        finally:
            self._program.stop()
            async with asyncio.timeout(STOP_MAX_S):
                await running

    def plugins(self) -> Iterator[tuple[str, Plugin]]:
        """Yields the domain's name and the plugin, for all built plugins of all domains."""
        for worker in self._program.router.workers():
            for built in worker.plugins.built:
                yield worker.name, built.plugin

    def failures(self) -> tuple[str, ...]:
        """Returns the failures of plugins so far, each once."""
        return tuple(dict.fromkeys(self._observer.failures))

    # -- what a workload does ----------------------------------------------------------------------------------------

    async def create(self, path: str, document: Mapping[str, Any]) -> dict[str, Any]:
        """Creates an object and returns it as created. `path`: the path of its collection, for instance `PODS`."""
        answer = await self._api.request("POST", path, body=orjson.dumps(document))
        assert answer.status == 201, answer.body
        made: dict[str, Any] = orjson.loads(answer.body)
        return made

    async def delete_pod(self, pod: str) -> None:
        answer = await self._api.request("DELETE", f"{PODS}/{pod}?gracePeriodSeconds=0")
        assert answer.status == 200, answer.body

    async def set_ready(self, pod: str) -> None:
        """Sets the pod's Ready condition, as its kubelet would."""
        conditions = [{"type": kind, "status": "True"} for kind in ("PodScheduled", "Ready", "ContainersReady")]
        document = orjson.dumps({"status": {"phase": "Running", "conditions": conditions}})
        path = f"{PODS}/{pod}/status"
        answer = await self._api.request("PATCH", path, body=document, content_type=MERGE_PATCH)
        assert answer.status == 200, answer.body

    async def pause(self) -> None:
        """Lets the scheduler place the pod that was just created."""
        await asyncio.sleep(PACE_S)

    async def until(self, is_done: Callable[[], bool], limit_s: float) -> bool:
        """Waits for the condition, at most `limit_s` of virtual time. Returns whether it holds."""
        end_s = self.clock.monotonic() + limit_s
        while not is_done() and self.clock.monotonic() < end_s:  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(PACE_S)
        return is_done()

    async def reason(self, pod: str) -> str:
        """Returns why the pod is not scheduled: the message of its condition PodScheduled."""
        answer = await self._api.request("GET", f"{PODS}/{pod}")
        conditions = orjson.loads(answer.body).get("status", {}).get("conditions", ())
        return next((c.get("message", "") for c in conditions if c.get("type") == "PodScheduled"), "") or "not placed"
