"""Converts a policy of a scenario to the configuration that the program runs.

`least-allocated` is kube-scheduler's default profile. `realtime` has the same filters and scores only by current use
(`CurrentLoad`). Domains add others by name. A policy may also name a profile or a whole configuration.
In a simulation, Leases and the audit are disabled: only one process runs, and no events are lost.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

from msgspec import defstruct
from msgspec.structs import replace

from multisched.config import loading
from multisched.config.document import ConfigError, Document, Problem, part_at
from multisched.config.plugins import plugin_registry, resolve_profile
from multisched.config.schema import Configuration, DomainConfig, PluginEntry
from multisched.config.sections import DURATION_MAX_S
from multisched.config.structure import nearest, validated_part
from multisched.framework.context import PluginContext
from multisched.framework.registry import PluginUse, Registry
from multisched.simulate.contribution import PolicySection, contributions
from multisched.simulate.current_load import CurrentLoad, CurrentUsage
from multisched.simulate.scenario import Policy
from multisched.simulate.scenario_schema import PolicyEntry

DOMAIN: Final = "simulated"
CURRENT_LOAD_WEIGHT: Final = 10

_PROFILES: Final[Mapping[str, Mapping[str, Any]]] = {
    "least-allocated": {"base": "default", "queueSort": "PrioritySort"},
    "realtime": {
        "base": "default",
        "queueSort": "PrioritySort",
        "plugins": {
            "disabled": ["NodeResourcesBalancedAllocation"],
            "enabled": [{"name": "NodeResourcesFit", "weight": 0}, {"name": "PodTopologySpread", "weight": 0}],
        },
    },
}
BUILT_IN: Final = tuple(_PROFILES)
_PART: Final = re.compile(r"([^.\[\]]+)|\[(\d+)\]")


def profiles() -> dict[str, Mapping[str, Any]]:
    """Returns the profiles of all policies that a scenario can select by name only: the built-in ones, then those of domains."""
    found = dict(_PROFILES)
    for contribution in contributions():
        assert not found.keys() & contribution.policies.keys(), "each name belongs to one domain"
        found |= contribution.policies
    return found


def sections() -> dict[str, PolicySection]:
    """Returns the sections that domains add to a policy's entry, by field."""
    return {name: section for one in contributions() for name, section in one.policy_sections.items()}


def entry_type(added: Mapping[str, PolicySection]) -> type[PolicyEntry]:
    """Returns the type of a policy's entry with the sections of domains, so that errors for unknown keys suggest them."""
    fields = [(name, section.type | None, None) for name, section in added.items()]
    made = defstruct("PolicyEntry", fields, bases=(PolicyEntry,), frozen=True) if fields else PolicyEntry
    return cast(type[PolicyEntry], made)


def read_entries(document: Document, added: Mapping[str, PolicySection]) -> list[PolicyEntry | None]:
    """Validates the entries of the file. Returns None for an entry with problems, which are added to the document."""
    plain = document.data.get("policies") if isinstance(document.data, dict) else None
    expected = entry_type(added)
    listed = plain if isinstance(plain, list) else []
    return [validated_part(document, ("policies", index), one, expected) for index, one in enumerate(listed)]


def read_policies(
    document: Document, entries: Sequence[PolicyEntry], added: Mapping[str, PolicySection], folder: Path
) -> tuple[Policy, ...]:
    """Reads the policies of validated entries. Adds problems to the document."""
    found: list[Policy] = []
    for index, entry in enumerate(entries):
        if any(entry.name == other.name for other in entries[:index]):
            text = f"policy {entry.name!r} is already listed above; give each a unique name"
            document.add(("policies", index), text)
            continue
        policy = read_policy(document, index, entry, folder)
        if policy is not None:
            values = _section_values(document, index, entry, policy, added)
            found.append(replace(policy, sections=dict(values)))
    return tuple(found)


def _section_values(
    document: Document, index: int, entry: PolicyEntry, policy: Policy, added: Mapping[str, PolicySection]
) -> Iterator[tuple[str, Any]]:
    for name, section in added.items():
        given = getattr(entry, name)
        value = None if given is None else section.read(document, ("policies", index, name), given, policy)
        if value is not None:
            yield name, value


def read_policy(document: Document, index: int, entry: PolicyEntry, folder: Path) -> Policy | None:
    """Reads one policy without sections of domains; returns None after adding its problems to the document."""
    at = ("policies", index)
    try:
        if entry.configuration is not None:
            return _of_configuration(document, index, entry, loading.load(folder / entry.configuration))
        known = profiles()
        profile = part_at(document.data, (*at, "profile")) if entry.profile is not None else known.get(entry.name)
        if profile is None:
            fix = f"write one of {', '.join(known)}, or give it a profile or a configuration"
            document.add(at, f"no policy is called {entry.name!r}; {fix}", suggestion=nearest(entry.name, known))
            return None
        made = _of_profile(profile)
    except ConfigError as error:
        _take_over(document, at, error.problems)
        return None
    uses_current_load = entry.profile is None and entry.name == "realtime"
    return _policy(
        entry.name,
        with_plugin(made, 0, CurrentLoad.name, CURRENT_LOAD_WEIGHT) if uses_current_load else made,
        made.domains[0],
        uses_current_load=uses_current_load,
    )


def _of_profile(profile: Mapping[str, Any]) -> Configuration:
    """Builds a configuration of one domain with this profile. Raises ConfigError."""
    domain = {"name": DOMAIN, "nodes": {"rule": "rest"}, "profile": profile}
    written = {"apiVersion": "multisched.io/v1", "kind": "MultischedConfiguration", "domains": [domain]}
    return loading.parse(json.dumps(written), "profile")


def _of_configuration(
    document: Document, index: int, entry: PolicyEntry, configuration: Configuration
) -> Policy | None:
    names = [domain.name for domain in configuration.domains]
    if entry.domain is not None and entry.domain not in names:
        text = f"{entry.configuration} has no domain {entry.domain!r}; write one of {', '.join(names)}"
        document.add(("policies", index, "domain"), text, suggestion=nearest(entry.domain, names))
        return None
    asked = [domain.name for domain in configuration.domains if domain.extenders]
    if asked:
        text = f"domain {asked[0]} has HTTP extenders, for which virtual time cannot wait; remove them"
        document.add(("policies", index, "configuration"), text)
        return None
    return _policy(entry.name, configuration, configuration.domain(entry.domain or names[0]))


def _policy(
    name: str, configuration: Configuration, domain: DomainConfig, *, uses_current_load: bool = False
) -> Policy:
    quiet = replace(
        configuration,
        lease=replace(configuration.lease, enabled=False),
        client=replace(configuration.client, audit_period_s=DURATION_MAX_S),
    )
    return Policy(name, quiet, domain.scheduler_names[0], uses_current_load)


def _take_over(document: Document, at: tuple[str | int, ...], problems: Sequence[Problem]) -> None:
    """Reports problems of a profile at its path in the scenario; problems of another file keep their location."""
    for problem in problems:
        if problem.file != "profile":
            document.problems.append(problem)
            continue
        inner = problem.path.removeprefix("domains[0]").lstrip(".")
        parts = tuple(int(number) if number else name for name, number in _PART.findall(inner))
        document.add((*at, *parts), problem.message, suggestion=problem.suggestion)


# -- plugins of a run ----------------------------------------------------------------------------------------------


def plugins_of(domain: DomainConfig) -> dict[str, PluginUse]:
    """Returns the plugins of a domain of a policy's configuration, by name."""
    return {use.name: use for use in resolve_profile(domain, run_registry(None)).plugins}


def with_plugin(
    configuration: Configuration, index: int, name: str, weight: int, args: Mapping[str, Any] | None = None
) -> Configuration:
    """Returns the configuration with the plugin enabled in the domain at `index`; replaces an existing entry of the plugin."""
    entry = PluginEntry(name=name, weight=weight, args=args)
    domain = configuration.domains[index]
    kept = tuple(one for one in domain.profile.plugins.enabled if one.name != name)
    plugins = replace(domain.profile.plugins, enabled=(*kept, entry))
    domains = list(configuration.domains)
    domains[index] = replace(domain, profile=replace(domain.profile, plugins=plugins))
    return replace(configuration, domains=tuple(domains))


def run_registry(current_usage: CurrentUsage | None) -> Registry:
    """Returns the registry of shipped plugins, with CurrentLoad, which reads `current_usage`. None: CurrentLoad cannot be built."""
    registry = plugin_registry()

    def current_load(context: PluginContext) -> CurrentLoad:
        assert current_usage is not None, "only a run has current usage"
        return CurrentLoad(current_usage, context)

    registry.add(CurrentLoad.name, current_load, "simulate")
    return registry
