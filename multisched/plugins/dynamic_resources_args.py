"""The arguments of DynamicResources, which is not among the plugins yet: a configuration that has them is checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from multisched.framework.plugin_args import Fields

FILTER_TIMEOUT_DEFAULT_S: Final = 10.0
BINDING_TIMEOUT_DEFAULT_S: Final = 600.0
BINDING_TIMEOUT_MIN_S: Final = 1.0


class DynamicResourcesArgs(msgspec.Struct, frozen=True):
    """As upstream's DynamicResourcesArgs."""

    filter_timeout_s: float = FILTER_TIMEOUT_DEFAULT_S
    """How long the search for devices on one node may take; 0: without end."""
    binding_timeout_s: float = BINDING_TIMEOUT_DEFAULT_S
    """How long PreBind waits for the binding conditions of devices."""

    @classmethod
    def from_config(cls, document: Mapping[str, Any], path: str = "args") -> DynamicResourcesArgs:
        """Reads DynamicResourcesArgs of a configuration. Raises PluginArgsError."""
        with Fields(document, path, ("filterTimeout", "bindingTimeout")) as fields:
            return cls(
                fields.duration_s("filterTimeout", FILTER_TIMEOUT_DEFAULT_S),
                fields.duration_s("bindingTimeout", BINDING_TIMEOUT_DEFAULT_S, BINDING_TIMEOUT_MIN_S),
            )
