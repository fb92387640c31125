"""Applies another configuration at run time, in one step between two scheduling decisions.

Attempts and binds in progress keep the profile that they began with. Pods stay in their queues. Plugins whose settings
other than the weight are unchanged are reused with their state; a rebuilt plugin imports the state of its predecessor. Changes
that need a restart are not applied, and are reported. These are settings named in `config.changes`, and profiles that need other
ledgers, watches, workers or background tasks than the program has. Owns the configuration in force.
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
    """The result of applying a configuration. Its methods take milliseconds, so they may be called in a thread."""

    before: Configuration
    in_force: Configuration
    wanted: Configuration
    refused: Mapping[str, str]
    """Path prefix -> why these changes wait for a restart. Settings that always need a restart are not in it."""
    registry: Registry

    def applied(self) -> list[Change]:
        """Returns the changes that were applied."""
        return difference(self.before, self.in_force, self.registry)

    def waiting(self) -> list[Change]:
        """Returns the changes that wait for a restart."""
        found = difference(self.in_force, self.wanted, self.registry)
        return [replace(one, restart=one.restart or self._reason(one.path)) for one in found]

    def _reason(self, path: str) -> str:
        return next((why for prefix, why in self.refused.items() if path.startswith(prefix)), "")


class _PreparedDomain(msgspec.Struct, frozen=True):
    """The changes of one domain."""

    domain: BuiltDomain
    config: DomainConfig
    profile: Profile
    plugins: PluginSet | None
    """The plugins of the new profile; None: the current profile stays."""


class Reload:
    """The reload of one program's configuration."""

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
        """`watched`: kinds that have a watch. `keep_annotations`: makes the decoder keep these annotations of all pods."""
        self.in_force = configuration
        self._builder = builder
        self._registry = registry
        self._pods = pods
        self._statuses = statuses
        self._background = background
        self._watched = watched
        self._keep_annotations = keep_annotations

    def apply(self, wanted: Configuration) -> Reloaded:
        """Applies all changes that need no restart. If a plugin cannot be built, raises PluginSetupError and changes nothing."""
        target, refused = applicable(self.in_force, wanted), dict[str, str]()
        prepared = []
        for config in target.domains:
            domain = self._builder.domains[config.name]
            prepared.append(self._prepared(domain, config, refused))
        refuse_two_writers(one.domain.worker.plugins if one.plugins is None else one.plugins for one in prepared)
        before = self.in_force
        in_force = replace(target, domains=tuple(one.config for one in prepared))
        for one in prepared:
            self._put_in_force(one)
        if _policies(in_force) != _policies(before):
            tolerations = tolerations_of(in_force)
            self._keep_annotations(annotations_of(tolerations))
            self._pods.use_policies(tolerations)
        if any(one.plugins is not None for one in prepared):
            self._statuses.serve(one.domain.worker for one in prepared)
            self._pods.on_pending = self._statuses.pending_changed if self._statuses.has_pending_pods_plugins else None
        self.in_force = in_force
        return Reloaded(before, in_force, wanted, refused, self._registry)

    # -- before anything changes -----------------------------------------------------------------------------------

    def _prepared(self, domain: BuiltDomain, config: DomainConfig, refused: dict[str, str]) -> _PreparedDomain:
        """Builds the changes of one domain. Adds path and reason of changes that need a restart to `refused`."""
        if config == domain.config:
            return _PreparedDomain(domain, config, domain.profile, None)
        profile = self._builder.profile_of(config)
        try:
            plugins = None if profile == domain.profile else self._plugins(domain, profile)
        except RestartNeededError as error:
            refused[f"domains[{config.name}].profile"] = str(error)
            config, profile, plugins = _with_profile_of(config, domain.config), domain.profile, None
        return _PreparedDomain(domain, config, profile, plugins)

    def _plugins(self, domain: BuiltDomain, profile: Profile) -> PluginSet:
        """Builds the plugins. Raises RestartNeededError if they need watches, workers, ledgers or tasks that the program lacks."""
        before = domain.worker.plugins
        plugins = self._builder.rebuild_plugins(domain, profile)  # first, so that a mistake is reported in any case
        for name in sorted(_isolated(domain.profile) - _isolated(profile)):
            raise RestartNeededError(f"plugin {name}: it runs in a thread or process, which ends only with the program")
        if any(one.name == GANG_PLUGIN for one in profile.plugins) is not (GANG_PLUGIN in before.uses):
            raise RestartNeededError(f"plugin {GANG_PLUGIN}: whether the queue gathers gangs is decided at the start")
        unwatched = set(watched_kinds([plugins])).difference(self._watched)
        if unwatched:
            kinds = ", ".join(sorted(kind.value for kind in unwatched))
            raise RestartNeededError(f"it reads kinds that are not watched: {kinds}")
        if has_tasks(plugins) and not has_tasks(before):
            raise RestartNeededError("the domain had no background tasks, and the first ones begin only at the start")
        if _status_kinds(plugins) != _status_kinds(before):
            raise RestartNeededError("it writes the status of other kinds than before")
        return plugins

    # -- in one step -----------------------------------------------------------------------------------------------

    def _put_in_force(self, prepared: _PreparedDomain) -> None:
        domain, worker, config = prepared.domain, prepared.domain.worker, prepared.config
        if config.concurrency != domain.config.concurrency:
            worker.resize(sizes_of(config))
        if config.queue != domain.config.queue:
            worker.queue.configure(backoff_of(config), config.queue.unschedulable_flush_s)
        if prepared.plugins is not None:
            _hand_over(worker.plugins, prepared.plugins)
            cycle = self._builder.cycle_of(domain, prepared.plugins)
            worker.use(cycle, retry_refused=not _differ_in_weights_only(domain.profile, prepared.profile))
            self._background.use(config.name, prepared.plugins)
        domain.config, domain.profile = config, prepared.profile


def _policies(configuration: Configuration) -> list[object]:
    return [domain.policy for domain in configuration.domains]


def _with_profile_of(config: DomainConfig, other: DomainConfig) -> DomainConfig:
    return replace(config, profile=other.profile)


def _isolated(profile: Profile) -> set[str]:
    return {use.name for use in profile.plugins if use.isolation is not Isolation.INLINE}


def _status_kinds(plugins: PluginSet) -> set[ObjectKind]:
    return {kind for b in plugins.built if implements(b.plugin, StatusPlugin) for kind in b.plugin.status_kinds}


def _differ_in_weights_only(one: Profile, other: Profile) -> bool:
    """Reports whether only weights differ. Refused pods then stay refused and need no retry."""
    return one.points == other.points and _without_weights(one) == _without_weights(other)


def _without_weights(profile: Profile) -> list[PluginUse]:
    return [replace(use, weight=1) for use in profile.plugins]


def _hand_over(before: PluginSet, after: PluginSet) -> None:
    """Imports the state of each rebuilt plugin's predecessor into it."""
    known = {one.use.name: one.plugin for one in before.built}
    for built in after.built:
        old, new = known.get(built.use.name), built.plugin
        if old is None or old is new or not (implements(old, StateExportPlugin) and implements(new, StateExportPlugin)):
            continue
        try:
            new.import_state(old.export_state())
        except Exception:
            logger.exception(
                "a plugin cannot import its previous state; it starts without it", extra={"plugin": new.name}
            )
