"""Commit: the optimistic check of a decision. One synchronous function checks and writes; it cannot be interrupted, so it needs no lock.

A decision names its candidate rows, best first, with the versions it read. For a row that was written since, the
filters and the ledgers run again. Only a row on which the pod no longer fits is a conflict (I1 requires the fit, not
the version).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from multisched.model.objects import Pod
from multisched.state.cluster_cache import Assumption, ClusterCache
from multisched.state.domain_rows import DomainRows
from multisched.state.transaction import Choose, NotTaken, StillFits, assume

CANDIDATES_MAX = 8
"""Candidates per decision."""

MOVED = -1
"""A version that no row has: the candidate is always checked again."""


class Candidate(msgspec.Struct, frozen=True):
    """A candidate row, with the versions the cycle read."""

    row: int
    version: int
    ledger_versions: tuple[int, ...]


class Conflicts(msgspec.Struct):
    """Rows that changed before commit: `true`: the pod no longer fitted, `false`: it still did."""

    true: int = 0
    false: int = 0


TAKEN = NotTaken()
"""Other pods had taken all rows."""
TRIED_AGAIN = NotTaken()
"""A PostFilter plugin lets the pod use more rows than before."""
FITS_NOW = NotTaken("a node became feasible during the search for victims")
"""The pod is tried again, and evicts no pod."""


def commit(
    cache: ClusterCache,
    rows: DomainRows,
    pod: Pod,
    candidates: Sequence[Candidate],
    still_fits: StillFits,
    choose: Choose,
    conflicts: Conflicts,
) -> Assumption | NotTaken:
    """Assumes the pod on its best candidate that still fits.

    Otherwise returns the ledger's refusal for the best candidate that passed the filters. A refusal by a cluster ledger
    ends the commit before any row is checked.
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
