"""`multisched plugins list`: every plugin by name, with its extension points and in which profiles it is on."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, get_type_hints

from multisched import config
from multisched.cli_tables import as_document, as_table
from multisched.config_plugins import plugin_registry, resolve_profile
from multisched.framework.registry import EXTENSION_POINTS, Factory


def show(output: str) -> str:
    """The listing in the wanted form."""
    plugins = _plugins()
    if output in ("json", "yaml"):
        return as_document({"plugins": plugins}, output)
    rows = [
        (p["name"], p["source"], ", ".join(p["extensionPoints"]), _weights(p["enabledIn"]))
        for p in plugins
    ]  # fmt: skip
    return as_table(("name", "source", "extension points", "enabled in (weight)"), rows, is_wide=output == "wide")


def _plugins() -> list[dict[str, Any]]:
    registry = plugin_registry()
    weights: dict[str, dict[str, int]] = {}
    for domain in config.default().domains:
        for use in resolve_profile(domain, registry).plugins:
            weights.setdefault(use.name, {})[domain.name] = use.weight
    return [
        {
            "name": name,
            "source": source,
            "extensionPoints": points_of(registry.factory(name)),
            "enabledIn": weights.get(name, {}),
        }
        for name, source in registry.names().items()
    ]


def _weights(weights: Mapping[str, int]) -> str:
    return ", ".join(f"{domain} ({weight})" for domain, weight in weights.items())


def points_of(factory: Factory) -> list[str]:
    """The extension points a plugin class has methods for; of a function, those of the class it says it returns."""
    made = factory if inspect.isclass(factory) else get_type_hints(factory).get("return", factory)
    return [point for point, protocol in EXTENSION_POINTS.items() if _has_methods(made, protocol)]


def _has_methods(made: object, protocol: type) -> bool:
    methods = [name for name, item in vars(protocol).items() if inspect.isfunction(item) and not name.startswith("_")]
    return bool(methods) and all(callable(getattr(made, name, None)) for name in methods)
