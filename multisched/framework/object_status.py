"""Writes of plugins to the status of API objects other than pods, for instance of gangs and quotas.

A plugin marks an object when its status may have changed; marking is cheap enough for every pod event. The plugin is asked for the status
when it is about to be written: seconds later, and once for many marks. A new version from the API server also marks the object, so a plugin
marks only for other reasons. `shell.statuses` documents which process writes, under which lease and how often.
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
    """One entry of `status.conditions`, without times: the writer has the clock.

    `lastTransitionTime` is kept while status and reason are unchanged.
    """

    type: str
    status: str
    """True, False or Unknown."""
    reason: str
    """In CamelCase."""
    message: str = ""


class ObjectStatus(msgspec.Struct, frozen=True):
    """The desired status of one object.

    Each field and each condition type named here is replaced as a whole: parts that it no longer contains are removed.
    Other fields and conditions are left unchanged.
    """

    uid: str
    """uid of the object for which the status was computed; a new object of the same name is not written to."""
    fields: Mapping[str, object] = {}
    """Status field -> mapping, sequence, text or whole number; None removes the field."""
    conditions: tuple[ObjectCondition, ...] = ()
    since: tuple[str, ...] = ()
    """Fields that record when something was first written: set to the time of the write, then kept."""
    annotations: Mapping[str, str] = {}
    """Written together with the status if it is part of the object (`KindDefinition.has_status_path`); else ignored."""


class StatusMarks(Protocol):
    """Marks objects whose status may have changed."""

    def mark(self, kind: ObjectKind, namespace: str, name: str) -> None:
        """Marks one object. O(1), and almost free for an object that is already marked."""
        ...

    def mark_all(self, kind: ObjectKind) -> None:
        """Marks every object of the kind."""
        ...


class NoStatusMarks:
    """Marks nothing: for processes that write no statuses."""

    def mark(self, kind: ObjectKind, namespace: str, name: str) -> None:
        del kind, namespace, name

    def mark_all(self, kind: ObjectKind) -> None:
        del kind


@runtime_checkable
class StatusPlugin(Plugin, Protocol):
    """A plugin that writes into the status of objects."""

    status_kinds: tuple[ObjectKind, ...]
    """Kinds whose objects it reads (`Traits.reads_objects`) and whose status it writes. No other plugin writes their status."""

    def status_of(self, kind: ObjectKind, namespace: str, name: str) -> ObjectStatus | None:
        """Returns the current status; None if there is nothing to write, or no such object.

        It depends only on what every process knows: pods, objects and configuration. It is called in the process that
        leads the first domain with this plugin; that process may know other domains by watches alone.
        """
        ...


@runtime_checkable
class PendingPodsPlugin(StatusPlugin, Protocol):
    """A `StatusPlugin` whose statuses also depend on pending pods."""

    def pending_changed(self, pod: Pod) -> None:
        """Marks the objects whose status may change because the pod became pending, changed, or ended pending without a node. O(1)."""
        ...
