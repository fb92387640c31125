"""ScoreSnapshot: a copy of a class's columns at one moment, for explanations. Its memory is bounded by whoever keeps it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from multisched.cycle.classes.columns import FilterColumn, ScoreColumn, Totals
from multisched.cycle.classes.shared_scores import Finals
from multisched.framework.node_view import Bools, Codes, Rows
from multisched.framework.points import FilterPlugin
from multisched.framework.status import Status

SNAPSHOT_BYTES_MIN = 2_048
"""What the smallest snapshot costs besides its arrays."""
OTHERS = "(all others)"
"""Stands for the score plugins of which nothing is kept any more."""

Mark = tuple[int, int, int]
"""Generation of the domain's rows, and how far nodes and rows had changed: moves whenever a row of the class may have."""


class Score(NamedTuple):
    """What one plugin gave the chosen row: `final` times `weight` counts."""

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
    """It reads the pods on a row: each placed pod's own score is kept beside the snapshot."""


class ScoreSnapshot:
    """The columns of a class at one moment. `drop` empties it when its memory is needed; references to it live on."""

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
    ) -> None:
        """Copies the columns. `scores`, `total`: empty where nothing was scored."""
        self.at_s = at_s
        self.mark = mark
        self.generation = mark[0]
        """Of the domain's rows: which node a row was is known as long as the row has stayed the domain's since."""
        self.domain_size = domain_size
        self.refusal = refusal
        self.narrowed_by = narrowed_by
        self.skipped = skipped
        self.rows = rows
        self.feasible = feasible.copy()
        self.filters = tuple(FilterCopy(c.plugin, c.copy_of_codes()) for c in filters)
        self.total = total.copy()
        self.scores = tuple(
            ScoreCopy(c.plugin.name, c.weight, c.copy_of_final(), c.depends_on.reads_pods) for c in scores
        )
        self._names = tuple((column.plugin, column.weight, column.is_moving) for column in self.scores)
        columns = len(self.filters) + len(self.scores) + 1
        self.nbytes = SNAPSHOT_BYTES_MIN + columns * len(self.rows) + self.total.nbytes
        self.is_kept = True
        self.of = ("", 0)
        """uid and attempt of the placed pod that it was taken for."""

    def scores_at(self, at: int, moving: bytes, total: int) -> tuple[Score, ...]:
        """The scores of a row that was chosen under this snapshot, where it had `total`.

        `moving`: scores by plugins that read pods, as they were then, all but the last. The other scores are as they
        are here; the last plugin has what is left of the total. Once the snapshot is dropped, scores outside `moving`
        are shown as one sum.
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
        """What plugins that asked outside made of it, once they were answered."""
        self.total = total
        self.scores = (*self.scores, *scores)
        self._names = tuple((column.plugin, column.weight, column.is_moving) for column in self.scores)
        self.nbytes += sum(len(c.final) for c in scores)

    def shows(self, mark: Mark, refusal: Status | None, filters: Sequence[FilterColumn]) -> bool:
        """True if a snapshot taken now would show the same refusals."""
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
        """Gives the arrays back."""
        self.is_kept = False
        self.rows = self.rows[:0].copy()
        self.feasible = self.feasible[:0].copy()
        self.total = self.total[:0].copy()
        self.filters = ()
        self.scores = ()
