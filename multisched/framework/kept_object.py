"""Objects that stay in effect after they are deleted or become invalid: what a plugin passes to the shell, so that they stay in effect
after a restart, too.

A process that starts after the deletion does not find the object in the API server, or finds one that has become invalid. So the
shell keeps a copy of the version in effect in a ConfigMap (`shell/kept_objects.py`), and gives it to the object store as the object
of its kind that was deleted last (`ObjectsView.last_removed`).
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from multisched.framework.points import Plugin
from multisched.model.object_kinds import ObjectKind


@runtime_checkable
class KeptObjectPlugin(Plugin, Protocol):
    """A plugin with an object that stays in effect after its deletion.

    A Protocol because the shell calls it and imports no plugin.
    """

    kept_kind: ObjectKind
    """A kind that it reads (`Traits.reads_objects`), and that no other plugin keeps."""

    def kept_object(self) -> bytes:
        """Returns the object that is in effect, whether it still exists or not, as JSON that the kind's decoder reads.

        Empty if there is none. Cheap if nothing changed: it is called every second.
        """
        ...
