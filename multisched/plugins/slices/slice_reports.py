"""What a leader reports about its slices as events, each once. Here: that their definition is missing."""

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
        """`effect`: of a missing definition."""
        self._effect = effect
        self.mover: Mover | None = None
        """None: nothing can be recorded."""
        self._is_unserved = False
        self.problem = ""
        """What is wrong besides the objects, for people; empty if there is nothing."""

    def unserved(self, request: SliceRequest, message: str) -> None:
        """Records that SliceSets are not served, unless that is known."""
        if not self._is_unserved:
            definition, known = ObjectKind.SLICE_SET.definition, request.known
            regarding = ObjectRef(definition.name, known.namespace, known.name, "", definition.api_version)
            self.record(regarding, "SlicesNotServed", f"{self._effect}: {message}")
        self._is_unserved = True

    def served(self) -> None:
        """Notes an answer about an object: a definition that is removed later is reported again."""
        self._is_unserved = False

    def look(self, sides: Sequence[LendingSide]) -> None:
        """Looks for what else is to be reported; called regularly."""

    def record(self, regarding: ObjectRef, reason: str, note: str) -> None:
        if self.mover is not None:
            self.mover.record_event("Warning", regarding, reason, note, action=ACTION)
