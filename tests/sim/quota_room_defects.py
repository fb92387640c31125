"""Defects of quotas shared between processes. `tests.sim.quota_room` plays them, and the stories of `room_world`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from multisched.model.objects import Pod
from multisched.model.slice_parts import NOTHING, SliceAmount
from multisched.plugins.quota.pod_amounts import Items
from multisched.plugins.quota.quota_ledger import Level
from multisched.plugins.quota.shared import lending, outlook
from multisched.plugins.quota.shared.borrowing import RoomBorrowing
from multisched.plugins.quota.shared.leaf_counts import LeafCounts, LeafKey
from multisched.plugins.quota.shared.lending import _Look
from multisched.plugins.quota.shared.room import QuotaRoom
from multisched.plugins.slices.lender_slices import LenderSlices
from multisched.plugins.slices.sides import sum_of
from tests.sim.defects import defect, put


@defect
def nothing_of_quotas_is_kept() -> None:
    """The lender uses what it has offered."""
    put(QuotaRoom, "_refresh_kept", lambda self, key: False)


@defect
def quota_room_is_free_at_its_recall() -> None:
    """What is recalled counts as free before the borrower has returned it."""
    genuine = QuotaRoom._refresh_kept

    def refresh_kept(self: QuotaRoom, key: LeafKey) -> bool:
        held, LenderSlices.reserved = LenderSlices.reserved, lambda self, key: self.offer_of(key).amount  # type: ignore[method-assign]
        try:
            return genuine(self, key)
        finally:
            LenderSlices.reserved = held  # type: ignore[method-assign]

    put(QuotaRoom, "_refresh_kept", refresh_kept)


@defect
def offers_of_leaves_ignore_levels_above() -> None:
    """An offer is limited by the max of its leaf alone."""
    genuine = outlook.free_of

    def free_of(levels: Sequence[Level], taken: Callable[[Level, str], int]) -> dict[str, int]:
        limited = {name for level in levels for name in level.max}
        return {**dict.fromkeys(limited, 99_000), **genuine(levels[:1], taken)}

    put(outlook, "free_of", free_of)
    put(lending, "free_of", free_of)


@defect
def offers_ignore_what_others_may_use() -> None:
    """An offer is limited by what is in use alone, and not by what is offered to others."""

    def free(self: outlook.Outlook, levels: Sequence[Level], others: object, *, with_needs: bool) -> dict[str, int]:
        return outlook.free_of(levels, lambda level, name: 0)

    def room_of(self: _Look, machine: LenderSlices, leaf: str, levels: tuple[Level, ...]) -> SliceAmount:
        return SliceAmount.of(outlook.free_of(levels, lambda level, name: 0)) | NOTHING

    put(outlook.Outlook, "free", free)
    put(_Look, "_room_of", room_of)


@defect
def pods_under_quotas_do_not_wait_for_claims() -> None:
    """Pods of a borrower are bound by what is offered, claimed or not."""
    put(RoomBorrowing, "may_use", lambda self, key, amount, now_s: True)


@defect
def assumed_pods_are_not_charged_to_leaves() -> None:
    """Only pods that the API server shows on a node count in what is claimed."""

    def charged(self: RoomBorrowing, key: str) -> SliceAmount:
        counts = self._room.pods
        shown = (one for uid, one in counts.pods.items() if uid not in counts.unbound)
        return sum_of(one.amount for one in shown if one.key == (self._domain, key))

    put(RoomBorrowing, "charged", charged)


@defect
def every_process_checks_each_max_by_itself() -> None:
    """Nothing is offered or claimed: each process counts what it sees."""

    def refusal(self: QuotaRoom, pod: Pod, levels: tuple[Level, ...], items: Items) -> str:
        return ""

    put(QuotaRoom, "refusal", refusal)
    put(LeafCounts, "amount", lambda self, levels, items: NOTHING)
