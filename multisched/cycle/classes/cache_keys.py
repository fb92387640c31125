"""Cache keys: what the results of plugins depend on, and which keys changed since a class was renewed.

Owns only what it derives from the plugins. Writes `cache_keys`, `silent` and `keyed_scores` of a class.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import NamedTuple

from multisched.cycle.classes.equivalence_class import EquivalenceClass
from multisched.framework.caching import CacheKeyPlugin, SplitCacheKey
from multisched.framework.registry import PluginSet, implementing
from multisched.framework.runner import Runner
from multisched.model.objects import Pod

_NO_PLUGINS: frozenset[str] = frozenset()


class MovedKeys(NamedTuple):
    """Plugins whose results may have changed."""

    filters: frozenset[str]
    scores: frozenset[str]
    is_other: bool
    """True if a filter or score became silent or ceased to be silent. The class must then be rebuilt."""


NOTHING_MOVED = MovedKeys(_NO_PLUGINS, _NO_PLUGINS, is_other=False)


class CacheKeys:
    """The plugins of one profile that have a cache key."""

    def __init__(self, plugins: PluginSet, runner: Runner) -> None:
        self._runner = runner
        every = (*plugins.pre_filter, *plugins.filter, *plugins.pre_score, *plugins.score)
        self.plugins: Mapping[str, CacheKeyPlugin] = {p.name: p for p in implementing(every, CacheKeyPlugin)}

    def take(self, pod_class: EquivalenceClass) -> None:
        """Stores the class's cache keys before its plugins are evaluated, and which plugins are silent about such pods."""
        if not self.plugins:
            return
        found = [(name, self._key(p, pod_class, pod_class.pod)) for name, p in self.plugins.items()]
        pod_class.cache_keys = {name: cache_key for name, cache_key in found if cache_key is not None}
        pod_class.silent = frozenset(name for name, cache_key in found if cache_key is None)
        pod_class.keyed_scores = frozenset(
            n for n, cache_key in pod_class.cache_keys.items() if _sides(cache_key).scores is not None
        )

    def of(self, pod_class: EquivalenceClass, pod: Pod) -> list[Hashable]:
        """Returns the current keys for this pod, of the plugins that are not silent about the class."""
        return [self._key(p, pod_class, pod) for name, p in self.plugins.items() if name in pod_class.cache_keys]

    def renew(self, pod_class: EquivalenceClass, *, is_everywhere: bool) -> MovedKeys:
        """Stores the current keys in the class, and returns those that changed. `is_everywhere`: treats all as changed."""
        if not pod_class.cache_keys:
            return NOTHING_MOVED
        pod, before = pod_class.pod, pod_class.cache_keys
        found = {name: self._key(p, pod_class, pod) for name, p in self.plugins.items() if name in before}
        pod_class.cache_keys = found
        filters, scores, is_other = set(), set(), False
        for name, cache_key in found.items():
            if is_everywhere or cache_key != before[name]:
                now, then = _sides(cache_key), _sides(before[name])
                is_other |= (now.filters is None) != (then.filters is None)
                is_other |= (now.scores is None) != (then.scores is None)
                if now.filters is not None and (is_everywhere or now.filters != then.filters):
                    filters.add(name)
                if now.scores is not None and (is_everywhere or now.scores != then.scores):
                    scores.add(name)
        return MovedKeys(frozenset(filters), frozenset(scores), is_other)

    def _key(self, plugin: CacheKeyPlugin, pod_class: EquivalenceClass, pod: Pod) -> Hashable:
        return self._runner.call(plugin, "CacheKey", plugin.cache_key, pod_class.view, pod)


def _sides(cache_key: Hashable) -> SplitCacheKey:
    return cache_key if isinstance(cache_key, SplitCacheKey) else SplitCacheKey(cache_key, cache_key)
