"""Checks which nodes a new leader uses at once: none to which another leader may still be binding, by their leases (I9)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from multisched.client.lease_record import Holding
from multisched.shell.domain import DomainWorker
from multisched.shell.leadership.handover import SEEN_ANNOTATION
from multisched.shell.program import Program


class TakeoverChecker:
    """Wraps `Handover.is_settled` and `Handover.open` of one program."""

    def __init__(self, program: Program, report_violation: Callable[[str], None]) -> None:
        self._program, self._report_violation = program, report_violation
        self._unread: dict[str, set[str]] = {}
        """Domain -> other leases under which binds may have been in flight when it was decided whether to read them."""
        self._is_settled, self._open = program.handover.is_settled, program.handover.open
        program.handover.is_settled = self.is_settled  # type: ignore[method-assign]
        program.handover.open = self.open  # type: ignore[method-assign]

    def is_settled(self, domain: str) -> bool:
        """Wraps `Handover.is_settled`."""
        handover = self._program.handover
        self._unread[domain] = handover._leases - handover._settled - {handover._groups[domain]}
        return self._is_settled(domain)

    def open(self, worker: DomainWorker, others: Mapping[str, Holding | None]) -> None:
        """Wraps `Handover.open`."""
        handover, nodes = self._program.handover, self._program.cache.nodes
        if unread := self._unread[worker.name] - handover._settled - others.keys():
            self._report_violation(f"I9: {worker.name} is led, and the lease of {min(unread)} was not read")
        self._open(worker, others)
        known = handover._nodes.position
        rows = self._program.router.rows_of(worker)
        # Of a sliced row nothing is used before its lender has offered it, which the slices themselves fence.
        used = [nodes.node(row) for row in rows.rows.tolist() if row not in rows._sliced]
        for group, holding in others.items():
            if holding is None or group in handover._settled or not used:
                continue
            seen = holding.annotations.get(SEEN_ANNOTATION, "")
            if not (seen.isdigit() and known.isdigit()):
                self._report_violation(
                    f"I9: {worker.name} uses {used[0].name}, and {group} does not say what it has seen"
                )
            elif int(seen) > int(known):
                found = f"{group} has seen nodes up to {seen}, and this process up to {known}"
                self._report_violation(f"I9: {worker.name} uses {used[0].name}, and {found}")
            elif late := [node.name for node in used if int(node.version) > int(seen)]:
                self._report_violation(f"I9: {worker.name} uses {late[0]}, which {group} may not have seen leave")
