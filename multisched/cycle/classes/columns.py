"""The columns of a class: the results of one plugin for each of its rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from multisched.cycle.classes.shared_scores import Finals, SharedScores
from multisched.cycle.classes.topology_groups import RowGroups
from multisched.framework.node_view import NO_ROWS, Bools, Codes, Int32, Rows, Scores
from multisched.framework.normalize import MAX_SCORE, ByLargest
from multisched.framework.points import FilterPlugin, NormalizeScorePlugin, ScorePlugin
from multisched.framework.traits import traits_of

Totals = NDArray[np.int16 | np.int32 | np.int64]
"""Weighted sums of final scores, in the smallest type that the profile's weights allow (`totals_type`)."""

_INT32: Final = np.iinfo(np.int32)

NO_BOOLS: Bools = np.zeros(0, np.bool_)
"""Empty arrays are never written to, so one of each type is shared by all classes."""
NO_CODES: Codes = np.zeros(0, np.uint8)
NO_SCORES: Scores = np.zeros(0, np.int64)
NO_FINALS: Finals = np.zeros(0, np.uint8)
NO_TOTALS: Totals = np.zeros(0, np.int16)


class FilterColumn:
    """One Filter plugin's codes over the class's rows."""

    __slots__ = ("by_group", "codes", "depends_on", "groups", "is_shared", "plugin")

    def __init__(
        self, plugin: FilterPlugin, codes: Codes, groups: RowGroups | None = None, *, is_shared: bool = False
    ) -> None:
        """`is_shared`: other classes read the codes, too; they must not be modified."""
        self.plugin = plugin
        self.depends_on = plugin.depends_on
        self.answer(codes, groups, is_shared=is_shared)

    def answer(self, codes: Codes, groups: RowGroups | None, *, is_shared: bool = False) -> None:
        """Replaces all codes. `codes`: of all rows, or of all groups if `groups` is given."""
        self.groups = groups
        self.is_shared = is_shared
        self.by_group = codes[:0] if groups is None else codes.copy()
        if groups is not None:
            self.codes = codes.take(groups.of)
        else:  # the plugin may keep its array, or have made it read-only
            self.codes = codes if is_shared else codes.copy()

    def set_codes(self, at: Rows | int, codes: Codes | int) -> None:
        """Writes the codes at these positions, or the code at one position."""
        if self.is_shared:
            self.codes, self.is_shared = self.codes.copy(), False
        self.codes[at] = codes

    def copy_of_codes(self) -> Codes:
        """Returns the codes as of now; later writes do not change them."""
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
        """`custom`: the plugin itself, if it implements NormalizeScore."""
        self.plugin = plugin
        self.custom = custom
        self.weight = weight
        self.depends_on = plugin.depends_on
        self.normalizer: ByLargest | None = traits_of(plugin).normalizer
        self.is_plain = self.normalizer is None and self.custom is None
        """True if raw scores are not normalised."""
        self.raw: Scores | Int32 = NO_SCORES
        """Kept only if scores are normalised; plain scores are stored in `final`."""
        self.shared: SharedScores | None = None
        """The shared scores that `raw` belongs to; None once a score was changed and `raw` is a copy."""
        self.final: Finals = NO_FINALS
        self.is_final_shared = False
        """True if other classes read `final`, too; it must not be modified then."""
        self.largest = -1
        self.groups: RowGroups | None = None
        """Groups of rows that the plugin treats the same, if it is evaluated by group."""
        self.by_group: Finals = NO_FINALS
        """`final` by group."""
        self.asked: Rows = NO_ROWS
        """Positions of the rows evaluated for their groups: one for each group with feasible rows."""
        self.is_skipped = False
        """True while PreScore returned Skip: the plugin does not count in the total."""

    def set_all(self, final: Finals, *, is_shared: bool = False) -> None:
        """Replaces all final scores. `is_shared`: other classes read them, too."""
        self.final, self.is_final_shared = final, is_shared

    def set_final(self, at: Rows | int, final: Finals | int) -> None:
        """Writes final scores at these positions, or the score at one position."""
        if self.is_final_shared:
            self.final, self.is_final_shared = self.final.copy(), False
        self.final[at] = final

    def copy_of_final(self) -> Finals:
        """Returns the final scores as of now; later writes do not change them."""
        return self.final if self.is_final_shared else self.final.copy()

    def raw_at(self, at: Rows) -> Scores:
        """Returns the raw scores at these positions: int64[positions]."""
        return self.raw.take(at).astype(np.int64, copy=False)

    def all_raw(self) -> Scores:
        """Returns all raw scores: int64[rows]."""
        return self.raw.astype(np.int64, copy=False)

    def set_raw(self, at: Rows, raw: Scores) -> None:
        """Writes raw scores at these positions."""
        if self.shared is not None:
            self.raw, self.shared = self.raw.copy(), None
        if self.raw.dtype != np.int64 and not _is_small(raw):
            self.raw = self.raw.astype(np.int64)
        self.raw[at] = raw

    def keep_raw(self, raw: Scores) -> None:
        """Stores all raw scores, as int32 if they fit: raw scores take most of a class's memory."""
        self.raw = raw.astype(np.int32) if _is_small(raw) else raw.copy()


def _is_small(raw: Scores) -> bool:
    return not len(raw) or (raw.item(raw.argmax()) <= _INT32.max and raw.item(raw.argmin()) >= _INT32.min)


def totals_type(weights: Iterable[int]) -> type[np.int16 | np.int32 | np.int64]:
    """Returns the smallest integer type that holds any total of scores with these weights."""
    most = MAX_SCORE * sum(weights)
    if most <= np.iinfo(np.int16).max:
        return np.int16
    return np.int32 if most <= _INT32.max else np.int64
