"""Runs: pods of one class that follow one another in the queue and are decided in one go.

Deciding such pods one by one asks every plugin about the one row that took the pod before. A run picks rows for several
of them, has them assumed, asks every plugin once about all those rows, and keeps what one-by-one would have decided too.
That can be told afterwards: each pod takes one of the best rows; as long as every row that took one is then no better than
foreseen, and no other row's total has moved, the pods behind it had just the choice that was supposed. The arithmetic of
that is here; `SchedulingCycle.attempt_run` does it.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from multisched.framework.node_view import Int32, Rows
from multisched.framework.plugin import Dependency

if TYPE_CHECKING:
    from multisched.cycle.pod_class import PodClass

RUN_MAX = 64
"""Pods of one run: at some 40 us each the loop waits no longer than for a slice of single decisions."""

RUN_FIRST = 4
SINGLES_MAX = 256
"""Pods of a class decided one by one after runs of it failed at once, before another is tried."""

ROWWISE = frozenset({
    Dependency.NODE, Dependency.NODES, Dependency.ROW, Dependency.STAMP, Dependency.ROW_AND_STAMP
})  # fmt: skip
"""What a plugin may depend on if a pod on one row is to leave its answers about the others alone, unless a stamp moves."""


class Pace(msgspec.Struct):
    """How many pods of one class to decide together next: doubled while runs hold, cut where they break."""

    length: int = RUN_FIRST
    keeps: bool = False
    """A row that took a pod is as good as before, as the last run found; else it falls behind."""
    singles: int = 0
    """Pods to be decided one by one before the next try."""
    moving: frozenset[str] = frozenset()
    """Plugins whose stamps moved when pods of the class came: how far a run may go is for them to say."""
    _rest: int = 1
    _was_one: bool = False

    def next_length(self) -> int:
        """1: decide the next pod alone."""
        if self.singles:
            self.singles -= 1
            return 1
        return self.length

    def rest(self) -> None:
        """Pods of the class hang on one another: they are decided one by one for a while."""
        self.length = RUN_FIRST
        self.singles = self._rest = min(SINGLES_MAX, 2 * self._rest)

    def ran(self, tried: int, kept: int) -> None:
        """Of `tried` pods the first `kept` could be decided together.

        A run that was not let go beyond its first pod is no failure, unless the one before was none either: it is so with the
        last of several zones that take a pod in turn.
        """
        was_one, self._was_one = self._was_one, tried == 1
        if kept == tried and not (was_one and tried == 1):
            self.length, self._rest = min(RUN_MAX, max(RUN_FIRST, 2 * self.length)), 1
        elif kept > 1:
            self.length = kept
        else:
            self.rest()


def is_rowwise(entry: PodClass) -> bool:
    """True if a pod that comes to one row changes what plugins say of that row alone, but for what is feasible, and but for
    what a plugin can foresee."""
    scores = [column for column in entry.scores if not column.is_skipped]
    return (
        all(column.depends_on in ROWWISE for column in entry.filters)
        and all(column.depends_on in ROWWISE for column in scores)
        and all(column.is_plain or column.foresees or not column.depends_on.reads_pods for column in scores)
    )


def normalizes_by_feasible(entry: PodClass) -> bool:
    """True if some score hangs on which rows are feasible, by a rule of its own."""
    return any(
        column.custom is not None or getattr(column.plugin, "reads_feasible", False)
        for column in entry.scores
        if not column.is_skipped
    )


def draw(ties: Rows, turns: Iterable[int], *, keeps: bool) -> list[int]:
    """One of the best rows for each pod, as its turn says, until none is left.

    `keeps`: all of them stay among the best; then it ends before a row would be drawn again, since nobody knows
    beforehand whether it takes two. Otherwise a row that was drawn is out.
    """
    drawn: list[int] = []
    chosen = []
    for turn in turns:
        left = len(ties) if keeps else len(ties) - len(drawn)
        if not left:
            break
        index = turn % left
        if keeps:
            if index in drawn:
                break
        else:
            for one in drawn:
                if one > index:
                    break
                index += 1
        insort(drawn, index)
        chosen.append(int(ties[index]))
    return chosen


def draw_apart(ties: Rows, domains: Int32, turns: Iterable[int]) -> list[int]:
    """As `draw`, but a row that was drawn is out with all that share its domain (int32[ties])."""
    chosen, is_left = [], np.ones(len(ties), np.bool_)
    for turn in turns:
        left = is_left.nonzero()[0]
        if not len(left):
            break
        at = left.item(turn % len(left))
        chosen.append(ties.item(at))
        is_left &= domains != domains.item(at)
    return chosen


def count_right(before: Int32, after: Int32, chosen: Sequence[int], *, keeps: bool, by_feasible: bool) -> int:
    """How many of the chosen rows, from the first, one-by-one would have chosen as well; at least 1.

    `before`, `after`: the totals of all rows before and after the pods came to the chosen ones. `by_feasible`: some score
    is normalised over the feasible rows by a rule of its own, so that a row which fell out ends the run.
    """
    moved = set(np.flatnonzero(before != after).tolist())
    if not moved <= set(chosen):
        return 1
    return count_as_foreseen(before.item(chosen[0]), after.take(chosen).tolist(), keeps=keeps, by_feasible=by_feasible)


def count_as_foreseen(best: int, totals: Sequence[int], *, keeps: bool, by_feasible: bool) -> int:
    """The same, where no other row moved: `totals` are those of the chosen rows now, `best` what they were."""
    for count, total in enumerate(totals, 1):
        if total > best or (total == best) is not keeps or (by_feasible and total < 0):
            return count
    return len(totals)
