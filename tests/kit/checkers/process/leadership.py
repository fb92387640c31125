"""Checks what a process believes about its leases, and what it knows when it begins to lead (I9)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
        self._strayed: dict[str, tuple[frozenset[str], str]] = {}
        """Group -> pods with a bind in flight to a node that has left its domains, and what it had published as seen, at the last look."""
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

    def faults(self) -> Iterator[str]:
        """Yields what is wrong about leases at this moment."""
        program, handover = self._program, self._program.handover
        for group in sorted(handover._settled & program.leases.keepers.keys()):
            if not program.leases._held[group].is_set():
                yield f"I9: {self._identity} lost the lease of {group}, and counts its former holder's binds as known"
        for worker in program.router.workers():
            if worker.lease.may_bind() and not program.history.is_trusted and program.leases.keepers:
                yield f"I9: {self._identity} may bind for {worker.name}, and doubts the history of the API server"
        before, self._strayed = self._strayed, {group: self._strayed_of(group) for group in program.leases.keepers}
        for group, (strayed, seen) in self._strayed.items():
            strayed_before, seen_before = before.get(group, (frozenset(), ""))
            if seen != seen_before and (still := strayed & strayed_before):
                yield f"I9: {self._identity} publishes for {group} what it has seen, and {min(still)} is bound to a node that left"

    def _strayed_of(self, group: str) -> tuple[frozenset[str], str]:
        program = self._program
        of_group = [one.binding for one in program.router.workers() if program.handover._groups[one.name] == group]
        strayed = (
            uid
            for one in of_group
            for uid, bind in one._sent.items()
            if not one._check.is_at_home(bind.placed, bind.seen)
        )
        return frozenset(strayed), program.handover._seen.get(group, "")

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
