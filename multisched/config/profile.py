"""Checks of a domain's profile against its plugins: queue order, extension points, arguments.

Called by `loading`, and by `kube.convert` for the arguments of a KubeSchedulerConfiguration.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from multisched.config.document import Document, Path
from multisched.config.plugins import (
    args_notes,
    args_reader,
    class_chooser,
    is_queue_sort,
    made_by,
    plugin_registry,
    points_with,
    resolve_profile,
)
from multisched.config.schema import DomainConfig
from multisched.config.structure import nearest
from multisched.framework.plugin_args import PluginArgsError
from multisched.framework.registry import NO_ARGS, PluginSetupError, PluginUse, Profile, Registry

DEFAULT_SCHEDULER: Final = "default-scheduler"
"""The API server's default for pods without schedulerName; served by kube-scheduler."""

_PART: Final = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]")


def check_profile(document: Document, path: Path, domain: DomainConfig, registry: Registry) -> None:
    """Adds the problems of the profile at `path`. Unknown names and invalid arguments are reported elsewhere."""
    profile = domain.profile
    names = [entry.name for entry in profile.plugins.enabled] + [n for n in profile.plugins.disabled if n != "*"]
    if profile.queue_sort is not None:
        names.append(profile.queue_sort)
    if any(not _is_known(name, registry) for name in names):
        return
    try:
        resolved = resolve_profile(domain, registry)
    except PluginSetupError as error:
        document.add((*path, "queueSort"), str(error))
        return
    _check_points(document, path, resolved, registry)
    sorts = [use.name for use in resolved.plugins if is_queue_sort(registry.factory(use.name))]
    if len(resolved.points.get("QueueSort", sorts)) != 1:
        found = ", ".join(resolved.points.get("QueueSort", sorts)) or "none"
        document.add((*path, "queueSort"), f"exactly one plugin must order the queue, found {found}; set queueSort")


def check_args(document: Document, path: Path, plugin: str, args: Mapping[str, Any], registry: Registry) -> bool:
    """Adds all problems of a shipped plugin's arguments, at their fields. Reports whether the arguments are valid.

    Other plugins validate their arguments when they are built; errors are reported then.
    """
    reader = args_reader(plugin)
    if reader is None:
        return _takes(document, path, plugin, args, registry)
    try:
        reader(args, "args")
    except PluginArgsError as error:
        for problem in error.problems:
            inner = _parts(problem.path.removeprefix("args"))
            document.add((*path, *inner), problem.reason, of_key=problem.is_key)
        return False
    return True


def _takes(document: Document, path: Path, plugin: str, args: Mapping[str, Any], registry: Registry) -> bool:
    """Adds a problem if a plugin without arguments has some. Reports whether that is not the case. Ignores unknown plugins."""
    if not args or not _is_known(plugin, registry) or registry.takes_args(plugin):
        return True
    document.add(path, NO_ARGS, of_key=True)
    return False


READERS: Final[Mapping[str, str]] = {
    "ElasticQuota": "quotas do not limit its pods",
    "GangScheduling": "PodGroups and labels of gangs are ignored, and members start one by one",
}
"""Plugin -> the consequence for a domain without it. All built-in profiles have these plugins; a converted one may not."""


def notes_on(domain: DomainConfig) -> Iterator[str]:
    """Yields notes about valid settings that have no effect, may not work, or need something outside the file."""
    if DEFAULT_SCHEDULER in domain.scheduler_names:
        yield f"{domain.name}: kube-scheduler must stop serving {DEFAULT_SCHEDULER} before this configuration runs"
    plugins = {use.name for use in resolve_profile(domain, plugin_registry()).plugins}
    for name, without in READERS.items():
        if name not in plugins and name not in domain.profile.plugins.disabled:
            yield f"{domain.name}: no {name} in the profile: {without}"
    for entry in domain.profile.plugins.enabled:
        notes = args_notes(entry.name) if entry.args else None
        if notes is not None and entry.args:
            yield from (f"{domain.name}: {entry.name}: {note}" for note in notes(entry.args))


def _parts(text: str) -> Path:
    return tuple(int(number) if number else name for name, number in _PART.findall(text))


def _check_points(document: Document, path: Path, profile: Profile, registry: Registry) -> None:
    """Adds a problem for each plugin listed at a point that is not in the profile, is repeated, or lacks the point."""
    enabled = {use.name: use for use in profile.plugins}
    for point, names in profile.points.items():
        for index, name in enumerate(names):
            at = (*path, "points", point[0].lower() + point[1:], index)
            if name not in enabled:
                near = nearest(name, enabled)
                document.add(at, f"{name!r} is not enabled in this profile", suggestion=near)
            elif why := _why_not_at(point, enabled[name], registry):
                document.add(at, f"{why}; remove it here")
            elif name in names[:index]:
                document.add(at, f"{name} is listed above already; remove one")


def _why_not_at(point: str, use: PluginUse, registry: Registry) -> str:
    """Returns why the plugin cannot run at the point; empty if it can, or if that is unknown before it is built."""
    if made_by(registry.factory(use.name)) is None:
        return ""
    try:
        if point in points_with(use, registry):
            return ""
    except PluginArgsError:
        return ""
    return f"{use.name} has no {point}{'' if class_chooser(use.name) is None else ' with these args'}"


def _is_known(name: str, registry: Registry) -> bool:
    try:
        registry.factory(name)
    except PluginSetupError:
        return False
    return True
