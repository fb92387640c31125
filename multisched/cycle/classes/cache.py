"""Masks and scores per class of identical pods, renewed only for what changed.

Pods with equal signatures get the same results from every plugin that depends on nodes, rows and the cluster only. These
results are cached here, by position in the domain's rows, and renewed for rows written since. They equal what evaluating
every plugin on every row would give; only the work differs.

The cache finds classes, bounds their memory, and decides when a class is rebuilt. One module per extension point does the
rest: `signatures`, `cache_keys`, `pre_filters`, `filters` and `scores`. Results shared by classes are in `shared_results`.
"""

from __future__ import annotations

from collections.abc import Hashable
from copy import copy

import numpy as np
from msgspec.structs import replace

from multisched.cycle.classes.cache_keys import CacheKeys
from multisched.cycle.classes.changes import Changes, positions
from multisched.cycle.classes.columns import NO_TOTALS
from multisched.cycle.classes.equivalence_class import EquivalenceClass
from multisched.cycle.classes.filters import ClassFilters, check_failure
from multisched.cycle.classes.pre_filters import ClassPreFilters
from multisched.cycle.classes.score_snapshot import ClassSnapshots
from multisched.cycle.classes.scores import ClassScores, is_for_one_attempt
from multisched.cycle.classes.shared_results import SharedAnswers
from multisched.cycle.classes.signatures import Signatures
from multisched.framework.caching import SignPlugin
from multisched.framework.cycle_state import CycleState
from multisched.framework.node_view import NO_ROWS, Bools, Rows, any_true
from multisched.framework.points import CycleView, Plugin
from multisched.framework.registry import PluginSet, implementing
from multisched.framework.runner import Runner
from multisched.model.objects import Pod
from multisched.state.domain_rows import DomainRows
from multisched.state.node_table import NodeTable

CLASS_BYTES_MAX = 128 * 1024 * 1024
"""Memory for the cached classes of one domain; the least recently used class is dropped first. A tenant whose pods all
differ can fill it in every domain, and all domains together must fit into 1 GiB."""

BYTES_PER_ROW = 24
"""Estimated bytes of one class per row until it is scored: codes and scores of each plugin, and the totals."""

BYTES_PER_CLASS = 10_000
"""Bytes of one class in addition to its rows: columns, states of plugins, and its pod (possibly deleted) with spec and labels."""

CLASSES_MIN = 8


class ClassCache:
    """The classes of one domain."""

    def __init__(self, plugins: PluginSet, runner: Runner, table: NodeTable, rows: DomainRows) -> None:
        self._table = table
        self._rows = rows
        # A PreFilter result is kept for the class only if the plugin's signature distinguishes the pods it treats differently.
        pre_filters = [p for p in implementing(plugins.pre_filter, SignPlugin) if not is_for_one_attempt(p)]
        kept: dict[str, Plugin] = {p.name: p for p in (*plugins.filter, *plugins.score, *pre_filters)}
        for_one_attempt = frozenset(p.name for p in plugins.pre_filter if is_for_one_attempt(p) or p.name not in kept)
        # Filters and scores with remote requests run on the responses, outside the class; their dependencies are not tracked here.
        remote = frozenset(p.name for p in plugins.remote)
        asked = (*plugins.pre_score, *(p for p in kept.values() if p.name not in remote))
        self.has_attempt_results = bool(for_one_attempt) or any(is_for_one_attempt(p) for p in asked)
        """True if some plugin is evaluated again in each attempt."""
        self._signatures = Signatures(kept.values(), runner)
        self._keys = CacheKeys(plugins, runner)
        self._shared = SharedAnswers(
            runner, table, rows, implementing(kept.values(), SignPlugin), self._keys.plugins.values()
        )
        self._pre_filters = ClassPreFilters(plugins, runner, self._keys, for_one_attempt)
        self._filters = ClassFilters(plugins, runner, self._shared, rows)
        self._scores = ClassScores(plugins, runner, self._shared, self._keys.plugins)
        self._classes: dict[Hashable, EquivalenceClass] = {}
        self._class_bytes = 0
        self.hits = 0
        self.misses = 0

    def continue_counters(self, before: ClassCache) -> None:
        """Continues the counters of the previous profile's cache."""
        self.hits, self.misses = before.hits, before.misses
        for name, count in before.unsigned.items():
            self.unsigned[name] = self.unsigned.get(name, 0) + count

    @property
    def unsigned(self) -> dict[str, int]:
        """Plugin -> pods that it did not sign, each of which got its own class. The mapping is live: copy it to keep it."""
        return self._signatures.unsigned

    def signature(self, pod: Pod) -> Hashable | None:
        """Returns a value that is equal for pods which every plugin treats the same now; None for a pod in a class of its own."""
        return self._signatures.of(pod)

    def has(self, pod_class: EquivalenceClass, pod: Pod, *, is_alike: bool) -> bool:
        """Reports whether a pod is of a class that was found in this step. `is_alike`: as in `Signatures.is_of`."""
        return self._signatures.is_of(pod_class.signature, pod, is_alike=is_alike)

    def find(self, pod: Pod, attempt: int) -> EquivalenceClass:
        """Returns the pod's class with its filters renewed. Raises PluginFailure."""
        signature = self._signatures.of(pod)
        # Removed until it is renewed: a class that a failing plugin left half renewed must not be found again.
        pod_class = self._classes.pop(signature, None) if signature is not None else None
        if pod_class is not None:
            self._class_bytes -= pod_class.size_bytes
        if pod_class is None or pod_class.generation != self._rows.generation:
            self.misses += 1
            pod_class = EquivalenceClass(pod, self._view(CycleState(), attempt))
            self._begin(pod_class)
        else:
            self.hits += 1
            if self.has_attempt_results:
                pod_class.pod = pod
                # Its own cycle state: another cycle of this class may be waiting for responses with the previous one.
                pod_class.view = self._view(pod_class.view.state.copy(), attempt)
            elif pod_class.cache_keys:
                pod_class.pod = pod  # the pod just signed; the earlier pod's signature may have changed since
            self._renew(pod_class)
        check_failure(pod_class, self._table)
        pod_class.signature = signature
        if signature is not None and not pod_class.is_of_one_row:
            self._keep(pod_class, signature)
        return pod_class

    def score(self, pod_class: EquivalenceClass) -> None:
        """Scores the class for the first time; `find` keeps the scores up to date later. Raises PluginFailure."""
        self._scores.score(pod_class)

    def alone(self, pod: Pod, attempt: int, row: int, *, is_sole: bool = False) -> EquivalenceClass | None:
        """Returns an uncached class of one pod and one row, evaluated now; None if PreFilter leaves the row out.

        Used for a pod with a nominated node, since no other row matters. `is_sole`: returns None also if PreFilter leaves other
        rows in addition. Raises PluginFailure.
        """
        pod_class = self.unfiltered(pod, attempt, row, is_sole=is_sole)
        if pod_class is None:
            return None
        self._filters.ask(pod_class)
        check_failure(pod_class, self._table)
        pod_class.total = np.zeros(1, np.int16)
        return pod_class

    def unfiltered(self, pod: Pod, attempt: int, row: int, *, is_sole: bool = False) -> EquivalenceClass | None:
        """The same as `alone`, but before the filters run: for a caller that filters the row as it would be after a change."""
        pod_class = EquivalenceClass(pod, self._view(CycleState(), attempt))
        self._pre_filter(pod_class)
        only, left = frozenset({self._table.node(row).name}), pod_class.narrowed
        if pod_class.refusal is not None or (left != only if is_sole else left is not None and not only <= left):
            return None
        pod_class.narrowed = only
        pod_class.rows = np.array([row], np.intp)
        return pod_class

    def reduced(self, pod_class: EquivalenceClass, feasible: Bools) -> EquivalenceClass:
        """Returns an uncached copy with fewer feasible rows, to be scored among those; the others are kept for nominated pods."""
        fewer = copy(pod_class)
        fewer.view = replace(pod_class.view, state=pod_class.view.state.copy())
        fewer.feasible = feasible
        fewer.scores, fewer.moving_scores = [], []
        fewer.total = NO_TOTALS
        fewer.is_scored = False
        fewer.snapshots = ClassSnapshots()
        return fewer

    def dependency_versions(self, pod_class: EquivalenceClass, pod: Pod) -> Hashable:
        """Returns what the class's results depend on in addition to the row, as of now. Values are equal while none of that changed.

        If pods on other rows count, a node that is added, removed or moved to another zone counts for all rows, too.
        """
        cache_keys = self._keys.of(pod_class, pod)
        nodes = (self._rows.generation, self._table.nodes_version) if cache_keys else ()
        return self._signatures.of(pod), nodes, *cache_keys

    def forget_all(self) -> None:
        """Drops every class; later attempts rebuild them."""
        self._classes.clear()
        self._class_bytes = 0
        self._signatures.forget_all()
        self._shared.forget_all()

    def _keep(self, pod_class: EquivalenceClass, signature: Hashable) -> None:
        """Stores the class as the most recently used one, and drops the least recently used ones if memory is short."""
        sized_with = pod_class.pod.kept_bytes, pod_class.is_scored, len(pod_class.rows)
        if pod_class.sized_with != sized_with:
            columns = pod_class.array_bytes if pod_class.is_scored else BYTES_PER_ROW * len(pod_class.rows)
            pod_class.size_bytes = BYTES_PER_CLASS + columns + pod_class.pod.kept_bytes
            pod_class.sized_with = sized_with
        self._class_bytes += pod_class.size_bytes
        while self._class_bytes > CLASS_BYTES_MAX and len(self._classes) >= CLASSES_MIN:
            self._class_bytes -= self._classes.pop(next(iter(self._classes))).size_bytes
        self._classes[signature] = pod_class

    def _view(self, state: CycleState, attempt: int) -> CycleView:
        return CycleView(self._table, state, attempt, places=self._rows.places)

    # -- making and renewing a class -------------------------------------------------------------------------------

    def _begin(self, pod_class: EquivalenceClass) -> None:
        self._pre_filter(pod_class)
        if pod_class.refusal is not None:
            return
        pod_class.rows = self._rows.rows if pod_class.narrowed is None else self._rows_named(pod_class.narrowed)
        self._filters.ask(pod_class)

    def _pre_filter(self, pod_class: EquivalenceClass) -> None:
        """Runs PreFilter, before any row is evaluated."""
        self._mark(pod_class)
        pod_class.domain_size = len(self._rows.rows)
        self._keys.take(pod_class)
        self._pre_filters.ask(pod_class)

    def _rows_named(self, names: frozenset[str]) -> Rows:
        found = (self._table.row_of(name) for name in names)
        return np.array(sorted(row for row in found if row is not None and self._rows.has(row)), np.intp)

    def _mark(self, pod_class: EquivalenceClass) -> None:
        pod_class.generation = self._rows.generation
        pod_class.nodes_version = self._table.nodes_version
        pod_class.node_sequence = self._table.node_log.sequence
        pod_class.row_sequence = self._table.row_log.sequence

    def _renew(self, pod_class: EquivalenceClass) -> None:
        """Brings the codes, and the scores if any, up to date."""
        changed_nodes = self._table.node_log.since(pod_class.node_sequence)
        changed_rows = self._table.row_log.since(pod_class.row_sequence)
        cluster_moved = pod_class.nodes_version != self._table.nodes_version
        is_too_old = changed_nodes is None or changed_rows is None
        moved, moved_scores, is_other = self._keys.renew(pod_class, is_everywhere=cluster_moved)
        if (
            is_too_old
            or is_other
            or (pod_class.refusal is not None and (cluster_moved or moved))
            or not self._pre_filters.still_hold(pod_class, moved)
        ):
            fresh = EquivalenceClass(pod_class.pod, self._view(CycleState(), pod_class.view.attempt))
            self._begin(fresh)
            pod_class.__dict__.update(fresh.__dict__)
            return
        assert changed_nodes is not None
        assert changed_rows is not None
        self._mark(pod_class)
        if pod_class.refusal is not None:
            return
        at_rows = positions(pod_class, self._rows, changed_rows)
        at_nodes = positions(pod_class, self._rows, changed_nodes) if cluster_moved else NO_ROWS
        rows = at_rows if pod_class.narrowed is None and self._rows.are_first else pod_class.rows.take(at_rows)
        is_by_row = pod_class.filters_by_row and pod_class.scores_by_row and pod_class.is_scored
        changes = Changes(at_nodes, at_rows, rows, moved, moved_scores, is_everywhere=cluster_moved)
        if is_by_row and len(at_rows) == 1 and not (len(at_nodes) or cluster_moved or moved or moved_scores):
            feasible_moved = self._filters.renew_row(pod_class, at_rows.item(), rows)
            if not feasible_moved:
                self._scores.renew_row(pod_class, at_rows.item(), rows)
                return
        else:
            feasible_moved = self._filters.renew(pod_class, changes)
        if pod_class.is_scored and pod_class.cache_keys and not any_true(pod_class.feasible):
            pod_class.is_scored = False  # PreScore needs at least one row: the next `score` starts afresh
        if pod_class.is_scored:
            self._scores.renew(pod_class, changes, feasible_moved=feasible_moved)
