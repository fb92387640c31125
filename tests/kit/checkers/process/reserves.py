"""Each reserve of a process ends, and what counts as bound is bound: as a plugin of the profile's own has counted (I2, I5)."""

from __future__ import annotations

from multisched.model.objects import Pod
from multisched.shell.program import Program
from tests.kit.checkers.api.bind_checker import BindChecker
from tests.kit.plugins.reserve_tally import ReserveTally


class ReserveChecker:
    """Reads the tallies of one program; where its profiles have none, it says nothing."""

    def __init__(self, program: Program, bind_checker: BindChecker) -> None:
        self._program = program
        self._bind_checker, self._complain = bind_checker, bind_checker.complain
        self._tallies: list[ReserveTally] = []
        """All that there have been: what one has begun it ends, even when another one is in force."""
        self.follow()

    def follow(self) -> None:
        """The profiles may be others now."""
        plugins = [plugin for worker in self._program.router.workers() for plugin in worker.plugins.reserve]
        known = {id(one) for one in self._tallies}
        for plugin in plugins:
            if isinstance(plugin, ReserveTally) and id(plugin) not in known:
                plugin.on_bound = self.bound
                self._tallies.append(plugin)

    def bound(self, pod: Pod, node: str) -> None:
        """What counts as bound is bound, and just there (I2); it may be deleted already."""
        if self._bind_checker.bound.get(pod.uid) != node and (pod.uid, node) not in self._bind_checker.faked:
            there = self._bind_checker.bound.get(pod.uid)
            self._complain(f"I2: {pod.key} counts as bound to {node}; it is on {there}")

    def check(self, *, is_quiescent: bool) -> None:
        """I5, as the account of the profile's own ReservePlugin has it."""
        for plugin in self._tallies:
            for sentence in plugin.broken:
                self._complain(sentence)
            if is_quiescent and plugin.open:
                self._complain(f"I5: {len(plugin.open)} reserves never ended")
