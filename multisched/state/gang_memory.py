"""What a roster of gangs knows beyond pods and objects as they are now: for a copy of it.

Called by whoever copies a cluster to try something.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from multisched.model.gang import GangApi
from multisched.state.gang_roster import FinishedMember, GangRoster


class GangMemory(msgspec.Struct, frozen=True):
    """Of all gangs that have members."""

    started: frozenset[str] = frozenset()
    """Keys of gangs whose minimum was bound at some time."""
    overdue: frozenset[str] = frozenset()
    """Keys of gangs that have waited longer than they let their members."""
    troubles: tuple[tuple[GangApi, str], ...] = ()
    """Why no PodGroups of an API are known."""
    finished: tuple[tuple[str, Mapping[str, FinishedMember]], ...] = ()
    """Key of a gang, and by uid its members that ended well."""


def remembered(roster: GangRoster) -> GangMemory:
    return GangMemory(
        frozenset(gang.key for gang in roster.gangs() if gang.has_started),
        frozenset(gang.key for gang in roster.gangs() if gang.is_overdue),
        tuple(roster.troubles.items()),
        tuple((gang.key, dict(gang.finished)) for gang in roster.gangs() if gang.finished),
    )


def recall(roster: GangRoster, memory: GangMemory) -> None:
    """Into a roster that has the same members, and no others."""
    for api, trouble in memory.troubles:
        roster.note_kind(api, trouble)
    finished = dict(memory.finished)
    for gang in roster.gangs():
        gang.has_started = gang.key in memory.started
        gang.is_overdue = gang.key in memory.overdue
        for uid, member in finished.get(gang.key, {}).items():
            gang.add_finished(uid, member)
