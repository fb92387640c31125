"""ProgramPending: all pending pods of a running program, counted by reason for its page.

One count serves all pages. It yields to the event loop after every SLICE pods, and is used for at least KEPT_OVER_COST times as
long as it took, so that 100,000 pending pods cost a small part of a CPU.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Iterator
from typing import Final, NamedTuple

from multisched.framework.leading import FindLeader, NotLedHere, led_here
from multisched.observe.pending_view import GROUPS_SHOWN, PODS_PER_GROUP, PendingGroup, PendingView
from multisched.observe.queue_view import WaitingPod
from multisched.shell.domain import DomainWorker
from multisched.shell.program import Program
from multisched.shell.telemetry import ProgramQueues

SLICE: Final = 64
"""Number of pods that are described between two yields to the event loop: a quarter of a millisecond."""
KEPT_S: Final = 2.0
"""Minimum time for which a count is used."""
KEPT_OVER_COST: Final = 50.0
"""A count is also used for at least this multiple of the time that it took."""

_GroupKey = tuple[str, str, tuple[str, ...]]
"""Domain, state, plugins."""


class _Group:
    """One group while it is counted."""

    def __init__(self) -> None:
        self.count = 0
        self.longest: list[tuple[float, str, WaitingPod]] = []
        """A heap of the longest waiting pods, the shortest wait first."""

    def add(self, pod: WaitingPod) -> None:
        self.count += 1
        entry = (pod.waiting_s, pod.uid, pod)
        if len(self.longest) < PODS_PER_GROUP:
            heapq.heappush(self.longest, entry)
        elif entry[:2] > self.longest[0][:2]:
            heapq.heapreplace(self.longest, entry)

    def pods(self) -> list[WaitingPod]:
        """Returns the kept pods, the longest waiting first."""
        return [pod for _, _, pod in sorted(self.longest, key=lambda one: (-one[0], one[1]))]


class _Count(NamedTuple):
    """The result of one count."""

    at_s: float
    cost_s: float
    groups: dict[_GroupKey, _Group]
    elsewhere: tuple[NotLedHere, ...]


class ProgramPending:
    """The `observe.pending_view.PendingSource` of a running program."""

    def __init__(self, program: Program, queues: ProgramQueues, find_leader: FindLeader = led_here) -> None:
        self._program = program
        self._queues = queues
        self._find_leader = find_leader
        self._counting = asyncio.Lock()
        self._last: _Count | None = None

    async def pending(self, *, group: str) -> PendingView:
        """See `PendingSource`."""
        async with self._counting:
            if self._last is None or self._age_s(self._last) >= max(KEPT_S, KEPT_OVER_COST * self._last.cost_s):
                self._last = await self._count()
            count = self._last
        largest = sorted(count.groups.items(), key=lambda one: (-one[1].count, one[0]))
        chosen = next((one for key, one in largest if group and _name(key) == group), None)
        pods = () if chosen is None else tuple(chosen.pods())
        return PendingView(
            groups=tuple(_shown(key, one) for key, one in largest[:GROUPS_SHOWN]),
            groups_left_out=max(0, len(largest) - GROUPS_SHOWN),
            pods_total=sum(one.count for _, one in largest),
            age_s=round(self._age_s(count), 1),
            pods=pods,
            pods_left_out=0 if chosen is None else chosen.count - len(pods),
            elsewhere=count.elsewhere,
        )

    def _age_s(self, count: _Count) -> float:
        return self._program.clock.monotonic() - count.at_s

    async def _count(self) -> _Count:
        """Counts all pods, in slices. `cost_s` is the time that other tasks could not run."""
        monotonic = self._program.clock.monotonic
        groups: dict[_GroupKey, _Group] = {}
        elsewhere = []
        cost_s, began_s, number = 0.0, monotonic(), 0
        for worker in self._program.router.workers():
            if (led := self._find_leader(worker.name)) is not None:
                elsewhere.append(led)
                continue
            for pod in self._pods_of(worker):
                groups.setdefault((pod.domain, pod.state, pod.plugins), _Group()).add(pod)
                number += 1
                if number % SLICE == 0:
                    cost_s += monotonic() - began_s
                    await asyncio.sleep(0)
                    began_s = monotonic()
        now_s = monotonic()
        return _Count(now_s, cost_s + now_s - began_s, groups, tuple(elsewhere))

    def _pods_of(self, worker: DomainWorker) -> Iterator[WaitingPod]:
        """Yields the pods that are still pending when the iteration reaches them; the queue may change between slices."""
        at_permit = {pod.uid for pod in worker.waiting.waiting()}
        now_s = self._program.clock.monotonic()
        for uid in worker.queue.uids():
            entry = worker.queue.entry(uid)
            if entry is not None:
                yield self._queues.waiting_pod(worker, entry, at_permit, now_s)
        yield from list(self._queues.refused_pods({worker.name}, now_s))


def _name(key: _GroupKey) -> str:
    domain, state, plugins = key
    return "/".join((domain, state, ",".join(plugins)))


def _shown(key: _GroupKey, group: _Group) -> PendingGroup:
    longest = max(group.longest, key=lambda one: one[:2])[2]
    return PendingGroup(
        key=_name(key),
        domain=key[0],
        state=key[1],
        plugins=key[2],
        count=group.count,
        longest_s=longest.waiting_s,
        message=longest.message,
    )
