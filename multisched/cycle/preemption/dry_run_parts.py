"""The inputs of dry runs: the failed attempt, and what all attempts of a domain share.

Owns the victim caches, which only dry runs write.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence

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
"""Classes of preemptors, by plugin, with a victim cache: about 100 bytes per row each. The least recently used is dropped."""


class FailedAttempt(msgspec.Struct, frozen=True):
    """An attempt that found no row, and the PostFilter plugin that looks for victims."""

    plugin: str
    """The PostFilter plugin. Results of its rule are not valid for another plugin."""
    pod: Pod
    view: CycleView
    candidate_count: int
    candidates: Callable[[], Rows]
    """Returns the rows on which evictions may help, `candidate_count` of them. Most attempts need only their number."""
    node_count: int
    skipped: frozenset[str]
    signature: Hashable | None
    """Signature of the pod's class; None for a pod in a class of its own."""
    known: Mapping[str, tuple[Rows, Codes]]
    """Plugin -> rows, ascending, and its codes for them; may be empty."""


class DryRuns:
    """The state that the dry runs of all attempts of one domain share."""

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
        self.pods_by_priority = cache.pods_by_priority
        self.gang_columns = GangColumns(cache.gangs)
        self._pre_filters = [p for p in plugins.pre_filter if traits_of(p).pre_filter_reads_pods]
        self.room = frozenset(p.name for p in plugins.filter if wants_room_only(p))
        self._victim_caches: dict[Hashable, VictimCache] = {}

    def pre_filters_of(self, skipped: frozenset[str]) -> Sequence[PreFilterPlugin]:
        """Returns the PreFilter plugins that read pods and must run again without victims; not those the attempt skipped."""
        return [p for p in self._pre_filters if p.name not in skipped]

    def version(self, pod: Pod, row: int) -> Hashable:
        """Returns a value that changes with anything on the row that a test of the pod there reads."""
        nominated = tuple(one.uid for one in self.nominator.on(self.table.node(row).name))
        return self.table.version(row), self.cache.ledgers.versions(pod, row), nominated

    def victim_cache(self, key: Hashable | None) -> VictimCache:
        """Returns the victim cache of a class of pods, with outdated rows dropped; an empty one for a new class."""
        depth, capacity = self.pods_by_priority.shape()
        cache = self._victim_caches.pop(key, None)
        if cache is None or (cache.depth, cache.capacity) != (depth, capacity):
            cache = VictimCache(depth, capacity)
        cache.renew(self.table, self.nominator)
        if key is not None:
            if len(self._victim_caches) >= VICTIM_CACHES_MAX:
                del self._victim_caches[next(iter(self._victim_caches))]
            self._victim_caches[key] = cache
        return cache
