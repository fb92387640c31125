"""Applies watch events of PodGroups to the roster of gangs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from multisched.framework.events import EventObject, Resource
from multisched.framework.object_status import StatusMarks
from multisched.framework.objects_view import ObjectsView
from multisched.model.cluster_objects import PodGroup
from multisched.model.gang import GangApi
from multisched.model.object_kinds import ObjectKind
from multisched.shell.ingest.objects import KindState
from multisched.state.gang_roster import GangRoster

APIS: Final[Mapping[object, GangApi]] = {
    ObjectKind.POD_GROUP: GangApi.SCHEDULER_PLUGINS,
    ObjectKind.SIGS_POD_GROUP: GangApi.SIGS,
    ObjectKind.WORKLOAD_POD_GROUP: GangApi.KUBERNETES,
}

GANG_KINDS: Final = (ObjectKind.POD_GROUP, ObjectKind.SIGS_POD_GROUP, ObjectKind.WORKLOAD_POD_GROUP)


def note_gang(roster: GangRoster, kind: Resource | ObjectKind, old: EventObject, new: EventObject) -> None:
    """Applies an added, updated or deleted PodGroup; ignores other kinds."""
    api = APIS.get(kind)
    if api is None:
        return
    if isinstance(new, PodGroup):
        roster.set_object(api, new.key, new.spec, new.malformed or new.problem)
    elif isinstance(old, PodGroup):
        roster.set_object(api, old.key, None)


def note_kind(roster: GangRoster, kind: ObjectKind, state: KindState) -> None:
    """Records whether a kind of PodGroup can be listed. If not, the condition of members without their PodGroup gives the reason."""
    api, name = APIS.get(kind), f"{kind.definition.plural}.{kind.definition.group}"
    if api is None:
        return
    not_served = f"the CRD {name} is not installed"
    if api is GangApi.KUBERNETES:
        not_served = f"the API server does not serve {name}; enable its feature gate GenericWorkload"
    troubles = {
        KindState.LISTED: "",
        KindState.NOT_SERVED: not_served,
        KindState.FORBIDDEN: f"multisched may not list {name}",
    }
    roster.note_kind(api, troubles[state])


def mark_gang(statuses: StatusMarks, objects: ObjectsView, key: str) -> None:
    """Marks the PodGroup of a gang, if there is one, for a status write. Called when the gang's counts changed."""
    namespace, _, name = key.partition("/")
    for kind in GANG_KINDS:
        if objects.get(kind, namespace, name) is not None:
            statuses.mark(kind, namespace, name)
