"""`multisched plugins list`: every plugin by name, with its extension points and the domains that enable it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from multisched.config.plugins import plugin_registry, points_with, resolve_profile
from multisched.framework.registry import EXTENSION_POINTS, PluginUse
from multisched.observe.tables import as_document, as_table

if TYPE_CHECKING:
    from multisched.config.schema import Configuration


def show(configuration: Configuration, output: str) -> str:
    """Returns the list in the requested format."""
    plugins = _plugins(configuration)
    if output in ("json", "yaml"):
        return as_document({"plugins": plugins}, output)
    rows = [
        (p["name"], p["source"], ", ".join(p["extensionPoints"]), _weights(p["enabledIn"]))
        for p in plugins
    ]  # fmt: skip
    return as_table(("name", "source", "extension points", "enabled in (weight)"), rows, is_wide=output == "wide")


def _plugins(configuration: Configuration) -> list[dict[str, Any]]:
    """Returns the built-in plugins, then those of the configuration; a plugin's points are those that it has in any domain."""
    registry = plugin_registry()
    uses: dict[str, dict[str, PluginUse]] = {name: {} for name in registry.names()}
    for domain in configuration.domains:
        for use in resolve_profile(domain, registry).plugins:
            uses.setdefault(use.name, {})[domain.name] = use
    sources = registry.names()
    points = {
        name: {point for use in of_domains.values() or [PluginUse(name)] for point in points_with(use, registry)}
        for name, of_domains in uses.items()
    }
    return [
        {
            "name": name,
            "source": sources.get(name, "configuration"),
            "extensionPoints": [point for point in EXTENSION_POINTS if point in points[name]],
            "enabledIn": {domain: use.weight for domain, use in of_domains.items()},
        }
        for name, of_domains in uses.items()
    ]


def _weights(weights: Mapping[str, int]) -> str:
    return ", ".join(f"{domain} ({weight})" for domain, weight in weights.items())
