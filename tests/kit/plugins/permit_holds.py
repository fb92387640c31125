"""Plugins that hold pods at Permit, alone and together, so that waits end in every possible way."""

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
"""Pods with this name prefix are held until their time runs out."""
BROKEN_MAX = 20


_HOLDING: WeakKeyDictionary[WaitingPods, dict[str, float]] = WeakKeyDictionary()
"""Held pods of each domain of each process."""


class HoldSome:
    """Holds a tenth of the pods until their time runs out, and a tenth until the next pod arrives. From the second attempt all pods
    pass.
    """

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
    """Holds the pods that `HoldSome` holds, for longer, and allows a pod one pod later.

    A pod is bound when both plugins allow it, and rejected when the first of them has waited long enough. `broken` lists
    violations.
    """

    name = "HoldLonger"

    def __init__(self, args: Mapping[str, Any], context: PluginContext) -> None:
        self._held = context.waiting_pods
        self._holding = _HOLDING.setdefault(context.waiting_pods, {})
        """uid -> time since which it is held. An instance with other arguments, built later, allows pods that this one holds."""
        self._passed: set[str] = set()
        """uids of pods that the other plugin has allowed."""
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
        """Returns uids of pods that are held past the time of the first plugin that holds them. `holders`: uid -> plugins that hold
        the pod.
        """
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
