"""Compares state of one process with plain computations: parked pods, victims, cards, plugins and quotas."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from domains.gpu.gpu_ledger import GpuLedger
from multisched.shell.program import Program
from tests.kit.checkers.process.active_plugins import fault_of_plugins
from tests.kit.checkers.process.free_cards import fault_of_cards
from tests.kit.checkers.process.queue_model import QueueModel
from tests.kit.checkers.process.quotas import ProcessQuotas
from tests.kit.checkers.process.removals import RemovalChecker
from tests.kit.checkers.process.takeovers import TakeoverChecker


class StateChecker:
    """The state of one program."""

    def __init__(
        self,
        program: Program,
        quotas: ProcessQuotas,
        report_violation: Callable[[str], None],
        is_paused: Callable[[], bool],
    ) -> None:
        self._program, self._quotas, self._is_paused = program, quotas, is_paused
        self._removals = RemovalChecker(program, is_paused)
        self._queues = [
            QueueModel(worker, program.cache.gangs, report_violation, quotas.popped)
            for worker in program.router.workers()
        ]
        TakeoverChecker(program, report_violation)

    def follow(self) -> str:
        """Uses the configuration now in force. Returns the first part that does not use it; empty for none."""
        for queue in self._queues:
            queue.follow()
        return fault_of_plugins(self._program)

    def faults(self) -> Iterator[str]:
        """Yields wrong state at this moment; may yield empty strings."""
        yield from self._removals.broken
        self._removals.broken.clear()
        yield self._removals.fault()
        for queue in self._queues:
            yield queue.fault_of_index()
        for ledger in self._program.cache.ledgers:
            if isinstance(ledger, GpuLedger):
                yield fault_of_cards(ledger)
        for worker in self._program.router.workers() if not self._is_paused() else ():
            yield self._quotas.fault_of_waiting(worker)

    def faults_when_quiescent(self) -> Iterator[str]:
        """Does the same when nothing is in progress."""
        yield from self.faults()
        yield self._removals.fault_when_quiescent()
