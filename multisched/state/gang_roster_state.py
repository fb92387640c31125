"""GangRosterState: the state of a gang roster that cannot be derived from current pods and objects, for copies of a cluster.

Used by code that copies a cluster for a trial.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from multisched.framework.gangs import Reserving
from multisched.model.gang import GangApi
from multisched.state.gang_roster import FinishedMember, GangRoster


class GangRosterState(msgspec.Struct, frozen=True):
    """The state of all gangs that have members."""

    started: frozenset[str] = frozenset()
    """Keys of gangs whose minimum was bound once."""
    overdue: frozenset[str] = frozenset()
    """Keys of gangs that have waited longer than their timeout."""
    reserving: frozenset[str] = frozenset()
    """Keys of gangs for which resources are reserved now."""
    troubles: tuple[tuple[GangApi, str], ...] = ()
    """Why the PodGroups of an API are unknown."""
    finished: tuple[tuple[str, Mapping[str, FinishedMember]], ...] = ()
    """Key of a gang -> its members that succeeded, by uid."""


def gang_state(roster: GangRoster) -> GangRosterState:
    return GangRosterState(
        frozenset(gang.key for gang in roster.gangs() if gang.has_started),
        frozenset(gang.key for gang in roster.gangs() if gang.is_overdue),
        frozenset(gang.key for gang in roster.gangs() if gang.reserving is Reserving.NOW),
        tuple(roster.troubles.items()),
        tuple((gang.key, dict(gang.finished)) for gang in roster.gangs() if gang.finished),
    )


def restore_gang_state(roster: GangRoster, memory: GangRosterState) -> None:
    """Restores the memory into a roster that has exactly the same members."""
    for api, trouble in memory.troubles:
        roster.note_kind(api, trouble)
    finished = dict(memory.finished)
    for gang in roster.gangs():
        gang.has_started = gang.key in memory.started
        gang.is_overdue = gang.key in memory.overdue
        gang.reserving = Reserving.NOW if gang.key in memory.reserving else Reserving.NO
        for uid, member in finished.get(gang.key, {}).items():
            gang.add_finished(uid, member)
