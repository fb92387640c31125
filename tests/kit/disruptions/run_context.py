"""What a disruption is, and what it may touch: the cluster, the wire, the processes, their checkers, and chance."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import Enum, auto

from multisched.cluster.api.server import ApiServer
from multisched.model.objects import Pod
from multisched.testing.sim_loop import SimClock, SimLoop
from tests.kit.checkers.api.bind_checker import BindChecker
from tests.kit.processes.replicas import Replicas
from tests.kit.settings.setting import Setting
from tests.kit.wire.faults import Faults
from tests.kit.world.world import World

THROTTLED = 0.7
"""Of all writes, where a disruption wants binds to wait."""
SLOW = 0.75
"""Of all nodes that change their domain: binds to these are slow."""
HANDED_OVER_S = (3.0, 8.0)
"""How long such a node stays away."""
IN_USE_S = 12.0
"""How long it takes at most until each leader uses its nodes: at the start of a run, they first come to their leases."""
SENT_S = 1.5
"""How long it waits for a bind on the wire."""
FILLED_S = 6.0
"""How long a disruption waits for what it has prepared: faults may be in the way."""


class RunKind(Enum):
    """In which runs a disruption can strike."""

    ANY = auto()
    DEFAULT = auto()
    """Those of the default configuration."""
    REMOTE = auto()
    """Those with loans and plugins that ask outside."""


@dataclass(slots=True)
class RunContext:
    """What a disruption may touch, and how it waits."""

    seed: int
    setting: Setting
    loop: SimLoop
    clock: SimClock
    rng: random.Random
    server: ApiServer
    faults: Faults
    world: World
    bind_checker: BindChecker
    replicas: Replicas
    nodes_added: int = 0

    def on_restored(self) -> None:
        """The store was restored from a backup. The controllers of storage begin anew: they keep what they have seen."""
        self.bind_checker.on_restored()
        self.world.storage.start()
        self.replicas.on_restored()

    def now_s(self) -> float:
        return self.loop.time()

    def mark(self) -> str:
        """Of names and labels that nobody else has."""
        return f"{self.rng.getrandbits(32):08x}"

    async def pause(self, at_least_s: float, at_most_s: float) -> None:
        await asyncio.sleep(self.rng.uniform(at_least_s, at_most_s))

    async def until(self, holds: Callable[[], bool], limit_s: float = FILLED_S) -> None:
        """Returns when it holds, or after `limit_s`."""
        until_s = self.now_s() + limit_s
        while self.now_s() < until_s and not holds():  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(0.1)

    @asynccontextmanager
    async def throttled(self) -> AsyncIterator[None]:
        """Most writes get a 429: binds are under way for seconds, and meanwhile things change."""
        faults = self.faults
        before, faults.throttled = faults.throttled, THROTTLED
        try:
            yield
        finally:
            faults.throttled = before

    @asynccontextmanager
    async def slow_binds(self, node: str) -> AsyncIterator[None]:
        """Binds to the node take seconds; every domain is led, and uses its nodes, when that begins."""
        slow = self.faults.slow_nodes
        await self.until_in_use(node)
        slow.add(node)
        try:
            yield
        finally:
            slow.discard(node)

    async def until_in_use(self, node: str) -> None:
        """Every domain is led, and uses its nodes: who has listed later than another leader waits for the next word of any node."""
        until_s = self.now_s() + IN_USE_S
        while self.now_s() < until_s:
            programs = [process.program for process in self.replicas.running]
            led = {worker.name for program in programs for worker in program.router.workers() if worker.is_leading}
            is_led = len(led) == len(self.setting.configuration.domains)
            if is_led and not any(program.handover.waiting() for program in programs):
                return
            if is_led:
                await self.world.nodes.patch(node, {"metadata": {"annotations": {"sim/beat": f"{self.now_s():.3f}"}}})
            await asyncio.sleep(1.0)

    def any_pod(self, wanted: Callable[[Pod], bool] = lambda pod: True) -> Pod | None:
        found = [pod for pod in self.world.pods() if wanted(pod)]
        return self.rng.choice(found) if found else None


Action = Callable[[RunContext], Awaitable[bool]]
"""Strikes, and says whether there was something to strike."""


@dataclass(frozen=True, slots=True)
class Disruption:
    """One kind."""

    name: str
    action: Action
    weight: int = 4
    runs: RunKind = RunKind.ANY
    awaits: str = ""
    """The defect that it finds, while that is being mended elsewhere: until then it strikes only where it is named."""
