"""The pods that the queue pops before a pod, and what they leave of the cluster for it.

A change that frees resources helps a pod only if no pod in front of it takes them. So trials place those pods first.
The order is QueueSort's. Pods of a running program are compared by when they were last queued, pods of a dump by their
creation. Shares of namespaces (`queueing/README.md`) are not simulated: they change the order only temporarily.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from multisched.cycle.results import Placed
from multisched.framework.points import QueuedPod
from multisched.model.objects import Pod
from multisched.queueing.entry import ClassKey
from multisched.queueing.parked_pods import class_of
from multisched.shell.domain import DomainWorker
from multisched.whatif.sandbox import SANDBOX_ONLY, SchedulerSandbox

AHEAD_MAX: Final = 1_000
"""Limit of pods in front that trials place first; if there are more, the answer mentions it."""
MORE_AHEAD: Final = "; the further ones in front of it were not tried"


class QueueAhead:
    """The pods in front of one pod, or of identical pods, in its domain's queue."""

    def __init__(
        self, sandbox: SchedulerSandbox, worker: DomainWorker, pod: Pod, planned: frozenset[str] = frozenset()
    ) -> None:
        """`planned`: uids of pods that are not in the queue yet. They come after all others of their priority."""
        self._sandbox = sandbox
        self._worker = worker
        found = self._in_front_of(pod, planned)
        self.note = MORE_AHEAD if len(found) > AHEAD_MAX else ""
        self._pods = found[:AHEAD_MAX]

    def __len__(self) -> int:
        return len(self._pods)

    def _in_front_of(self, pod: Pod, planned: frozenset[str]) -> list[Pod]:
        sandbox = self._sandbox
        own = self._sort_key(pod, math.inf if pod.uid in planned else sandbox.queued_s(pod))
        fellows = {one.uid for one in sandbox.starting_with(pod)} | {pod.uid} | planned
        found: list[tuple[tuple[Any, ...], int, Pod]] = []
        is_passed = False
        for at, other in enumerate(sandbox.pending.values()):
            is_passed = is_passed or other.uid == pod.uid
            if other.uid in fellows or sandbox.worker_of(other) is not self._worker or other.malformed:
                continue
            key = self._sort_key(other, sandbox.queued_s(other))
            # Of pods with equal sort keys, the earlier one comes first.
            if (key < own or (key == own and not is_passed)) and not other.spec.unsupported:
                found.append((key, at, other))
        return [other for _, _, other in sorted(found, key=lambda one: one[:2])]

    def _sort_key(self, pod: Pod, queued_s: float) -> tuple[Any, ...]:
        try:
            return self._worker.plugins.queue_sort.sort_key(QueuedPod(pod, queued_s, 0))
        except Exception:  # noqa: BLE001  (an error of a plugin; the queue puts such a pod first)
            return ()

    @contextmanager
    def placed_first(self) -> Iterator[frozenset[str]]:
        """Places all pods in front that fit now, until the context ends. Yields the uids of those placed by this call."""
        placed: list[Placed] = []
        refused: set[ClassKey] = set()
        try:
            for pod in self._pods:
                if self._sandbox.cache.placed(pod.uid) is not None:
                    continue
                if class_of(pod) not in refused:
                    now = self._place(pod)
                    placed += now
                    if not now:
                        refused.add(class_of(pod))
            yield frozenset(one.pod.uid for one in placed)
        finally:
            for one in reversed(placed):
                self._worker.cycle.give_up(one, SANDBOX_ONLY)

    def _place(self, pod: Pod) -> Sequence[Placed]:
        """Places the pod, with its gang if it has one; returns an empty sequence if it does not fit."""
        sandbox, worker = self._sandbox, self._worker
        if not sandbox.gate(worker, pod).is_success:
            return ()
        gang = sandbox.gang_of(pod)
        if gang is not None:
            return sandbox.attempt_gang(worker, gang)[0].placed
        result = sandbox.attempt(worker, pod).result
        return (result,) if isinstance(result, Placed) else ()
