"""A copy of a class's columns at one moment, for explanations. Its owner bounds the memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from multisched.cycle.classes.columns import FilterColumn, ScoreColumn, Totals
from multisched.cycle.classes.shared_scores import Finals
from multisched.framework.node_view import Bools, Codes, Rows, Scores
from multisched.framework.points import FilterPlugin
from multisched.framework.status import Status

SNAPSHOT_BYTES_MIN = 2_048
"""Bytes of a snapshot in addition to its arrays."""
OTHERS = "(all others)"
"""Represents the score plugins whose scores were dropped."""

Mark = tuple[int, int, int]
"""(generation of the domain's rows, sequence of node changes, sequence of row changes). Equal only if no row has changed."""


class Score(NamedTuple):
    """A plugin's score of the chosen row, which adds `final` times `weight` to the total."""

    plugin: str
    weight: int
    final: int


class FilterCopy(msgspec.Struct, frozen=True):
    """One Filter plugin's codes over the snapshot's rows."""

    plugin: FilterPlugin
    codes: Codes


class ScoreCopy(msgspec.Struct, frozen=True):
    """One Score plugin's normalised scores over the snapshot's rows; meaningless on rows that are not feasible."""

    plugin: str
    weight: int
    final: Finals
    is_moving: bool = False
    """True if the plugin reads the pods on a row. Each placed pod's own score is then kept with its placement."""
    raw: Scores | None = None
    """Scores before normalization; None: not kept."""


class ScoreSnapshot:
    """The columns of a class at one moment. `drop` frees its arrays; references to it remain valid."""

    __slots__ = (
        "_names",
        "at_s",
        "domain_size",
        "feasible",
        "filters",
        "generation",
        "is_kept",
        "mark",
        "narrowed_by",
        "nbytes",
        "of",
        "refusal",
        "rows",
        "scores",
        "skipped",
        "total",
    )

    def __init__(
        self,
        at_s: float,
        mark: Mark,
        rows: Rows,
        feasible: Bools,
        filters: Sequence[FilterColumn],
        scores: Sequence[ScoreColumn],
        total: Totals,
        *,
        domain_size: int,
        refusal: Status | None,
        narrowed_by: tuple[str, ...],
        skipped: frozenset[str],
        raw: Sequence[Scores] = (),
    ) -> None:
        """Copies the columns. `scores` and `total` are empty if nothing was scored. `raw`: the raw scores of each column, if kept."""
        self.at_s = at_s
        self.mark = mark
        self.generation = mark[0]
        """Generation of the domain's rows. A row still has the same node if it has stayed in the domain since."""
        self.domain_size = domain_size
        self.refusal = refusal
        self.narrowed_by = narrowed_by
        self.skipped = skipped
        self.rows = rows
        self.feasible = feasible.copy()
        self.filters = tuple(FilterCopy(c.plugin, c.copy_of_codes()) for c in filters)
        self.total = total.copy()
        self.scores = tuple(
            ScoreCopy(c.plugin.name, c.weight, c.copy_of_final(), c.depends_on.reads_pods, raw[at] if raw else None)
            for at, c in enumerate(scores)
        )
        self._names = tuple((column.plugin, column.weight, column.is_moving) for column in self.scores)
        columns = len(self.filters) + len(self.scores) + 1
        self.nbytes = SNAPSHOT_BYTES_MIN + columns * len(self.rows) + self.total.nbytes + sum(one.nbytes for one in raw)
        self.is_kept = True
        self.of = ("", 0)
        """uid and attempt of the placed pod for which it was taken."""

    def scores_at(self, at: int, moving: bytes, total: int) -> tuple[Score, ...]:
        """Returns the scores of a row that was chosen with this snapshot and had this `total`.

        `moving`: the final scores, at that time, of all but the last plugin that reads pods. The last one gets the remainder of
        the total. Other scores are taken from the snapshot. After `drop`, scores outside `moving` are shown as
        one sum.
        """
        if not self.is_kept:
            names = [(name, weight) for name, weight, is_moving in self._names if is_moving]
            known = [Score(name, weight, final) for (name, weight), final in zip(names, moving, strict=False)]
            rest = total - sum(score.weight * score.final for score in known)
            return (*known, Score(OTHERS, 1, rest)) if rest else tuple(known)
        finals, last, rest = iter(moving), -1, total
        scores: list[Score] = []
        for column in self.scores:
            final = next(finals, None) if column.is_moving else int(column.final[at])
            if final is None:
                last, final = len(scores), 0
            rest -= column.weight * final
            scores.append(Score(column.plugin, column.weight, final))
        if last >= 0:
            scores[last] = scores[last]._replace(final=rest // scores[last].weight)
        return tuple(scores)

    def add_answers(self, total: Totals, scores: Sequence[ScoreCopy]) -> None:
        """Adds the results of plugins with remote requests, once they were answered."""
        self.total = total
        self.scores = (*self.scores, *scores)
        self._names = tuple((column.plugin, column.weight, column.is_moving) for column in self.scores)
        self.nbytes += sum(len(c.final) for c in scores)

    def shows(self, mark: Mark, refusal: Status | None, filters: Sequence[FilterColumn]) -> bool:
        """Reports whether a snapshot taken now would show the same refusals."""
        return (
            self.is_kept
            and self.mark == mark
            and self.refusal == refusal
            and len(self.filters) == len(filters)
            and all(
                a.plugin is b.plugin and a.codes.tobytes() == b.codes.tobytes()
                for a, b in zip(self.filters, filters, strict=True)
            )
        )

    def drop(self) -> None:
        """Frees the arrays."""
        self.is_kept = False
        self.rows = self.rows[:0].copy()
        self.feasible = self.feasible[:0].copy()
        self.total = self.total[:0].copy()
        self.filters = ()
        self.scores = ()


class ClassSnapshots:
    """The snapshots that attempts of one class share until it is rebuilt. Owned by `AttemptRecords`; ends with the class."""

    __slots__ = ("fixed_changes", "left", "placed", "refused")

    def __init__(self) -> None:
        self.placed: ScoreSnapshot | None = None
        """The snapshot for the pods placed since it was taken."""
        self.left = 0
        """Number of pods to be placed until the next snapshot."""
        self.fixed_changes = 0
        """`EquivalenceClass.fixed_changes` when the snapshot was taken. Once it differs, the snapshot's fixed scores are outdated."""
        self.refused: ScoreSnapshot | None = None
        """The snapshot for refused pods."""
