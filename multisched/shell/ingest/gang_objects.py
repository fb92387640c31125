"""Objects that describe gangs, as the watches tell them, into the roster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from multisched.framework.events import ClusterEvent, EventObject
from multisched.model.cluster_objects import PodGroup
from multisched.model.gang import GangApi
from multisched.model.object_kinds import ObjectKind
from multisched.state.gang_roster import GangRoster

APIS: Final[Mapping[object, GangApi]] = {
    ObjectKind.POD_GROUP: GangApi.SCHEDULER_PLUGINS,
    ObjectKind.SIGS_POD_GROUP: GangApi.SIGS,
    ObjectKind.WORKLOAD_POD_GROUP: GangApi.KUBERNETES,
}


def note_gang(roster: GangRoster, event: ClusterEvent, old: EventObject, new: EventObject) -> None:
    """A PodGroup came, changed or went; of anything else nothing is noted."""
    api = APIS.get(event.resource)
    if api is None:
        return
    if isinstance(new, PodGroup):
        roster.set_object(api, new.key, new.spec, new.malformed or new.problem)
    elif isinstance(old, PodGroup):
        roster.set_object(api, old.key, None)
