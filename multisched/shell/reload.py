"""Puts another configuration in force while the program runs, in one step between two decisions.

Attempts and binds under way end by the profile that began them. Pods stay where they are in their queues. Plugins that
are used as before, whatever their weights, are the same ones, with all that they know. A new one takes over what its
predecessor has learned. What only a restart can change stays as it is, and is named. Such are settings of `config.changes`, and profiles
that do not go with what the program holds or watches. Owns the configuration in force.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping

import msgspec
from msgspec.structs import replace

from multisched.config.changes import Change, applicable, difference
from multisched.config.schema import Configuration, DomainConfig
from multisched.framework.dependency import Isolation
from multisched.framework.gangs import GANG_PLUGIN
from multisched.framework.introspection import StateExportPlugin
from multisched.framework.object_status import StatusPlugin
from multisched.framework.registry import PluginSet, PluginUse, Profile, Registry, RestartNeededError, implements
from multisched.model.object_kinds import ObjectKind
from multisched.shell.domain_builder import (
    BuiltDomain,
    DomainBuilder,
    annotations_of,
    backoff_of,
    sizes_of,
    tolerations_of,
)
from multisched.shell.ingest.pods_and_nodes import PodIngest
from multisched.shell.object_watch import watched_kinds
from multisched.shell.statuses import Statuses, refuse_two_writers
from multisched.shell.workers.background_tasks import BackgroundTasks, has_tasks

logger = logging.getLogger(__name__)


class Reloaded(msgspec.Struct, frozen=True):
    """What became of a configuration. To say what changed takes milliseconds: it may be asked in a thread."""

    before: Configuration
    in_force: Configuration
    wanted: Configuration
    refused: Mapping[str, str]
    """Beginning of paths -> why they wait for a restart, beside what always does."""
    registry: Registry

    def applied(self) -> list[Change]:
        """What is in force now and was not before."""
        return difference(self.before, self.in_force, self.registry)

    def waiting(self) -> list[Change]:
        """What is wanted, and only a restart puts in force."""
        found = difference(self.in_force, self.wanted, self.registry)
        return [replace(one, restart=one.restart or self._reason(one.path)) for one in found]

    def _reason(self, path: str) -> str:
        return next((why for prefix, why in self.refused.items() if path.startswith(prefix)), "")


class _News(msgspec.Struct, frozen=True):
    """What becomes of one domain."""

    domain: BuiltDomain
    config: DomainConfig
    profile: Profile
    plugins: PluginSet | None
    """Those of another profile; None: the one in force stays."""


class Reload:
    """Of one program."""

    def __init__(
        self,
        configuration: Configuration,
        builder: DomainBuilder,
        registry: Registry,
        pods: PodIngest,
        statuses: Statuses,
        background: BackgroundTasks,
        *,
        watched: Collection[ObjectKind],
        keep_annotations: Callable[[Iterable[str]], None],
    ) -> None:
        """`watched`: the kinds of objects that are. `keep_annotations`: has these read of pods however many they have."""
        self.in_force = configuration
        self._builder = builder
        self._registry = registry
        self._pods = pods
        self._statuses = statuses
        self._background = background
        self._watched = watched
        self._keep_annotations = keep_annotations

    def apply(self, wanted: Configuration) -> Reloaded:
        """Puts in force what may be. Raises PluginSetupError for a plugin that cannot be built: then nothing has changed."""
        target, refused = applicable(self.in_force, wanted), dict[str, str]()
        news = []
        for config in target.domains:
            domain = self._builder.domains[config.name]
            news.append(self._prepared(domain, config, refused))
        refuse_two_writers(one.domain.worker.plugins if one.plugins is None else one.plugins for one in news)
        before = self.in_force
        in_force = target.model_copy(update={"domains": tuple(one.config for one in news)})
        for one in news:
            self._put_in_force(one)
        if _policies(in_force) != _policies(before):
            tolerations = tolerations_of(in_force)
            self._keep_annotations(annotations_of(tolerations))
            self._pods.use_policies(tolerations)
        if any(one.plugins is not None for one in news):
            self._statuses.serve(one.domain.worker for one in news)
            self._pods.on_pending = self._statuses.pending_changed if self._statuses.hears_of_pending else None
        self.in_force = in_force
        return Reloaded(before, in_force, wanted, refused, self._registry)

    # -- before anything changes -----------------------------------------------------------------------------------

    def _prepared(self, domain: BuiltDomain, config: DomainConfig, refused: dict[str, str]) -> _News:
        """`refused`: gets the path of what has to wait for a restart, and why."""
        if config == domain.config:
            return _News(domain, config, domain.profile, None)
        profile = self._builder.profile_of(config)
        try:
            plugins = None if profile == domain.profile else self._plugins(domain, profile)
        except RestartNeededError as error:
            refused[f"domains[{config.name}].profile"] = str(error)
            config, profile, plugins = _with_profile_of(config, domain.config), domain.profile, None
        return _News(domain, config, profile, plugins)

    def _plugins(self, domain: BuiltDomain, profile: Profile) -> PluginSet:
        """Raises RestartNeededError where the profile does not go with what the program watches, runs or keeps."""
        before = domain.worker.plugins
        plugins = self._builder.plugins_beside(domain, profile)  # first: a mistake is named, whatever else waits
        for name in sorted(_isolated(domain.profile) - _isolated(profile)):
            raise RestartNeededError(f"plugin {name}: it runs in a thread or process of its own")
        if any(one.name == GANG_PLUGIN for one in profile.plugins) is not (GANG_PLUGIN in before.uses):
            raise RestartNeededError(f"plugin {GANG_PLUGIN}: the queue gathers gangs by it from the start")
        unwatched = set(watched_kinds([plugins])).difference(self._watched)
        if unwatched:
            kinds = ", ".join(sorted(kind.value for kind in unwatched))
            raise RestartNeededError(f"it reads objects that are not watched: {kinds}")
        if has_tasks(plugins) and not has_tasks(before):
            raise RestartNeededError("background tasks of a domain that had none begin at the start only")
        if _status_kinds(plugins) != _status_kinds(before):
            raise RestartNeededError("it writes statuses of other kinds")
        return plugins

    # -- in one step -----------------------------------------------------------------------------------------------

    def _put_in_force(self, news: _News) -> None:
        domain, worker, config = news.domain, news.domain.worker, news.config
        if config.concurrency != domain.config.concurrency:
            worker.resize(sizes_of(config))
        if config.queue != domain.config.queue:
            worker.queue.configure(backoff_of(config), config.queue.unschedulable_flush_s)
        if news.plugins is not None:
            _hand_over(worker.plugins, news.plugins)
            cycle = self._builder.cycle_of(domain, news.plugins)
            worker.use(cycle, is_tried=not _differ_in_weights_only(domain.profile, news.profile))
            self._background.use(config.name, news.plugins)
        domain.config, domain.profile = config, news.profile


def _policies(configuration: Configuration) -> list[object]:
    return [domain.policy for domain in configuration.domains]


def _with_profile_of(config: DomainConfig, other: DomainConfig) -> DomainConfig:
    return config.model_copy(update={"profile": other.profile})


def _isolated(profile: Profile) -> set[str]:
    return {use.name for use in profile.plugins if use.isolation is not Isolation.INLINE}


def _status_kinds(plugins: PluginSet) -> set[ObjectKind]:
    return {kind for b in plugins.built if implements(b.plugin, StatusPlugin) for kind in b.plugin.status_kinds}


def _differ_in_weights_only(one: Profile, other: Profile) -> bool:
    """Then what was refused is refused as before."""
    return one.points == other.points and _without_weights(one) == _without_weights(other)


def _without_weights(profile: Profile) -> list[PluginUse]:
    return [replace(use, weight=1) for use in profile.plugins]


def _hand_over(before: PluginSet, after: PluginSet) -> None:
    """A plugin that was built anew takes over what the one before has learned."""
    known = {one.use.name: one.plugin for one in before.built}
    for built in after.built:
        old, new = known.get(built.use.name), built.plugin
        if old is None or old is new or not (implements(old, StateExportPlugin) and implements(new, StateExportPlugin)):
            continue
        try:
            new.import_state(old.export_state())
        except Exception:
            logger.exception("a plugin cannot take over what it knew; it learns anew", extra={"plugin": new.name})
