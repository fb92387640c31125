"""The PreFilter results of a class: evaluated when it is built, and again when they may no longer be valid.

Owns only what it derives from the plugins. Writes the PreFilter results of a class: `refusal`, `narrowed`, `narrowed_by`,
`skipped`, `relates`, `pre_filter_results` and `pre_filtered_by_key`. Called by `ClassCache` only.
"""

from __future__ import annotations

from multisched.cycle.classes.cache_keys import CacheKeys
from multisched.cycle.classes.equivalence_class import EquivalenceClass
from multisched.framework.registry import PluginSet
from multisched.framework.runner import Runner
from multisched.framework.status import Code, Status


class ClassPreFilters:
    """Evaluates PreFilter for a class, and again if a result may no longer be valid."""

    def __init__(self, plugins: PluginSet, runner: Runner, keys: CacheKeys, for_one_attempt: frozenset[str]) -> None:
        """`for_one_attempt`: names of the plugins whose results are valid for one attempt."""
        self._plugins = plugins.pre_filter
        self._runner = runner
        self._for_one_attempt = for_one_attempt
        self._keyed = {p.name: p for p in plugins.pre_filter if p.name in keys.plugins}
        self._keyed_filters = frozenset(p.name for p in plugins.filter if p.depends_on.reads_cache_key)
        self._scoring = frozenset(p.name for p in plugins.score)

    def ask(self, pod_class: EquivalenceClass) -> None:
        """Runs every PreFilter plugin. Continues after an Unschedulable result, as preemption needs the state of all plugins."""
        skipped = set(pod_class.silent)
        for plugin in self._plugins:
            if plugin.name in pod_class.silent:
                continue
            result = self._runner.pre_filter(plugin, pod_class.view, pod_class.pod)
            if plugin.name in self._for_one_attempt:
                pod_class.pre_filter_results += (result,)
            elif plugin.name in pod_class.cache_keys:
                pod_class.pre_filtered_by_key[plugin.name] = result
            if result.status.code is Code.SKIP:
                skipped.add(plugin.name)
            elif not result.status.is_success:
                pod_class.refusal = result.status.by(plugin.name)
                if result.status.code is not Code.UNSCHEDULABLE:
                    return
            elif result.nodes is not None:
                pod_class.narrowed_by += (plugin.name,)
                pod_class.narrowed = result.nodes if pod_class.narrowed is None else pod_class.narrowed & result.nodes
                if not pod_class.narrowed:
                    pod_class.refusal = Status.unresolvable(_nowhere_left(pod_class.narrowed_by))
                    return
        pod_class.skipped = frozenset(skipped)
        # A plugin with a score that skips Filter has preferences only; one without a score skips because of the present pods.
        pod_class.relates = not self._keyed_filters <= pod_class.silent | (pod_class.skipped & self._scoring)

    def still_hold(self, pod_class: EquivalenceClass, moved: frozenset[str]) -> bool:
        """Runs PreFilter again for results that are valid for one attempt or whose keys `moved`. Returns False if one differs.

        Each plugin that is run again updates its cycle state.
        """
        if self._for_one_attempt and not self._has_same_results(pod_class):
            return False
        return not moved or self._has_same_keyed_results(pod_class, moved)

    def _has_same_results(self, pod_class: EquivalenceClass) -> bool:
        again = (p for p in self._plugins if p.name in self._for_one_attempt)
        results = tuple(self._runner.pre_filter(p, pod_class.view, pod_class.pod) for p in again)
        return results[: len(pod_class.pre_filter_results)] == pod_class.pre_filter_results

    def _has_same_keyed_results(self, pod_class: EquivalenceClass, moved: frozenset[str]) -> bool:
        return all(
            self._runner.pre_filter(plugin, pod_class.view, pod_class.pod) == pod_class.pre_filtered_by_key.get(name)
            for name, plugin in self._keyed.items()
            if name in moved
        )


def _nowhere_left(plugins: tuple[str, ...]) -> str:
    """Returns kube-scheduler's message for PreFilter plugins that leave no node."""
    if len(plugins) == 1:
        return f"node(s) didn't satisfy plugin {plugins[0]}"
    return f"node(s) didn't satisfy plugin(s) [{' '.join(sorted(plugins))}] simultaneously"
