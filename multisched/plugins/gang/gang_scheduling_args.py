"""The arguments of GangScheduling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from multisched.framework.gangs import ReservePolicy
from multisched.framework.plugin_args import Fields

FOR_DEFAULT_S: Final = 300.0
LEAST_S: Final = 1.0


class GangSchedulingArgs(msgspec.Struct, frozen=True):
    """Whether a gang that waits too long may reserve resources as they become free; None: no."""

    reserve: ReservePolicy | None = None

    @classmethod
    def from_config(cls, document: Mapping[str, Any], path: str = "args") -> GangSchedulingArgs:
        """Raises PluginArgsError."""
        with Fields(document, path, ("reserveAfter", "reserveFor")) as fields:
            after_s = fields.duration_s("reserveAfter", 0.0, LEAST_S)
            for_s = fields.duration_s("reserveFor", FOR_DEFAULT_S, LEAST_S)
            if fields.has("reserveFor") and not fields.has("reserveAfter"):
                fields.refuse("reserveFor", "has no effect without reserveAfter; write both, or neither")
            return cls(ReservePolicy(after_s, for_s) if fields.has("reserveAfter") else None)
