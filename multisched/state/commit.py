"""Commit: the optimistic lock. One synchronous function checks and writes; that it cannot be interrupted is the lock.

A decision names the rows it liked, best first, with the versions it saw. The same filters and the ledgers look again at
a row that was written since. Only a row on which the pod no longer fits is a conflict (I1 needs the fit, not the
version).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from multisched.model.objects import Pod
from multisched.state.cluster_cache import Assumption, ClusterCache
from multisched.state.domain_rows import DomainRows
from multisched.state.transaction import Choose, NotTaken, StillFits, assume

CANDIDATES_MAX = 8
"""Ranked alternates that travel with a decision."""

MOVED = -1
"""A version no row ever has: the candidate is looked at again, whatever its row says."""


class Candidate(msgspec.Struct, frozen=True):
    """A row the cycle liked, with the versions it read there."""

    row: int
    version: int
    ledger_versions: tuple[int, ...]


class Conflicts(msgspec.Struct):
    """Rows found changed at commit: `true` no longer fitted, `false` did."""

    true: int = 0
    false: int = 0


TAKEN = NotTaken()
"""Others had taken all rows."""


def commit(
    cache: ClusterCache,
    rows: DomainRows,
    pod: Pod,
    candidates: Sequence[Candidate],
    still_fits: StillFits,
    choose: Choose,
    conflicts: Conflicts,
) -> Assumption | NotTaken:
    """Assumes the pod on the best of its candidates that still takes it.

    Otherwise gives the ledger's refusal on the best of those that passed the filters. A refusal by a ledger about the
    cluster ends it before any row is looked at.
    """
    refusal = cache.ledgers.fits_cluster(pod)
    if refusal.reason:
        conflicts.true += 1
        return NotTaken(*refusal)
    why_not = TAKEN
    for candidate in candidates:
        row = candidate.row
        if not rows.has(row):
            conflicts.true += 1
            continue
        moved = candidate.version != cache.nodes.version(row) or (
            candidate.ledger_versions != cache.ledgers.versions(pod, row)
        )
        if moved and not still_fits(pod, row):
            conflicts.true += 1
            continue
        found = assume(cache, pod, row, choose)
        if isinstance(found, NotTaken):
            conflicts.true += moved
            why_not = why_not if why_not.refusal else found
            continue
        conflicts.false += moved
        return found
    return why_not
