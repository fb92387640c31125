"""Differences between two configurations by setting, and which of them need a restart.

`flatten` returns a configuration as path -> value, with every plugin that its profiles resolve to. Secrets are replaced,
so that the result can be shown to users with read access. Pure; called by the reload and by `config diff`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from multisched.config.plugins import plugin_registry
from multisched.config.print import scalar_text, with_all_plugins
from multisched.config.schema import Configuration, DomainConfig, PluginEntry
from multisched.config.sections import Section, fields_of, format_duration
from multisched.framework.registry import Registry

HIDDEN: Final = "(hidden)"
_SECRETS: Final = frozenset({"keyData", "headers", "token", "password"})
"""Settings whose values are never shown, at any path."""

_RESTART: Final = (
    (re.compile(r"lease\."), "leases are set up at startup"),
    (re.compile(r"server\."), "the server is set up at startup"),
    (re.compile(r"metrics\."), "metric names are chosen at startup"),
    (re.compile(r"client\."), "connections and deadlines are set up at startup"),
    (re.compile(r"verify\."), "the verify process is started at startup"),
    (re.compile(r"logging\.format"), "the log format is chosen at startup"),
    (re.compile(r"domains$"), "domains are created and removed only at startup"),
    (re.compile(r"domains\[[^\]]*\]\.schedulerNames"), "the routing of pods is set up at startup"),
    (
        re.compile(r"domains\[[^\]]*\]\.(nodes|loans)"),
        "it moves nodes between domains, which replicas coordinate through leases",
    ),
    (re.compile(r"domains\[[^\]]*\]\.extenders"), "connections to extenders are set up at startup"),
)
"""Pattern of paths -> why a change needs a restart. All other changes can apply at once."""


class Change(msgspec.Struct, frozen=True):
    """A setting that differs."""

    path: str
    before: str
    """The value as written in the file; empty if it is not set."""
    after: str
    restart: str = ""
    """Why the change needs a restart; empty: it applies at once."""

    def text(self) -> str:
        """Returns the change as one line."""
        return f"{self.path}: {self.before or '(none)'} -> {self.after or '(none)'}"


def flatten(configuration: Configuration, registry: Registry | None = None) -> dict[str, str]:
    """Returns path -> value of every setting, in file order."""
    complete = with_all_plugins(configuration, registry if registry is not None else plugin_registry())
    return dict(_settings("", complete))


def difference(before: Configuration, after: Configuration, registry: Registry | None = None) -> list[Change]:
    """Returns the differences between two configurations, as `changes` does. Does not flatten equal domains."""
    if [domain.name for domain in before.domains] == [domain.name for domain in after.domains]:
        pairs = [(one, other) for one, other in zip(before.domains, after.domains, strict=True) if one != other]
        before = replace(before, domains=tuple(one for one, _ in pairs))
        after = replace(after, domains=tuple(other for _, other in pairs))
    return [] if before == after else changes(flatten(before, registry), flatten(after, registry))


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> list[Change]:
    """Returns the differences between two flat configurations, in the order of the second; settings it lacks come last."""
    paths = [*after, *(path for path in before if path not in after)]
    added = {name for name in _domains(after) if name not in _domains(before)}
    removed = {name for name in _domains(before) if name not in _domains(after)}
    found = []
    for path in paths:
        was, now = before.get(path, ""), after.get(path, "")
        if was != now and _domain_of(path) not in added | removed:
            found.append(Change(path, was, now, restart_reason(path)))
    return found


def restart_reason(path: str) -> str:
    """Returns why a change of the setting needs a restart; empty if it applies at once."""
    return next((why for pattern, why in _RESTART if pattern.match(path)), "")


def applicable(in_force: Configuration, wanted: Configuration) -> Configuration:
    """Returns the configuration in force with the wanted changes that need no restart."""
    by_name = {domain.name: domain for domain in wanted.domains}
    domains = tuple(_applied(domain, by_name.get(domain.name, domain)) for domain in in_force.domains)
    logging = replace(in_force.logging, level=wanted.logging.level)
    return replace(in_force, domains=domains, logging=logging)


def _applied(domain: DomainConfig, wanted: DomainConfig) -> DomainConfig:
    parts = {name: getattr(wanted, name) for name in ("profile", "concurrency", "queue", "policy")}
    return replace(domain, **parts)


def _domains(flat: Mapping[str, str]) -> dict[str, None]:
    return dict.fromkeys(name for path in flat if (name := _domain_of(path)))


def _domain_of(path: str) -> str:
    return path.partition("[")[2].partition("]")[0] if path.startswith("domains[") else ""


def _settings(path: str, value: Any, *, is_duration: bool = False) -> Iterator[tuple[str, str]]:
    if path.rpartition(".")[2] in _SECRETS:
        yield path, HIDDEN if value else ""
    elif isinstance(value, Section):
        for field in fields_of(type(value)):
            inner = f"{path}.{field.encode_name}" if path else field.encode_name
            yield from _settings(inner, getattr(value, field.name), is_duration=field.name.endswith("_s"))
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _settings(f"{path}.{key}", item)
    elif isinstance(value, tuple) and any(isinstance(item, DomainConfig | PluginEntry) for item in value):
        yield path, scalar_text([item.name for item in value])
        for item in value:
            yield from _settings(f"{path}[{item.name}]", item)
    elif isinstance(value, list | tuple) and any(isinstance(item, Section | Mapping) for item in value):
        for number, item in enumerate(value):
            yield from _settings(f"{path}[{number}]", item)
    elif value is not None:
        yield path, format_duration(value) if is_duration else scalar_text(value)
