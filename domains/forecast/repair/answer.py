"""Conversion of the planner's result to a `RepairPlan` (`framework/repair.py`), with the effect of each move on both nodes.

The entry point is `answer`: it takes the snapshot, makes the plan and converts it. Nothing is written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

import msgspec
import numpy as np

from domains.forecast.ledger.peak_ledger import PeakLedger
from domains.forecast.repair.case import Floats, RepairCase
from domains.forecast.repair.moves import reasons_not_to_move
from domains.forecast.repair.plan import Peak, Plan, Step, plan_repair
from domains.forecast.repair.snapshot import Snapshot, take_snapshot
from domains.forecast.repair.target import plan_lowest
from domains.forecast.settings.repair import Movable, RepairSettings, limits_of, unknown_dimensions
from domains.forecast.settings.repair_limits import RepairLimits
from multisched.forecasting.profiles import Profiles
from multisched.framework.node_view import Bools
from multisched.framework.repair import (
    RepairBudget,
    RepairInput,
    RepairMove,
    RepairPeak,
    RepairPlan,
    RepairRequest,
    UnrepairedNode,
)


def answer(cluster: RepairInput, request: RepairRequest, ledger: PeakLedger, settings: RepairSettings) -> RepairPlan:
    """Makes the plan for this copy of the cluster. Raises RepairRefusedError."""
    dimensions = ledger.predictor.dimensions
    limits = limits_of(settings, request, dimensions)
    snapshot = take_snapshot(cluster, ledger, cluster.scheduler_names if settings.movable is Movable.OWN else None)
    quantized = ledger.predictor.quantized
    assert quantized is not None, "a snapshot is taken of profiles"

    def fits(number: int) -> Bools:
        return cluster.fits(snapshot.pods[number])

    case = snapshot.case
    if settings.is_lowest and not request.threshold_percent:
        lowest = plan_lowest(case, limits, fits)
        limits, plan = msgspec.structs.replace(limits, threshold=lowest.threshold), lowest.plan
    else:
        plan = plan_repair(case, limits, fits)
    report = _PlanReport(snapshot, limits, quantized.profiles)
    codes, reasons = reasons_not_to_move(case, limits)
    kept = Counter(reasons[code] for code in codes[codes > 0].tolist())
    unknown = [
        f"repair.thresholdPercent.{name}: not a dimension of the forecast"
        for name in unknown_dimensions(settings, dimensions)
    ]
    return RepairPlan(
        domain=cluster.domain,
        profiles_version=quantized.profiles.version,
        threshold_percent=dict(zip(dimensions, (100 * report.threshold).tolist(), strict=True)),
        moves=report.moves(plan),
        repaired=plan.repaired,
        unrepaired=tuple(UnrepairedNode(one.node, report.peak(one.peak), one.why) for one in plan.unrepaired),
        least_moves=plan.least_moves,
        worst_before=report.peak(plan.worst_before),
        worst_after=report.peak(plan.worst_after),
        nodes=len(case.nodes.names),
        pods=len(case.pods.names),
        movable=len(codes) - kept.total(),
        kept=dict(kept.most_common()),
        notes=(*cluster.notes, *unknown, *snapshot.notes, *_foreign(cluster, snapshot, plan)),
    )


def _foreign(cluster: RepairInput, snapshot: Snapshot, plan: Plan) -> Iterator[str]:
    """Yields notes about moves of pods that other schedulers place."""
    names = [snapshot.pods[step.move.pod].spec.scheduler_name for step in plan.steps]
    foreign = Counter(name for name in names if name not in cluster.scheduler_names)
    for name, moves in sorted(foreign.items()):
        yield f"{moves} of the moves are of pods scheduled by {name}, which chooses the nodes of their replacements"


class _PlanReport:
    """Replays the moves in order on copies of the node loads, to report the loads before and after each."""

    def __init__(self, snapshot: Snapshot, limits: RepairLimits, profiles: Profiles) -> None:
        self._snapshot = snapshot
        self._profiles = profiles
        self.threshold = limits.thresholds(snapshot.case.dimensions)
        self._loads: dict[int, Floats] = {}
        """Node -> its current loads, for nodes changed by a move."""

    def peak(self, peak: Peak) -> RepairPeak:
        return RepairPeak(peak.dimension, self._profiles.slot_name(peak.slot), 100 * peak.share)

    def moves(self, plan: Plan) -> tuple[RepairMove, ...]:
        taken = Counter[str]()
        allowed = {budget.name: budget.allowed for budget in self._snapshot.case.disruptions}
        found = []
        for step in plan.steps:
            taken.update(step.disruption.budgets)
            budgets = (RepairBudget(b, max(0, allowed[b] - taken[b])) for b in step.disruption.budgets)
            found.append(self._move(step, tuple(budgets)))
        return tuple(found)

    def _move(self, step: Step, budgets: tuple[RepairBudget, ...]) -> RepairMove:
        move, case = step.move, self._snapshot.case
        before = self._fullest(move.source), self._fullest(move.target)
        self._add(move.pod, move.source, -1)
        self._add(move.pod, move.target, 1)
        return RepairMove(
            pod=step.pod,
            uid=self._snapshot.pods[move.pod].uid,
            service=self._snapshot.services[step.disruption.service],
            from_node=step.source,
            to_node=step.target,
            repairs=step.repairs,
            gain_percent=100 * step.gain,
            from_before=before[0],
            from_after=self._fullest(move.source),
            to_before=before[1],
            to_after=self._fullest(move.target),
            from_peaks_percent=_by_dimension(case, move.source, step.source_peaks),
            to_peaks_percent=_by_dimension(case, move.target, step.target_peaks),
            replicas=step.disruption.replicas,
            budgets=budgets,
            waits_for=step.waits_for,
        )

    def _load(self, node: int) -> Floats:
        known = self._loads.get(node)
        if known is None:
            known = self._loads[node] = np.nan_to_num(self._snapshot.case.nodes.loads[node], nan=0.0)
        return known

    def _add(self, pod: int, node: int, sign: int) -> None:
        case = self._snapshot.case
        own = np.nan_to_num(case.curves[case.pods.curve[pod]] / case.nodes.capacity[node][:, None], nan=0.0)
        self._loads[node] = np.maximum(self._load(node) + sign * own, 0.0)

    def _fullest(self, node: int) -> RepairPeak:
        load = self._load(node)
        peaks = load.max(axis=1)
        dimension = int((peaks - self.threshold).argmax())
        slot = int(load[dimension].argmax())
        name = self._snapshot.case.dimensions[dimension]
        return self.peak(Peak(float(peaks[dimension]), name, slot))


def _by_dimension(case: RepairCase, node: int, shares: tuple[float, ...]) -> Mapping[str, float]:
    """Returns dimension -> percent, for the dimensions in which the node states a capacity."""
    stated = np.isfinite(case.nodes.capacity[node]).tolist()
    return {n: 100 * share for n, share, known in zip(case.dimensions, shares, stated, strict=True) if known}
