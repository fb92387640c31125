"""A class of identical pods: what the plugins said of each row, plugin by plugin, and what follows for the class."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from multisched.cycle.row_groups import RowGroups
from multisched.framework.node_view import NO_ROWS, Bools, Codes, Rows, Scores
from multisched.framework.normalize import ByLargest
from multisched.framework.plugin import (
    CycleView,
    FilterPlugin,
    NormalizeScorePlugin,
    PreFilterResult,
    ScorePlugin,
)
from multisched.framework.status import Code, Status
from multisched.model.objects import Pod

if TYPE_CHECKING:
    from multisched.cycle.attempt_record import Picture
    from multisched.cycle.shared_answers import SharedScores

Finals = NDArray[np.uint8]
"""Normalised scores, 0..MAX_SCORE. Small on purpose: what a decision reads of 50 classes has to fit into a CPU's cache."""
Totals = NDArray[np.int32]
"""Weighted sums of final scores: at most 100 x 100 for each plugin."""

NO_BOOLS: Bools = np.zeros(0, np.bool_)
"""Empty arrays are never written to, and one of a kind serves all."""
NO_SCORES: Scores = np.zeros(0, np.int64)
NO_FINALS: Finals = np.zeros(0, np.uint8)
NO_TOTALS: Totals = np.zeros(0, np.int32)


class FilterColumn:
    """One Filter plugin's codes over the class's rows."""

    __slots__ = ("by_group", "codes", "depends_on", "groups", "plugin")

    def __init__(self, plugin: FilterPlugin, codes: Codes, groups: RowGroups | None = None) -> None:
        self.plugin = plugin
        self.depends_on = plugin.depends_on
        self.answer(codes, groups)

    def answer(self, codes: Codes, groups: RowGroups | None) -> None:
        """`codes`: of all rows, or of all groups where there are any."""
        self.groups = groups
        # The plugin may keep its array, or have made it read-only; these are renewed in place.
        self.by_group = codes[:0] if groups is None else codes.copy()
        self.codes = codes.copy() if groups is None else codes.take(groups.of)


class ScoreColumn:
    """One Score plugin's raw and normalised scores over the class's rows."""

    __slots__ = (
        "asked",
        "by_group",
        "custom",
        "depends_on",
        "final",
        "groups",
        "is_plain",
        "is_skipped",
        "largest",
        "normalizer",
        "plugin",
        "raw",
        "shared",
        "weight",
    )

    def __init__(self, plugin: ScorePlugin, custom: NormalizeScorePlugin | None, weight: int) -> None:
        """`custom`: the plugin again, if it has a NormalizeScore of its own."""
        self.plugin = plugin
        self.custom = custom
        self.weight = weight
        self.depends_on = plugin.depends_on
        normalizer = getattr(plugin, "normalizer", None)
        self.normalizer: ByLargest | None = normalizer if isinstance(normalizer, ByLargest) else None
        self.is_plain = self.normalizer is None and self.custom is None
        """True if raw scores count as they are."""
        self.raw: Scores = NO_SCORES
        """Kept where something normalises it: plain scores are final as they come."""
        self.shared: SharedScores | None = None
        """Whose raw scores `raw` is, until one of them changes; then it is a copy."""
        self.final: Finals = NO_FINALS
        self.largest = -1
        self.groups: RowGroups | None = None
        """Rows that are alike to the plugin, if it is asked about groups."""
        self.by_group: Finals = NO_FINALS
        """`final` by group."""
        self.asked: Rows = NO_ROWS
        """Positions of the rows that stand for their groups: one for each group with feasible rows."""
        self.is_skipped = False
        """True while PreScore said Skip: the plugin has no part in the total."""

    def set_raw(self, at: Rows, raw: Scores) -> None:
        """Writes raw scores at these positions."""
        if self.shared is not None:
            self.raw, self.shared = self.raw.copy(), None
        self.raw[at] = raw


class PodClass:
    """Pods that every plugin treats alike, with what the plugins said of each row."""

    def __init__(self, pod: Pod, view: CycleView) -> None:
        self.pod = pod
        self.view = view
        self.signature: Hashable | None = None
        """Equal for all pods of the class; None for a pod that is a class of its own."""
        self.refusal: Status | None = None
        """Set when a PreFilter plugin refused the pod everywhere."""
        self.narrowed: frozenset[str] | None = None
        """Node names that PreFilter narrowed the search to."""
        self.narrowed_by: tuple[str, ...] = ()
        self.domain_size = 0
        """Rows of the domain, narrowed or not."""
        self.rows: Rows = NO_ROWS
        self.skipped: frozenset[str] = frozenset()
        self.relates = False
        """Some filter goes by what stands on other rows, too."""
        self.told: tuple[PreFilterResult, ...] = ()
        """What the PreFilter plugins said whose answers hold for one attempt."""
        self.stamps: Mapping[str, Hashable] = {}
        """Plugin -> what its answers hang on; those that have nothing to say of such pods are in `silent` instead."""
        self.stamped_scores: frozenset[str] = frozenset()
        """Of these plugins, those that may have something to say of scores."""
        self.silent: frozenset[str] = frozenset()
        self.told_by_stamp: dict[str, PreFilterResult] = {}
        """What the PreFilter plugins said whose answers hold while their stamps stand."""
        self.filters: list[FilterColumn] = []
        self.moving_filters: list[FilterColumn] = []
        """Those of `filters` whose codes may change with the pods on a row."""
        self.fallible_filters: list[FilterColumn] = []
        """Those of `filters` with codes that fail the attempt."""
        self.scores: list[ScoreColumn] = []
        self.moving_scores: list[ScoreColumn] = []
        self.fixed_pass: Bools = NO_BOOLS
        """Rows that pass every filter which does not read the pods on them."""
        self.feasible: Bools = NO_BOOLS
        self.fixed_total: Totals = NO_TOTALS
        """Weighted sum of the final scores that do not read the pods on a row."""
        self.sum: Totals = NO_TOTALS
        """Weighted sum of all final scores, feasible or not."""
        self.total: Totals = NO_TOTALS
        """Weighted sum of all final scores; NOWHERE on rows that are not feasible."""
        self.generation: int
        self.nodes_version: int
        self.node_sequence: int
        self.row_sequence: int
        """How far the cluster had come when the class was last renewed: `ClassCache` marks it before anybody reads."""
        self.is_scored = False
        self.picture: Picture | None = None
        """What `attempt_record` keeps of the class: for the pods it placed since, and for those it refused."""
        self.refused_picture: Picture | None = None
        self.size_bytes = 0
        """What its owner counts for it."""
        self.sized_with: Pod | None = None
        """The pod that is in this."""
        self.unrecorded = 0
        """Placed pods until the next picture."""

    def add_filter(self, column: FilterColumn) -> None:
        self.filters.append(column)
        if column.depends_on.reads_pods:
            self.moving_filters.append(column)
        if getattr(column.plugin, "may_fail", False):
            self.fallible_filters.append(column)

    def failure(self) -> Status | None:
        """The error of a Filter plugin about the first row that no plugin before it refuses."""
        for column in self.fallible_filters:
            if not column.codes.any():
                continue
            asked = np.ones(len(column.codes), np.bool_)
            for earlier in self.filters[: self.filters.index(column)]:
                asked &= earlier.codes == 0
            for code in dict.fromkeys(column.codes[asked].tolist()):
                status = column.plugin.reasons.status(code)
                if status.code is Code.ERROR:
                    return status
        return None

    def add_score(self, column: ScoreColumn) -> None:
        self.scores.append(column)
        if column.depends_on.reads_pods:
            self.moving_scores.append(column)
