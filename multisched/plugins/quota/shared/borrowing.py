"""RoomBorrowing: what a domain claims of the quota room that the lender offers, and which of its waiting pods may be bound."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from multisched.model.slice_parts import NOTHING, QUOTA_ROOM, SliceAmount
from multisched.plugins.quota.shared.room import NO_PODS, QuotaRoom
from multisched.plugins.slices.borrower_slices import BorrowerSlices
from multisched.plugins.slices.sides import BorrowingSide, sum_of


class RoomBorrowing(BorrowingSide):
    """The quota room that one domain uses of another process."""

    withdrawn = "less of the quota is offered than before"

    def __init__(self, room: QuotaRoom, domain: str) -> None:
        super().__init__(room.loan(domain), room)
        self._room = room
        self._domain = domain
        self._offered: dict[str, SliceAmount] = {}
        """Leaf -> what was offered when it was read last."""
        self._was_known = False

    def _new_machine(self, namespace: str) -> BorrowerSlices:
        return BorrowerSlices(*self.key, namespace, QUOTA_ROOM)

    def refresh(self) -> bool:
        machine = self.machine
        return machine is not None and self._refresh_some(machine, {*self._offered, *machine.slice_keys()})

    def _refresh_some(self, machine: BorrowerSlices, keys: Collection[str]) -> bool:
        is_more, is_readable = machine.is_known and not self._was_known, machine.are_offers_readable()
        self._was_known = machine.is_known
        for leaf in keys:
            offered = machine.offered_of(leaf) if is_readable else NOTHING
            is_more |= not offered.is_within(self._offered.get(leaf, NOTHING))
            self._offered[leaf] = offered
        self._room.ledger.changed()
        return is_more

    def is_lent(self, key: str) -> bool:
        """Reports whether the tree in force has the leaf."""
        return bool(self._room.levels_at(key))

    def is_needed(self) -> bool:
        return self._domain in self._room.unmet

    # -- what is charged -------------------------------------------------------------------------------------------

    def _take_touched(self) -> Iterable[str]:
        touched = self._room.touched
        leaves, touched[self._domain] = touched[self._domain], set()
        return leaves

    def charged(self, key: str) -> SliceAmount:
        """Returns what pods use of the leaf, without waiting ones.

        No more than may be held once all pods of former leaders are covered: pods may use more than that under a new tree, and then no
        further ones are placed.
        """
        machine, used = self.machine, self._room.pods.used((self._domain, key))
        charged = used - sum_of(self.waiting_for(key).values())
        if machine is None or not machine.are_claims_complete():
            return charged
        return charged & (machine.held(key) | machine.offered_of(key))

    def charged_keys(self) -> set[str]:
        leaves, machine = set(self._room.pods.leaves_of(self._domain)), self.machine
        return leaves if machine is None else leaves | machine.slice_keys()

    def waiting(self) -> Collection[str]:
        return [leaf for domain, leaf in self._room.waiting if domain == self._domain]

    def waiting_for(self, key: str) -> Mapping[str, SliceAmount]:
        return self._room.waiting.get((self._domain, key), NO_PODS)

    def claim(self, uid: str) -> None:
        self._room.claim(uid)
