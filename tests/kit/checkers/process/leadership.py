"""Checks what a process believes about its leases, and what it knows when it begins to lead (I9)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from multisched.shell.domain import DomainWorker
from multisched.shell.program import Program
from tests.kit.checkers.api.bind_checker import BindChecker
from tests.kit.checkers.delivered_state import DeliveredState
from tests.kit.checkers.process.feasible_nodes import used_by


class LeadershipChecker:
    """Wraps the workers of one program."""

    def __init__(self, program: Program, delivered: DeliveredState, bind_checker: BindChecker, identity: str) -> None:
        self._program, self._delivered = program, delivered
        self._bind_checker, self._report_violation = bind_checker, bind_checker.report_violation
        self._identity = identity
        for worker in program.router.workers():
            worker.lead = partial(self.lead, worker, worker.lead)  # type: ignore[method-assign]
        bind_checker.leases.believers[identity] = self.may_bind
        bind_checker.leases.leaders[identity] = self.leads

    def may_bind(self, domain: str) -> bool:
        """Reports whether the process believes that it may bind for the domain."""
        keeper = self._program.leases.get(domain)
        return keeper is not None and keeper.may_bind()

    def leads(self, domain: str) -> bool:
        """Reports whether the process may bind and has taken over, which failed lists can delay."""
        led = (worker.is_leading for worker in self._program.router.workers() if worker.name == domain)
        return self.may_bind(domain) and any(led)

    def lead(self, worker: DomainWorker, lead: Callable[[], None]) -> None:
        """Wraps `DomainWorker.lead`: a new leader knows every earlier bind (I9)."""
        is_used = used_by(self._program, worker.name)
        for pod in self._bind_checker.bound_pods():
            node = self._delivered.nodes.get(pod.node)
            known = self._delivered.pods.get(pod.uid)
            is_known = self._delivered.held.get(pod.uid) == pod.node or (known is not None and known.node == pod.node)
            if node is not None and is_used(node) and not is_known and pod.uid not in self._delivered.unknowable:
                self._report_violation(
                    f"I9: {self._identity} leads {worker.name}, and knows nothing of {pod.key} on {pod.node}"
                )
                break
        lead()
