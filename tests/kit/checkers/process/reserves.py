"""Checks that each Reserve of a process ends, and that pods counted as bound are bound, by the plugin `ReserveTally` (I2, I5)."""

from __future__ import annotations

from multisched.model.objects import Pod
from multisched.shell.program import Program
from tests.kit.checkers.api.bind_checker import BindChecker
from tests.kit.plugins.reserve_tally import ReserveTally


class ReserveChecker:
    """Reads the `ReserveTally` plugins of one program. Checks nothing if its profiles have none."""

    def __init__(self, program: Program, bind_checker: BindChecker) -> None:
        self._program = program
        self._bind_checker, self._report_violation = bind_checker, bind_checker.report_violation
        self._tallies: list[ReserveTally] = []
        """All instances so far: an instance ends what it began, even when another one is in force."""
        self.follow()

    def follow(self) -> None:
        """Uses the profiles now in force."""
        plugins = [plugin for worker in self._program.router.workers() for plugin in worker.plugins.reserve]
        known = {id(one) for one in self._tallies}
        for plugin in plugins:
            if isinstance(plugin, ReserveTally) and id(plugin) not in known:
                plugin.on_bound = self.bound
                self._tallies.append(plugin)

    def bound(self, pod: Pod, node: str) -> None:
        """Checks that a pod counted as bound is bound to this node (I2); it may be deleted already."""
        if self._bind_checker.bound.get(pod.uid) != node and (pod.uid, node) not in self._bind_checker.faked:
            there = self._bind_checker.bound.get(pod.uid)
            self._report_violation(f"I2: {pod.key} counts as bound to {node}; it is on {there}")

    def check(self, *, is_quiescent: bool) -> None:
        """Checks I5 by the records of the `ReserveTally` plugins."""
        for plugin in self._tallies:
            for sentence in plugin.broken:
                self._report_violation(sentence)
            if is_quiescent and plugin.open:
                self._report_violation(f"I5: {len(plugin.open)} reserves never ended")
