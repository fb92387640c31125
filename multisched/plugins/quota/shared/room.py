"""QuotaRoom: the amounts of the quota tree that are kept for, or offered by, other processes. Implements `quota_ledger.CrossProcessRoom`.

Owns the state machines of the slices of quotas, the pods that wait for a claim, and the amount of each level that is kept for borrowers
(`Level.kept`). When a state machine changes, the lending side refreshes these amounts before the next await, so that each commit uses the
current ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from multisched.model.objects import Pod
from multisched.model.quota_tree import shown_amount
from multisched.model.slice_parts import NOTHING, SliceAmount
from multisched.plugins.quota.pod_amounts import Items
from multisched.plugins.quota.quota_ledger import NO_LEVELS, Counts, Level, QuotaLedger, add_kept
from multisched.plugins.quota.shared.leaf_counts import LeafCounts, LeafKey
from multisched.plugins.quota.shared.room_needs import RoomNeeds
from multisched.plugins.quota.shared.terms import QuotaSharing
from multisched.plugins.slices.driver import SliceDriver
from multisched.plugins.slices.sides import LoanKey, SliceMachines

HELD_UNKNOWN: Final = (
    "it is unknown which amounts of the quotas other processes hold: the status of a SliceSet is incomplete"
)
NO_PODS: Final[Mapping[str, SliceAmount]] = {}


class QuotaRoom(SliceMachines):
    """The QuotaRoom of one process, shared by all its domains."""

    def __init__(self, ledger: QuotaLedger, sharing: QuotaSharing) -> None:
        super().__init__()
        self.ledger = ledger
        self.sharing = sharing
        self.is_live = False
        """False in a copy of the program (sandbox), which binds no pods and does not know what was offered."""
        self._domain_of = {name: domain for domain, names in sharing.borrowers.items() for name in names}
        self.pods = LeafCounts(self._domain_of)
        self.needs = RoomNeeds()
        self.demand_version = 0
        """Increases when pods of borrowers are added, bound or removed."""
        self.drivers: dict[str, SliceDriver] = {}
        """Domain of this process -> its driver."""
        self.touched: dict[str, set[str]] = {domain: set() for domain in sharing.borrowers}
        """Borrower -> leaves whose pods have changed since the borrowing side last read this."""
        self.waiting: dict[LeafKey, dict[str, SliceAmount]] = {}
        """Borrower and leaf -> uid of a pod that waits at Permit until enough is claimed -> its amount."""
        self.unmet: set[str] = set()
        """Borrowers with a pod that was refused since the borrowing side last checked."""
        self._claimed: set[str] = set()
        """uids of assumed pods for which enough is claimed."""
        self._kept: dict[LeafKey, SliceAmount] = {}
        """Borrower and leaf -> amount that is included in `Level.kept`."""
        self._leaves: dict[str, tuple[Level, ...]] = {}
        self._leaves_of = -1
        """Generation of the ledger from which `_leaves` was computed."""
        ledger.room = self

    # -- the tree --------------------------------------------------------------------------------------------------

    def levels_at(self, leaf: str) -> tuple[Level, ...]:
        """Returns a leaf, by name, and all levels above it; empty if the tree in force has no such leaf."""
        ledger = self.ledger
        if ledger.generation != self._leaves_of:
            self._leaves_of = ledger.generation
            leaves = () if ledger.tree is None else ledger.tree.leaves()
            self._leaves = {ledger.levels[at].name: ledger.paths[at] for at in leaves}
        return self._leaves.get(leaf, NO_LEVELS)

    def counts(self) -> Counts:
        return LeafCounts(self._domain_of)

    def adopt(self, counts: Counts) -> None:
        """Replaces the counts when another tree comes into force. `Level.kept` of its levels is still empty."""
        assert isinstance(counts, LeafCounts)
        for domain, touched in self.touched.items():
            touched |= {*self.pods.leaves_of(domain), *counts.leaves_of(domain)}
        self.pods = counts
        self.waiting = {}
        for uid in counts.unbound - self._claimed:
            self._wait(uid)
        self._kept = {}
        self.demand_version += 1
        for domain in self.sharing.borrowers:
            self.refresh_kept(domain)

    # -- pods ------------------------------------------------------------------------------------------------------

    def demand_changed(self) -> None:
        """Wakes the lender's driver, because a pod of a borrower became pending, or is no longer pending."""
        self.demand_version += 1
        if (driver := self.drivers.get(self.sharing.lender)) is not None:
            driver.wake()

    def is_of_borrower(self, pod: Pod) -> bool:
        return pod.spec.scheduler_name in self._domain_of

    def domain_of(self, pod: Pod) -> str:
        """Returns the borrower to which the pod belongs; empty if it belongs to none."""
        return self._domain_of.get(pod.spec.scheduler_name, "")

    def added(self, pod: Pod, levels: tuple[Level, ...], items: Items) -> None:
        self.needs.drop(pod.uid)
        self.pods.added(pod, levels, items)
        if pod.uid in self.pods.pods:
            if not pod.node and pod.uid not in self._claimed:
                self._wait(pod.uid)
            self._changed(self.pods.pods[pod.uid].key)

    def bound(self, uid: str) -> None:
        """Handles a pod that the API server shows on a node."""
        counted = self.pods.pods.get(uid)
        if counted is not None:
            self.pods.bound(uid)
            self._claimed.discard(uid)
            self._end_wait(uid)

    def removed(self, uid: str) -> None:
        counted = self.pods.pods.get(uid)
        if counted is not None:
            self._end_wait(uid)
            self.pods.removed(uid)
            self._changed(counted.key)

    def _changed(self, key: LeafKey) -> None:
        self.demand_version += 1
        self.touched[key[0]].add(key[1])
        self._refresh_kept(key)

    def _wait(self, uid: str) -> None:
        counted = self.pods.pods[uid]
        if counted.amount:
            self.waiting.setdefault(counted.key, {})[uid] = counted.amount

    def _end_wait(self, uid: str) -> None:
        key = self.pods.pods[uid].key
        if uid in self.waiting.get(key, NO_PODS):
            self.touched[key[0]].add(key[1])
            del self.waiting[key][uid]
            if not self.waiting[key]:
                del self.waiting[key]

    def claim(self, uid: str) -> None:
        """Ends the wait of a pod at Permit, because enough is claimed for it. Its amount is part of the claim from now on."""
        self._claimed.add(uid)
        self._end_wait(uid)

    def forget_claim(self, uid: str) -> None:
        """Handles a pod that is no longer assumed."""
        self._claimed.discard(uid)

    def waiting_at(self, uid: str) -> LeafKey | None:
        """Returns the leaf for which a pod waits; None if it does not wait."""
        counted = self.pods.pods.get(uid)
        return counted.key if counted is not None and uid in self.waiting.get(counted.key, NO_PODS) else None

    # -- refusals --------------------------------------------------------------------------------------------------

    def refusal(self, pod: Pod, levels: tuple[Level, ...], items: Items) -> str:
        """Returns why the pod is refused; empty if it is not.

        A pod of a borrower is refused if too little is offered. Any other pod in a quota with a max is refused while it is unknown what
        borrowers hold.
        """
        domain = self._domain_of.get(pod.spec.scheduler_name)
        if not self.is_live:
            return ""
        if domain is None:
            return HELD_UNKNOWN if self.is_held_unknown and self.pods.limited(levels) else ""
        amount = self.pods.amount(levels, items)
        return self._refusal_of_claim(domain, levels[0], amount) if amount else ""

    def _refusal_of_claim(self, domain: str, leaf: Level, amount: SliceAmount) -> str:
        machine, used = self.borrowed.get((self.sharing.lender, domain)), self.pods.used((domain, leaf.name))
        is_readable = machine is not None and machine.are_offers_readable()
        offered = machine.offered_of(leaf.name) if machine is not None and is_readable else NOTHING
        if (used + amount).is_within(offered):
            return ""
        self.unmet.add(domain)
        offers, uses = offered.amounts(), used.amounts()
        for resource, asked in amount.amounts().items():
            if asked and uses.get(resource, 0) + asked > offers.get(resource, 0):
                shown = [shown_amount(resource, one) for one in (uses.get(resource, 0), asked, offers.get(resource, 0))]
                return (
                    f"quota {leaf.path}: {resource} {shown[0]} used by {domain}, {shown[1]} requested, "
                    f"{shown[2]} offered by the leader of {self.sharing.lender}"
                )
        return f"quota {leaf.path}: more is used by {domain} than the leader of {self.sharing.lender} offers"

    @property
    def is_held_unknown(self) -> bool:
        """True while it is unknown what at least one borrower holds."""
        return any(machine.is_held_unknown for machine in self.lent.values())

    # -- what is kept ----------------------------------------------------------------------------------------------

    def refresh_kept(self, domain: str, leaves: Iterable[str] | None = None) -> bool:
        """Recomputes the amounts kept for the domain. Returns True if one has decreased. `leaves`: None for all leaves."""
        machine = self.lent.get(self.loan(domain))
        if leaves is None:
            known = {leaf for one, leaf in self._kept if one == domain}
            leaves = known if machine is None else known | machine.slice_keys()
        is_less = [self._refresh_kept((domain, leaf)) for leaf in list(leaves)]
        self.ledger.changed()
        return any(is_less)

    def loan(self, domain: str) -> LoanKey:
        return self.sharing.lender, domain

    def _refresh_kept(self, key: LeafKey) -> bool:
        """Sets the kept amount to what is reserved for the borrower minus what its pods use. Returns True if a resource has decreased."""
        domain, leaf = key
        machine, levels = self.lent.get(self.loan(domain)), self.levels_at(leaf)
        before, after = self._kept.get(key, NOTHING), NOTHING
        if machine is not None and levels and not machine.is_held_unknown:
            after = (machine.reserved(leaf) - self.pods.used(key)) | NOTHING
        if after == before:
            return False
        more = {name: amount for name, amount in (after - before).amounts().items() if amount}
        add_kept(levels, more, has_guarantees=self.ledger.has_guarantees)
        if after:
            self._kept[key] = after
        else:
            del self._kept[key]
        self.ledger.changed()
        return any(amount < 0 for amount in more.values())
