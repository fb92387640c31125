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
    """Upstream's VolumeBindingArgs. Here `shape` enables scoring; upstream also needs the gate StorageCapacityScoring."""

    bind_timeout_s: int = BIND_TIMEOUT_DEFAULT_S
    """Time limit for PreBind to wait until a pod's claims are bound; 0: PreBind fails if they are not bound at the first check."""
    shape: tuple[ShapePoint, ...] = ()
    """Score by utilization; empty: volumes are not scored."""

    @classmethod
    def from_config(cls, document: Mapping[str, Any], path: str = "args") -> VolumeBindingArgs:
        """Reads the arguments from a configuration. Raises PluginArgsError."""
        with Fields(document, path, ("bindTimeoutSeconds", "shape")) as fields:
            return cls(
                fields.integer("bindTimeoutSeconds", BIND_TIMEOUT_DEFAULT_S, 0, BIND_TIMEOUT_MAX_S),
                read_shape(fields) if fields.has("shape") else (),
            )
