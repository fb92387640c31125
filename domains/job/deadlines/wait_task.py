"""The background task of DeadlineSort: sorts pods again if their latest start changed, predicts waits in the leader, stores run times.

Each turn copies what it needs on the loop, in batches, and predicts in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np

from domains.job.deadlines.deadline import DeadlineOrigin
from domains.job.deadlines.latest_starts import GroupKey, LatestStarts, key_of
from domains.job.deadlines.waits import Pool, PredictedWait, Room, RunningPod, WaitingPod, predict_waits
from domains.job.domain_waits import DomainWaits
from domains.job.runtimes.history import PRICE_SHARE
from domains.job.runtimes.kept_history import KeptHistory
from multisched.framework.background import BackgroundPorts
from multisched.framework.context import PluginContext
from multisched.framework.node_view import Rows
from multisched.framework.points import QueuedPod
from multisched.model.objects import CPU, MEMORY, PODS, Pod
from multisched.model.selectors import NO_EXECUTE, NO_SCHEDULE

PERIOD_S: Final = 3.0
STANDBY_PERIOD_S: Final = 1.0
"""Pause of a process that does not lead the domain: it predicts soon after it begins to lead."""
BATCH: Final = 500
"""Pods or groups checked before the task yields to others."""
PREDICTED_MAX: Final = 20_000
"""Maximum number of waiting pods, and of running pods, in a prediction."""


class WaitTask:
    """The predicted waits of one domain."""

    def __init__(
        self,
        context: PluginContext,
        kept: KeptHistory,
        starts: LatestStarts,
        sort_key: Callable[[QueuedPod], tuple[Any, ...]],
    ) -> None:
        self._context = context
        self._kept = kept
        self._starts = starts
        self._sort_key = sort_key
        self._shared = context.shared.of(DomainWaits)
        self._found: Mapping[str, PredictedWait] = {}
        self.at_s = 0.0
        """When the waits were predicted, in seconds since the epoch."""
        self.waiting = 0
        """Pods that waited then, also those beyond PREDICTED_MAX."""
        self.sorted_anew = 0
        """Pods sorted again since the start, because their latest start moved."""

    def of(self, uid: str) -> PredictedWait | None:
        """Returns the last prediction for a waiting pod."""
        return self._found.get(uid)

    def count_waiting(self) -> int:
        """Returns the number of pods that wait now. O(pods)."""
        return sum(map(self._waits, self._context.queue.pods()))

    @property
    def found(self) -> Mapping[str, PredictedWait]:
        """uid -> wait, as last predicted."""
        return self._found

    def predicted_pods(self) -> list[tuple[PredictedWait, Pod, str]]:
        """Returns the predicted pods that still wait: prediction, pod, and where its deadline is from."""
        found = [(self._found[pod.uid], pod) for pod in self._context.queue.pods() if pod.uid in self._found]
        return [(wait, pod, self._starts.group_of(pod).rule.origin.value) for wait, pod in found]

    async def run(self, ports: BackgroundPorts) -> None:
        """Runs until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._kept.run(ports))
            while True:
                await self._sort_anew()
                is_standby = ports.mover is not None and not ports.mover.may_act()
                if not is_standby:
                    await self._predict(ports)
                await asyncio.sleep(STANDBY_PERIOD_S if is_standby else PERIOD_S)

    async def _sort_anew(self) -> None:
        pods = self._context.queue.pods()
        if self._starts.has_changed():
            moved = set[GroupKey]()
            for number, key in enumerate(self._starts.changed()):
                if key is not None:
                    moved.add(key)
                if number % BATCH == BATCH - 1:
                    await asyncio.sleep(0)
            uids = [pod.uid for pod in pods if key_of(pod) in moved]
            for begin in range(0, len(uids), BATCH):
                self._context.queue.sort_anew(uids[begin : begin + BATCH])
                await asyncio.sleep(0)
            self.sorted_anew += len(uids)
        if len(self._starts) > 2 * BATCH:
            self._starts.keep_only({key_of(pod) for pod in self._context.queue.pods()})

    async def _predict(self, ports: BackgroundPorts) -> None:
        now_s = ports.clock.now().timestamp()
        pods = [pod for pod in self._context.queue.pods() if self._waits(pod)]
        self.waiting = len(pods)
        waiting, leaves = list[tuple[tuple[Any, ...], WaitingPod]](), self._shared.accepts_late()
        for number, pod in enumerate(pods[:PREDICTED_MAX]):
            waiting.append((self._sort_key(QueuedPod(pod, 0.0)), self._waiting(pod, now_s, leaves_if_late=leaves)))
            if number % BATCH == BATCH - 1:
                await asyncio.sleep(0)
        pools, running = list[Pool](), list[RunningPod]()
        for rows, pool in self._pools() if waiting else ():
            running += await self._running(rows, len(pools), now_s)
            pools.append(pool)

        def work() -> dict[str, PredictedWait]:
            waiting.sort(key=lambda one: one[0])
            return predict_waits(pools, running, [one for _, one in waiting])

        self._found = await ports.in_thread(work) if waiting else {}
        self.at_s = now_s

    def _waits(self, pod: Pod) -> bool:
        return not (pod.gates or pod.is_deleting or self._context.hold.placed(pod.uid) is not None)

    def _waiting(self, pod: Pod, now_s: float, *, leaves_if_late: bool) -> WaitingPod:
        group = self._starts.group_of(pod)
        has_deadline, known = group.rule.origin is not DeadlineOrigin.MAX_WAIT, group.prediction
        return WaitingPod(
            pod.uid,
            _room_of(pod),
            known.median_s + known.start_up_s if known.is_known else None,
            known.finish_s,
            group.rule.of(pod.created_s) - now_s if has_deadline else None,
            leaves_if_late,
        )

    def _pools(self) -> Iterator[tuple[Rows, Pool]]:
        """Yields the domain's rows without a price: those outside serverless units, then those of each unit without a price."""
        if self._context.rows is None:
            return
        rows, unpriced = self._context.rows(), self._shared.unpriced
        own, paces = self._shared.paced(rows if unpriced is None else unpriced(rows))
        yield own, Pool(self._free(own))
        for pace in paces:
            free = self._free(pace.rows)
            left = zip(free, (pace.cpu_milli, pace.memory_bytes, pace.pods), strict=True)
            yield pace.rows, Pool(Room(*(int(min(one)) for one in left)), pace.tokens, pace.per_second)

    def _free(self, rows: Rows) -> Room:
        """Returns what is free on those of the rows that take pods."""
        nodes = self._context.nodes
        shut = [
            number for number, taints in enumerate(nodes.taint_sets) if any(_is_shut(t.key, t.effect) for t in taints)
        ]
        open_rows = [
            row for row in rows.tolist() if not nodes.is_unschedulable[row] and int(nodes.taint_set[row]) not in shut
        ]
        amounts = [
            int(
                (nodes.allocatable(name)[open_rows] - nodes.requested(name)[open_rows])
                .clip(min=0)
                .sum(dtype=np.float64)
            )
            for name in (CPU, MEMORY, PODS)
        ]
        return Room(*amounts)

    async def _running(self, rows: Rows, pool: int, now_s: float) -> list[RunningPod]:
        found = list[RunningPod]()
        for number, row in enumerate(rows.tolist()):
            for pod in self._context.nodes.pods_on(row):
                age_s = max(0.0, now_s - pod.started_s) if pod.started_s else 0.0
                left_s = self._kept.history.residual_s(self._starts.run_key_of(pod), age_s, PRICE_SHARE)
                found.append(RunningPod(_room_of(pod), left_s, pool))
            if len(found) >= PREDICTED_MAX:
                break
            if number % BATCH == BATCH - 1:
                await asyncio.sleep(0)
        return found


def _room_of(pod: Pod) -> Room:
    return Room(pod.requests.get(CPU, 0), pod.requests.get(MEMORY, 0), 1)


def _is_shut(key: str, effect: str) -> bool:
    """Reports whether Kubernetes put this taint on a node that takes no pods."""
    return key.startswith("node.kubernetes.io/") and effect in (NO_SCHEDULE, NO_EXECUTE)
