"""Answers that classes share, and the rows that share one answer: what keeps a fresh class from asking everything anew.

A plugin that reads node objects only gives one answer to all classes that are alike to it, until a node object changes.
Most workloads differ in what they request and in nothing else. Owned by a class cache, for it and its scores alone.
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
from multisched.framework.registry import those
from multisched.framework.runner import Runner
from multisched.state.domain_rows import DomainRows
from multisched.state.node_table import NodeTable

SHARED_MAX = 64
"""Answers that classes share; 8 bytes a row each at most."""

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
        """`signers`: plugins of which those that read no pods have their answers shared; `keyed`: those that may go by groups."""
        self._runner = runner
        self._signers = {p.name: p for p in signers if not _reads_pods(p)}
        self._grouping = {p.name: p for p in those(keyed, TopologyKeysPlugin)}
        self._groups = RowGroupCache(table, rows)
        self._codes: dict[Hashable, tuple[_Mark, Codes]] = {}
        self._scores: dict[Hashable, tuple[_Mark, SharedScores]] = {}

    def forget_all(self) -> None:
        self._codes.clear()
        self._scores.clear()

    def groups_of(self, pod_class: EquivalenceClass, plugin: Plugin) -> RowGroups | None:
        """The groups of rows that are alike to the plugin; None: it is to be asked about every row."""
        grouping = self._grouping.get(plugin.name)
        if grouping is None or pod_class.narrowed is not None:
            return None
        keys = self._runner.call(grouping, "CacheKey", grouping.topology_keys, pod_class.view, pod_class.pod)
        return None if keys is None else self._groups.by_labels(keys)

    def codes(self, plugin: FilterPlugin, pod_class: EquivalenceClass, ask: Callable[[], Codes]) -> Codes | None:
        """A Filter plugin's codes of all the domain's rows, read only; None where no other class gets the same."""
        found = self._find(
            self._codes, plugin, pod_class, lambda: ask().copy()
        )  # the plugin may use its own array again
        return None if found is None else found[1]

    def scores(
        self, plugin: ScorePlugin, pod_class: EquivalenceClass, ask: Callable[[], Scores]
    ) -> SharedScores | None:
        """A Score plugin's raw scores of all the domain's rows; None where no other class gets the same."""
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
