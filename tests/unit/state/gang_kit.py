"""Gangs of which members stand: pods of one label, whose minimum a PodGroup says."""

from __future__ import annotations

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
