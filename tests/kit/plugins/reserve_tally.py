"""A plugin that records each Reserve and its end (I5)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from multisched.framework.points import CycleView
from multisched.framework.status import SUCCESS, Status
from multisched.model.objects import Pod

BROKEN_MAX = 20
NO_ARGS: Final[Mapping[str, Any]] = MappingProxyType({})


class ReserveTally:
    """Checks that each Reserve ends in exactly one PostBind or Unreserve (I5). `broken` lists violations."""

    name = "ReserveTally"

    def __init__(self, args: Mapping[str, Any] = NO_ARGS) -> None:
        """`args`: ignored; with other arguments the plugin is built again."""
        self.open: dict[str, str] = {}
        """uid -> node of each pod that is reserved now."""
        self.broken: list[str] = []
        self.on_bound: Callable[[Pod, str], None] = lambda pod, node: None
        """Called for each pod that counts as bound."""

    def reserve(self, cycle: CycleView, pod: Pod, node: str) -> Status:
        if pod.uid in self.open:
            self._report_violation(f"{pod.key} was reserved on {node} while it was on {self.open[pod.uid]}")
        self.open[pod.uid] = node
        return SUCCESS

    def unreserve(self, cycle: CycleView, pod: Pod, node: str) -> None:
        if self.open.pop(pod.uid, None) != node:
            self._report_violation(f"{pod.key} was unreserved on {node}, where it was not")

    def post_bind(self, cycle: CycleView, pod: Pod, node: str) -> None:
        if self.open.pop(pod.uid, None) != node:
            self._report_violation(f"{pod.key} was bound to {node}, where it was not reserved")
        self.on_bound(pod, node)

    def _report_violation(self, sentence: str) -> None:
        if len(self.broken) < BROKEN_MAX:
            self.broken.append(f"I5: {sentence}")
