"""Defects of sliced loans. `tests.sim.slices` plays them, not the runs of other defects: those have one process."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from msgspec.structs import replace

from multisched.framework.node_view import Int64, Rows
from multisched.model.cluster_objects import SliceSet
from multisched.model.objects import Pod
from multisched.model.slice_parts import NO_OFFER, NOTHING, SliceAmount
from multisched.plugins.loans.loan_ledger import LoanLedger
from multisched.plugins.loans.pools import Held
from multisched.plugins.loans.slices.borrower_side import BorrowerSide
from multisched.plugins.loans.slices.lender_side import LenderSide
from multisched.plugins.loans.slices.slice_rows import SliceRows
from multisched.plugins.slices.borrower_slices import BorrowerSlices, _Claimed
from multisched.plugins.slices.driver import SliceDriver
from multisched.plugins.slices.lender_slices import LenderSlices
from multisched.shell.domain_slices import DomainSlices
from multisched.shell.leadership.cluster_lists import ClusterLists
from tests.sim.defects import defect, put

# -- rows --------------------------------------------------------------------------------------------------------------


@defect
def nothing_is_kept_for_borrowers() -> None:
    """Pods of the lender use what borrowers may hold."""

    def kept(self: SliceRows, keys: Any, resource: str, rows: Rows, trial: Any = None) -> Int64:
        return np.zeros(len(rows), np.int64)

    put(SliceRows, "kept", kept)


@defect
def only_offers_are_reserved() -> None:
    """Room is added back at the recall, and not when the borrower has acknowledged it."""
    put(LenderSlices, "reserved", lambda self, uid: self.offer_of(uid).amount)


@defect
def only_held_slices_are_reserved() -> None:
    """What may be claimed at any moment is not reserved."""
    put(LenderSlices, "reserved", lambda self, uid: self.held(uid))


@defect
def raised_offers_are_reserved_when_they_are_seen() -> None:
    """An offer is raised before it is taken in memory."""

    def reserved(self: LenderSlices, uid: str) -> SliceAmount:
        total = NOTHING
        for one in self._objects.values():
            if one.seen is not None and one.seen.spec is not None:
                total += one.seen.spec.offers.get(uid, NO_OFFER).amount | one.held(uid)
        return total

    put(LenderSlices, "reserved", reserved)


@defect
def offers_ignore_what_other_borrowers_hold() -> None:
    """An offer is limited by the loan's terms alone."""

    def room(self: LenderSide, resource: str, rows: Rows) -> Int64:
        return self._ledger.nodes.allocatable(resource).take(rows)

    put(LenderSide, "_room", room)


# -- claims ------------------------------------------------------------------------------------------------------------


@defect
def pods_do_not_wait_for_claims() -> None:
    """Pods of the borrower are bound before enough is claimed."""
    put(BorrowerSide, "may_use", lambda self, key, amount, now_s: True)


@defect
def offers_are_used_unclaimed() -> None:
    """What is offered is used, whether it was claimed or not."""
    put(BorrowerSlices, "limit", lambda self, uid, now_s: self.offered_of(uid))


@defect
def claims_are_taken_from_the_watch() -> None:
    """What the newest version shows as held is used, without an answer, and also while a release of it is in flight."""
    put(_Claimed, "usable", lambda self, uid: self.held(uid))


@defect
def only_bound_pods_are_charged() -> None:
    """Binds in flight do not count."""

    def charged_on(self: BorrowerSide, row: int) -> SliceAmount:
        total = NOTHING
        for uid in self._ledger.holders(self._pool, row):
            held = self._ledger.hold(uid)
            if held is not None and held.is_bound:
                total += SliceAmount(held.amounts.get("cpu", 0), held.amounts.get("memory", 0), 1)
        return total

    put(BorrowerSide, "_charged_on", charged_on)


@defect
def terminating_pods_are_not_charged() -> None:
    """What a pod holds of a slice is released when it is being deleted, and not when it is gone."""
    genuine = LoanLedger._hold_of

    def hold_of(self: LoanLedger, pod: Pod, row: int) -> Held:
        found = genuine(self, pod, row)
        return replace(found, amounts={}) if pod.is_deleting else found

    put(LoanLedger, "_hold_of", hold_of)


# -- takeovers ---------------------------------------------------------------------------------------------------------


@defect
def living_borrowers_count_as_dead() -> None:
    """The lender takes slices over while the borrower leads."""

    async def has_no_leader(self: DomainSlices, domain: str) -> bool:
        return True

    put(DomainSlices, "has_no_leader", has_no_leader)


@defect
def epochs_are_not_awaited() -> None:
    """A new leader decides while writes of the former one may still take effect."""
    put(SliceDriver, "_is_ready", staticmethod(lambda side: side.machine is not None))


@defect
def lenders_keep_the_epoch() -> None:
    """A new leader of the lender writes under the epoch of the former one."""
    genuine = LenderSlices.begin_term

    def begin_term(self: LenderSlices, listed: Iterable[SliceSet]) -> None:
        genuine(self, listed)
        for one in self._objects.values():
            one.epoch = 0 if one.seen is None or one.seen.spec is None else max(one.seen.spec.epoch, 1)

    put(LenderSlices, "begin_term", begin_term)


@defect
def new_leaders_use_lists_from_before_their_lease() -> None:
    """A new leader does not list pods once the SliceSets are its own."""

    async def see_all_binds_before(self: ClusterLists, since_s: float) -> None:
        return None

    put(ClusterLists, "see_all_binds_before", see_all_binds_before)
