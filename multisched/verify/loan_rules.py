"""Rules of loans: what pods of a borrower may request on nodes of the lender, and how much.

Written from docs/loans.md. Not judged: the hours of a loan, reserves, and amounts of idle capacity, which depend on the use
of the node at that time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from multisched.verify.findings import Fault
from multisched.verify.objects import Node, Pod
from multisched.verify.selectors import LabelSelector

IDLE_REQUEST = "multisched.io/idle-request"
BATCH_RESOURCES = frozenset({"kubernetes.io/batch-cpu", "kubernetes.io/batch-memory"})


@dataclass(frozen=True, slots=True)
class Loan:
    """Nodes of another domain that a domain may use."""

    lender: str
    selector: LabelSelector
    is_limited: bool = False
    """False: the domain may use the nodes like its own, and the other fields mean nothing."""
    is_idle: bool = False
    resources: frozenset[str] = frozenset()
    """The only resources that pods on loan may request."""
    share_percent: int = 100
    headroom: tuple[tuple[str, int], ...] = ()


class Borrower(NamedTuple):
    """A domain on one node of a lender."""

    domain: str
    loans: tuple[Loan, ...]
    """The loans by which it may use the node; at least one."""


class LoanUsage:
    """The requests of borrowers' pods on one node."""

    def __init__(self, node: Node, borrowers: Mapping[str, Borrower], *, knows_order: bool) -> None:
        """`borrowers`: by schedulerName. `knows_order`: the pods before one were all there when it was placed, and sized as now."""
        self._room = node.allocatable or {}
        self._borrowers = borrowers
        self._knows_order = knows_order
        self._held: dict[str, Counter[str]] = {}
        """Borrower -> resource -> amount."""
        self._others: Counter[str] = Counter()

    def add(self, pod: Pod) -> None:
        borrower = self._borrowers.get(pod.scheduler)
        sums = self._others if borrower is None else self._held.setdefault(borrower.domain, Counter())
        sums.update(pod.demand.least)

    def faults(self, pod: Pod) -> Iterator[Fault]:
        """Yields a fault unless one of the loans allows the pod in addition to the pods added before."""
        borrower = self._borrowers.get(pod.scheduler)
        if borrower is None or not all(loan.is_limited for loan in borrower.loans):
            return
        found = [self._fault(pod, borrower.domain, loan) for loan in borrower.loans]
        if None not in found:
            yield from (fault for fault in found[:1] if fault is not None)

    def _fault(self, pod: Pod, domain: str, loan: Loan) -> Fault | None:
        wanted = {name: amount for name, amount in pod.demand.least.items() if amount > 0}
        if loan.is_idle is not _wants_idle(pod, wanted):
            what = "idle capacity only" if loan.is_idle else "no idle capacity"
            return Fault("loans", f"{loan.lender} lends {what} there")
        lent = loan.resources | BATCH_RESOURCES if loan.is_idle else loan.resources
        for name in sorted(wanted):
            if name not in lent:
                return Fault("loans", f"{loan.lender} does not lend {name}, of which it requests {wanted[name]}")
        return None if loan.is_idle else self._excess(domain, loan, wanted)

    def _excess(self, domain: str, loan: Loan, wanted: Mapping[str, int]) -> Fault | None:
        held, headroom = self._held.get(domain, Counter[str]()), dict(loan.headroom)
        for name, amount in sorted(wanted.items()):
            unrequested = max(0, self._room.get(name, 0) - self._others[name])
            lent = max(0, unrequested * loan.share_percent // 100 - headroom.get(name, 0))
            if held[name] + amount > lent:
                message = f"with it, pods of {domain} request {held[name] + amount} of {name}; {loan.lender} lends {lent} there"
                return Fault("loans", message, is_sure=self._knows_order)
        return None


def _wants_idle(pod: Pod, wanted: Mapping[str, int]) -> bool:
    if not BATCH_RESOURCES.isdisjoint(wanted):
        return True
    return IDLE_REQUEST in pod.annotations and "cpu" not in wanted and "memory" not in wanted
