"""Checks every lease when it is written, read and deleted: which process may bind at a moment, and which process believes that it
may (I9).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Set
from dataclasses import dataclass

from multisched.config.nodes import lease_groups_of
from multisched.config.schema import Configuration

RECORDED_S = 0.000_001
"""Rounding error of the renewTime in a lease record."""
JUST_AFTER_S = 0.001
"""Shorter than the response time of any renewal."""


@dataclass(slots=True)
class _Term:
    """One holding of a lease, as the server has recorded it."""

    holder: str
    bind_from_s: float
    renewed_s: float
    """The renewTime of the record."""
    is_known_by_pods: bool = False
    """The holder does not know that the lease existed before; only our pods on nodes show that there was an earlier one."""


@dataclass(slots=True)
class _DeletedLease:
    """A lease that a user deleted."""

    holder: str
    """The last holder. It may still bind until it learns of the deletion."""
    until_s: float
    known_to: Collection[str]
    """Processes that have read the lease. For any other process it never existed."""
    before: _DeletedLease | None
    """The earlier deletion of the same lease, if its last holder could not bind yet: the earlier holder still may."""

    def may_still_lead(self, sender: str, now_s: float) -> bool:
        """Reports whether the process held the lease and may not know of the deletion. The process that creates the lease again
        waits for this time.
        """
        if self.holder == sender and now_s < self.until_s:
            return True
        return self.before is not None and self.before.may_still_lead(sender, now_s)


class LeaseChecker:
    """Compares each sender with the leases in the server."""

    def __init__(
        self,
        configuration: Configuration,
        now_s: Callable[[], float],
        report_violation: Callable[[str], None],
        has_ours: Callable[[], bool],
    ) -> None:
        """`has_ours`: reports whether a pod of our schedulers is on a node."""
        self._now_s = now_s
        self._report_violation = report_violation
        self._has_ours = has_ours
        self._groups = lease_groups_of(configuration)
        self._has_leases = configuration.lease.enabled
        self._lease_prefix = configuration.lease.name_prefix
        self._renew_deadline_s = configuration.lease.renew_deadline_s
        self.renew_deadlines_s: dict[str, float] = {}
        """Process -> renew deadline in its configuration, if it differs."""
        self._bind_deadline_s = configuration.client.bind_timeout_s
        self.believers: dict[str, Callable[[str], bool]] = {}
        """Sender -> function that reports whether the sender believes that it may bind for a domain."""
        self.leaders: dict[str, Callable[[str], bool]] = {}
        """Sender -> function that reports whether the sender leads a domain and has taken over."""
        self._terms: dict[str, _Term] = {}
        self._deleted: dict[str, _DeletedLease] = {}
        """Lease name -> its deletion."""
        self._lease_readers: defaultdict[str, set[str]] = defaultdict(set)
        """Lease -> processes that have read it."""
        self._unaware: dict[str, float] = {}
        """Process that took a lease which was deleted before the process read it -> time at which the last bind of the old holder
        is over.
        """
        self._deadlines: set[str] = set()
        """Leases for which a check at the deadline is scheduled."""

    def check(self, sender: str, domain: str, what: str) -> None:
        fault = self.fault_of(sender, domain)
        if fault:
            self._report_violation(f"I9: {sender} sent {what} {fault}")

    def fault_of(self, sender: str, domain: str) -> str:
        """Returns how the sender violates I9 by the lease in the server: it must hold the lease, before its deadline, and after the
        binds of the last holder. Empty if it does not.
        """
        if not self._has_leases:
            return ""
        name = self.name_of(domain)
        term, now_s = self._terms.get(name), self._now_s()
        deleted = self._deleted.get(name)
        if term is not None and deleted is not None and term.holder != sender and deleted.may_still_lead(sender, now_s):
            return ""
        if term is None or term.holder != sender:
            held_by = term.holder if term is not None else "nobody"
            return f"while {held_by} held the lease of {domain}"
        if now_s >= term.renewed_s + self._may_bind_s(sender) + RECORDED_S:
            return f"{now_s - term.renewed_s:.2f} s after it renewed the lease"
        if now_s < term.bind_from_s:
            return f"{term.bind_from_s - now_s:.2f} s before the last leader's binds had run out"
        return ""

    def written(self, name: str, holder: str, renewed_s: float) -> None:
        now_s = self._now_s()
        if name not in self._deadlines:
            self._look_at_deadline(name, renewed_s + self._may_bind_s(holder))
        term = self._terms.get(name)
        if term is not None and term.holder == holder:
            term.renewed_s = renewed_s
            return
        after_expiry = term is not None and bool(term.holder) and bool(holder)
        if term is not None and not holder:
            self._forget_deleted(name, term.holder)
        wait_s = self._bind_deadline_s if after_expiry else 0.0
        deleted = self._deleted.get(name)
        last_s = deleted.until_s if deleted is not None else 0.0
        bind_from_s = max(now_s + wait_s, last_s)
        is_known_by_pods = deleted is not None and bool(holder) and holder not in deleted.known_to
        if is_known_by_pods:
            # It cannot know how long the deleted lease lasted, or, without our pods on nodes, that there was one.
            known_s = now_s + (self._may_bind_s(holder) + self._bind_deadline_s if self._has_ours() else 0.0)
            if known_s < last_s + self._bind_deadline_s:
                # A bind sent just before the deadline may still be in flight then.
                self._unaware[holder] = max(last_s + self._bind_deadline_s, self._unaware.get(holder, 0.0))
            bind_from_s = min(bind_from_s, known_s)
        if deleted is not None and deleted.before is not None and deleted.before.may_still_lead(holder, now_s):
            bind_from_s = now_s  # it never stopped leading
        self._terms[name] = _Term(holder, bind_from_s, renewed_s, is_known_by_pods)
        self.look()

    def _forget_deleted(self, name: str, holder: str) -> None:
        """Forgets a deletion after the last holder has created the lease again and released it: it binds by neither."""
        deleted = self._deleted.get(name)
        if deleted is None or deleted.holder != holder:
            return
        if deleted.before is not None:
            self._deleted[name] = deleted.before
        else:
            del self._deleted[name]

    def deleted(self, name: str) -> None:
        term = self._terms.get(name)
        if term is not None and term.holder:
            until_s = term.renewed_s + self._may_bind_s(term.holder)
            before = self._deleted.get(name) if self._now_s() < term.bind_from_s else None
            self._deleted[name] = _DeletedLease(term.holder, until_s, frozenset(self._lease_readers[name]), before)

    def read(self, sender: str, path: str) -> None:
        self._lease_readers[path.rpartition("/")[2].partition("?")[0]].add(sender)

    def held_by(self, sender: str) -> list[str]:
        """Returns the names of the leases that the process holds."""
        return [name for name, term in self._terms.items() if term.holder == sender]

    def _may_bind_s(self, holder: str) -> float:
        """Returns how long the holder may bind after a renewal."""
        return self.renew_deadlines_s.get(holder, self._renew_deadline_s)

    def _look_at_deadline(self, name: str, until_s: float) -> None:
        """Schedules a check right after the lease's deadline."""
        self._deadlines.add(name)
        asyncio.get_running_loop().call_at(until_s + JUST_AFTER_S, self._at_deadline, name)

    def _at_deadline(self, name: str) -> None:
        self._deadlines.discard(name)
        self.look()
        term = self._terms.get(name)
        until_s = term.renewed_s + self._may_bind_s(term.holder) if term is not None else 0.0
        if until_s > self._now_s():
            self._look_at_deadline(name, until_s)

    def look(self) -> None:
        """Checks I9 independent of requests: each process that believes that it may bind, may bind."""
        for term in self._terms.values():
            if term.is_known_by_pods and not self._has_ours():  # they have ended
                term.bind_from_s = min(term.bind_from_s, self._now_s())
                term.is_known_by_pods = False
        for sender, may_bind in self.believers.items():
            for domain in self._groups:
                fault = self.fault_of(sender, domain) if may_bind(domain) else ""
                if fault:
                    self._report_violation(f"I9: {sender} believes that it may bind for {domain}, {fault}")

    def name_of(self, domain: str) -> str:
        """Returns the name of the domain's lease."""
        return f"{self._lease_prefix}-{self._groups[domain]}"

    def names(self) -> Set[str]:
        """Returns the names of all leases."""
        return {self.name_of(domain) for domain in self._groups}

    def is_holder(self, sender: str) -> bool:
        return any(term.holder == sender for term in self._terms.values())

    def is_unaware(self, *senders: str) -> bool:
        """Reports whether one of the senders cannot know that binds of another one may be in flight."""
        now_s = self._now_s()
        return any(now_s < self._unaware.get(sender, now_s) for sender in senders)

    def returned_by(self, name: str, holder: str) -> str:
        """Returns the process that releases the lease by writing this holder; empty if none does."""
        term = self._terms.get(name)
        return term.holder if term is not None and not holder else ""

    def domains_of(self, name: str) -> Collection[str]:
        """Returns the domains of the lease."""
        return [domain for domain in self._groups if self.name_of(domain) == name]

    def cannot_know(self, one: str, other: str) -> bool:
        """Reports whether one of two processes cannot know what the other one does, because their lease was deleted."""
        return one != other and self.is_unaware(one, other)

    def did_not_know(self, one: str, other: str) -> bool:
        """Reports whether that was true at any time until now."""
        return one != other and bool(self._unaware.keys() & {one, other})
