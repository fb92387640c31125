"""Every lease as it is written, read and deleted: who may bind by it at a moment, and who believes that it may (I9)."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Set
from dataclasses import dataclass

from multisched.config.nodes import lease_groups_of
from multisched.config.schema import Configuration

RECORDED_S = 0.000_001
"""What a lease's record may leave out of the time at which it was renewed."""
JUST_AFTER_S = 0.001
"""No renewal is answered as soon as that."""


@dataclass(slots=True)
class _Term:
    """One holding of a lease, from the server's own answers."""

    holder: str
    bind_from_s: float
    renewed_s: float
    """The record's own renewTime, on the common clock."""
    is_known_by_pods: bool = False
    """Its holder never heard of a lease before it; only pods of ours that stand tell it that there was one."""


@dataclass(slots=True)
class _DeletedLease:
    """A lease that somebody deleted."""

    holder: str
    """Its last one, which may bind without having heard of it."""
    until_s: float
    known_to: Collection[str]
    """Processes that have observed it. Any other cannot tell it from a lease that never was."""
    before: _DeletedLease | None
    """Of the same lease, where its last holder did not yet bind by it, since that one might."""

    def may_still_lead(self, sender: str, now_s: float) -> bool:
        """It held the lease, and need not have heard of the deletion: whoever makes the lease anew waits for that moment."""
        if self.holder == sender and now_s < self.until_s:
            return True
        return self.before is not None and self.before.may_still_lead(sender, now_s)


class LeaseChecker:
    """Holds each sender to the leases as the server has them."""

    def __init__(
        self,
        configuration: Configuration,
        now_s: Callable[[], float],
        complain: Callable[[str], None],
        has_ours: Callable[[], bool],
    ) -> None:
        """`has_ours`: some pod of our schedulers stands on a node."""
        self._now_s = now_s
        self._complain = complain
        self._has_ours = has_ours
        self._groups = lease_groups_of(configuration)
        self._has_leases = configuration.lease.enabled
        self._lease_prefix = configuration.lease.name_prefix
        self._renew_deadline_s = configuration.lease.renew_deadline_s
        self.renew_deadlines_s: dict[str, float] = {}
        """Process -> how long after a renewal it may bind, where its configuration is another one."""
        self._bind_deadline_s = configuration.client.bind_timeout_s
        self.believers: dict[str, Callable[[str], bool]] = {}
        """Sender -> whether it believes that it may bind for a domain now."""
        self.leaders: dict[str, Callable[[str], bool]] = {}
        """Sender -> whether it decides for a domain now: it has taken over, too."""
        self._terms: dict[str, _Term] = {}
        self._deleted: dict[str, _DeletedLease] = {}
        """By name of the lease."""
        self._lease_readers: defaultdict[str, set[str]] = defaultdict(set)
        """Lease -> the processes that have ever observed it."""
        self._unaware: dict[str, float] = {}
        """Processes that took a lease which had been deleted before they observed it -> when the last bind by it is over."""
        self._deadlines: set[str] = set()
        """Leases at whose end somebody will look."""

    def check(self, sender: str, domain: str, what: str) -> None:
        fault = self.fault_of(sender, domain)
        if fault:
            self._complain(f"I9: {sender} sent {what} {fault}")

    def fault_of(self, sender: str, domain: str) -> str:
        """I9, by the lease as the server has it: held by the sender, not past its deadline, and waited for; empty if it is."""
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
            # Nothing tells it how long the lease lasted that it did not find, or, where no pod of ours stands, that there was one.
            known_s = now_s + (self._may_bind_s(holder) + self._bind_deadline_s if self._has_ours() else 0.0)
            if known_s < last_s + self._bind_deadline_s:
                # What was sent in the last moment may still be on its way then.
                self._unaware[holder] = max(last_s + self._bind_deadline_s, self._unaware.get(holder, 0.0))
            bind_from_s = min(bind_from_s, known_s)
        if deleted is not None and deleted.before is not None and deleted.before.may_still_lead(holder, now_s):
            bind_from_s = now_s  # it never stopped leading
        self._terms[name] = _Term(holder, bind_from_s, renewed_s, is_known_by_pods)
        self.look()

    def _forget_deleted(self, name: str, holder: str) -> None:
        """Who held the lease that was deleted has made it anew and given it back: it binds by neither."""
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
        """Names of the leases that it holds."""
        return [name for name, term in self._terms.items() if term.holder == sender]

    def _may_bind_s(self, holder: str) -> float:
        """How long after it renewed a lease."""
        return self.renew_deadlines_s.get(holder, self._renew_deadline_s)

    def _look_at_deadline(self, name: str, until_s: float) -> None:
        """Asks right after the moment when nobody may bind by the lease any more."""
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
        """I9, whether anything is sent or not: who believes that it may bind, may."""
        for term in self._terms.values():
            if term.is_known_by_pods and not self._has_ours():  # they have ended, maybe before its holder listed
                term.bind_from_s = min(term.bind_from_s, self._now_s())
                term.is_known_by_pods = False
        for sender, may_bind in self.believers.items():
            for domain in self._groups:
                fault = self.fault_of(sender, domain) if may_bind(domain) else ""
                if fault:
                    self._complain(f"I9: {sender} believes that it may bind for {domain}, {fault}")

    def name_of(self, domain: str) -> str:
        """Its name."""
        return f"{self._lease_prefix}-{self._groups[domain]}"

    def names(self) -> Set[str]:
        """Names of all leases by which somebody may bind."""
        return {self.name_of(domain) for domain in self._groups}

    def is_holder(self, sender: str) -> bool:
        return any(term.holder == sender for term in self._terms.values())

    def is_unaware(self, *senders: str) -> bool:
        """One of them cannot know that binds of another may be on their way still."""
        now_s = self._now_s()
        return any(now_s < self._unaware.get(sender, now_s) for sender in senders)

    def returned_by(self, name: str, holder: str) -> str:
        """Who gives the lease back by writing this holder; empty for nobody."""
        term = self._terms.get(name)
        return term.holder if term is not None and not holder else ""

    def domains_of(self, name: str) -> Collection[str]:
        """Domains for which the lease of this name stands."""
        return [domain for domain in self._groups if self.name_of(domain) == name]

    def cannot_know(self, one: str, other: str) -> bool:
        """One of two processes cannot know what the other does, for want of a lease that says so."""
        return one != other and self.is_unaware(one, other)

    def did_not_know(self, one: str, other: str) -> bool:
        """The same, of any time until now."""
        return one != other and bool(self._unaware.keys() & {one, other})
