"""Predicts when waiting pods start: running pods end, and pods ahead in the queue use what becomes free. Pure.

The domain's rows count as pools of CPU, memory and pods: one for each serverless unit, and one for all other rows. Waiting pods start in
the order of the queue, each as soon as a pool has room for it and accepts a pod (no pod overtakes another, so a large pod delays
all pods after it). Fragments of nodes, affinity and elastic quotas are ignored, so a start can be later.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush
from math import inf
from typing import Final, NamedTuple

import msgspec

PUT_BACK_MAX: Final = 64
"""If a pod waits for more than this number of ends and then leaves the pool, the pods after it are predicted to wait for the same ends.
This bounds the computing time."""


class Room(NamedTuple):
    """An amount of the pool."""

    cpu_milli: int
    memory_bytes: int
    pods: int

    def holds(self, other: Room) -> bool:
        return self.cpu_milli >= other.cpu_milli and self.memory_bytes >= other.memory_bytes and self.pods >= other.pods

    def plus(self, other: Room) -> Room:
        return Room(self.cpu_milli + other.cpu_milli, self.memory_bytes + other.memory_bytes, self.pods + other.pods)

    def minus(self, other: Room) -> Room:
        return Room(self.cpu_milli - other.cpu_milli, self.memory_bytes - other.memory_bytes, self.pods - other.pods)


class Pool(msgspec.Struct):
    """Rows whose room counts together. Changed by a prediction."""

    free: Room
    tokens: float = inf
    """Pods that may start there now."""
    per_second: float = inf
    """Pods that may start there after that; 0: none."""
    started: int = 0
    """Pods predicted to start there."""

    @property
    def ready_s(self) -> float:
        """When the next pod may start."""
        if self.started < self.tokens:
            return 0.0
        return (self.started + 1 - self.tokens) / self.per_second if self.per_second else inf


class RunningPod(NamedTuple):
    room: Room
    left_s: float | None
    """Median time until it ends; None: not known, and its room is not counted."""
    pool: int = 0
    """Index of its pool."""


class WaitingPod(NamedTuple):
    uid: str
    room: Room
    run_s: float | None
    """Median run time and start-up; None: not known."""
    finish_s: float
    """P90 of run time and start-up and a tenth more, which decides whether it meets its deadline; 0 if not known."""
    deadline_s: float | None
    """Seconds from now; None: it has none."""
    leaves_if_late: bool = False
    """If it would miss its deadline, it is placed in a unit with a price, and uses no capacity of the pool."""


class PredictedWait(msgspec.Struct, frozen=True):
    """All times are seconds from the prediction."""

    start_s: float | None
    """None: no known end of a running pod makes room for it."""
    end_s: float | None
    deadline_s: float | None

    @property
    def is_at_risk(self) -> bool:
        """Its predicted end is after its deadline, or it has a deadline and no predicted start."""
        return self.deadline_s is not None and (self.end_s is None or self.end_s > self.deadline_s)


End = tuple[float, int, Room]
"""Time, index of the pool, and the room that becomes free there."""


def predict_waits(
    pools: Sequence[Pool], running: Iterable[RunningPod], waiting: Sequence[WaitingPod]
) -> dict[str, PredictedWait]:
    """Returns uid -> wait. `pools`: the preferred ones first. `waiting`: in the order of the queue. O((running + waiting) log)."""
    ends: list[End] = [(max(0.0, one.left_s), one.pool, one.room) for one in running if one.left_s is not None]
    heapify(ends)
    now_s, found = 0.0, dict[str, PredictedWait]()
    is_stuck = False
    for pod in waiting:
        before, popped = ([pool.free for pool in pools], now_s, is_stuck), list[End]()
        start = None if is_stuck else _start(pools, ends, popped, pod.room, now_s)
        is_stuck = start is None
        now_s = now_s if start is None else start[0]
        end_s = None if is_stuck else now_s + pod.finish_s
        found[pod.uid] = wait = PredictedWait(None if is_stuck else now_s, end_s, pod.deadline_s)
        if pod.leaves_if_late and wait.is_at_risk:
            if len(popped) <= PUT_BACK_MAX:
                frees, now_s, is_stuck = before
                for pool, free in zip(pools, frees, strict=True):
                    pool.free = free
                for one in popped:
                    heappush(ends, one)
            continue
        if start is None:
            continue
        taken = pools[start[1]]
        taken.free, taken.started = taken.free.minus(pod.room), taken.started + 1
        if pod.run_s is not None:
            heappush(ends, (now_s + pod.run_s, start[1], pod.room))
    return found


def _start(
    pools: Sequence[Pool], ends: list[End], popped: list[End], room: Room, now_s: float
) -> tuple[float, int] | None:
    """Returns when a pod starts, from `now_s` on, and the index of its pool; None if no pool ever has room and accepts it.

    Moves the ends until then from `ends` to `popped`, and their room to the pools.
    """
    while True:
        ready_s, index = min(
            ((max(now_s, pool.ready_s), index) for index, pool in enumerate(pools) if pool.free.holds(room)),
            default=(inf, 0),
        )
        if ready_s <= (ends[0][0] if ends else inf):
            return None if ready_s == inf else (ready_s, index)
        popped.append(heappop(ends))
        now_s, at, free = max(now_s, popped[-1][0]), popped[-1][1], popped[-1][2]
        pools[at].free = pools[at].free.plus(free)
