"""A class of identical pods: what the plugins said of each row, plugin by plugin, and what follows for the class."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from multisched.cycle.row_groups import RowGroups
from multisched.framework.node_view import NO_ROWS, Bools, Codes, Int32, Rows, Scores
from multisched.framework.normalize import MAX_SCORE, ByLargest
from multisched.framework.points import CycleView, FilterPlugin, NormalizeScorePlugin, PreFilterResult, ScorePlugin
from multisched.framework.status import Code, Status
from multisched.framework.traits import traits_of
from multisched.model.objects import Pod

if TYPE_CHECKING:
    from multisched.cycle.attempt_record import Picture
    from multisched.cycle.shared_answers import SharedScores

Finals = NDArray[np.uint8]
"""Normalised scores, 0..MAX_SCORE. Small on purpose: what a decision reads of 50 classes has to fit into a CPU's cache."""
Totals = NDArray[np.int16 | np.int32]
"""Weighted sums of final scores, in as few bits as the profile's weights allow (`totals_type`)."""

_INT32: Final = np.iinfo(np.int32)

NO_BOOLS: Bools = np.zeros(0, np.bool_)
"""Empty arrays are never written to, and one of a kind serves all."""
NO_SCORES: Scores = np.zeros(0, np.int64)
NO_FINALS: Finals = np.zeros(0, np.uint8)
NO_TOTALS: Totals = np.zeros(0, np.int16)


class FilterColumn:
    """One Filter plugin's codes over the class's rows."""

    __slots__ = ("by_group", "codes", "depends_on", "groups", "is_shared", "plugin")

    def __init__(
        self, plugin: FilterPlugin, codes: Codes, groups: RowGroups | None = None, *, is_shared: bool = False
    ) -> None:
        """`is_shared`: other classes read the codes, too, and nobody changes them."""
        self.plugin = plugin
        self.depends_on = plugin.depends_on
        self.answer(codes, groups, is_shared=is_shared)

    def answer(self, codes: Codes, groups: RowGroups | None, *, is_shared: bool = False) -> None:
        """`codes`: of all rows, or of all groups where there are any."""
        self.groups = groups
        self.is_shared = is_shared
        self.by_group = codes[:0] if groups is None else codes.copy()
        if groups is not None:
            self.codes = codes.take(groups.of)
        else:  # the plugin may keep its array, or have made it read-only
            self.codes = codes if is_shared else codes.copy()

    def set_codes(self, at: Rows, codes: Codes) -> None:
        """Writes the codes at these positions."""
        if self.is_shared:
            self.codes, self.is_shared = self.codes.copy(), False
        self.codes[at] = codes

    def copy_of_codes(self) -> Codes:
        """As they are now, whatever is written later."""
        return self.codes if self.is_shared else self.codes.copy()


class ScoreColumn:
    """One Score plugin's raw and normalised scores over the class's rows."""

    __slots__ = (
        "asked",
        "by_group",
        "custom",
        "depends_on",
        "final",
        "groups",
        "is_final_shared",
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
        self.normalizer: ByLargest | None = traits_of(plugin).normalizer
        self.is_plain = self.normalizer is None and self.custom is None
        """True if raw scores count as they are."""
        self.raw: Scores | Int32 = NO_SCORES
        """Kept where something normalises it: plain scores are final as they come."""
        self.shared: SharedScores | None = None
        """Whose raw scores `raw` is, until one of them changes; then it is a copy."""
        self.final: Finals = NO_FINALS
        self.is_final_shared = False
        """Other classes read `final`, too, and nobody changes it."""
        self.largest = -1
        self.groups: RowGroups | None = None
        """Rows that are alike to the plugin, if it is asked about groups."""
        self.by_group: Finals = NO_FINALS
        """`final` by group."""
        self.asked: Rows = NO_ROWS
        """Positions of the rows that stand for their groups: one for each group with feasible rows."""
        self.is_skipped = False
        """True while PreScore said Skip: the plugin has no part in the total."""

    def set_all(self, final: Finals, *, is_shared: bool = False) -> None:
        """Other final scores in place of all. `is_shared`: other classes read them, too."""
        self.final, self.is_final_shared = final, is_shared

    def set_final(self, at: Rows, final: Finals) -> None:
        """Writes final scores at these positions."""
        if self.is_final_shared:
            self.final, self.is_final_shared = self.final.copy(), False
        self.final[at] = final

    def copy_of_final(self) -> Finals:
        """As they are now, whatever is written later."""
        return self.final if self.is_final_shared else self.final.copy()

    def raw_at(self, at: Rows) -> Scores:
        """int64[positions]"""
        return self.raw.take(at).astype(np.int64, copy=False)

    def all_raw(self) -> Scores:
        """int64[rows]"""
        return self.raw.astype(np.int64, copy=False)

    def set_raw(self, at: Rows, raw: Scores) -> None:
        """Writes raw scores at these positions."""
        if self.shared is not None:
            self.raw, self.shared = self.raw.copy(), None
        if self.raw.dtype != np.int64 and not _is_small(raw):
            self.raw = self.raw.astype(np.int64)
        self.raw[at] = raw

    def keep_raw(self, raw: Scores) -> None:
        """All raw scores, in half of their bits where they fit: most of what a class takes was once in them."""
        self.raw = raw.astype(np.int32) if _is_small(raw) else raw.copy()


def _is_small(raw: Scores) -> bool:
    return not len(raw) or (raw.item(raw.argmax()) <= _INT32.max and raw.item(raw.argmin()) >= _INT32.min)


def totals_type(weights: Iterable[int]) -> type[np.int16 | np.int32]:
    """The smallest integers that hold any total of scores with these weights."""
    return np.int16 if MAX_SCORE * sum(weights) <= np.iinfo(np.int16).max else np.int32


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
        self.sized_with: tuple[Pod, bool] | None = None
        """The pod that is in this, and whether scores are."""
        self.unrecorded = 0
        """Placed pods until the next picture."""

    @property
    def is_of_one_row(self) -> bool:
        """PreFilter has left one node: a pod of a DaemonSet, of which there is but one."""
        return self.narrowed is not None and len(self.rows) == 1

    def add_filter(self, column: FilterColumn) -> None:
        self.filters.append(column)
        if column.depends_on.reads_pods:
            self.moving_filters.append(column)
        if traits_of(column.plugin).may_fail:
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
