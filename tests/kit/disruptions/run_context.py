"""The type of disruptions, and the parts of a run that they may use: cluster, connections, processes, checkers, random numbers."""

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
"""Share of throttled writes while a disruption delays binds."""
SLOW = 0.75
"""Share of nodes whose domain changes while binds to them are slow."""
HANDED_OVER_S = (3.0, 8.0)
"""Time for which such a node is in the other domain."""
IN_USE_S = 12.0
"""Time until each leader uses its nodes, at most: at the start of a run, leaders first acquire their leases."""
SENT_S = 1.5
"""Time to wait for a bind in flight."""
FILLED_S = 6.0
"""Time to wait for a prepared state: faults may delay it."""


class RunKind(Enum):
    """The runs in which a disruption can occur."""

    ANY = auto()
    DEFAULT = auto()
    """Runs of the default configuration."""
    REMOTE = auto()
    """Runs with loans, and with plugins that need remote responses."""


@dataclass(slots=True)
class RunContext:
    """One run: the parts that a disruption or scenario may use, and ways to wait."""

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
        """Reports to all parts that the store was restored. The storage controllers are restarted, since they keep what they have
        seen.
        """
        self.bind_checker.on_restored()
        self.world.storage.start()
        self.replicas.on_restored()

    def now_s(self) -> float:
        return self.loop.time()

    def mark(self) -> str:
        """Returns a random part for unique names and labels."""
        return f"{self.rng.getrandbits(32):08x}"

    async def pause(self, at_least_s: float, at_most_s: float) -> None:
        await asyncio.sleep(self.rng.uniform(at_least_s, at_most_s))

    async def until(self, holds: Callable[[], bool], limit_s: float = FILLED_S) -> None:
        """Waits until `holds()` is true, for `limit_s` at most."""
        until_s = self.now_s() + limit_s
        while self.now_s() < until_s and not holds():  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(0.1)

    @asynccontextmanager
    async def throttled(self) -> AsyncIterator[None]:
        """Answers most writes with 429: binds are in flight for seconds, and the cluster changes meanwhile."""
        faults = self.faults
        before, faults.throttled = faults.throttled, THROTTLED
        try:
            yield
        finally:
            faults.throttled = before

    @asynccontextmanager
    async def slow_binds(self, node: str) -> AsyncIterator[None]:
        """Makes binds to the node slow. Waits first until every domain is led and uses its nodes."""
        slow = self.faults.slow_nodes
        await self.until_in_use(node)
        slow.add(node)
        try:
            yield
        finally:
            slow.discard(node)

    async def until_in_use(self, node: str) -> None:
        """Waits until every domain is led and uses its nodes. A leader that has listed later than another one waits for an event of
        any node.
        """
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
"""Applies the disruption. Returns False if there was nothing to disrupt."""


@dataclass(frozen=True, slots=True)
class Disruption:
    """One kind of disruption."""

    name: str
    action: Action
    weight: int = 4
    runs: RunKind = RunKind.ANY
    awaits: str = ""
    """The defect that it finds, while that is being fixed: until then it only occurs where it is named."""
