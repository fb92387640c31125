"""Plugins by name, base profiles, and the profile that results from a domain's configuration.

Owns the list of shipped plugins: the in-tree ones and those of the built-in domains. Pure after import; called by `config`,
`cli` and the composition root.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping, Sequence
from functools import cache
from types import ModuleType
from typing import Final, TypeVar, get_type_hints

from msgspec.structs import replace

from multisched.config.schema import BUILT_IN_DOMAINS, DomainConfig, PluginEntry
from multisched.framework.default_profile import DEFAULT_PROFILE
from multisched.framework.plugin_args import ArgsNotes, ArgsReader, ClassChooser
from multisched.framework.registry import (
    EXTENSION_POINTS,
    Factory,
    PluginSetupError,
    PluginUse,
    Profile,
    Registry,
)
from multisched.plugins import IN_TREE
from multisched.plugins.args_readers import ARGS_READERS, CLASSES, NOTES
from multisched.plugins.loans.terms import LOANS

T = TypeVar("T")

ALL: Final = "*"
RESOURCES_FIT: Final = "NodeResourcesFit"


def plugin_registry() -> Registry:
    """Returns a registry of all shipped plugins."""
    registry = Registry()
    registry.add_all(IN_TREE, "in-tree")
    registry.add(LOANS, "multisched.plugins.loans.parts:loans_of", "in-tree")
    for domain in BUILT_IN_DOMAINS:
        registry.add_all(domain_module(domain).PLUGINS, f"domain {domain}")
    return registry


def domain_module(domain: str) -> ModuleType:
    """Returns `domains.<name>.profile`: PROFILE, PLUGINS and, optionally, POLICY, ARGS_READERS, NOTES and CLASSES."""
    return importlib.import_module(f"domains.{domain}.profile")


def args_reader(plugin: str) -> ArgsReader | None:
    """Returns the reader of a shipped plugin's args; None: the args are read when the plugin is built."""
    return _of_plugin(plugin, "ARGS_READERS", ARGS_READERS)


def args_notes(plugin: str) -> ArgsNotes | None:
    """Returns the function that yields notes about valid args of a shipped plugin; None if there is none."""
    return _of_plugin(plugin, "NOTES", NOTES)


def class_chooser(plugin: str) -> ClassChooser | None:
    """Returns the function that chooses a plugin's class by its args; None: the class does not depend on the args."""
    return _of_plugin(plugin, "CLASSES", CLASSES)


def _of_plugin(plugin: str, table: str, in_tree: Mapping[str, T]) -> T | None:
    """Returns the plugin's entry in its domain's table or, for an in-tree plugin, in `in_tree`; None if there is none."""
    for domain in BUILT_IN_DOMAINS:
        module = domain_module(domain)
        if plugin in module.PLUGINS:
            of_domain: Mapping[str, T] = getattr(module, table, {})
            return of_domain.get(plugin)
    return in_tree.get(plugin)


def points_with(use: PluginUse, registry: Registry) -> list[str]:
    """Returns the extension points of a plugin with these args; the args may select its class.

    Raises PluginSetupError, and PluginArgsError for invalid args.
    """
    chooser = class_chooser(use.name)
    return points_of(registry.factory(use.name) if chooser is None else chooser(use.args))


def base_profile(base: str) -> Profile:
    """Returns the profile from which a configuration starts: a built-in domain's, or `default`."""
    if base == "default":
        return DEFAULT_PROFILE
    profile = domain_module(base).PROFILE
    assert isinstance(profile, Profile)
    return profile


def resolve_profile(domain: DomainConfig, registry: Registry, added: PluginUse | None = None) -> Profile:
    """Returns the plugins of a domain in order: the base without `disabled`, changed and extended by `enabled`, then queueSort.

    `added`: a plugin that the domain has besides its profile, at all its points. Raises PluginSetupError for an unknown name.
    """
    uses, points = enabled_plugins(domain, registry, added), domain.profile.points.by_point()
    if added is not None:
        listed = {point: names for point, names in points.items() if point in points_with(added, registry)}
        points = points | {point: (added.name, *names) for point, names in listed.items()}
    ignored = [name for extender in domain.extenders for name in extender.ignored_resources]
    ignored += [name for use in uses for name in _resources_ignored_by_fit(use, registry) if name not in ignored]
    if ignored and RESOURCES_FIT in uses:
        uses[RESOURCES_FIT] = _ignoring(uses[RESOURCES_FIT], ignored)
    return Profile(tuple(uses.values()), points)


def enabled_plugins(domain: DomainConfig, registry: Registry, added: PluginUse | None = None) -> dict[str, PluginUse]:
    """Returns the plugins of `resolve_profile` by name, without the resources that NodeResourcesFit ignores for others of them.

    `added` comes before enabled plugins: GpuTide ends the chain of PostFilter for pods that may need capacity on loan. Raises
    PluginSetupError for an unknown name.
    """
    config = domain.profile
    uses = {use.name: use for use in base_profile(config.base or "default").plugins}
    if ALL in config.plugins.disabled:
        uses.clear()
    for name in config.plugins.disabled:
        if name != ALL:
            registry.factory(name)
            uses.pop(name, None)
    if added is not None:
        uses = _inserted(uses, added, registry)
    for entry in config.plugins.enabled:
        if entry.name in uses:
            uses[entry.name] = _changed(uses[entry.name], entry)
        else:
            uses = _inserted(uses, _changed(PluginUse(entry.name), entry), registry)
    if config.queue_sort is not None:
        uses = _with_queue_sort(uses, config.queue_sort, registry)
    return uses


def _inserted(uses: Mapping[str, PluginUse], use: PluginUse, registry: Registry) -> dict[str, PluginUse]:
    """Returns the plugins with a new one: before the plugin that it must be called before, else at the end."""
    names = [name for name in uses if name != use.name]
    other = _runs_before(use.name, registry)
    at = names.index(other) if other in names else len(names)
    return {name: use if name == use.name else uses[name] for name in (*names[:at], use.name, *names[at:])}


def _runs_before(plugin: str, registry: Registry) -> str:
    """Returns the plugin before which a `framework.introspection.EarlyPlugin` is called, by its class; empty for another one."""
    return str(getattr(made_by(registry.factory(plugin)), "runs_before", ""))


def _resources_ignored_by_fit(plugin: str, registry: Registry) -> Sequence[str]:
    """Reads the class attribute of a `framework.introspection.ExtendedResourcePlugin`. Building the plugin rejects a wrong type."""
    found = getattr(made_by(registry.factory(plugin)), "resources_ignored_by_fit", ())
    return sorted(found) if isinstance(found, frozenset) else ()


def _ignoring(use: PluginUse, resources: Sequence[str]) -> PluginUse:
    """Returns NodeResourcesFit with resources ignored that extenders or other plugins check."""
    own = [name for name in use.args.get("ignoredResources") or () if name not in resources]
    return replace(use, args={**use.args, "ignoredResources": [*own, *resources]})


def _changed(use: PluginUse, entry: PluginEntry) -> PluginUse:
    return PluginUse(
        name=use.name,
        weight=use.weight if entry.weight is None else entry.weight,
        args=use.args if entry.args is None else entry.args,
        isolation=entry.isolation or use.isolation,
        timeout_s=entry.timeout_s or use.timeout_s,
    )


def _with_queue_sort(uses: dict[str, PluginUse], queue_sort: str, registry: Registry) -> dict[str, PluginUse]:
    """Replaces the QueueSort plugin by `queue_sort`."""
    if not is_queue_sort(registry.factory(queue_sort)):
        raise PluginSetupError(f"plugin {queue_sort}: does not order queues; it has no sort_key")
    kept = uses.get(queue_sort, PluginUse(queue_sort))
    others = {name: use for name, use in uses.items() if not is_queue_sort(registry.factory(name))}
    return {queue_sort: kept, **others}


def is_queue_sort(factory: object) -> bool:
    """Reports whether the factory is a class that implements QueueSort."""
    return callable(getattr(factory, "sort_key", None))


@cache
def made_by(factory: Factory) -> object | None:
    """Returns the factory if it is a class, else its return annotation; None if the annotation cannot be resolved.

    Cached: each sandbox asks for all plugins, and an annotation is compiled to be resolved.
    """
    if inspect.isclass(factory):
        return factory
    try:
        return get_type_hints(factory).get("return")
    except Exception:  # noqa: BLE001 - an annotation of a third-party plugin may raise anything
        return None


def points_of(factory: Factory) -> list[str]:
    """Returns the extension points for which the class that `made_by` returns has methods."""
    made = made_by(factory)
    return [point for point, protocol in EXTENSION_POINTS.items() if _has_methods(made, protocol)]


def _has_methods(made: object, protocol: type) -> bool:
    methods = [name for name, item in vars(protocol).items() if inspect.isfunction(item) and not name.startswith("_")]
    return bool(methods) and all(callable(getattr(made, name, None)) for name in methods)
