"""Plugins that hold pods at Permit, alone and together, so that waits end in every way there is."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Collection, Mapping
from typing import Any
from weakref import WeakKeyDictionary

from multisched.framework.context import PluginContext, WaitingPods
from multisched.framework.points import CycleView, PermitResult
from multisched.framework.status import SUCCESS, Code, Status
from multisched.model.objects import Pod

HOLD_S = 2.0
HOLD_LONGER_S = 5.0
HELD = "held-"
"""Pods of such a name are held until their time runs out."""
BROKEN_MAX = 20


_HOLDING: WeakKeyDictionary[WaitingPods, dict[str, float]] = WeakKeyDictionary()
"""Of each domain of each process."""


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


class HoldLonger:
    """Holds what `HoldSome` holds, for longer, and lets a pod go one pod later.

    A pod is bound when both let it, and turned back when the first of them has waited long enough. `broken` says where
    not.
    """

    name = "HoldLonger"

    def __init__(self, args: Mapping[str, Any], context: PluginContext) -> None:
        self._held = context.waiting_pods
        self._holding = _HOLDING.setdefault(context.waiting_pods, {})
        """uid -> since when it is held here. Who comes after this one, with other args, lets go what it holds."""
        self._passed: set[str] = set()
        """uids of pods that the other plugin has let go."""
        self.broken: list[str] = []

    def permit(self, cycle: CycleView, pod: Pod, node: str) -> PermitResult:
        for other in self._held.waiting():
            if other.uid in self._passed and _tenth(other) == 1 and not other.name.startswith(HELD):
                self._holding.pop(other.uid, None)
                self._held.allow(other.uid, self.name)
        self._passed = {other.uid for other in self._held.waiting()}
        if cycle.attempt > 1 or not (_tenth(pod) <= 1 or pod.name.startswith(HELD)):
            return PermitResult(SUCCESS)
        self._holding[pod.uid] = asyncio.get_running_loop().time()
        return PermitResult(Status(Code.WAIT), HOLD_LONGER_S)

    def reserve(self, cycle: CycleView, pod: Pod, node: str) -> Status:
        return SUCCESS

    def unreserve(self, cycle: CycleView, pod: Pod, node: str) -> None:
        self._holding.pop(pod.uid, None)

    def post_bind(self, cycle: CycleView, pod: Pod, node: str) -> None:
        if self._holding.pop(pod.uid, None) is not None and len(self.broken) < BROKEN_MAX:
            self.broken.append(f"I5: {pod.key} was bound, and {self.name} holds it")

    def overdue(self, holders: Callable[[str], Collection[str]], slack_s: float) -> list[str]:
        """uids of pods that are held past the time of the first plugin that holds them. `holders`: which ones those are."""
        now_s = asyncio.get_running_loop().time()
        found = []
        for uid, since_s in self._holding.items():
            holding = holders(uid)
            hold_s = HOLD_S if HoldSome.name in holding else HOLD_LONGER_S
            if holding and now_s > since_s + hold_s + slack_s:
                found.append(uid)
        return found


def _tenth(pod: Pod) -> int:
    return zlib.crc32(pod.uid.encode()) % 10
