"""Two or three replicas that lead domains under one quota tree, while everything around them is disturbed.

Beside `slices`: the same replicas and faults. A judge sums the pods of each level over every version of its own watch.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from multisched.testing.sim_loop import SimLoop, simulate
from tests.sim.quota_cluster import DOMAINS, FIRST, LEAVES, SECOND, QuotaCluster, configuration, tree
from tests.sim.slices import SliceReport, SliceSchedule, faults_of

FAULTS_S: Final = 150.0
QUIET_S: Final = 90.0
TREE: Final = tree(12, 8, a=(4, 8), b=(2, 6), c=(4, 8))
TREES: Final = (
    TREE,
    tree(10, 6, a=(2, 4), b=(2, 6), c=(2, 6)),
    tree(12, 8, a=(0, 8), b=(0, 8), c=(0, 12)),
    tree(12, 8, a=(4, 8), b=(2, 6)),
)
"""The last one has no leaf c."""


class QuotaSchedule(SliceSchedule):
    """Disturbances, drawn from the seed."""

    def __init__(self, cluster: QuotaCluster, *, edits: bool) -> None:
        """`edits`: the tree changes."""
        self.quotas = cluster
        super().__init__(cluster, moves=False, wide=None)
        steps: list[tuple[Callable[[], Awaitable[None]], float]] = [
            (self._burst, 10),
            (self._delete_pods, 5),
            (self._stall_watches, 1),
            (self._disturb_writes, 2),
            (self._slow_binds, 1),
            (self._fail, 0.8),
            (self._lag, 1),
            (self._fill_late, 1),
        ]
        if edits:
            steps += [(self._edit, 0.7), (self._break, 0.4)]
        self._steps = [step for step, _ in steps]
        self._weights = [weight for _, weight in steps]

    def _domains(self) -> list[str]:
        return sorted({domain for one in self.cluster.replicas for domain in one.leads})

    async def _burst(self) -> None:
        rng = self.cluster.rng
        domain, leaf = rng.choice(self._domains()), rng.choice(sorted(LEAVES))
        for _ in range(rng.randrange(1, 7)):
            await self.quotas.add(domain, leaf, rng.choice(["500m", "1", "2"]))

    async def _delete_pods(self) -> None:
        await self._delete_share(0.5)

    async def _delete_share(self, share: float) -> None:
        pods = sorted((pod.namespace, pod.name) for pod in self.cluster.stored("pods"))
        for leaf, name in self.cluster.rng.sample(pods, int(share * len(pods))):
            await self.quotas.delete(leaf, name)

    async def _lag(self) -> None:
        """A replica sees late what pods do, and what is offered."""
        transport = faults_of(self._replica())
        transport.lags = {
            "/pods": self.cluster.rng.choice([0.0, 3.0, 12.0]),
            "/slicesets": self.cluster.rng.choice([0.0, 3.0]),
        }

    async def _fill_late(self) -> None:
        """Pods of all domains wait for one quota, of which much has just become free, and leaders see late who takes it."""
        rng = self.cluster.rng
        for one in self.cluster.replicas:
            faults_of(one).lags["/pods"] = rng.choice([0.0, 4.0, 8.0])
        leaf = rng.choice(sorted(LEAVES))
        await self._delete_share(1.0)
        for domain in rng.sample(self._domains(), len(self._domains())):
            for _ in range(8):
                await self.quotas.add(domain, leaf, "1")
            await asyncio.sleep(rng.uniform(0.0, 6.0))
        await asyncio.sleep(10.0)

    async def _edit(self) -> None:
        await self.quotas.change_tree(self.cluster.rng.choice(TREES))

    async def _break(self) -> None:
        """Makes the tree invalid for a while: the last good one stays in force."""
        broken = tree(12, 8, a=(9, 8), b=(2, 6), c=(4, 8))
        await self.quotas.change_tree(broken, is_valid=False)


@dataclass(frozen=True)
class QuotaReport(SliceReport):
    """What a run has shown."""

    most: Counter[str]
    """Level -> the most that was in use."""


def run(seed: int, *, edits: bool) -> QuotaReport:
    """Runs one seed. `edits`: the tree changes meanwhile."""
    loop = SimLoop(seed)
    cluster = QuotaCluster(loop, seed)
    rng = random.Random(f"quotas {seed}")
    domains = DOMAINS if rng.random() < 0.5 else (FIRST, SECOND)
    text = configuration(*domains)

    async def main() -> QuotaReport:
        await cluster.begin(domains, TREE)
        tasks = [asyncio.create_task(cluster.judge_levels()), asyncio.create_task(cluster.end_evicted(None))]
        for leads in [{domain} for domain in domains] + [set(rng.sample(domains, 2)) for _ in range(rng.randrange(3))]:
            cluster.start(leads, text)
        await asyncio.sleep(15.0)
        await QuotaSchedule(cluster, edits=edits).run()
        stuck = () if cluster.broken else await _settled(cluster, domains)
        await cluster.end()
        if tasks[0].done():
            cluster.broken.append("the judge has ended")
        for task in tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        return QuotaReport(tuple(dict.fromkeys(cluster.broken)), cluster.counts, tuple(stuck), cluster.most)

    return simulate(main(), loop)


async def _settled(cluster: QuotaCluster, domains: Sequence[str]) -> Sequence[str]:
    """Ends the disturbances; returns what is wrong once offers and claims have had time to settle."""
    await cluster.change_tree(TREE)
    for transport in map(faults_of, cluster.replicas):
        transport.lags = dict.fromkeys(transport.lags, 0.0)
        transport.loses = transport.late_min_s = transport.late_max_s = 0.0
        transport.stalled_until_s = transport.pods_stalled_until_s = 0.0
        transport.bind_s = 0.05

    async def empty() -> None:
        for pod in cluster.stored("pods"):
            await cluster.delete(pod.namespace, pod.name)
        await asyncio.sleep(QUIET_S)

    stuck = []
    await empty()
    for domain in reversed(domains):  # each in its turn fills what the one before it held
        for leaf, count in (("b", 6), ("c", 6)):
            for _ in range(count):
                await cluster.add(domain, leaf)
        await asyncio.sleep(QUIET_S)
        if len(cluster.running(domain)) != 12:
            stuck.append(f"{len(cluster.running(domain))} of 12 pods of {domain} are bound")
        await empty()
    held = {one["metadata"]["name"]: (one.get("status") or {}).get("held") for one in await cluster.slice_sets()}
    return stuck + [f"SliceSet {name} holds {amounts}" for name, amounts in held.items() if amounts]
