"""What dry runs are made of: the attempt that failed, and what is shared by all attempts of a domain.

Owns the victim caches. Written by dry runs alone.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import msgspec

from multisched.cycle.preemption.gang_columns import GangColumns
from multisched.cycle.preemption.nominated_pods import NominatedPodsFilter, wants_room_only
from multisched.cycle.preemption.victim_cache import VictimCache
from multisched.framework.node_view import Codes, Rows
from multisched.framework.points import CycleView, PreFilterPlugin
from multisched.framework.registry import PluginSet
from multisched.framework.runner import Runner
from multisched.framework.traits import traits_of
from multisched.model.objects import Pod
from multisched.state.cluster_cache import ClusterCache
from multisched.state.nominator import Nominator

VICTIM_CACHES_MAX = 32
"""Classes of preemptors whose rows are remembered, by plugin: some 100 bytes a row each; the one unused for longest goes first."""


class FailedAttempt(msgspec.Struct, frozen=True):
    """The attempt that found no row, and who would make room."""

    plugin: str
    """The PostFilter plugin: what came of its rule is of no use to another's."""
    pod: Pod
    view: CycleView
    candidates: Rows
    node_count: int
    skipped: frozenset[str]
    signature: Hashable | None
    """Of the pod's class; None for a pod that is a class of its own."""
    known: Mapping[str, tuple[Rows, Codes]]
    """Plugin -> rows, ascending, and the codes it gave for them; may be empty."""


class DryRuns:
    """What the dry runs of one domain's attempts have in common."""

    def __init__(
        self,
        plugins: PluginSet,
        runner: Runner,
        cache: ClusterCache,
        nominator: Nominator,
        nominated: NominatedPodsFilter,
    ) -> None:
        self.plugins = plugins
        self.runner = runner
        self.cache = cache
        self.table = cache.nodes
        self.nominator = nominator
        self.nominated = nominated
        self.standing = cache.pods_by_priority
        self.gang_columns = GangColumns(cache.gangs)
        self._pre_filters = [p for p in plugins.pre_filter if traits_of(p).pre_filter_reads_pods]
        self.room = frozenset(p.name for p in plugins.filter if wants_room_only(p))
        self._victim_caches: dict[Hashable, VictimCache] = {}

    def pre_filters_of(self, skipped: frozenset[str]) -> Sequence[PreFilterPlugin]:
        """Those that must be asked again when pods are gone, without whom the attempt has skipped."""
        return [p for p in self._pre_filters if p.name not in skipped]

    def victim_cache(self, key: Hashable | None) -> VictimCache:
        """What is remembered for a class of pods, renewed; nothing yet for a new one."""
        depth, capacity = self.standing.shape()
        cache = self._victim_caches.pop(key, None)
        if cache is None or (cache.depth, cache.capacity) != (depth, capacity):
            cache = VictimCache(depth, capacity)
        cache.renew(self.table, self.nominator)
        if key is not None:
            if len(self._victim_caches) >= VICTIM_CACHES_MAX:
                del self._victim_caches[next(iter(self._victim_caches))]
            self._victim_caches[key] = cache
        return cache
