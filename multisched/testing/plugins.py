"""Plugins of the simulated domains: one that asks outside and waits, one that holds pods at Permit, one that keeps books.

They make parallel cycles meet, Permit waits end in every way there is, and each reserve accountable (I5).
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import numpy as np

from multisched.framework.node_view import Rows, Scores
from multisched.framework.plugin import CycleView, Dependency, PermitResult, PluginContext
from multisched.framework.status import SUCCESS, Code, Status
from multisched.model.objects import Pod

ANSWER_S = 0.005
HOLD_S = 2.0
HELD = "held-"
"""Pods of such a name are held until their time runs out."""
BROKEN_MAX = 20


class SlowOracle:
    """Asks about the feasible rows, waits 5 ms, and then prefers the lowest row: everybody wants the same node."""

    name = "SlowOracle"
    depends_on = Dependency.ATTEMPT
    answer_timeout_s = 1.0

    def ask(self, cycle: CycleView, pod: Pod, rows: Rows) -> object | None:
        return int(rows[0])

    async def answer(self, question: object) -> object:
        await asyncio.sleep(ANSWER_S)
        return question

    def score(self, cycle: CycleView, pod: Pod, rows: Rows) -> Scores:
        favourite = cycle.answers[self.name]
        return np.where(rows == favourite, 100, 0).astype(np.int64)

    def sign(self, pod: Pod) -> Hashable:
        return ""


class HoldSome:
    """Holds a tenth of the pods until their time runs out, and a tenth until the next pod comes; by the second attempt all pass."""

    name = "HoldSome"

    def __init__(self, args: Mapping[str, Any], context: PluginContext) -> None:
        self._held = context.waiting_pods

    def permit(self, cycle: CycleView, pod: Pod, node: str) -> PermitResult:
        for other in self._held.waiting():
            if _tenth(other) == 1 and not other.name.startswith(HELD):
                self._held.allow(other.uid, self.name)
        if cycle.attempt > 1 or not (_tenth(pod) <= 1 or pod.name.startswith(HELD)):
            return PermitResult(SUCCESS)
        return PermitResult(Status(Code.WAIT), HOLD_S)


class ReserveBooks:
    """Each reserve ends in exactly one of postbind and unreserve (I5). `broken` says where not."""

    name = "ReserveBooks"

    def __init__(self) -> None:
        self.open: dict[str, str] = {}
        """uid -> node of what is reserved now."""
        self.broken: list[str] = []
        self.on_bound: Callable[[Pod, str], None] = lambda pod, node: None
        """Told of each pod that counts as bound."""

    def reserve(self, cycle: CycleView, pod: Pod, node: str) -> Status:
        if pod.uid in self.open:
            self._complain(f"{pod.key} was reserved on {node} while it was on {self.open[pod.uid]}")
        self.open[pod.uid] = node
        return SUCCESS

    def unreserve(self, cycle: CycleView, pod: Pod, node: str) -> None:
        if self.open.pop(pod.uid, None) != node:
            self._complain(f"{pod.key} was unreserved on {node}, where it was not")

    def post_bind(self, cycle: CycleView, pod: Pod, node: str) -> None:
        if self.open.pop(pod.uid, None) != node:
            self._complain(f"{pod.key} was bound to {node}, where it was not reserved")
        self.on_bound(pod, node)

    def _complain(self, sentence: str) -> None:
        if len(self.broken) < BROKEN_MAX:
            self.broken.append(f"I5: {sentence}")


def _tenth(pod: Pod) -> int:
    return zlib.crc32(pod.uid.encode()) % 10
