"""Results shared by classes, and groups of rows that share one result: a new class need not evaluate every plugin.

A plugin that reads node objects only gives the same result to all classes with the same signature by it, until a node object
changes. Most workloads differ only in their requests. Owned by a class cache; used by its filters and scores only.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

from multisched.cycle.classes.equivalence_class import EquivalenceClass
from multisched.cycle.classes.shared_scores import SharedScores
from multisched.cycle.classes.topology_groups import RowGroupCache, RowGroups
from multisched.framework.caching import SignPlugin, TopologyKeysPlugin
from multisched.framework.dependency import dependency_of
from multisched.framework.node_view import Codes, Scores
from multisched.framework.points import FilterPlugin, Plugin, ScorePlugin
from multisched.framework.registry import implementing
from multisched.framework.runner import Runner
from multisched.state.domain_rows import DomainRows
from multisched.state.node_table import NodeTable

SHARED_MAX = 64
"""Shared results that are kept; at most 8 bytes per row each."""

A = TypeVar("A")
_Mark = tuple[int, int]
"""Generation of the domain's rows and version of the nodes."""


class SharedAnswers:
    """Results of plugins that several classes of one cache share."""

    def __init__(
        self,
        runner: Runner,
        table: NodeTable,
        rows: DomainRows,
        signers: Iterable[SignPlugin],
        keyed: Iterable[Plugin],
    ) -> None:
        """`signers`: results of those that read no pods are shared. `keyed`: plugins that may be evaluated by group."""
        self._runner = runner
        self._signers = {p.name: p for p in signers if not _reads_pods(p)}
        self._grouping = {p.name: p for p in implementing(keyed, TopologyKeysPlugin)}
        self._groups = RowGroupCache(table, rows)
        self._codes: dict[Hashable, tuple[_Mark, Codes]] = {}
        self._scores: dict[Hashable, tuple[_Mark, SharedScores]] = {}

    def forget_all(self) -> None:
        self._codes.clear()
        self._scores.clear()

    def groups_of(self, pod_class: EquivalenceClass, plugin: Plugin) -> RowGroups | None:
        """Returns the groups of rows that the plugin treats the same; None: it is evaluated on every row."""
        grouping = self._grouping.get(plugin.name)
        if grouping is None or pod_class.narrowed is not None:
            return None
        keys = self._runner.call(grouping, "CacheKey", grouping.topology_keys, pod_class.view, pod_class.pod)
        return None if keys is None else self._groups.by_labels(keys)

    def codes(self, plugin: FilterPlugin, pod_class: EquivalenceClass, ask: Callable[[], Codes]) -> Codes | None:
        """Returns a Filter plugin's codes for all rows of the domain, read only; None if they are not shared."""
        found = self._find(self._codes, plugin, pod_class, lambda: ask().copy())  # the plugin may reuse its array
        return None if found is None else found[1]

    def scores(
        self, plugin: ScorePlugin, pod_class: EquivalenceClass, ask: Callable[[], Scores]
    ) -> SharedScores | None:
        """Returns a Score plugin's raw scores for all rows of the domain; None if they are not shared."""
        found = self._find(self._scores, plugin, pod_class, lambda: SharedScores(ask().copy()))
        return None if found is None else found[1]

    def _find(
        self, known: dict[Hashable, tuple[_Mark, A]], plugin: Plugin, pod_class: EquivalenceClass, ask: Callable[[], A]
    ) -> tuple[_Mark, A] | None:
        signer = self._signers.get(plugin.name)
        if signer is None or pod_class.narrowed is not None:
            return None
        pod = pod_class.pod
        [fragment] = self._runner.sign([signer], pod)
        if fragment is None:
            return None
        key = (plugin.name, pod.namespace, pod.spec.priority, fragment)
        mark = (pod_class.generation, pod_class.nodes_version)
        found = known.get(key)
        if found is None or found[0] != mark:
            if len(known) >= SHARED_MAX:
                del known[next(iter(known))]
            found = known[key] = (mark, ask())
        return found


def _reads_pods(plugin: object) -> bool:
    return dependency_of(plugin).reads_pods
