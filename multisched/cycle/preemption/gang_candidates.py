"""Candidates with more victims than their gangs can spare: whole gangs are evicted, on all their nodes.

They are used only if every other candidate violates a disruption budget. All rows are first sorted by the cost of victims
on the row alone. Then the cheapest are tried in full, one by one. Nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Final

import msgspec
import numpy as np

from multisched.cycle.effort import RowResults
from multisched.cycle.preemption.dry_run_parts import DryRuns, FailedAttempt
from multisched.cycle.preemption.row_trial import RerunPlugins, RowTrial
from multisched.cycle.preemption.victim_cache import Blocks, Displacement, has_any
from multisched.cycle.preemption.victim_units import (
    Unit,
    by_node,
    needed,
    own_gangs,
    run_unpaused,
    units_of,
    with_first,
)
from multisched.framework.node_view import Float64, Int64, Rows
from multisched.framework.preemption import Candidates, DisplacementRule
from multisched.model.objects import Pod
from multisched.state.cluster_cache import PlacedPod
from multisched.state.column_overlay import ColumnOverlay
from multisched.state.pods_by_priority import PodColumns

ROWS_TRIED_MAX: Final = 32
"""Rows on which the eviction of whole gangs is tried, the cheapest first: each costs milliseconds."""


class _Candidate(msgspec.Struct, frozen=True):
    row: int
    victims: Mapping[str, tuple[Pod, ...]]
    costs: Float64
    """float64[criteria]"""


class GangCandidates:
    """The candidates with whole gangs of one failed attempt."""

    def __init__(
        self,
        runs: DryRuns,
        failed: FailedAttempt,
        asked: RerunPlugins,
        displacement: Displacement,
        overlay: Callable[[], ColumnOverlay],
        results: RowResults,
        search: int,
        blocks: Blocks,
    ) -> None:
        """`blocks`: of `AttemptDryRun`. `displacement`, `overlay`: for filters that are evaluated on all rows at once.

        `results`: of `_tried`, in this `search`.
        """
        self._runs = runs
        self._failed = failed
        self._asked = asked
        self._displacement = displacement
        self._overlay = overlay
        self._results = results
        self._search = search
        self._blocks = blocks

    def added_to(self, found: Candidates, rule: DisplacementRule, rows: Rows) -> Candidates:
        """Adds such candidates to `found`. Raises PluginFailure."""
        tried = sorted(self.likely(rule, rows)[:ROWS_TRIED_MAX])
        version, results = partial(self._runs.version, self._failed.pod), self._results
        tests = ((row, partial(self._tried, rule, row)) for row in tried)
        found_on = [results.of(self.key(row), version(row), test) for row, test in tests]
        more = [one for one in found_on if isinstance(one, _Candidate)]
        if not more:
            return found
        before, at_before = len(found.rows), found.victims_at
        costs = np.stack([one.costs for one in more], axis=1)
        return msgspec.structs.replace(
            found,
            rows=np.concatenate((found.rows, np.array([one.row for one in more], np.intp))),
            costs=np.concatenate((found.costs, costs), axis=1) if before else costs,
            victims_at=lambda at: at_before(at) if at < before else more[at - before].victims,
        )

    def key(self, row: int) -> Hashable:
        """Returns the key of the row's test in `results`."""
        return self._failed.plugin, "gangs", self._search, row

    def likely(self, rule: DisplacementRule, rows: Rows) -> list[int]:
        """Returns rows on which the pod fits only without pods that their gangs cannot spare, the cheapest first."""
        runs, found, costs = self._runs, list[Rows](), list[Float64]()
        may_help = runs.pods_by_priority.lowest(rows, self._results.pause) < rule.below
        for pods in self._blocks(rows[may_help]):
            displaceable = rule.displaceable(pods)
            beyond = runs.gang_columns.beyond_surplus(pods, displaceable)
            first = rule.first(pods, displaceable)
            refusal, _, victims = self._displacement.find_victims(pods, displaceable, first, self._overlay())
            # Rows on which resources require no victims: another plugin requires them.
            victims = np.where(has_any(victims), victims, displaceable)
            at = np.flatnonzero((refusal < 0) & has_any(beyond))
            if not len(at):
                continue
            (some,) = runs.pods_by_priority.blocks(pods.rows[at])
            k = len(some.priority)
            whole: Int64 = np.count_nonzero(victims[:k, at] & beyond[:k, at], axis=0).astype(np.int64)
            found.append(some.rows)
            costs.append(rule.costs(some, victims[:k, at], first[:k, at], whole))
        if not found:
            return []
        order = np.lexsort(np.concatenate(costs, axis=1)[::-1])
        cheapest: list[int] = np.concatenate(found)[order].tolist()
        return cheapest

    def _tried(self, rule: DisplacementRule, row: int) -> _Candidate | None:
        """Returns the victims for a row, with the rest of evicted gangs; None if no victims help, or none are needed."""
        runs = self._runs
        units = self._units(rule, row)
        everybody = [one for unit in units for one in unit.members]
        pods = runs.pods_by_priority.column_of(one.pod for one in everybody)
        displaceable = np.ones_like(pods.priority, np.bool_)
        first = rule.first(pods, displaceable)
        uids = [pod.uid for pod in pods.order(0)]
        violating = {uid for uid, is_first in zip(uids, first[:, 0].tolist(), strict=True) if is_first}
        with RowTrial(runs, self._failed, self._asked, row) as trial:
            trial.remove(everybody)
            if not trial.fits():
                return None
            going = run_unpaused(needed(with_first(units, violating), trial))
        if going is None or not going.victims:
            return None
        victim_uids = {one.pod.uid for one in going.victims}
        victims = np.array([[uid in victim_uids] for uid in uids], np.bool_)
        costs = rule.costs(pods, victims, first, np.array([going.whole_gangs], np.int64))
        return _Candidate(row, by_node(going.victims, runs.table.node(row).name), costs[:, 0])

    def _units(self, rule: DisplacementRule, row: int) -> list[Unit]:
        by_priority, cache = self._runs.pods_by_priority, self._runs.cache
        (pods,) = by_priority.blocks(np.array([row], np.intp))

        def may_evict(some: Sequence[Pod]) -> bool:
            return bool(rule.displaceable(by_priority.column_of(some)).all())

        here = [_placed(self._runs, pods, k) for k in np.flatnonzero(rule.displaceable(pods)[:, 0]).tolist()]
        return units_of(here, cache.gangs, cache, may_evict, own_gangs((self._failed.pod,), cache.gangs))


def _placed(runs: DryRuns, pods: PodColumns, k: int) -> PlacedPod:
    entry = runs.cache.placed(pods.pod(k, 0).uid)
    assert entry is not None, "a pod on a row is placed"
    return entry
