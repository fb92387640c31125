"""Plugins by name or by import path, and the set of plugins of one domain.

A factory is a class or function with any of the parameters `args` (the plugin's settings, a mapping) and `context`
(`PluginContext`); a plugin that needs neither has no parameters.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Final, TypeGuard, TypeVar, cast

import msgspec
from msgspec.structs import replace

from multisched.framework.context import PluginContext
from multisched.framework.dependency import Isolation, why_wrong_dependency
from multisched.framework.extender import ExtenderPlugin
from multisched.framework.introspection import OutcomePlugin, RemarkPlugin
from multisched.framework.ledger import ChoosingPlugin, LedgerSettingsError
from multisched.framework.normalize import MAX_SCORE
from multisched.framework.points import (
    BindPlugin,
    EnqueueExtensions,
    FilterPlugin,
    GroupPostFilterPlugin,
    NormalizeScorePlugin,
    PermitPlugin,
    Plugin,
    PostBindPlugin,
    PostFilterPlugin,
    PreBindPlugin,
    PreBindPreFlightPlugin,
    PreEnqueuePlugin,
    PreFilterPlugin,
    PreScorePlugin,
    QueueSortPlugin,
    ReservePlugin,
    ScorePlugin,
)
from multisched.framework.reasons import ReasonTable
from multisched.framework.remote import RemotePlugin
from multisched.framework.traits import traits_of, why_wrong
from multisched.model.near_names import did_you_mean

Factory = Callable[..., Plugin]
P = TypeVar("P", bound=Plugin)
_NO_REASONS = ReasonTable("")
NO_ARGS: Final = "takes no args; remove them"

EXTENSION_POINTS: Mapping[str, type] = {
    "PreEnqueue": PreEnqueuePlugin,
    "QueueSort": QueueSortPlugin,
    "PreFilter": PreFilterPlugin,
    "Filter": FilterPlugin,
    "PostFilter": PostFilterPlugin,
    "PreScore": PreScorePlugin,
    "Score": ScorePlugin,
    "NormalizeScore": NormalizeScorePlugin,
    "Reserve": ReservePlugin,
    "Permit": PermitPlugin,
    "PreBind": PreBindPlugin,
    "Bind": BindPlugin,
    "PostBind": PostBindPlugin,
}


class PluginSetupError(ValueError):
    """A plugin cannot be found, built or combined; the message names it and the fix."""


class RestartNeededError(PluginSetupError):
    """The plugin can be built, but conflicts with state of the running program; the message names it and the reason."""


class PluginUse(msgspec.Struct, frozen=True):
    """One plugin in a profile, in the order in which plugins are called."""

    name: str
    """A registered name, or `package.module:Class`."""
    weight: int = 1
    args: Mapping[str, Any] = msgspec.field(default_factory=dict)
    isolation: Isolation = Isolation.INLINE
    timeout_s: float = 1.0
    """Timeout of an isolated Filter or Score."""


class Profile(msgspec.Struct, frozen=True):
    """The plugins of one domain."""

    plugins: tuple[PluginUse, ...]
    points: Mapping[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    """Extension point -> the plugins that run there, in this order; at other points every plugin that implements them runs."""


class Registry:
    """Name -> factory. Filled once at start; names are unique."""

    def __init__(self) -> None:
        self._factories: dict[str, tuple[Factory | str, str]] = {}

    def add(self, name: str, factory: Factory | str, source: str) -> None:
        """Registers a factory, or its import path, which is imported on first use. `source`: its origin (in-tree, a domain, an
        installed package), shown by `plugins list`.
        """
        if name in self._factories:
            raise PluginSetupError(
                f"plugin {name}: already registered by {self._factories[name][1]}, registered again by {source}"
            )
        self._factories[name] = (factory, source)

    def add_all(self, factories: Mapping[str, Factory], source: str) -> None:
        for name, factory in factories.items():
            self.add(name, factory, source)

    def names(self) -> dict[str, str]:
        """Returns name -> source."""
        return {name: source for name, (_, source) in sorted(self._factories.items())}

    def factory(self, name: str) -> Factory:
        """Returns the factory. Raises PluginSetupError, with the nearest known name, if there is none."""
        if ":" in name:
            return _import_factory(name)
        if name not in self._factories:
            hint = did_you_mean(name, self._factories, "write package.module:Class for a plugin of your own")
            raise PluginSetupError(f"plugin {name}: not known; {hint}")
        found, _ = self._factories[name]
        return _import_factory(found) if isinstance(found, str) else found

    def takes_args(self, name: str) -> bool:
        """Reports whether a plugin has settings. Raises PluginSetupError if it cannot be found."""
        return "args" in _parameters(self.factory(name))

    def build(self, use: PluginUse, context: PluginContext) -> Plugin:
        """Calls the factory with the arguments that it takes. Any exception becomes a PluginSetupError that names the plugin."""
        factory = self.factory(use.name)
        offered = {"args": use.args, "context": context}
        wanted = _parameters(factory)
        if use.args and "args" not in wanted:
            raise PluginSetupError(f"plugin {use.name}: {NO_ARGS}")
        try:
            plugin = factory(**{key: value for key, value in offered.items() if key in wanted})
        except LedgerSettingsError as error:
            raise RestartNeededError(f"plugin {use.name}: {error}") from error
        except Exception as error:
            raise PluginSetupError(f"plugin {use.name}: {_why(error)}") from error
        if not isinstance(getattr(plugin, "name", None), str) or not plugin.name:
            raise PluginSetupError(f"plugin {use.name}: has no name; give it a `name`")
        _refuse_halves(plugin, use)
        if why := why_wrong(plugin) or why_wrong_dependency(plugin):
            raise PluginSetupError(f"plugin {use.name}: {why}")
        if not any(implements(plugin, protocol) for protocol in EXTENSION_POINTS.values()):
            raise PluginSetupError(f"plugin {use.name}: implements no extension point; see multisched.framework.points")
        return plugin


@cache
def _parameters(factory: Factory) -> frozenset[str]:
    """Returns the factory's parameter names. Cached: sandboxes build profiles often, and inspecting a factory takes
    longer than building.
    """
    if type(factory) is type and all(
        getattr(factory, name) is getattr(object, name) for name in ("__init__", "__new__")
    ):
        return frozenset()  # inspect would compile its tokenizer regex to read object's signature: 8 ms at start
    return frozenset(inspect.signature(factory).parameters)


def _refuse_halves(plugin: Plugin, use: PluginUse) -> None:
    """Rejects a plugin without an attribute that its Protocols require: a part of the plugin would be ignored silently."""
    ignored: object = getattr(plugin, "resources_ignored_by_fit", frozenset())
    if not isinstance(ignored, frozenset):
        wrong = type(ignored).__name__
        raise PluginSetupError(
            f"plugin {use.name}: resources_ignored_by_fit is {wrong}; write a frozenset of resource names"
        )
    for method, protocol in (("filter", FilterPlugin), ("score", ScorePlugin)):
        if not callable(getattr(plugin, method, None)):
            continue
        if getattr(plugin, "depends_on", None) is None:
            raise PluginSetupError(
                f"plugin {use.name}: has {method} but no depends_on; declare what it reads (Dependency)"
            )
        if not implements(plugin, protocol) or not isinstance(getattr(plugin, "reasons", _NO_REASONS), ReasonTable):
            raise PluginSetupError(f"plugin {use.name}: has {method} but no reasons; give it a ReasonTable")


def _why(error: Exception) -> str:
    """Returns the message for a factory's exception. Only a ValueError has a message for people; others are named by type."""
    if isinstance(error, ValueError) and str(error):
        return str(error)
    hint = "; name it in args, if it is a setting" if isinstance(error, KeyError) else ""
    return f"{type(error).__name__}: {error}{hint}"


def _import_factory(path: str) -> Factory:
    module_name, _, attribute = path.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise PluginSetupError(f"plugin {path}: cannot import {module_name}: {error}") from error
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise PluginSetupError(f"plugin {path}: cannot import {module_name}: {why}") from error
    factory = getattr(module, attribute, None)
    if not callable(factory):
        raise PluginSetupError(f"plugin {path}: {module_name} has no class or function {attribute}")
    return cast(Factory, factory)


def extension_points(plugin: object) -> list[str]:
    """Returns the extension points a plugin implements, in calling order."""
    return [point for point, protocol in EXTENSION_POINTS.items() if implements(plugin, protocol)]


@cache
def _members(protocol: type) -> tuple[str, ...]:
    """Returns the names of a Protocol's members; its own before inherited ones, which every plugin has."""
    parts = [part for part in protocol.__mro__ if getattr(part, "_is_protocol", False)]
    names = dict.fromkeys(name for part in parts for name in (*vars(part), *inspect.get_annotations(part)))
    return tuple(name for name in names if not name.startswith("_"))


def implements(plugin: object, protocol: type[P]) -> TypeGuard[P]:
    """Reports the same as isinstance with a Protocol, which is slow (100 us) because it collects the Protocol's members each time."""
    for name in _members(protocol):  # noqa: SIM110 - a third of the time of `all`; called some hundred times per profile
        if getattr(plugin, name, None) is None:
            return False
    return True


class BuiltPlugin(msgspec.Struct, frozen=True):
    """A plugin with its settings in this profile."""

    plugin: Plugin
    use: PluginUse


class PluginSet:
    """The built plugins of one domain, by extension point, each in profile order or in the order given for the point."""

    def __init__(
        self,
        built: Iterable[BuiltPlugin],
        points: Mapping[str, tuple[str, ...]] | None = None,
        extender_plugins: Sequence[Plugin] = (),
    ) -> None:
        """`extender_plugins`: plugins outside the profile (HTTP extenders); they come first at every point they implement."""
        self.built = (*(BuiltPlugin(plugin, PluginUse(plugin.name)) for plugin in extender_plugins), *built)
        self._points = points or {}
        self._extender_names = frozenset(plugin.name for plugin in extender_plugins)
        plugins = [b.plugin for b in self.built]
        self.uses = {b.plugin.name: b.use for b in self.built}
        _refuse_doubles(plugins)
        self.pre_enqueue = self._at("PreEnqueue", plugins, PreEnqueuePlugin)
        self.pre_filter = self._at("PreFilter", plugins, PreFilterPlugin)
        self.filter = self._at("Filter", plugins, FilterPlugin)
        self.post_filter = self._at("PostFilter", plugins, PostFilterPlugin)
        of_groups = implementing(plugins, GroupPostFilterPlugin)
        self.post_filter_group = (
            *implementing(self.post_filter, GroupPostFilterPlugin),
            *(plugin for plugin in of_groups if not implements(plugin, PostFilterPlugin)),
        )
        """Plugins that also handle single pods come first: they evict pods, while others reserve capacity that becomes free."""
        self.pre_score = self._at("PreScore", plugins, PreScorePlugin)
        scorers = self._at("Score", plugins, ScorePlugin)
        self.outranking = next((p for p in scorers if traits_of(p).outranks), None)
        """The plugin whose scores are compared first (`Traits.outranks`)."""
        self.score = tuple(p for p in scorers if self.uses[p.name].weight > 0 or p is self.outranking)
        others = sum(self.uses[p.name].weight for p in self.score if p is not self.outranking)
        self.outranking_weight = MAX_SCORE * others + 1
        """One point of the outranking plugin exceeds all that the others can give together."""
        self.reserve = self._at("Reserve", plugins, ReservePlugin)
        self.permit = self._at("Permit", plugins, PermitPlugin)
        self.pre_bind = self._at("PreBind", plugins, PreBindPlugin)
        self.bind = self._at("Bind", plugins, BindPlugin)
        self.post_bind = self._at("PostBind", plugins, PostBindPlugin)
        self.enqueue_extensions = implementing(plugins, EnqueueExtensions)
        self.choosing = implementing(plugins, ChoosingPlugin)
        self.remarking = implementing(plugins, RemarkPlugin)
        self.learning = implementing(plugins, OutcomePlugin)
        _refuse_rivals(self.choosing)
        _refuse_two_outranking(scorers)
        self.remote = implementing(plugins, RemotePlugin)
        self.extenders = implementing(plugins, ExtenderPlugin)
        # Extension points are checked once, here, because a check takes long.
        remote = frozenset(p.name for p in self.remote)
        self.remote_filter = tuple(p for p in self.filter if p.name in remote)
        self.remote_score = tuple(p for p in self.score if p.name in remote)
        self.normalize = {p.name: p for p in implementing(plugins, NormalizeScorePlugin)}
        self.pre_flight = {p.name: p for p in implementing(plugins, PreBindPreFlightPlugin)}
        self.remote_names = remote
        sorts = self._at("QueueSort", plugins, QueueSortPlugin)
        if len(sorts) != 1:
            names = ", ".join(p.name for p in sorts) or "none"
            raise PluginSetupError(f"profile: exactly one QueueSort plugin is needed, found {names}")
        self.queue_sort = sorts[0]
        if not self.bind:
            raise PluginSetupError("profile: a Bind plugin is needed; enable DefaultBinder")

    def weight(self, plugin: Plugin) -> int:
        """Returns the factor of the plugin's scores in the totals."""
        return self.outranking_weight if plugin is self.outranking else self.uses[plugin.name].weight

    def _at(self, point: str, plugins: list[Plugin], protocol: type[P]) -> tuple[P, ...]:
        """Returns the plugins that run at a point. Raises PluginSetupError for a listed plugin that cannot run there."""
        having = implementing(plugins, protocol)
        if point not in self._points:
            return having
        by_name = {self.uses[p.name].name: p for p in having}
        known = {use.name for use in self.uses.values()}
        names = self._points[point]
        for name in names:
            if name not in by_name:
                why = "does not implement it" if name in known else "is not enabled in the profile"
                raise PluginSetupError(f"profile: plugin {name} is listed for {point} but {why}; remove it there")
        return (*(p for p in having if p.name in self._extender_names), *(by_name[name] for name in names))


Isolate = Callable[[Plugin, PluginUse, Factory], Plugin]
"""Wraps a plugin that runs in a thread or a process; see `isolation.Isolator`."""


def build_profile(
    profile: Profile,
    registry: Registry,
    context: PluginContext,
    isolate: Isolate | None = None,
    extender_plugins: Sequence[Plugin] = (),
    in_force: PluginSet | None = None,
) -> PluginSet:
    """Builds every plugin of a profile. Raises PluginSetupError for the first that cannot be built, else
    RestartNeededError if any needs a restart.

    `in_force`: the plugins in force. A plugin whose use is unchanged, apart from its weight, is reused with its state.
    """
    kept = {} if in_force is None else {one.use.name: one for one in in_force.built}
    built, waiting = list[BuiltPlugin](), list[RestartNeededError]()
    for use in profile.plugins:
        known = kept.get(use.name)
        if known is not None and replace(known.use, weight=use.weight) == use:
            built.append(BuiltPlugin(known.plugin, use))
            continue
        try:
            built.append(BuiltPlugin(_built(use, registry, context, isolate), use))
        except RestartNeededError as error:
            waiting.append(error)
    if waiting:
        raise waiting[0]
    return PluginSet(built, profile.points, extender_plugins)


def _built(use: PluginUse, registry: Registry, context: PluginContext, isolate: Isolate | None) -> Plugin:
    plugin = registry.build(use, context)
    if use.isolation is Isolation.INLINE:
        return plugin
    if isolate is None:
        raise PluginSetupError(f"plugin {use.name}: this program cannot run isolated plugins; remove its isolation")
    return isolate(plugin, use, registry.factory(use.name))


def implementing(plugins: Iterable[Plugin], protocol: type[P]) -> tuple[P, ...]:
    """Returns the plugins that implement the Protocol, in order."""
    return tuple(plugin for plugin in plugins if implements(plugin, protocol))


def _refuse_doubles(plugins: list[Plugin]) -> None:
    seen: set[str] = set()
    for plugin in plugins:
        if plugin.name in seen:
            raise PluginSetupError(f"profile: plugin {plugin.name} is enabled twice; remove one")
        seen.add(plugin.name)


def _refuse_rivals(choosing: Sequence[ChoosingPlugin]) -> None:
    """Rejects two plugins that choose from the same ledger."""
    chooser: dict[str, str] = {}
    for plugin in choosing:
        ledger = plugin.choice_ledger.name
        if ledger in chooser:
            raise PluginSetupError(
                f"profile: plugins {chooser[ledger]} and {plugin.name} both choose from ledger {ledger}; remove one"
            )
        chooser[ledger] = plugin.name


def _refuse_two_outranking(scorers: Sequence[Plugin]) -> None:
    """Rejects two plugins with the trait `outranks`."""
    names = [plugin.name for plugin in scorers if traits_of(plugin).outranks]
    if len(names) > 1:
        raise PluginSetupError(f"profile: plugins {' and '.join(names)} both outrank all others; remove one")
