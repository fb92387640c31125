"""What plugins say in the status of API objects other than pods, for instance of gangs and quotas.

A plugin marks an object when its status may have changed. That costs little enough to be done for every event of a pod.
It is asked for the status when that is about to be written: seconds later, and once for many marks. An object that the
API server shows anew counts as marked, so a plugin marks only for other reasons. Who writes, under which lease and how
often, stands in `shell.statuses`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import msgspec

from multisched.framework.points import Plugin
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Pod

ObjectKey = tuple[ObjectKind, str, str]
"""Kind, namespace (empty for cluster-wide kinds) and name."""


class ObjectCondition(msgspec.Struct, frozen=True):
    """One entry of `status.conditions`, without times: its writer has the clock.

    `lastTransitionTime` stays while status and reason do.
    """

    type: str
    status: str
    """True, False or Unknown."""
    reason: str
    """In CamelCase."""
    message: str = ""


class ObjectStatus(msgspec.Struct, frozen=True):
    """What is to stand in the status of one object.

    Every field and every type of condition that is named here belongs to the plugin as a whole. What it does not say of
    them any more goes. Fields and conditions of others stay as they are.
    """

    uid: str
    """Of the object that this was said of; another one of the same name is not written to."""
    fields: Mapping[str, object] = {}
    """Name of a field of the status -> mappings, sequences, texts, whole numbers; None takes the field away."""
    conditions: tuple[ObjectCondition, ...] = ()
    since: tuple[str, ...] = ()
    """Fields that say when something was first written: the time of the write, and afterwards what stands."""
    annotations: Mapping[str, str] = {}
    """Written along where the status is a part of the object (`KindDefinition.has_status_path`); elsewhere they are none."""


class StatusMarks(Protocol):
    """Where a plugin marks objects whose status may have changed."""

    def mark(self, kind: ObjectKind, namespace: str, name: str) -> None:
        """O(1), and next to nothing for an object that is marked already."""
        ...

    def mark_all(self, kind: ObjectKind) -> None:
        """Every object of the kind."""
        ...


class NoStatusMarks:
    """Where nobody writes statuses."""

    def mark(self, kind: ObjectKind, namespace: str, name: str) -> None:
        del kind, namespace, name

    def mark_all(self, kind: ObjectKind) -> None:
        del kind


@runtime_checkable
class StatusPlugin(Plugin, Protocol):
    """A plugin that says something in the status of objects."""

    status_kinds: tuple[ObjectKind, ...]
    """Kinds of which it reads the objects (`Traits.reads_objects`) and writes the status. No other plugin writes theirs."""

    def status_of(self, kind: ObjectKind, namespace: str, name: str) -> ObjectStatus | None:
        """The status as of now; None where there is nothing to say, or no such object.

        It goes by what every process knows: pods, objects and configuration. The process that is asked leads the first
        of the domains with this plugin. Of other domains it may know by watches alone.
        """
        ...


@runtime_checkable
class PendingPodsPlugin(StatusPlugin, Protocol):
    """A `StatusPlugin` that says something of pods that wait, too."""

    def pending_changed(self, pod: Pod) -> None:
        """The pod came to wait for a node, changed, or waits no more and has none. Marks whose status that may change: O(1)."""
        ...
