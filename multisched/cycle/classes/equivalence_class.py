"""A class of identical pods: the results of each plugin for each row, and what follows from them.

Owned by the class cache. Each attribute is written by one module only (see below) and may be read by all. Code outside this
folder never writes to a class; a test checks this.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping

import numpy as np

from multisched.cycle.classes.columns import NO_BOOLS, NO_CODES, NO_TOTALS, FilterColumn, ScoreColumn, Totals
from multisched.cycle.classes.score_snapshot import ClassSnapshots
from multisched.framework.node_view import NO_ROWS, Bools, Codes, Rows
from multisched.framework.points import CycleView, PreFilterResult
from multisched.framework.status import Code, Status
from multisched.framework.traits import traits_of
from multisched.model.objects import Pod


class EquivalenceClass:
    """Pods that every plugin treats the same, with the results of each plugin for each row."""

    def __init__(self, pod: Pod, view: CycleView) -> None:
        # Written by `ClassCache`.
        self.pod = pod
        self.view = view
        self.signature: Hashable | None = None
        """Equal for all pods of the class; None for a pod in a class of its own."""
        self.snapshots = ClassSnapshots()
        """Replaced whenever rows and columns are rebuilt; copies for one attempt share it. `AttemptRecords` writes its attributes."""
        self.domain_size = 0
        """Number of rows of the domain, including those that PreFilter left out."""
        self.rows: Rows = NO_ROWS
        self.generation: int
        self.nodes_version: int
        self.node_sequence: int
        self.row_sequence: int
        """Versions of the cluster at the last renewal, recorded before plugins read it."""
        self.size_bytes = 0
        """Bytes that the cache has counted for this class."""
        self.sized_with: tuple[int, bool, int] | None = None
        """Bytes of the pod, `is_scored` and number of rows that `size_bytes` was computed for."""
        # Written by `CacheKeys`.
        self.cache_keys: Mapping[str, Hashable] = {}
        """Plugin -> what its results depend on. Plugins whose key is None are in `silent` instead."""
        self.keyed_scores: frozenset[str] = frozenset()
        """The plugins in `cache_keys` whose scores depend on their cache key."""
        self.silent: frozenset[str] = frozenset()
        # Written by `ClassPreFilters`; `ClassCache.alone` narrows, too.
        self.refusal: Status | None = None
        """Set if a PreFilter plugin refused the pod."""
        self.narrowed: frozenset[str] | None = None
        """Names of the nodes that PreFilter leaves; None: all."""
        self.narrowed_by: tuple[str, ...] = ()
        self.skipped: frozenset[str] = frozenset()
        self.relates = False
        """True if some filter also depends on pods on other rows."""
        self.pre_filter_results: tuple[PreFilterResult, ...] = ()
        """Results of the PreFilter plugins whose results are valid for one attempt."""
        self.pre_filtered_by_key: dict[str, PreFilterResult] = {}
        """Results of the PreFilter plugins whose results are valid until their cache keys change."""
        # Written by `ClassFilters`.
        self.filters: list[FilterColumn] = []
        self.fixed_filters: list[FilterColumn] = []
        self.moving_filters: list[FilterColumn] = []
        """Those of `filters` whose codes may change with the pods on a row; the others are fixed."""
        self.fallible_filters: list[FilterColumn] = []
        """Those of `filters` that have codes for errors, which fail the attempt."""
        self.filters_by_row = False
        """True if a placed pod can change the codes of `moving_filters` only for its own row."""
        self.fixed_refused: Codes = NO_CODES
        """The codes of `fixed_filters` joined bit by bit: 0 on rows that pass all of them."""
        self.feasible: Bools = NO_BOOLS
        # Written by `ClassScores`; `ClassCache` resets `is_scored`.
        self.scores: list[ScoreColumn] = []
        self.moving_scores: list[ScoreColumn] = []
        """Those of `scores` that may change with the pods on a row."""
        self.fixed_total: Totals = NO_TOTALS
        """Weighted sum of the final scores that do not read the pods on a row."""
        self.sum: Totals = NO_TOTALS
        """Weighted sum of all final scores, feasible or not."""
        self.total: Totals = NO_TOTALS
        """Weighted sum of all final scores; NOWHERE on rows that are not feasible."""
        self.scores_by_row = False
        """True if each of `moving_scores` depends on the row alone and is not normalised."""
        self.is_scored = False
        self.fixed_changes = 0
        """How often `fixed_total` has changed."""

    @property
    def is_of_one_row(self) -> bool:
        """True if PreFilter left one node, as for a pod of a DaemonSet."""
        return self.narrowed is not None and len(self.rows) == 1

    def add_filter(self, column: FilterColumn) -> None:
        self.filters.append(column)
        (self.moving_filters if column.depends_on.reads_pods else self.fixed_filters).append(column)
        if traits_of(column.plugin).may_fail:
            self.fallible_filters.append(column)

    def failure(self) -> tuple[Status, Rows] | None:
        """Returns the error of a Filter plugin for the first row that no earlier plugin refuses, and all rows with that error."""
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
        """Bytes of the columns of this class, without the columns shared with other classes."""
        filters = sum(len(c.by_group) + (0 if c.is_shared else len(c.codes)) for c in self.filters)
        scores = sum(
            len(c.by_group) + (0 if c.is_final_shared else len(c.final)) + (0 if c.shared else c.raw.nbytes)
            for c in self.scores
        )
        totals = (self.fixed_total, self.sum, self.total, self.fixed_refused, self.feasible)
        return filters + scores + sum(column.nbytes for column in totals)

    def add_score(self, column: ScoreColumn) -> None:
        self.scores.append(column)
        if column.depends_on.reads_pods:
            self.moving_scores.append(column)
