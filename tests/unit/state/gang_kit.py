"""Gangs of which members stand: pods of one label, whose minimum a PodGroup says, and their rules by counting."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, combinations

from multisched.model.gang import SP_LABEL, GangApi, GangSpec
from multisched.model.objects import Pod
from multisched.state.cluster_cache import ClusterCache

GANG_LABEL = SP_LABEL


def cache_with_gangs(**minimums: int) -> ClusterCache:
    """Gang -> its minimum."""
    cache = ClusterCache()
    for gang, least in minimums.items():
        set_minimum(cache, gang, least)
    return cache


def set_minimum(cache: ClusterCache, gang: str, least: int, namespace: str = "default") -> None:
    cache.gangs.set_object(GangApi.SCHEDULER_PLUGINS, key_of(gang, namespace), GangSpec(least))


def key_of(gang: str, namespace: str = "default") -> str:
    return f"{namespace}/{gang}"


def place(cache: ClusterCache, pod: Pod) -> None:
    """As ingest does: the roster hears of the pod before the cache does."""
    cache.gangs.set(pod)
    cache.place(pod)


class PlainGangs:
    """Who of the gangs of a cache may go, member by member; all of namespace default."""

    def __init__(self, cache: ClusterCache) -> None:
        self._cache = cache
        self._members: dict[str, set[str]] = {}
        for entry in cache:
            if gang := entry.pod.labels.get(GANG_LABEL):
                self._members.setdefault(gang, set()).add(entry.pod.uid)

    def _least(self, gang: str) -> int:
        found = self._cache.gangs.gang(key_of(gang))
        assert found is not None
        assert found.spec is not None
        return found.spec.min_members

    def are_spared(self, uids: frozenset[str]) -> bool:
        """Of no gang more than its surplus goes, or all of it."""
        for gang, members in self._members.items():
            surplus = max(len(members) - self._least(gang), 0)
            if len(members & uids) > surplus and not members <= uids:
                return False
        return True

    def is_any_gone(self, uids: frozenset[str]) -> bool:
        """Nobody is left of some gang."""
        return any(members <= uids for members in self._members.values())


def subsets_of(uids: Iterable[str]) -> Iterable[frozenset[str]]:
    every = sorted(uids)
    return map(frozenset, chain.from_iterable(combinations(every, size) for size in range(len(every) + 1)))
