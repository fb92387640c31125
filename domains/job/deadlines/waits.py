"""Predicts when waiting pods start: running pods end, and pods ahead in the queue use what becomes free. Pure.

The domain's rows count as one pool of CPU, memory and pods. Waiting pods start in the order of the queue, each as soon as the
pool has room for it (a pod never overtakes another, so a large one delays those behind). Fragments of nodes, affinity, quotas, and rates
and breakers of serverless units are ignored, so a start can be later.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

import msgspec

PUT_BACK_MAX: Final = 64
"""If a pod waits for more ends than these, and leaves, pods behind it are predicted to wait as long: it bounds the time."""


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


class RunningPod(NamedTuple):
    room: Room
    left_s: float | None
    """Median time until it ends; None: not known, so that its room is not counted on."""


class WaitingPod(NamedTuple):
    uid: str
    room: Room
    run_s: float | None
    """Median run time and start-up; None: not known."""
    finish_s: float
    """P90 of run time and start-up, which decides whether it meets its deadline; 0 if not known."""
    deadline_s: float | None
    """Seconds from now; None: it has none."""
    leaves_if_late: bool = False
    """If it would miss its deadline, it goes to a unit that it pays for, and takes no room of the pool."""


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


def predict_waits(free: Room, running: Iterable[RunningPod], waiting: Sequence[WaitingPod]) -> dict[str, PredictedWait]:
    """Returns uid -> wait. `waiting`: in the order of the queue. O((running + waiting) log)."""
    ends = [(max(0.0, one.left_s), one.room) for one in running if one.left_s is not None]
    heapify(ends)
    now_s, found = 0.0, dict[str, PredictedWait]()
    is_stuck = False
    for pod in waiting:
        before, popped = (free, now_s, is_stuck), list[tuple[float, Room]]()
        while not is_stuck and not free.holds(pod.room):
            if not ends:
                is_stuck = True
                break
            popped.append(heappop(ends))
            now_s, room = popped[-1]
            free = free.plus(room)
        end_s = None if is_stuck else now_s + pod.finish_s
        found[pod.uid] = wait = PredictedWait(None if is_stuck else now_s, end_s, pod.deadline_s)
        if pod.leaves_if_late and wait.is_at_risk:
            if len(popped) <= PUT_BACK_MAX:
                free, now_s, is_stuck = before
                for one in popped:
                    heappush(ends, one)
            continue
        if is_stuck:
            continue
        free = free.minus(pod.room)
        if pod.run_s is not None:
            heappush(ends, (now_s + pod.run_s, pod.room))
    return found
