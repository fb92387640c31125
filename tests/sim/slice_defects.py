"""Deliberate defects of sliced loans, each of which `slices.run` must catch with the seed that is named.

`python -m tests.sim.slice_defects` plays them. A seed may need renewing when the program or the simulation changes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from unittest import mock

import numpy as np

from multisched.framework.node_view import Int64, Rows
from multisched.model.slice_parts import NOTHING, SliceAmount
from multisched.plugins.loans.pools import NO_TRIAL, Trial
from multisched.plugins.loans.slices.borrower_side import BorrowerSide
from multisched.plugins.loans.slices.borrower_slices import BorrowerSlices
from multisched.plugins.loans.slices.lender_slices import LenderSlices
from multisched.plugins.loans.slices.slice_rows import LoanKey, SliceRows
from multisched.shell.domain_slices import DomainSlices
from tests.sim.slices import SliceReport, run


def _nothing_is_kept(
    self: SliceRows, keys: Iterable[LoanKey], resource: str, rows: Rows, trial: Trial = NO_TRIAL
) -> Int64:
    """Pods of the lender use what borrowers may hold."""
    return np.zeros(len(rows), np.int64)


def _every_pod_may_be_bound(self: BorrowerSide, uid: str, now_s: float) -> bool:
    """Pods do not wait for claims."""
    return True


async def _borrower_counts_as_dead(self: DomainSlices, domain: str) -> bool:
    """The lender takes slices over while the borrower leads."""
    return True


def _only_seen_pods_are_charged(self: BorrowerSide, row: int) -> SliceAmount:
    """Binds in flight do not count."""
    total = NOTHING
    for uid in self._ledger.holders(self._pool, row):
        held = self._ledger.hold(uid)
        if held is not None and held.is_bound:
            total += SliceAmount(held.amounts.get("cpu", 0), held.amounts.get("memory", 0), 1)
    return total


def _offers_are_not_reserved(self: LenderSlices, uid: str) -> SliceAmount:
    """Only what is held is reserved, and not what may be claimed at any moment."""
    return self.held(uid)


def _offers_are_used_unclaimed(self: BorrowerSlices, uid: str, now_s: int) -> SliceAmount:
    """What is offered is used, whether it was claimed or not."""
    return self.offered_of(uid)


DEFECTS: dict[str, tuple[type, str, Callable[..., object], int]] = {
    "nothing_is_kept": (SliceRows, "kept", _nothing_is_kept, 0),
    "every_pod_may_be_bound": (BorrowerSide, "may_use", _every_pod_may_be_bound, 7),
    "borrower_counts_as_dead": (DomainSlices, "is_unled", _borrower_counts_as_dead, 0),
    "only_seen_pods_are_charged": (BorrowerSide, "_charged_on", _only_seen_pods_are_charged, 2),
    "offers_are_not_reserved": (LenderSlices, "reserved", _offers_are_not_reserved, 7),
    "offers_are_used_unclaimed": (BorrowerSlices, "limit", _offers_are_used_unclaimed, 7),
}
"""Name -> class, method, its defective replacement, and the seed that catches it."""


def caught(name: str, seed: int | None = None) -> SliceReport:
    """Plays a defect with its seed, or another one."""
    owner, method, replacement, first = DEFECTS[name]
    with mock.patch.object(owner, method, replacement):
        return run(first if seed is None else seed, moves=False)


def main() -> int:
    missed = []
    for name in DEFECTS:
        found = caught(name)
        sys.stdout.write(f"{name}: {(found.broken or found.stuck or ('not caught',))[0]}\n")
        missed += [name] if not found.broken and not found.stuck else []
    return len(missed)


if __name__ == "__main__":
    sys.exit(main())
