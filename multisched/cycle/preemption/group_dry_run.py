"""Dry runs for pods that start together (`framework.preemption.GroupDryRun`): on the node table itself, within one trial.

Units of victims are removed, the least important first and more each time, until all members are placed. Units on rows that
no member uses are restored at once. Each of the others is restored in order, if all members still fit. Afterwards the table,
the ledgers and the nominations are as before, also if a plugin fails.

If the pods must stay within one topology domain, the domains are tried one after the other, and the one with the cheapest
victims is chosen. Pods elsewhere are victims only for a cluster-wide ledger or as part of a whole gang.

A search pauses when its effort says so, and restarts if a pause has outdated it. If it has paused too often, it ends with the
best result so far.
Source: kube-scheduler 1.37, pod group preemption.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Final

import numpy as np
from msgspec.structs import replace

from multisched.cycle.classes.equivalence_class import EquivalenceClass
from multisched.cycle.effort import Effort, RowResults
from multisched.cycle.preemption.dry_run import AttemptDryRun
from multisched.cycle.preemption.dry_run_parts import DryRuns, FailedAttempt
from multisched.cycle.preemption.group_trial import PLACINGS_MAX, GroupOfPods, GroupTrial, OutdatedSearchError
from multisched.cycle.preemption.member_placer import MemberPlacer
from multisched.cycle.preemption.victim_pool import VictimPool, learn
from multisched.cycle.preemption.victim_units import (
    Needed,
    Search,
    Unit,
    by_node,
    gangs_are_spared,
    needed,
    own_gangs,
    units_of,
)
from multisched.framework.node_view import PASSES, Rows
from multisched.framework.preemption import DisplacementRule, GroupVictims, MemberVictims, Nomination
from multisched.model.objects import Pod
from multisched.state.cluster_cache import PlacedPod
from multisched.state.domain_rows import DomainRows
from multisched.state.trial import Trial, TrialPlacement

SERVED_MAX: Final = 5_000
"""Members for which victims are searched one by one in one search, some milliseconds each."""
RESTARTS_MAX: Final = 3
"""Maximum number of restarts of one search because the cluster changed during a pause. After that, the search ends without a result."""


class GroupAttemptDryRun:
    """The dry run of one attempt of one group."""

    def __init__(
        self,
        plugin: str,
        runs: DryRuns,
        rows: DomainRows,
        places: MemberPlacer,
        group: GroupOfPods,
        effort: Effort,
    ) -> None:
        """`plugin`: name of the PostFilter plugin."""
        self._plugin = plugin
        self._runs = runs
        self._rows = rows
        self._places = places
        self._group = group
        self._effort = effort
        self.name = group.name
        self.placings = 0
        """Number of placements tried."""

    def displace(self, rule: DisplacementRule) -> Search[GroupVictims | None]:
        if self._group.domains:
            return (yield from self._cheapest(lambda domain: domain.displace(rule)))
        is_anywhere = self._group.allowed is None
        found = yield from self._until_current(lambda: self._displaced(rule, everywhere=is_anywhere))
        if (
            found is None
            and not is_anywhere
            and any(map(self._runs.cache.ledgers.has_cluster_ledger, self._group.pods))
        ):
            found = yield from self._until_current(lambda: self._displaced(rule, everywhere=True))
        return found

    def displace_by_members(self, begin: Callable[[], MemberVictims]) -> Search[GroupVictims | None]:
        if self._group.domains:
            return (yield from self._cheapest(lambda domain: domain.displace_by_members(begin)))
        return (yield from self._until_current(lambda: self._displaced_by_members(begin())))

    def _cheapest(
        self, search: Callable[[GroupAttemptDryRun], Search[GroupVictims | None]]
    ) -> Search[GroupVictims | None]:
        """Searches the domains and returns the cheapest result; leaves out the last domains if the search takes long.

        If the search has paused since the cheapest domain was searched, that domain is searched again.
        """
        candidates = list[tuple[GroupVictims, GroupAttemptDryRun, int]]()
        for allowed in self._group.domains:
            group = replace(self._group, allowed=allowed, domains=())
            domain = GroupAttemptDryRun(self._plugin, self._runs, self._rows, self._places, group, self._effort)
            found = yield from search(domain)
            if found is not None:
                candidates.append((found, domain, self._effort.pauses))
            self.placings += domain.placings
            if self.placings >= PLACINGS_MAX or self._effort.is_exhausted:
                break
        for found, domain, pauses in sorted(candidates, key=lambda one: one[0].costs.tolist()):
            current = found if pauses == self._effort.pauses else (yield from search(domain))
            if current is not None:
                return current
        return None

    def _spares_gangs(self, found: GroupVictims) -> bool:
        """Returns False if, during a pause, other preemptions took members that the gangs of the victims could spare."""
        return gangs_are_spared(chain.from_iterable(found.victims.values()), self._runs.cache.gangs)

    def _until_current(self, search: Callable[[], Search[GroupVictims | None]]) -> Search[GroupVictims | None]:
        """Returns the result of the search. Restarts it if the cluster changed during a pause."""
        for _ in range(RESTARTS_MAX + 1):
            try:
                found = yield from search()
            except OutdatedSearchError:
                continue
            if found is None or self._spares_gangs(found):
                return found
        return None

    def _displaced(self, rule: DisplacementRule, *, everywhere: bool) -> Search[GroupVictims | None]:
        """`everywhere`: victims may also be on rows that the group may not use."""
        runs = self._runs
        with Trial(runs.cache, runs.nominator) as trial:
            trial.ignore_nominations(self._group.pods)
            group_trial = GroupTrial(self._group, runs.cache, self._places, trial, self._effort)
            yield from group_trial.begin()
            rows = yield from self._rows_of_use(group_trial, everywhere=everywhere)
            yield from self._learned(rule, rows, group_trial)
            pool = VictimPool(runs, rule, rows, own_gangs(self._group.pods, runs.cache.gangs))
            if pool.is_empty:
                return None  # the attempt has shown that they do not fit with the remaining pods in place
            is_cleared = yield from self._clear(pool, group_trial, trial)
            found = (yield from self._spare_until_current(pool.away(), group_trial, trial)) if is_cleared else None
            placements = yield from self._member_placements(found, group_trial)
        if found is None or placements is None or (trial.changes and not found.victims):
            return None  # without victims: they fit by now, and what made room for them requeues them
        return self._victims(rule, self._still_there(found), placements, is_minimal=not group_trial.is_exhausted)

    def _learned(self, rule: DisplacementRule, rows: Rows, group_trial: GroupTrial) -> Search[None]:
        """Computes what the rule reads of all pods on the rows, with pauses."""
        table = self._runs.table
        resources = {resource for pod in self._group.pods for resource in pod.requests if table.has_column(resource)}
        for _ in learn(self._runs, rule, rows, sorted(resources), RowResults(self._effort)):
            yield from group_trial.pause_now()

    def _displaced_by_members(self, found: MemberVictims) -> Search[GroupVictims | None]:
        runs, away, served = self._runs, list[PlacedPod](), set[str]()
        with Trial(runs.cache, runs.nominator) as trial:
            trial.ignore_nominations(self._group.pods)
            group_trial = GroupTrial(self._group, runs.cache, self._places, trial, self._effort)
            yield from group_trial.begin()
            yield from self._learned(found.rule, self._allowed(self._rows.rows, everywhere=False), group_trial)
            while (pod := (yield from group_trial.first_missing())) is not None:
                is_enough = pod.uid in served or len(served) >= SERVED_MAX or self._effort.is_exhausted
                victims = () if is_enough else found.victims(pod, self._dry_run_of(pod))
                entries = [entry for one in victims if (entry := runs.cache.placed(one.uid)) is not None]
                if not entries:
                    return None
                served.add(pod.uid)
                trial.remove(entries)
                away += entries
            units = _in_order(self._units(self._placed(away)), found)
            left = yield from self._spare_until_current(units, group_trial, trial)
            placements = yield from self._member_placements(left, group_trial)
        if left is None or placements is None or (trial.changes and not left.victims):
            return None
        left = self._still_there(left)
        costs = np.array(found.cost([one.pod for one in left.victims]), np.float64)
        nominations = self._nominations(placements)
        return GroupVictims(by_node(left.victims), nominations, costs, is_minimal=not group_trial.is_exhausted)

    def _member_placements(
        self, found: Needed | None, group_trial: GroupTrial
    ) -> Search[Sequence[TrialPlacement] | None]:
        """Returns the members' places without the victims; None if there are none.

        None means that more of a gang would have to be evicted than allowed, or that a member needs a victim nearby. Raises
        OutdatedSearchError.
        """
        self.placings += group_trial.placings
        if found is None or (group_trial.reaches_far and not (yield from group_trial.place_anew())):
            return None
        yield from group_trial.require_all()
        return group_trial.placements()

    def _placed(self, entries: Sequence[PlacedPod]) -> list[PlacedPod]:
        """Drops pods that left the cache during a pause."""
        return [one for one in entries if self._runs.cache.placed(one.pod.uid) is one]

    def _still_there(self, found: Needed) -> Needed:
        return found._replace(victims=self._placed(found.victims))

    def _dry_run_of(self, pod: Pod) -> AttemptDryRun:
        """Returns a dry run for one member, in the present state of the trial."""
        attempt, rows = self._group.attempt, self._rows.rows
        pod_class = self._places.class_of(pod, attempt)
        usable = self._allowed(_usable(pod_class, rows), everywhere=False)
        view, skipped = pod_class.view, pod_class.skipped
        failed = FailedAttempt(
            self._plugin, pod, view, len(usable), lambda: usable, len(rows), skipped, pod_class.signature, {}
        )
        return AttemptDryRun(self._runs, failed)

    def _units(self, away: Sequence[PlacedPod]) -> list[Unit]:
        cache = self._runs.cache
        return units_of(away, cache.gangs, cache, lambda members: True, own_gangs(self._group.pods, cache.gangs))

    def _rows_of_use(self, group_trial: GroupTrial, *, everywhere: bool) -> Search[Rows]:
        """Returns rows whose pods may be victims: if only resources are short, the rows that a member can use."""
        if group_trial.shares_room:
            live = np.array([row for row, _ in self._runs.table.live_rows()], np.intp)
            return self._allowed(live, everywhere=everywhere)
        rows = self._rows.rows
        if group_trial.reaches_far or not len(rows):
            return self._allowed(rows, everywhere=everywhere)
        of_use = list[Rows]()
        for pod in group_trial.one_of_each():
            yield from group_trial.pause()
            of_use.append(_usable(self._places.class_of(pod, self._group.attempt), self._rows.rows))
        rows = self._rows.rows
        return self._allowed(rows[np.isin(rows, np.concatenate(of_use))], everywhere=False)

    def _allowed(self, rows: Rows, *, everywhere: bool) -> Rows:
        allowed = self._group.allowed
        found: Rows = rows if everywhere or allowed is None else rows[allowed[rows]]
        return found

    # -- removing and restoring units ------------------------------------------------------------------------------

    def _clear(self, pool: VictimPool, group_trial: GroupTrial, trial: Trial) -> Search[bool]:
        """Removes units, the least important first and twice as many each time, until all members are placed.

        Returns False if removing all does not help.
        """
        count = 1
        while not (yield from group_trial.place_all()):
            if self._effort.is_exhausted:
                return False
            if pool.is_empty:
                return (yield from group_trial.place_anew())
            trial.remove(pool.take(count))
            count *= 2
        return True

    def _spare_until_current(
        self, away: Sequence[Unit], group_trial: GroupTrial, trial: Trial
    ) -> Search[Needed | None]:
        """Restores units that are not needed, once more if a pause meanwhile changed rows that matter: pods may have ended there."""
        while True:
            changes = trial.changes
            found = yield from self._spare(away, group_trial)
            if found is None or trial.changes == changes or group_trial.is_exhausted:
                return found
            left = {one.pod.uid for one in found.victims}
            away = [unit for unit in away if not left.isdisjoint(one.pod.uid for one in unit.members)]
            trial.remove(one for unit in away for one in unit.members if one.pod.uid not in left)

    @staticmethod
    def _spare(away: Sequence[Unit], group_trial: GroupTrial) -> Search[Needed | None]:
        rows = group_trial.rows
        far, near = list[Unit](), list[Unit]()
        for unit in away:
            (far if rows.isdisjoint(one.row for one in unit.members) else near).append(unit)
        if far and (yield from group_trial.restore([one for unit in far for one in unit.members])):
            return (yield from needed(near, group_trial))
        return (yield from needed(away, group_trial))

    def _victims(
        self, rule: DisplacementRule, found: Needed, placements: Sequence[TrialPlacement], *, is_minimal: bool
    ) -> GroupVictims:
        by_priority, nominations = self._runs.pods_by_priority, self._nominations(placements)
        if not found.victims:
            return GroupVictims({}, nominations, np.zeros(0), is_minimal)
        pods = by_priority.column_of(one.pod for one in found.victims)
        victims = np.ones_like(pods.priority, np.bool_)
        costs = rule.costs(pods, victims, rule.first(pods, victims), np.array([found.whole_gangs], np.int64))
        return GroupVictims(by_node(found.victims), nominations, costs[:, 0], is_minimal)

    def _nominations(self, placements: Sequence[TrialPlacement]) -> tuple[Nomination, ...]:
        return tuple(Nomination(placement.pod, self._runs.table.node(placement.row).name) for placement in placements)


def _in_order(units: Sequence[Unit], found: MemberVictims) -> list[Unit]:
    """Sorts the units in the order in which the plugin wants them restored."""
    importance = found.importance([[one.pod for one in unit.members] for unit in units])
    order = sorted(range(len(units)), key=lambda at: importance[at], reverse=True)
    return [replace(units[at], order=(float(place),)) for place, at in enumerate(order)]


def _usable(pod_class: EquivalenceClass, rows: Rows) -> Rows:
    """Returns rows that pass all filters of the class that do not read pods; all rows if PreFilter refuses the class."""
    return rows if pod_class.refusal is not None else pod_class.rows[pod_class.fixed_refused == PASSES]
