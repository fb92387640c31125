"""Applies the responses of HTTP extenders to the rows of one attempt: refusals, and additions to the totals."""

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
"""Limit of one score in an attempt record (uint8)."""


def refuse(
    runner: Runner, plugin: ExtenderPlugin, view: CycleView, pod: Pod, rows: Rows, feasible: Bools
) -> list[tuple[int, Status]]:
    """Clears in `feasible` the rows that the extenders refuse. Returns their positions and reasons."""
    at = np.flatnonzero(feasible)
    found = runner.call(plugin, "Filter", plugin.verdicts, view, pod, rows[at])
    refused = [(int(at[position]), status) for position, status in found.items()]
    feasible[[position for position, _ in refused]] = False
    return refused


def add_up(
    runner: Runner, plugin: ExtenderPlugin, view: CycleView, pod: Pod, rows: Rows, feasible: Bools, total: Totals
) -> Totals:
    """Returns the totals plus the extenders' scores. If the sums exceed TOTAL_MAX, returns ranks in the same order."""
    at = np.flatnonzero(feasible)
    if not len(at):
        return total
    sums = total[at] + runner.call(plugin, "Score", plugin.add_up, view, pod, rows[at])
    # An extender may subtract; the total of a feasible row must still stay above that of an infeasible one.
    sums -= min(0, int(sums.min()))
    if int(sums.max()) > TOTAL_MAX:
        sums = np.unique(sums, return_inverse=True)[1].astype(np.int64)
    found = np.full(len(total), NOWHERE, np.int32)
    found[at] = sums
    return found


def recorded(name: str, before: Totals, after: Totals, feasible: Bools) -> list[ScoreCopy]:
    """Returns the extenders' share of the totals as one score and its weight; empty if no such pair represents it."""
    part = np.where(feasible, after.astype(np.int64) - before, 0)
    if not len(part) or int(part.min()) < 0:
        return []
    weight = int(np.gcd.reduce(part)) or 1
    final = part // weight
    return [ScoreCopy(name, weight, final.astype(np.uint8))] if int(final.max()) <= FINAL_MAX else []
