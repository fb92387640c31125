"""What differs between two configurations, setting by setting, and which differences only a restart puts in force.

`flatten` writes a configuration as path -> value, with every plugin that its profiles resolve to. Secrets are hidden in
it: it may be shown to whoever may read. Pure; called by the reload and by `config diff`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
from pydantic import BaseModel

from multisched.config.plugins import plugin_registry
from multisched.config.print import scalar_text, with_all_plugins
from multisched.config.schema import Configuration, DomainConfig, PluginEntry
from multisched.config.sections import format_duration
from multisched.framework.registry import Registry

HIDDEN: Final = "(hidden)"
_SECRETS: Final = frozenset({"keyData", "headers", "token", "password"})
"""Settings whose values are shown to nobody, wherever they stand."""

_RESTART: Final = (
    (re.compile(r"lease\."), "leases are held by it"),
    (re.compile(r"server\."), "the server listens by it"),
    (re.compile(r"metrics\."), "the names in /metrics are chosen by it"),
    (re.compile(r"client\."), "connections and deadlines are made of it"),
    (re.compile(r"verify\."), "the judge is started by it"),
    (re.compile(r"logging\.format"), "lines are written by it"),
    (re.compile(r"domains$"), "domains come and go at the start only"),
    (re.compile(r"domains\[[^\]]*\]\.schedulerNames"), "pods are routed by it"),
    (
        re.compile(r"domains\[[^\]]*\]\.(nodes|loans)"),
        "nodes change their domain by it, which replicas settle by leases",
    ),
    (re.compile(r"domains\[[^\]]*\]\.extenders"), "connections to extenders are made of it"),
)
"""Paths -> why only a restart puts them in force. All others may apply at once."""


class Change(msgspec.Struct, frozen=True):
    """One setting that differs."""

    path: str
    before: str
    """As it is written in a file; empty where it is not there."""
    after: str
    restart: str = ""
    """Why only a restart puts it in force; empty: it applies at once."""

    def text(self) -> str:
        """The change in one line."""
        return f"{self.path}: {self.before or '(none)'} -> {self.after or '(none)'}"


def flatten(configuration: Configuration, registry: Registry | None = None) -> dict[str, str]:
    """Path -> value of every setting, in the order of a file."""
    complete = with_all_plugins(configuration, registry if registry is not None else plugin_registry())
    return dict(_settings("", complete))


def difference(before: Configuration, after: Configuration, registry: Registry | None = None) -> list[Change]:
    """What differs between two configurations, as `changes` has it. Domains that are alike cost nothing."""
    if [domain.name for domain in before.domains] == [domain.name for domain in after.domains]:
        pairs = [(one, other) for one, other in zip(before.domains, after.domains, strict=True) if one != other]
        before = before.model_copy(update={"domains": tuple(one for one, _ in pairs)})
        after = after.model_copy(update={"domains": tuple(other for _, other in pairs)})
    return [] if before == after else changes(flatten(before, registry), flatten(after, registry))


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> list[Change]:
    """What differs between two flat configurations, in the order of the second; what it lacks stands last."""
    paths = [*after, *(path for path in before if path not in after)]
    added = {name for name in _domains(after) if name not in _domains(before)}
    gone = {name for name in _domains(before) if name not in _domains(after)}
    found = []
    for path in paths:
        was, now = before.get(path, ""), after.get(path, "")
        if was != now and _domain_of(path) not in added | gone:
            found.append(Change(path, was, now, restart_reason(path)))
    return found


def restart_reason(path: str) -> str:
    """Why only a restart puts a setting in force; empty where it applies at once."""
    return next((why for pattern, why in _RESTART if pattern.match(path)), "")


def applicable(in_force: Configuration, wanted: Configuration) -> Configuration:
    """What is in force, with all of the wanted that needs no restart."""
    by_name = {domain.name: domain for domain in wanted.domains}
    domains = tuple(_applied(domain, by_name.get(domain.name, domain)) for domain in in_force.domains)
    logging = in_force.logging.model_copy(update={"level": wanted.logging.level})
    return in_force.model_copy(update={"domains": domains, "logging": logging})


def _applied(domain: DomainConfig, wanted: DomainConfig) -> DomainConfig:
    parts = {name: getattr(wanted, name) for name in ("profile", "concurrency", "queue", "policy")}
    return domain.model_copy(update=parts)


def _domains(flat: Mapping[str, str]) -> dict[str, None]:
    return dict.fromkeys(name for path in flat if (name := _domain_of(path)))


def _domain_of(path: str) -> str:
    return path.partition("[")[2].partition("]")[0] if path.startswith("domains[") else ""


def _settings(path: str, value: Any, *, is_duration: bool = False) -> Iterator[tuple[str, str]]:
    if path.rpartition(".")[2] in _SECRETS:
        yield path, HIDDEN if value else ""
    elif isinstance(value, BaseModel):
        for name, field in type(value).model_fields.items():
            inner = f"{path}.{field.alias}" if path else str(field.alias)
            yield from _settings(inner, getattr(value, name), is_duration=name.endswith("_s"))
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _settings(f"{path}.{key}", item)
    elif isinstance(value, tuple) and any(isinstance(item, DomainConfig | PluginEntry) for item in value):
        yield path, scalar_text([item.name for item in value])
        for item in value:
            yield from _settings(f"{path}[{item.name}]", item)
    elif isinstance(value, list | tuple) and any(isinstance(item, BaseModel | Mapping) for item in value):
        for number, item in enumerate(value):
            yield from _settings(f"{path}[{number}]", item)
    elif value is not None:
        yield path, format_duration(value) if is_duration else scalar_text(value)
