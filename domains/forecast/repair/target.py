"""Search for the lowest thresholds that the allowed moves can reach (`thresholdPercent: auto`).

`plan_lowest` makes plans (`repair/plan.py`) for lower and lower thresholds: a common factor times the present worst peak
of each dimension. It keeps the lowest factor at which all nodes get below their thresholds within the budgets. Then the
dimension that prevents a lower factor keeps its threshold, and the others are lowered further, until all are fixed.

Guarantees in addition to those of `plan_repair`: no node ends above a threshold; thresholds are not above the present
worst peak and not below the configured goal; if nothing is gained, the plan is empty; `RepairLimits.keep_apart` holds,
because gains from concentrating replicas of a service would not be real. Pure. Takes up to PLANS_MAX times as long as
one plan, so it must not run on the event loop.
"""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np

from domains.forecast.repair.case import Fits, Floats, Mask, RepairCase
from domains.forecast.repair.plan import Plan, plan_repair
from domains.forecast.settings.repair_limits import RepairLimits

PLANS_MAX: Final = 24
"""Limit of plans, including the first one for the present peaks."""
STEP: Final = 0.01
"""Resolution of the search, as a share of the present worst peak."""
FIRST_FACTOR: Final = 0.9
"""First factor tried."""
WORK_MAX: Final = 8_000_000
"""`RepairLimits.work_max` of each plan; more work rarely makes a plan succeed."""


class LowestPlan(msgspec.Struct, frozen=True):
    """The lowest thresholds found, and their plan."""

    threshold: tuple[float, ...]
    """Per dimension: limit of all predicted peaks after the plan, as a share of capacity."""
    plan: Plan


def plan_lowest(case: RepairCase, limits: RepairLimits, fits: Fits) -> LowestPlan:
    """Searches the lowest thresholds, not below the goal `limits.threshold`. Raises ValueError as `plan_repair`."""
    return _Descent(case, limits, fits).lowest()


class _Descent:
    """One search; owns the lowest thresholds reached so far and their plan."""

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
        """Lowers all dimensions together, then repeatedly without the dimension that prevented more."""
        lowering = self._goal < self._worst * (1 - STEP)
        while lowering.any() and self._made < PLANS_MAX:
            hinders = self._lower(lowering)
            if hinders is None:
                break
            lowering[hinders] = False
        return LowestPlan(tuple(self._reached.tolist()), self._best)

    def _lower(self, lowering: Mask) -> int | None:
        """Lowers these dimensions by a common factor as far as possible; returns the dimension that prevents more, or None."""
        worst = np.where(self._worst > 0, self._worst, 1.0)
        high = float((self._reached / worst)[lowering].max())
        low, hinders = float((self._goal / worst)[lowering].min()), None
        factor = max(low, min(high * FIRST_FACTOR, FIRST_FACTOR))
        while high - factor >= STEP / 2 and self._made < PLANS_MAX:
            threshold = np.where(lowering, np.maximum(self._goal, worst * factor), self._reached)
            threshold = np.minimum(threshold, self._reached)
            plan = self._plan(threshold)
            if plan.unrepaired:
                low, hinders = factor, self._hindering(plan, lowering)
            else:
                high, self._reached, self._best = factor, threshold, plan
            factor = (low + high) / 2 if hinders is not None else max(low, factor - 2 * (1 - factor) - STEP)
        return hinders

    def _hindering(self, plan: Plan, lowering: Mask) -> int:
        """Returns the dimension, of those being lowered, in which most of the remaining hot nodes exceed their threshold."""
        counts = np.zeros(len(lowering))
        for left in plan.unrepaired:
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
    """Returns float64[dimensions]: the peak if load were spread evenly over all nodes; a lower bound of the worst peak."""
    capacity = np.nan_to_num(case.nodes.capacity, nan=0.0)
    whole = capacity.sum(axis=0)
    used = (loads * capacity[:, :, None]).sum(axis=0).max(axis=1)
    even: Floats = np.divide(used, whole, out=np.zeros_like(whole), where=whole > 0)
    return even


def _remembered(fits: Fits) -> Fits:
    """Returns `fits` with a cache, shared by all plans."""
    known: dict[int, Mask] = {}

    def answer(pod: int) -> Mask:
        found = known.get(pod)
        if found is None:
            found = known[pod] = fits(pod)
        return found

    return answer
