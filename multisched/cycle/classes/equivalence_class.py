"""A class of identical pods: what the plugins said of each row, plugin by plugin, and what follows for the class.

Owned by the class cache. Each of its parts alone writes what it is asked for, and all may read everything. Nobody outside
this folder writes a class; a test holds this.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping

import numpy as np

from multisched.cycle.classes.columns import NO_BOOLS, NO_TOTALS, FilterColumn, ScoreColumn, Totals
from multisched.framework.node_view import NO_ROWS, Bools, Rows
from multisched.framework.points import CycleView, PreFilterResult
from multisched.framework.status import Code, Status
from multisched.framework.traits import traits_of
from multisched.model.objects import Pod


class ClassIdentity:
    """Stands for a class until it is begun anew, and ends with it. What others keep of a class, they keep by this, weakly."""

    __slots__ = ("__weakref__",)


class EquivalenceClass:
    """Pods that every plugin treats alike, with what the plugins said of each row."""

    def __init__(self, pod: Pod, view: CycleView) -> None:
        # Written by `ClassCache`.
        self.pod = pod
        self.view = view
        self.signature: Hashable | None = None
        """Equal for all pods of the class; None for a pod that is a class of its own."""
        self.identity = ClassIdentity()
        """Another one whenever rows and columns are others; copies for one attempt share it."""
        self.domain_size = 0
        """Rows of the domain, narrowed or not."""
        self.rows: Rows = NO_ROWS
        self.generation: int
        self.nodes_version: int
        self.node_sequence: int
        self.row_sequence: int
        """How far the cluster had come when the class was last renewed: marked before anybody reads."""
        self.size_bytes = 0
        """What its owner counts for it."""
        self.sized_with: tuple[Pod, bool] | None = None
        """The pod that is in this, and whether scores are."""
        # Written by `CacheKeys`.
        self.cache_keys: Mapping[str, Hashable] = {}
        """Plugin -> what its answers depend on; those that have nothing to say of such pods are in `silent` instead."""
        self.keyed_scores: frozenset[str] = frozenset()
        """Of these plugins, those that may have something to say of scores."""
        self.silent: frozenset[str] = frozenset()
        # Written by `ClassPreFilters`; `ClassCache.alone` narrows, too.
        self.refusal: Status | None = None
        """Set when a PreFilter plugin refused the pod everywhere."""
        self.narrowed: frozenset[str] | None = None
        """Node names that PreFilter narrowed the search to."""
        self.narrowed_by: tuple[str, ...] = ()
        self.skipped: frozenset[str] = frozenset()
        self.relates = False
        """Some filter goes by what stands on other rows, too."""
        self.pre_filter_results: tuple[PreFilterResult, ...] = ()
        """What the PreFilter plugins said whose answers hold for one attempt."""
        self.pre_filtered_by_key: dict[str, PreFilterResult] = {}
        """What the PreFilter plugins said whose answers hold while their cache keys stand."""
        # Written by `ClassFilters`.
        self.filters: list[FilterColumn] = []
        self.fixed_filters: list[FilterColumn] = []
        self.moving_filters: list[FilterColumn] = []
        """Those of `filters` whose codes may change with the pods on a row; the others are fixed."""
        self.fallible_filters: list[FilterColumn] = []
        """Those of `filters` with codes that fail the attempt."""
        self.fixed_pass: Bools = NO_BOOLS
        """Rows that pass every filter which does not read the pods on them."""
        self.feasible: Bools = NO_BOOLS
        # Written by `ClassScores`; `ClassCache` says when a class is no longer scored.
        self.scores: list[ScoreColumn] = []
        self.moving_scores: list[ScoreColumn] = []
        """Those of `scores` that may change with the pods on a row."""
        self.fixed_total: Totals = NO_TOTALS
        """Weighted sum of the final scores that do not read the pods on a row."""
        self.sum: Totals = NO_TOTALS
        """Weighted sum of all final scores, feasible or not."""
        self.total: Totals = NO_TOTALS
        """Weighted sum of all final scores; NOWHERE on rows that are not feasible."""
        self.is_scored = False
        self.fixed_changes = 0
        """How often `fixed_total` has become another one."""

    @property
    def is_of_one_row(self) -> bool:
        """PreFilter has left one node: a pod of a DaemonSet, of which there is but one."""
        return self.narrowed is not None and len(self.rows) == 1

    def add_filter(self, column: FilterColumn) -> None:
        self.filters.append(column)
        (self.moving_filters if column.depends_on.reads_pods else self.fixed_filters).append(column)
        if traits_of(column.plugin).may_fail:
            self.fallible_filters.append(column)

    def failure(self) -> tuple[Status, Rows] | None:
        """The error of a Filter plugin about the first row that no plugin before it refuses, and all rows that it is about."""
        for column in self.fallible_filters:
            if not column.codes.any():
                continue
            asked = np.ones(len(column.codes), np.bool_)
            for earlier in self.filters[: self.filters.index(column)]:
                asked &= earlier.codes == 0
            for code in dict.fromkeys(column.codes[asked].tolist()):
                status = column.plugin.reasons.status(code)
                if status.code is Code.ERROR:
                    return status, self.rows[asked & (column.codes == code)]
        return None

    @property
    def array_bytes(self) -> int:
        """What its own columns take, without those that other classes read, too."""
        filters = sum(len(c.by_group) + (0 if c.is_shared else len(c.codes)) for c in self.filters)
        scores = sum(
            len(c.by_group) + (0 if c.is_final_shared else len(c.final)) + (0 if c.shared else c.raw.nbytes)
            for c in self.scores
        )
        totals = (self.fixed_total, self.sum, self.total, self.fixed_pass, self.feasible)
        return filters + scores + sum(column.nbytes for column in totals)

    def add_score(self, column: ScoreColumn) -> None:
        self.scores.append(column)
        if column.depends_on.reads_pods:
            self.moving_scores.append(column)
