"""Dry runs for pods that start together (`framework.preemption.GroupDryRun`): on the table itself, within one trial.

The least important units go first, more and more of them, until all members stand. Units on rows that no member uses come
back at once. Each of the others comes back in order, if all members still find room. Nothing is left of it on the table,
in the ledgers or among the nominations, also where a plugin fails.
Source: kube-scheduler 1.37, pod group preemption.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from multisched.cycle.classes.equivalence_class import EquivalenceClass
from multisched.cycle.preemption.dry_run import AttemptDryRun
from multisched.cycle.preemption.dry_run_parts import DryRuns, FailedAttempt
from multisched.cycle.preemption.group_ground import GroupGround, GroupOfPods
from multisched.cycle.preemption.member_places import MemberPlaces
from multisched.cycle.preemption.victim_pool import VictimPool
from multisched.cycle.preemption.victim_units import Needed, Unit, by_node, needed, units_of
from multisched.framework.node_view import Rows
from multisched.framework.preemption import DisplacementRule, GroupVictims, MemberVictims, Nomination
from multisched.model.objects import Pod
from multisched.state.cluster_cache import PlacedPod
from multisched.state.domain_rows import DomainRows
from multisched.state.trial import Stand, Trial


class GroupAttemptDryRun:
    """Of one attempt of one group."""

    def __init__(self, plugin: str, runs: DryRuns, rows: DomainRows, places: MemberPlaces, group: GroupOfPods) -> None:
        """`plugin`: the PostFilter plugin that asks."""
        self._plugin = plugin
        self._runs = runs
        self._rows = rows
        self._places = places
        self._group = group
        self.name = group.name

    def displace(self, rule: DisplacementRule) -> GroupVictims | None:
        runs = self._runs
        with Trial(runs.cache, runs.nominator) as trial:
            trial.lift_nominations(self._group.pods)
            ground = GroupGround(self._group, runs.cache, self._places, trial)
            pool = VictimPool(runs, rule, self._rows_of_use(ground))
            if not self._clear(pool, ground, trial):
                return None
            found = self._spare(pool.away(), ground)
            if found is None or (ground.reaches_far and not ground.place_anew()):
                return None  # more of a gang would have to go than may, or a member wants to be near one who goes
            stands = ground.stands()
        return self._victims(rule, found, stands, is_minimal=not ground.is_exhausted)

    def displace_by_members(self, found: MemberVictims) -> GroupVictims | None:
        runs = self._runs
        with Trial(runs.cache, runs.nominator) as trial:
            trial.lift_nominations(self._group.pods)
            ground, away = GroupGround(self._group, runs.cache, self._places, trial), list[PlacedPod]()
            served: set[str] = set()
            while (pod := ground.first_missing()) is not None:
                victims = () if pod.uid in served else found.victims(pod, self._dry_run_of(pod))
                entries = [entry for one in victims if (entry := runs.cache.placed(one.uid)) is not None]
                if not entries:
                    return None
                served.add(pod.uid)
                trial.take_away(entries)
                away += entries
            left = self._spare(_in_order(self._units(away), found), ground)
            if left is None or (ground.reaches_far and not ground.place_anew()):
                return None
            stands = ground.stands()
        costs = np.array(found.cost([one.pod for one in left.victims]), np.float64)
        nominations = self._nominations(stands)
        return GroupVictims(by_node(left.victims), nominations, costs, is_minimal=not ground.is_exhausted)

    def _dry_run_of(self, pod: Pod) -> AttemptDryRun:
        """Of one of them, as things stand within the trial."""
        attempt, rows = self._group.attempt, self._rows.rows
        pod_class = self._places.class_of(pod, attempt)
        usable = _usable(pod_class, rows)
        if self._group.allowed is not None:
            usable = usable[self._group.allowed[usable]]
        view, skipped = pod_class.view, pod_class.skipped
        failed = FailedAttempt(self._plugin, pod, view, usable, len(rows), skipped, pod_class.signature, {})
        return AttemptDryRun(self._runs, failed)

    def _units(self, away: Sequence[PlacedPod]) -> list[Unit]:
        cache = self._runs.cache
        return units_of(away, cache.gangs, cache, lambda members: True)

    def _rows_of_use(self, ground: GroupGround) -> Rows:
        """Rows whose pods may be in the way: if only room is wanted, those which a member can use."""
        if ground.shares_room:
            return np.array([row for row, _ in self._runs.table.live_rows()], np.intp)
        rows = self._rows.rows
        if ground.reaches_far or not len(rows):
            return rows
        attempt, of_use = self._group.attempt, np.zeros(self._runs.table.size, np.bool_)
        for pod in self._group.pods:
            of_use[_usable(self._places.class_of(pod, attempt), rows)] = True
        if self._group.allowed is not None:
            of_use &= self._group.allowed[: len(of_use)]
        found: Rows = rows[of_use[rows]]
        return found

    # -- taking away and giving back -------------------------------------------------------------------------------

    @staticmethod
    def _clear(pool: VictimPool, ground: GroupGround, trial: Trial) -> bool:
        """Takes units away, the least important first and twice as many each time, until all members stand.

        False: not even that helps.
        """
        count = 1
        while not ground.place_all():
            if pool.is_empty:
                return ground.place_anew()
            trial.take_away(pool.take(count))
            count *= 2
        return True

    @staticmethod
    def _spare(away: Sequence[Unit], ground: GroupGround) -> Needed | None:
        rows = ground.rows
        far, near = list[Unit](), list[Unit]()
        for unit in away:
            (far if rows.isdisjoint(one.row for one in unit.members) else near).append(unit)
        if far and ground.give_back([one for unit in far for one in unit.members]):
            return needed(near, ground)
        return needed(away, ground)

    def _victims(
        self, rule: DisplacementRule, found: Needed, stands: Sequence[Stand], *, is_minimal: bool
    ) -> GroupVictims:
        standing, nominations = self._runs.standing, self._nominations(stands)
        if not found.victims:
            return GroupVictims({}, nominations, np.zeros(0), is_minimal)
        pods = standing.column_of(one.pod for one in found.victims)
        victims = np.ones_like(pods.priority, np.bool_)
        costs = rule.costs(pods, victims, rule.first(pods, victims), np.array([found.whole_gangs], np.int64))
        return GroupVictims(by_node(found.victims), nominations, costs[:, 0], is_minimal)

    def _nominations(self, stands: Sequence[Stand]) -> tuple[Nomination, ...]:
        return tuple(Nomination(stand.pod, self._runs.table.node(stand.row).name) for stand in stands)


def _in_order(units: Sequence[Unit], found: MemberVictims) -> list[Unit]:
    """As the plugin would have them given back."""
    importance = found.importance([[one.pod for one in unit.members] for unit in units])
    order = sorted(range(len(units)), key=lambda at: importance[at], reverse=True)
    return [replace(units[at], order=(float(place),)) for place, at in enumerate(order)]


def _usable(pod_class: EquivalenceClass, rows: Rows) -> Rows:
    """Rows that pass every filter of the class which no pod can make pass; all where PreFilter refuses the class."""
    return rows if pod_class.refusal is not None else pod_class.rows[pod_class.fixed_pass]
