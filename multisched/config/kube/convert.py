"""Conversion of a KubeSchedulerConfiguration: each profile becomes a domain that uses all nodes and makes the same decisions.

`convert` returns the configuration for the text of a file, and findings about settings that were lost or changed. For a file that
kube-scheduler would reject, it raises ConfigError with every problem and its line. `profile_of` returns the plugins of one profile.
The module has no side effects. It is called by `cli.convert` and by the conformance tests.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

from multisched.config import loading
from multisched.config.document import ConfigError, Document, Path, items_at, part_at, read_document
from multisched.config.findings import Findings
from multisched.config.kube.extenders import extender_of
from multisched.config.kube.points import (
    DEFAULT_PLUGINS,
    NEEDS,
    PlacedPlugins,
    PointsOf,
    RepeatedPluginError,
    default_plugins_left,
    named,
    place,
    refuse_repeated,
)
from multisched.config.kube.replaced import QUEUE_SORT, REPLACED, args_lost, replace_plugins
from multisched.config.kube.schema import (
    KUBE_API_VERSION,
    POINTS,
    KubeConfiguration,
    KubePlugins,
    KubeProfile,
)
from multisched.config.kube.settings import client_of, lease_of, queue_of, report_process_settings
from multisched.config.plugins import plugin_registry, points_with, resolve_profile
from multisched.config.profile import DEFAULT_SCHEDULER, check_args
from multisched.config.schema import API_VERSION, BUILT_IN_DOMAINS, DOMAINS_MAX, KIND, WEIGHT_MAX, Configuration
from multisched.config.structure import validated
from multisched.framework.registry import PluginUse, Profile
from multisched.plugins.args_readers import ARGS_READERS, WITHOUT_EFFECT

NAME_CHARS_MAX: Final = 40
BINDER: Final = "DefaultBinder"

CLAIMS: Final = "pods with resource claims are not scheduled yet; their condition gives the reason"
NOT_HERE: Final = {
    "DynamicResources": CLAIMS,
    "TopologyPlacementGenerator": "its feature gate is off in 1.36",
    "PodGroupPodsCount": "its feature gate is off in 1.36",
}
"""Upstream plugin without an equivalent in multisched -> the reason, or the consequence."""

STILL_SERVED: Final = (
    f"kube-scheduler must stop serving {DEFAULT_SCHEDULER} before multisched runs with this file;"
    " otherwise both schedule the same pods independently and may overcommit nodes"
)

_SCHEDULER_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class Conversion:
    """The result of a conversion."""

    data: Mapping[str, Any]
    """The MultischedConfiguration as plain data, to be written as YAML or JSON."""
    configuration: Configuration
    """The same configuration, parsed and with defaults."""
    findings: Findings = field(repr=False)


def convert(text: str, file: str) -> Conversion:
    """Converts the text of a file. Raises ConfigError if it is not a valid KubeSchedulerConfiguration."""
    return _convert(read_document(text, file))


def profile_of(document: Mapping[str, Any] | None = None, scheduler_name: str | None = None) -> Profile:
    """Returns the plugins that the domain converted from a profile runs.

    `document`: a KubeSchedulerConfiguration as plain data; None: kube-scheduler's defaults. `scheduler_name`: selects the profile; None:
    the first one. Raises ConfigError, and KeyError if no profile has the schedulerName.
    """
    data = {"apiVersion": KUBE_API_VERSION, "kind": "KubeSchedulerConfiguration"} if document is None else document
    converted = _convert(Document("configuration", data))
    for domain in converted.configuration.domains:
        if scheduler_name in (None, *domain.scheduler_names):
            return resolve_profile(domain, plugin_registry())
    raise KeyError(scheduler_name)


def _convert(document: Document) -> Conversion:
    document.data = _without_nulls(document.data)
    kube = validated(document, KubeConfiguration)
    if kube is None:
        _check_all_args(document)
        raise ConfigError(document.problems)
    findings = Findings(document)
    data = _Converter(document, kube, findings).run()
    if document.problems:
        raise ConfigError(document.problems)
    return Conversion(data, loading.parse(json.dumps(data), f"{document.file} (converted)"), findings)


def _without_nulls(data: Any) -> Any:
    """Returns the data without null fields. As in upstream's decoder, a null field counts as missing."""
    if isinstance(data, dict):
        return {key: _without_nulls(value) for key, value in data.items() if value is not None}
    return [_without_nulls(item) for item in data] if isinstance(data, list) else data


class _Converter:
    """The conversion of one file."""

    def __init__(self, document: Document, kube: KubeConfiguration, findings: Findings) -> None:
        self._document = document
        self._kube = kube
        self._findings = findings
        self._domain_names: set[str] = set()

    def run(self) -> dict[str, Any]:
        profiles = self._kube.profiles or (KubeProfile(),)
        if len(profiles) > DOMAINS_MAX:
            self._document.add(("profiles",), f"has {len(profiles)} profiles; at most {DOMAINS_MAX} become domains")
            return {}
        self._report_percentage_of_nodes()
        extenders = list(self._extenders())
        scheduler_names = list(self._scheduler_names(profiles))
        domains: list[dict[str, Any]] = []
        for index, (profile, scheduler_name) in enumerate(zip(profiles, scheduler_names, strict=True)):
            domains.append(
                {
                    "name": self._domain_name(scheduler_name),
                    "schedulerNames": [scheduler_name],
                    **_nodes_of(domains),
                    "profile": self._profile(("profiles", index), profile),
                    **queue_of(self._kube, self._findings),
                    **({"extenders": extenders} if extenders else {}),
                }
            )
        self._check_common_queue_sort(domains)
        lease = lease_of(self._kube.leader_election, self._findings)
        data: dict[str, Any] = {"apiVersion": API_VERSION, "kind": KIND, "domains": domains, **lease}
        data |= client_of(self._kube.client_connection, self._kube.leader_election, self._findings)
        report_process_settings(self._kube, self._findings)
        return data

    # -- names -----------------------------------------------------------------------------------------------------

    def _scheduler_names(self, profiles: tuple[KubeProfile, ...]) -> Iterator[str]:
        seen: dict[str, int] = {}
        for index, profile in enumerate(profiles):
            at: Path = ("profiles", index, "schedulerName")
            name = profile.scheduler_name
            if not name and len(profiles) == 1:
                name = DEFAULT_SCHEDULER
            if not name:
                self._document.add(at, "is missing; with several profiles, each needs its own", of_key=True)
            elif name in seen:
                self._document.add(
                    at, f"{name!r} is already used by profiles[{seen[name]}]; each profile needs its own"
                )
            elif _SCHEDULER_NAME.fullmatch(name) is None:
                text = "write at most 63 characters of a-z, 0-9, - and ."
                self._document.add(at, f"{name!r} is not a valid schedulerName for multisched; {text}")
            if name == DEFAULT_SCHEDULER:
                self._findings.note(at, STILL_SERVED)
            seen.setdefault(name, index)
            yield name

    def _domain_name(self, scheduler_name: str) -> str:
        """Returns a unique domain name derived from the schedulerName. Avoids names of built-in domains, which have rules of their own."""
        name = re.sub(r"[^a-z0-9]+", "-", scheduler_name.lower()).strip("-")[:NAME_CHARS_MAX].rstrip("-") or "domain"
        if name in BUILT_IN_DOMAINS:
            name = f"{name}-profile"
        stem, number = name[: NAME_CHARS_MAX - 4].rstrip("-"), 2
        while name in self._domain_names:
            name, number = f"{stem}-{number}", number + 1
        self._domain_names.add(name)
        return name

    # -- plugins ---------------------------------------------------------------------------------------------------

    def _profile(self, at: Path, profile: KubeProfile) -> dict[str, Any]:
        args = self._args(at, profile)
        points_here = _points_in_multisched(args)
        try:
            refuse_repeated(profile.plugins)
            plugins = replace_plugins(at, profile.plugins, self._findings)
            placed = place(plugins, points_here, _is_known)
        except RepeatedPluginError as error:
            for point, index in error.repeated:
                self._document.add((*at, "plugins", point, "enabled", index), "is listed twice; remove one")
            return {}
        self._report_missing(at, profile, points_here)
        for name, point in placed.added_points:
            text = f"{name} runs at {point} and not at {NEEDS[point][0]}, which makes every pod fail in kube-scheduler"
            self._findings.warn((*at, "plugins", point), f"{text}; here it runs at both")
        placed = self._with_required_plugins(at, plugins, placed, points_here)
        enabled = [self._entry(at, name, placed, args) for name in placed.order]
        points = {point: list(names) for point, names in placed.points.items()}
        return {
            "base": "default",
            "plugins": {"disabled": ["*"], "enabled": enabled},
            **({"points": points} if points else {}),
        }

    def _entry(self, at: Path, name: str, placed: PlacedPlugins, args: Mapping[str, Any]) -> dict[str, Any]:
        entry: dict[str, Any] = {"name": name}
        weight = placed.weights.get(name)
        if weight is not None:
            if weight > WEIGHT_MAX:
                self._document.add((*at, "plugins"), f"the weight {weight} of {name} is above {WEIGHT_MAX}; lower all")
            entry["weight"] = weight
        if args.get(name):
            entry["args"] = args[name]
        return entry

    def _with_required_plugins(
        self, at: Path, plugins: KubePlugins, placed: PlacedPlugins, points_here: PointsOf
    ) -> PlacedPlugins:
        """Adds upstream's QueueSort or Bind plugin to a profile whose QueueSort or Bind plugin is unknown to multisched."""
        order, points = placed.order, dict(placed.points)
        for point, fallback in (("queueSort", QUEUE_SORT), ("bind", BINDER)):
            runs = points.get(point, tuple(n for n in order if point in points_here(n)))
            wanted = [e.name for e in plugins.at(point).enabled]
            if point == "queueSort" and len(runs) > 1:
                self._document.add((*at, "plugins", point), f"{' and '.join(runs)} order the queue; keep one of them")
            if runs:
                continue
            unknown = [name for name in (*wanted, *named(plugins)) if not _is_known(name)]
            if not unknown:
                what = "orders the queue" if point == "queueSort" else "binds"
                self._document.add((*at, "plugins", point), f"no plugin {what}; enable {fallback}")
                continue
            self._findings.warn((*at, "plugins", point), f"{unknown[0]} is not known here; {fallback} replaces it")
            order = order if fallback in order else (*order, fallback)
            points[point] = (fallback,)
        return PlacedPlugins(order, placed.weights, points)

    def _report_missing(self, at: Path, profile: KubeProfile, points_here: PointsOf) -> None:
        """Reports plugins that are enabled, in the file or by default, but are not available in multisched."""
        own = named(profile.plugins)
        for name, point in own.items():
            if _is_known(name) or name in REPLACED:
                continue
            index = next(i for i, e in enumerate(profile.plugins.at(point).enabled) if e.name == name)
            if name in DEFAULT_PLUGINS or name in NOT_HERE:
                reason = f"{name} is not available in multisched: {NOT_HERE.get(name, 'it is left out')}"
            else:
                near = difflib.get_close_matches(name, DEFAULT_PLUGINS, n=1, cutoff=0.8)
                hint = f" (did you mean {near[0]}?)" if near else ""
                reason = (
                    f"{name} is not a plugin of kube-scheduler 1.36{hint}; it is left out:"
                    " add it as package.module:Class once it is ported"
                )
            self._findings.warn((*at, "plugins", point, "enabled", index), reason)
        for name in default_plugins_left(profile.plugins):
            if not _is_known(name) and name not in own:
                reason = NOT_HERE.get(name, "it is left out")
                self._findings.note(
                    (*at, "plugins"), f"{name}, enabled by default, is not available in multisched: {reason}"
                )
            elif name == "DynamicResources" and _is_known(name):
                self._findings.note((*at, "plugins"), f"{name}: {CLAIMS}")
        for point in POINTS:
            for index, entry in enumerate(profile.plugins.at(point).enabled):
                if _is_known(entry.name) and entry.name not in REPLACED and point not in points_here(entry.name):
                    text = f"{entry.name} does not implement {point} here; its other extension points do the work"
                    self._findings.note((*at, "plugins", point, "enabled", index), text)
        for point in ("placementGenerate", "placementScore"):
            if profile.plugins.at(point).enabled:
                self._findings.warn((*at, "plugins", point), "left out: pod groups are not scheduled as one entity yet")

    def _args(self, at: Path, profile: KubeProfile) -> dict[str, Mapping[str, Any]]:
        found: dict[str, Mapping[str, Any]] = {}
        for index, one in enumerate(profile.plugin_config):
            path: Path = (*at, "pluginConfig", index)
            if one.name in found:
                self._document.add((*path, "name"), f"{one.name} has two entries of arguments; remove one")
                continue
            found[one.name] = {}
            args = {key: value for key, value in one.args.items() if key not in ("apiVersion", "kind")}
            if one.name in REPLACED:
                for argument, why in args_lost(one.name, args):
                    self._findings.warn((*path, "args", argument), why)
                continue
            if not _check_args(self._document, path, one.name, one.args):
                continue
            if _takes_args(one.name):
                self._report_args(path, one.name, args)
                found[one.name] = args
            elif args:
                known = "takes no arguments" if _is_known(one.name) else "is not known here"
                self._findings.warn((*path, "args"), f"{one.name} {known}; its arguments are left out")
        if any(self._ignored_resources()):
            # Upstream replaces the file's ignoredResources by the resources that extenders manage (scheduler.go, buildExtenders).
            self._report_ignored(at, profile)
            found["NodeResourcesFit"] = {
                **found.get("NodeResourcesFit", {}),
                "ignoredResources": list(self._ignored_resources()),
            }
        return found

    def _report_ignored(self, at: Path, profile: KubeProfile) -> None:
        for index, one in enumerate(profile.plugin_config):
            if one.name == "NodeResourcesFit" and one.args.get("ignoredResources"):
                text = "as upstream, replaced by the resources of extenders with ignoredByScheduler"
                self._findings.note((*at, "pluginConfig", index, "args", "ignoredResources"), text)

    def _report_args(self, path: Path, plugin: str, args: Mapping[str, Any]) -> None:
        if plugin in WITHOUT_EFFECT and args:
            self._findings.note((*path, "args"), WITHOUT_EFFECT[plugin])

    def _check_common_queue_sort(self, domains: list[dict[str, Any]]) -> None:
        """Reports profiles with different QueueSort plugins, as upstream, which has one queue for all profiles."""
        if len(domains) > 1 and not self._document.problems:
            sets = [profile.plugins.queue_sort for profile in self._kube.profiles]
            for index, found in enumerate(sets):
                if found != sets[0]:
                    self._document.add(("profiles", index, "plugins", "queueSort"), "must be the same in all profiles")

    # -- extenders and percentageOfNodesToScore --------------------------------------------------------------------

    def _extenders(self) -> Iterator[dict[str, Any]]:
        for index, extender in enumerate(self._kube.extenders):
            yield extender_of(("extenders", index), extender, self._document, self._findings)

    def _ignored_resources(self) -> Iterator[str]:
        for extender in self._kube.extenders:
            yield from (r.name for r in extender.managed_resources if r.ignored_by_scheduler)

    def _report_percentage_of_nodes(self) -> None:
        """Reports percentages below 100, with which upstream chooses among fewer nodes than multisched."""
        text = "all nodes are evaluated, as with 100"
        whole = self._kube.percentage_of_nodes_to_score
        own = [profile.percentage_of_nodes_to_score for profile in self._kube.profiles]
        if not whole and not own.count(100) == len(own) > 0:
            self._findings.note(
                ("percentageOfNodesToScore",), f"is 0 or not set, which means 5 to 50 percent upstream: {text}"
            )
        elif whole not in (None, 0, 100):
            self._findings.warn(("percentageOfNodesToScore",), f"{whole}: {text}")
        for index, percentage in enumerate(own):
            if percentage not in (None, 0, 100):
                at: Path = ("profiles", index, "percentageOfNodesToScore")
                self._findings.warn(at, f"{percentage}: {text}")


def _check_all_args(document: Document) -> None:
    """Checks the arguments in a file that has other problems, so that all problems are reported together."""
    for profile in items_at(document.data, ("profiles",)):
        for path in items_at(document.data, (*profile, "pluginConfig")):
            plugin, args = part_at(document.data, (*path, "name")), part_at(document.data, (*path, "args"))
            if isinstance(plugin, str) and isinstance(args, dict):
                _check_args(document, path, plugin, args)


def _check_args(document: Document, path: Path, plugin: str, args: Mapping[str, Any]) -> bool:
    """Checks an entry of pluginConfig, and adds its problems to the document. Returns whether it is valid."""
    if plugin not in ARGS_READERS or plugin in REPLACED:
        return True
    is_valid = True
    for key, expected in (("apiVersion", KUBE_API_VERSION), ("kind", f"{plugin}Args")):
        if args.get(key, expected) != expected:
            document.add((*path, "args", key), f"{args[key]!r} does not match the plugin; write {expected}")
            is_valid = False
    fields = {key: value for key, value in args.items() if key not in ("apiVersion", "kind")}
    return check_args(document, (*path, "args"), plugin, fields, plugin_registry()) and is_valid


def _nodes_of(before: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns settings that give the domain all nodes: the first domain owns them, and further domains borrow them from it."""
    if not before:
        return {"nodes": {"rule": "rest"}}
    return {"nodes": {"rule": "labelled"}, "loans": [{"from": before[0]["name"]}]}


def _points_in_multisched(args: Mapping[str, Mapping[str, Any]]) -> PointsOf:
    """Returns a function from a plugin to the extension points that it implements in multisched, named as in the file.

    `args`: plugin -> its arguments, on which the extension points may depend.
    """

    @cache
    def points(plugin: str) -> frozenset[str]:
        found = points_with(PluginUse(plugin, args=args.get(plugin, {})), plugin_registry())
        return frozenset(point[0].lower() + point[1:] for point in found)

    return points


@cache
def _known_plugins() -> frozenset[str]:
    return frozenset(plugin_registry().names())


@cache
def _takes_args(plugin: str) -> bool:
    return _is_known(plugin) and plugin_registry().takes_args(plugin)


def _is_known(plugin: str) -> bool:
    return plugin in _known_plugins()
