"""Gangs that anybody can count by hand: pods of one label, whose minimum is what a test says."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from multisched.state.cluster_cache import ClusterCache


class LabelGangs:
    """`StandingGangs`: the pods with the same label `gang`, as they stand in a cache."""

    cache: ClusterCache

    def __init__(self, minimums: Mapping[str, int]) -> None:
        self.minimums = dict(minimums)

    @property
    def version(self) -> int:
        return self.cache.nodes.row_log.sequence

    def __len__(self) -> int:
        return len(self.minimums)

    def key_of(self, uid: str) -> str | None:
        entry = self.cache.placed(uid)
        return None if entry is None else entry.pod.labels.get("gang")

    def standing(self, key: str) -> Collection[str]:
        return [
            entry.pod.uid for entry in self.cache if entry.pod.labels.get("gang") == key and not entry.pod.is_deleting
        ]

    def surplus(self, key: str) -> int:
        return max(len(self.standing(key)) - self.minimums.get(key, 1), 0)


def cache_with_gangs(**minimums: int) -> ClusterCache:
    """Gang -> its minimum."""
    gangs = LabelGangs(minimums)
    gangs.cache = ClusterCache(gangs=gangs)
    return gangs.cache
