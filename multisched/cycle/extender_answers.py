"""Puts what HTTP extenders answered onto the rows of one attempt: whom they refuse, and what they add to the totals."""

from __future__ import annotations

from typing import Final

import numpy as np

from multisched.cycle.classes.columns import Totals
from multisched.cycle.classes.score_snapshot import ScoreCopy
from multisched.cycle.classes.scores import NOWHERE
from multisched.framework.extender import ExtenderPlugin
from multisched.framework.node_view import Bools, Rows
from multisched.framework.points import CycleView
from multisched.framework.runner import Runner
from multisched.framework.status import Status
from multisched.model.objects import Pod

TOTAL_MAX: Final = 2**31 - 1
FINAL_MAX: Final = 255
"""What a record keeps of one score."""


def refuse(
    runner: Runner, plugin: ExtenderPlugin, view: CycleView, pod: Pod, rows: Rows, feasible: Bools
) -> list[tuple[int, Status]]:
    """Takes the rows that the extenders refuse out of `feasible`; their positions, with the reasons."""
    at = np.flatnonzero(feasible)
    found = runner.call(plugin, "Filter", plugin.verdicts, view, pod, rows[at])
    refused = [(int(at[position]), status) for position, status in found.items()]
    feasible[[position for position, _ in refused]] = False
    return refused


def add_up(
    runner: Runner, plugin: ExtenderPlugin, view: CycleView, pod: Pod, rows: Rows, feasible: Bools, total: Totals
) -> Totals:
    """The totals with the extenders' scores, in the same order as the exact sums wherever those do not fit."""
    at = np.flatnonzero(feasible)
    if not len(at):
        return total
    sums = total[at] + runner.call(plugin, "Score", plugin.add_up, view, pod, rows[at])
    # An extender may take away; what is left of a feasible row must stay above the mark of those that are not.
    sums -= min(0, int(sums.min()))
    if int(sums.max()) > TOTAL_MAX:
        sums = np.unique(sums, return_inverse=True)[1].astype(np.int64)
    found = np.full(len(total), NOWHERE, np.int32)
    found[at] = sums
    return found


def recorded(name: str, before: Totals, after: Totals, feasible: Bools) -> list[ScoreCopy]:
    """The extenders' part in the totals as a score and its weight; nothing where no such pair gives it."""
    part = np.where(feasible, after.astype(np.int64) - before, 0)
    if not len(part) or int(part.min()) < 0:
        return []
    weight = int(np.gcd.reduce(part)) or 1
    final = part // weight
    return [ScoreCopy(name, weight, final.astype(np.uint8))] if int(final.max()) <= FINAL_MAX else []
