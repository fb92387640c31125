"""Commit: the optimistic lock. One synchronous function checks and writes; that it cannot be interrupted is the lock.

A decision names the rows it liked, best first, with the versions it saw. A row that was written since is looked at again
by the same filters and by the ledgers: only a row on which the pod no longer fits is a conflict (I1 needs the fit, not
the version).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from multisched.model.objects import Pod
from multisched.state.cluster_cache import Assumption, ClusterCache
from multisched.state.domain_rows import DomainRows

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


class NotTaken(msgspec.Struct, frozen=True):
    """No candidate took the pod."""

    refusal: str = ""
    """What a ledger has against the best candidate that passed otherwise; empty where others had taken them all."""


TAKEN = NotTaken()

StillFits = Callable[[Pod, int], bool]
"""(pod, row) -> do all of the profile's filters still pass it there?"""


def commit(
    cache: ClusterCache,
    rows: DomainRows,
    pod: Pod,
    candidates: Sequence[Candidate],
    still_fits: StillFits,
    conflicts: Conflicts,
) -> Assumption | NotTaken:
    """Assumes the pod on the best of its candidates that still takes it."""
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
        reason = cache.ledgers.fits(pod, row)
        if reason:
            conflicts.true += moved
            why_not = why_not if why_not.refusal else _refused(cache, row, reason)
            continue
        conflicts.false += moved
        return cache.assume(pod, row)
    return why_not


def commit_at_once(cache: ClusterCache, pod: Pod, row: int) -> Assumption | NotTaken:
    """As `commit`, for a decision that read the row in this very step: nothing can have moved since."""
    reason = cache.ledgers.fits(pod, row)
    return _refused(cache, row, reason) if reason else cache.assume(pod, row)


def _refused(cache: ClusterCache, row: int, reason: str) -> NotTaken:
    return NotTaken(f"node {cache.nodes.node(row).name}: {reason}")
