"""The arguments of DynamicResources, which is not among the plugins yet: a configuration that has them is checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from multisched.model.go_duration import parse_go_duration
from multisched.plugins.config_fields import Fields

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
                _seconds(fields, "filterTimeout", FILTER_TIMEOUT_DEFAULT_S, 0.0),
                _seconds(fields, "bindingTimeout", BINDING_TIMEOUT_DEFAULT_S, BINDING_TIMEOUT_MIN_S),
            )


def _seconds(fields: Fields, name: str, default_s: float, low_s: float) -> float:
    if not fields.has(name):
        return default_s
    try:
        found_s = parse_go_duration(fields.text(name))
    except ValueError as error:
        fields.refuse(fields.at(name), str(error))
        return default_s
    if found_s < low_s:
        fields.refuse(fields.at(name), f"{fields.text(name)} is too short; write at least {low_s:g}s")
    return found_s
