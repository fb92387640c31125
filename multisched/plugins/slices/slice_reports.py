"""Reports of a leader about its slices, as events that are each recorded once. This class reports a missing CustomResourceDefinition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from multisched.framework.moving import Mover
from multisched.framework.ports import ObjectRef
from multisched.framework.slice_writes import SliceRequest
from multisched.model.object_kinds import ObjectKind
from multisched.plugins.slices.sides import LendingSide

ACTION: Final = "Lending"


class SliceReports:
    """The reports of one domain."""

    def __init__(self, effect: str = "nothing is lent") -> None:
        """`effect`: the consequence of a missing definition, as part of the message."""
        self._effect = effect
        self.mover: Mover | None = None
        """None if no events can be recorded."""
        self._is_unserved = False
        self.problem = ""
        """The current problem that is not about a single object, as a message; empty if there is none."""

    def unserved(self, request: SliceRequest, message: str) -> None:
        """Records that SliceSets are not served, unless that was recorded before."""
        if not self._is_unserved:
            definition, known = ObjectKind.SLICE_SET.definition, request.known
            regarding = ObjectRef(definition.name, known.namespace, known.name, "", definition.api_version)
            self.record(regarding, "SlicesNotServed", f"{self._effect}: {message}")
        self._is_unserved = True

    def served(self) -> None:
        """Handles a response about an object. If the definition is removed later, that is reported again."""
        self._is_unserved = False

    def look(self, sides: Sequence[LendingSide]) -> None:
        """Looks for further things to report. Called regularly."""

    def record(self, regarding: ObjectRef, reason: str, note: str) -> None:
        if self.mover is not None:
            self.mover.record_event("Warning", regarding, reason, note, action=ACTION)
