"""Turns a policy of a scenario into the configuration that the program runs.

`least-allocated` is kube-scheduler's default profile. `realtime` has the same filters and scores only by current use
(`MomentLoad`). `peak-forecast` is the forecast domain. A policy may also name a profile or a whole configuration.
Leases and the audit are off in a simulation: only one process runs, and no events are lost.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from domains.forecast.settings.args import PeakSettings
from domains.forecast.settings.repair import read_repair
from multisched.config import loading
from multisched.config.document import ConfigError, Document, Problem, part_at
from multisched.config.plugins import plugin_registry, resolve_profile
from multisched.config.schema import Configuration, DomainConfig, PluginEntry
from multisched.config.sections import DURATION_MAX_S
from multisched.config.structure import nearest
from multisched.framework.context import PluginContext
from multisched.framework.plugin_args import PluginArgsError
from multisched.framework.registry import PluginUse, Registry
from multisched.simulate.lessons import Study
from multisched.simulate.moment_load import MomentLoad, Readings
from multisched.simulate.moments import DAY_S
from multisched.simulate.scenario import CAPACITY_ANNOTATION, Policy, Repair
from multisched.simulate.scenario_schema import BUILT_IN_POLICIES, PolicyEntry, RepairEntry

DOMAIN: Final = "simulated"
REPAIR_MINUTES: Final = 1
"""Between two plans in one window, and limit for a replacement to become ready: nothing else happens meanwhile."""
FORECAST: Final = "PeakForecast"
OWN: Final = {"files", "historyDir", "profilesFile"}
"""Args by which PeakForecast loads profiles of its own, independent of the scenario."""
LEARNED: Final = {"history", "fit"}
"""Args that configure how it learns from the scenario's usage."""
MOMENT_WEIGHT: Final = 10

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
    "peak-forecast": {"base": "forecast"},
}
_PART: Final = re.compile(r"([^.\[\]]+)|\[(\d+)\]")


def read_policy(document: Document, index: int, entry: PolicyEntry, folder: Path) -> Policy | None:
    """Reads one policy; returns None after adding its problems to the document."""
    policy = _read_plain(document, index, entry, folder)
    return policy if policy is None or entry.repair is None else _with_repair(document, index, entry.repair, policy)


def _read_plain(document: Document, index: int, entry: PolicyEntry, folder: Path) -> Policy | None:
    at = ("policies", index)
    try:
        if entry.configuration is not None:
            return _of_configuration(document, index, entry, loading.load(folder / entry.configuration))
        profile = part_at(document.data, (*at, "profile")) if entry.profile is not None else _PROFILES.get(entry.name)
        if profile is None:
            known = ", ".join(BUILT_IN_POLICIES)
            fix = f"write one of {known}, or give it a profile or a configuration"
            document.add(at, f"no policy is called {entry.name!r}; {fix}", suggestion=nearest(entry.name, _PROFILES))
            return None
        made = _of_profile(profile)
    except ConfigError as error:
        _take_over(document, at, error.problems)
        return None
    reads_moment = entry.profile is None and entry.name == "realtime"
    return _policy(entry.name, _with_moment(made) if reads_moment else made, made.domains[0], reads_moment=reads_moment)


def _with_repair(document: Document, index: int, entry: RepairEntry, policy: Policy) -> Policy | None:
    at = ("policies", index, "repair")
    registry = run_registry(None)
    domains = policy.configuration.domains
    ours = next(domain for domain in domains if policy.scheduler_name in domain.scheduler_names)
    if all(use.name != FORECAST for use in resolve_profile(ours, registry).plugins):
        document.add(at, f"policy {policy.name!r} does not run {FORECAST}, which repairs; remove repair, or enable it")
        return None
    args = {
        "mode": "apply",
        "windows": entry.windows,
        "thresholdPercent": entry.threshold_percent,
        "intervalMinutes": REPAIR_MINUTES,
        "readyMinutes": REPAIR_MINUTES,
    }
    try:
        read_repair(args, f"policies[{index}].repair")
    except PluginArgsError as error:
        document.add(at, str(error))
        return None
    return msgspec.structs.replace(policy, repair=Repair(args, entry.moves_per_100_replicas, entry.moves_per_window))


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
        text = f"domain {asked[0]} asks HTTP extenders, which virtual time cannot wait for; remove them"
        document.add(("policies", index, "configuration"), text)
        return None
    return _policy(entry.name, configuration, configuration.domain(entry.domain or names[0]))


def _policy(name: str, configuration: Configuration, domain: DomainConfig, *, reads_moment: bool = False) -> Policy:
    quiet = replace(
        configuration,
        lease=replace(configuration.lease, enabled=False),
        client=replace(configuration.client, audit_period_s=DURATION_MAX_S),
    )
    return Policy(name, quiet, domain.scheduler_names[0], reads_moment)


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


def _with_moment(configuration: Configuration) -> Configuration:
    entry = PluginEntry(name=MomentLoad.name, weight=MOMENT_WEIGHT)
    return _with_plugin(configuration, 0, entry)


def with_studies(
    policy: Policy, dimensions: Sequence[str], repair: Mapping[str, Any] | None
) -> tuple[Configuration, dict[str, Study]]:
    """Gives PeakForecast, in every domain that runs it, the scenario's dimensions and capacities. Returns how it learns, per domain.

    If its args configure a history, the scenario's usage replaces the sources, refitted as often as the args say. Files and
    imported profiles stay as configured.
    `repair`: args of its repair in the domain that places the services.
    """
    configuration = policy.configuration
    studies: dict[str, Study] = {}
    registry = run_registry(None)
    for index, domain in enumerate(configuration.domains):
        uses = {use.name: use for use in resolve_profile(domain, registry).plugins}
        if FORECAST in uses:
            args = _forecast_args(uses[FORECAST], dimensions)
            if not OWN & set(args):
                studies[domain.name] = _study(args)
                args = {key: value for key, value in args.items() if key not in LEARNED}
            if repair is not None and policy.scheduler_name in domain.scheduler_names:
                args["repair"] = {**(args.get("repair") or {}), **repair}
            weight = uses[FORECAST].weight
            entry = PluginEntry(name=FORECAST, weight=weight, args=args)
            configuration = _with_plugin(configuration, index, entry)
    return configuration, studies


def _forecast_args(use: PluginUse, dimensions: Sequence[str]) -> dict[str, Any]:
    args = {
        "dimensions": list(dimensions),
        "capacities": {name: {"annotation": CAPACITY_ANNOTATION + name} for name in dimensions},
        **use.args,
    }
    if use.args.get("history") is not None:
        args.pop("profilesFile", None)  # profiles learned from the replaced history
        weights = PeakSettings.from_config(use.args).weights
        args["weights"] = {name: weights[name] for name in dimensions if name in weights}
        repair = args.get("repair") or {}
        thresholds = repair.get("thresholdPercent")
        if isinstance(thresholds, Mapping):
            thresholds = {name: thresholds[name] for name in dimensions if name in thresholds}
            args["repair"] = {**repair, "thresholdPercent": thresholds}
    return args


def _study(args: Mapping[str, Any]) -> Study:
    """Reads how PeakForecast learns from args that have been validated."""
    settings = PeakSettings.from_config(args)
    history = None if settings.learning is None else settings.learning.history
    if history is None:
        return Study(settings.fit_of_files(), settings.window_days)
    window_days = history.steps * history.step_s / DAY_S
    return Study(settings.fit_of_files(), window_days, float(history.refresh_s))


def _with_plugin(configuration: Configuration, index: int, entry: PluginEntry) -> Configuration:
    domain = configuration.domains[index]
    kept = tuple(one for one in domain.profile.plugins.enabled if one.name != entry.name)
    plugins = replace(domain.profile.plugins, enabled=(*kept, entry))
    profile = replace(domain.profile, plugins=plugins)
    domains = list(configuration.domains)
    domains[index] = replace(domain, profile=profile)
    return replace(configuration, domains=tuple(domains))


def run_registry(readings: Readings | None) -> Registry:
    """Returns the registry of shipped plugins, and MomentLoad over the run's readings."""
    registry = plugin_registry()

    def moment_load(context: PluginContext) -> MomentLoad:
        assert readings is not None, "only a run has readings"
        return MomentLoad(readings, context)

    registry.add(MomentLoad.name, moment_load, "simulate")
    return registry
