"""The arguments of DynamicResources. They are checked but have no effect, since claims are not allocated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from multisched.framework.plugin_args import Fields

FILTER_TIMEOUT_DEFAULT_S: Final = 10.0
BINDING_TIMEOUT_DEFAULT_S: Final = 600.0
BINDING_TIMEOUT_MIN_S: Final = 1.0


class DynamicResourcesArgs(msgspec.Struct, frozen=True):
    """Upstream's DynamicResourcesArgs."""

    filter_timeout_s: float = FILTER_TIMEOUT_DEFAULT_S
    """Time limit for the search for devices on one node; 0: no limit."""
    binding_timeout_s: float = BINDING_TIMEOUT_DEFAULT_S
    """Time limit for PreBind to wait for the binding conditions of devices."""

    @classmethod
    def from_config(cls, document: Mapping[str, Any], path: str = "args") -> DynamicResourcesArgs:
        """Reads the arguments from a configuration. Raises PluginArgsError."""
        with Fields(document, path, ("filterTimeout", "bindingTimeout")) as fields:
            return cls(
                fields.duration_s("filterTimeout", FILTER_TIMEOUT_DEFAULT_S),
                fields.duration_s("bindingTimeout", BINDING_TIMEOUT_DEFAULT_S, BINDING_TIMEOUT_MIN_S),
            )
