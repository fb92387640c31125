"""`multisched plugins list`: every plugin by name, with its extension points and in which profiles it is on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from multisched.config import loading
from multisched.config.plugins import plugin_registry, points_of, resolve_profile
from multisched.observe.tables import as_document, as_table


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
    for domain in loading.default().domains:
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
