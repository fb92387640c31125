"""The arguments of VolumeBinding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from multisched.framework.plugin_args import Fields
from multisched.plugins.resource_scoring import ShapePoint, read_shape

BIND_TIMEOUT_DEFAULT_S: Final = 600
BIND_TIMEOUT_MAX_S: Final = 2**31 - 1


class VolumeBindingArgs(msgspec.Struct, frozen=True):
    """As upstream's VolumeBindingArgs. There `shape` needs the gate StorageCapacityScoring, off in 1.36; here it is one."""

    bind_timeout_s: int = BIND_TIMEOUT_DEFAULT_S
    """How long PreBind waits for a pod's claims to be bound; 0 gives up at the first look."""
    shape: tuple[ShapePoint, ...] = ()
    """Utilization to score; empty: volumes are not scored."""

    @classmethod
    def from_config(cls, document: Mapping[str, Any], path: str = "args") -> VolumeBindingArgs:
        """Reads VolumeBindingArgs of a configuration. Raises PluginArgsError."""
        with Fields(document, path, ("bindTimeoutSeconds", "shape")) as fields:
            return cls(
                fields.integer("bindTimeoutSeconds", BIND_TIMEOUT_DEFAULT_S, 0, BIND_TIMEOUT_MAX_S),
                read_shape(fields) if fields.has("shape") else (),
            )
