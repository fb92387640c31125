"""How low the peaks can be brought: thresholds that a repair finds by itself, as low as the moves it may make reach.

`plan_lowest` makes plans (`repair/plan.py`) for ever lower thresholds: one common factor of the present worst peaks of
all dimensions. It keeps the lowest at which every node is mended within the budgets. The dimension that hinders more
then stays where it is, and the others are tried on; so each dimension is stuck once.

It adds to the promises of `plan_repair`. No node ends past the threshold of any dimension. A threshold is never above
today's worst peak nor below what is asked for. There are never more moves than the budgets allow, and no plan at all
where nothing is gained. No replica joins more of its service than it leaves (`RepairLimits.keep_apart`): what a
forecast gains by that, reality takes back. Pure, and some PLANS_MAX times as slow as one plan: never on the loop.
"""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np

from domains.forecast.repair.case import Fits, Floats, Mask, RepairCase
from domains.forecast.repair.plan import Plan, plan_repair
from domains.forecast.settings.repair_limits import RepairLimits

PLANS_MAX: Final = 24
"""Plans that are made in all, the first of them for the peaks as they are."""
STEP: Final = 0.01
"""Of the present worst peak: by how much less a threshold is not worth another plan."""
FIRST_FACTOR: Final = 0.9
"""Of the present worst peaks: what is tried first."""
WORK_MAX: Final = 8_000_000
"""`RepairLimits.work_max` of each plan that is tried: whether all nodes can be mended is seen early, or hardly at all."""


class LowestPlan(msgspec.Struct, frozen=True):
    """What was found."""

    threshold: tuple[float, ...]
    """Per dimension: a share of capacity that no node passes once the plan is done."""
    plan: Plan


def plan_lowest(case: RepairCase, limits: RepairLimits, fits: Fits) -> LowestPlan:
    """`limits.threshold` is the goal: below it nothing is gained. Raises ValueError as `plan_repair`."""
    return _Descent(case, limits, fits).lowest()


class _Descent:
    """One search. Owns what is the lowest so far."""

    def __init__(self, case: RepairCase, limits: RepairLimits, fits: Fits) -> None:
        self._case, self._limits, self._fits = case, limits, _remembered(fits)
        loads = np.nan_to_num(case.nodes.loads, nan=0.0)
        self._worst: Floats = loads.max(axis=(0, 2))
        goal = np.maximum(limits.thresholds(case.dimensions), _even(case, loads))
        self._goal: Floats = np.minimum(goal, self._worst)
        self._reached: Floats = np.maximum(self._worst, limits.thresholds(case.dimensions))
        self._made = 0
        self._best = self._plan(self._reached)

    def lowest(self) -> LowestPlan:
        """Lowers what can be lowered together, then what can without the dimension that hindered it."""
        lowering = self._goal < self._worst * (1 - STEP)
        while lowering.any() and self._made < PLANS_MAX:
            hinders = self._lower(lowering)
            if hinders is None:
                break
            lowering[hinders] = False
        return LowestPlan(tuple(self._reached.tolist()), self._best)

    def _lower(self, lowering: Mask) -> int | None:
        """Brings these dimensions as low as a common factor goes; the one that hinders more, None if there is none."""
        worst = np.where(self._worst > 0, self._worst, 1.0)
        high = float((self._reached / worst)[lowering].max())
        low, hinders = float((self._goal / worst)[lowering].min()), None
        factor = max(low, min(high * FIRST_FACTOR, FIRST_FACTOR))
        while high - factor >= STEP / 2 and self._made < PLANS_MAX:
            threshold = np.where(lowering, np.maximum(self._goal, worst * factor), self._reached)
            threshold = np.minimum(threshold, self._reached)
            plan = self._plan(threshold)
            if plan.unmended:
                low, hinders = factor, self._hindering(plan, lowering)
            else:
                high, self._reached, self._best = factor, threshold, plan
            factor = (low + high) / 2 if hinders is not None else max(low, factor - 2 * (1 - factor) - STEP)
        return hinders

    def _hindering(self, plan: Plan, lowering: Mask) -> int:
        """The dimension in which most of the nodes that stay are past their threshold, of those that are being lowered."""
        counts = np.zeros(len(lowering))
        for left in plan.unmended:
            counts[self._case.dimensions.index(left.peak.dimension)] += 1
        return int(np.where(lowering, counts, -1.0).argmax())

    def _plan(self, threshold: Floats) -> Plan:
        self._made += 1
        tried = msgspec.structs.replace(
            self._limits,
            threshold=tuple(np.maximum(threshold, 1e-9).tolist()),
            work_max=min(self._limits.work_max, WORK_MAX),
            keep_apart=True,
        )
        return plan_repair(self._case, tried, self._fits)


def _even(case: RepairCase, loads: Floats) -> Floats:
    """float64[dimensions]: the peak if all nodes were equally full all week; no moves bring the worst peak below it."""
    capacity = np.nan_to_num(case.nodes.capacity, nan=0.0)
    whole = capacity.sum(axis=0)
    used = (loads * capacity[:, :, None]).sum(axis=0).max(axis=1)
    even: Floats = np.divide(used, whole, out=np.zeros_like(whole), where=whole > 0)
    return even


def _remembered(fits: Fits) -> Fits:
    """Each pod is asked about once, however many plans are made."""
    known: dict[int, Mask] = {}

    def answer(pod: int) -> Mask:
        found = known.get(pod)
        if found is None:
            found = known[pod] = fits(pod)
        return found

    return answer
