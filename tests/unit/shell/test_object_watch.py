"""Which kinds of objects a program watches."""

from __future__ import annotations

from collections.abc import Sequence

from multisched.framework.events import FLUSH, NODE_ADD, Action, ClusterEvent, EventRegistration
from multisched.framework.registry import BuiltPlugin, PluginSet, PluginUse
from multisched.framework.traits import Traits
from multisched.model.object_kinds import ObjectKind
from multisched.shell.object_watch import watched_kinds
from tests.unit.cycle.cycle_kit import ByName


class Reads:
    """Reads claims, and is woken by anything."""

    name = "Reads"
    traits = Traits(reads_objects=(ObjectKind.PERSISTENT_VOLUME_CLAIM,))


class Registers:
    """Reads nothing, and has a quota's updates registered."""

    name = "Registers"

    def events_to_register(self) -> Sequence[EventRegistration]:
        quota = ClusterEvent(ObjectKind.RESOURCE_QUOTA, Action.UPDATE)
        return [EventRegistration(event) for event in (NODE_ADD, quota, FLUSH)]


def test_kinds_are_watched_that_a_plugin_reads_or_whose_events_it_has_registered() -> None:
    first, second = (
        PluginSet([BuiltPlugin(each, PluginUse(each.name)) for each in (ByName(), one)])
        for one in (Registers(), Reads())
    )
    assert watched_kinds([]) == ()
    assert watched_kinds([first, second, first]) == (ObjectKind.RESOURCE_QUOTA, ObjectKind.PERSISTENT_VOLUME_CLAIM)
