"""The repair plan: the fewest moves, in order, that bring nodes with too high predicted peaks below their thresholds.

`plan_repair` is a pure function of a case (`repair/case.py`); the command shows its plan, the controller carries it out
(`repair/run.py`). Guarantees: no node that was below its threshold exceeds it, neither at the end nor between two steps.
A node above its threshold receives a pod only in an exchange, within `RepairLimits.swell`, and ends lower than before.
Each pod moves at most once. Rules and budgets hold. A node is either brought below its thresholds or left unchanged. The
steps must be carried out in order: each begins when the replacement of the previous one is ready.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

import msgspec
import numpy as np

from domains.forecast.repair.case import Fits, RepairCase
from domains.forecast.repair.moves import Move, WorkingPlacement
from domains.forecast.repair.search import HOT_MAX, SET_MAX, NodeRepair, Search
from domains.forecast.settings.repair_limits import RepairLimits
from multisched.model.plural import counted, verb

REASONS_SHOWN_MAX: Final = 4
WHY_WORK_MAX: Final = 150_000_000
"""Limit of cells evaluated to find out why nodes stay hot; the worst nodes first."""
NOT_FOUND: Final = "no set of moves was found that keeps every other node below its threshold and within the budgets"


class Peak(msgspec.Struct, frozen=True):
    """The predicted peak of a node, in the dimension with the largest excess over (or smallest distance to) its threshold."""

    share: float
    dimension: str
    slot: int


class Disruption(msgspec.Struct, frozen=True):
    """The disruption caused by a step."""

    service: int
    down_at_once: int
    """Replicas of the service that are down between eviction and readiness: always 1."""
    replicas: int
    """Number of replicas of the service in the snapshot."""
    cold_start: int
    """`Pods.cold_start`."""
    budgets: tuple[str, ...] = ()
    """PodDisruptionBudgets of which the step uses one disruption until its replacement is ready."""


class Step(msgspec.Struct, frozen=True):
    """One move."""

    pod: str
    source: str
    target: str
    repairs: str
    """The hot node this move is for: the pod's own, or in a chain the node whose pod needs room on this pod's node."""
    before: Peak
    """Peak of the node in `repairs` before this step; `after`: after it."""
    after: Peak
    source_peaks: tuple[float, ...]
    """Per dimension: predicted peaks of the source after the step, for the check (`should_stop`)."""
    target_peaks: tuple[float, ...]
    disruption: Disruption
    waits_for: tuple[int, ...] = ()
    """Indices of earlier steps that free something this step needs: room on its target, or a disruption of a
    PodDisruptionBudget. In addition, each step waits for the previous one."""
    move: Move = msgspec.field(default_factory=lambda: Move(-1, -1, -1))
    """The move by numbers of pod and nodes."""

    @property
    def gain(self) -> float:
        """Returns by how much the peak of the node in `repairs` falls; can be negative for the first move of an exchange."""
        return self.before.share - self.after.share


class Unrepaired(msgspec.Struct, frozen=True):
    """A node that stays above its threshold."""

    node: str
    peak: Peak
    why: str


class Plan(msgspec.Struct, frozen=True):
    """The steps, and the nodes that stay above their thresholds."""

    steps: tuple[Step, ...]
    unrepaired: tuple[Unrepaired, ...]
    repaired: tuple[str, ...]
    worst_before: Peak
    """Worst peak of all nodes before the plan."""
    worst_after: Peak
    least_moves: int
    """Lower bound of the moves needed for the nodes in `repaired`; a plan with this many moves is optimal."""
    fits_checked: int
    """Number of pods for which `Fits` was called."""


def plan_repair(case: RepairCase, limits: RepairLimits, fits: Fits) -> Plan:
    """Makes a plan. Raises ValueError if `limits.threshold` does not match the case's dimensions, or `fits` returns a wrong
    shape."""
    placement = WorkingPlacement(case, limits, fits)
    worst_before, search = _worst(placement), Search(placement)
    repairs = search.run()
    steps = _steps(placement, repairs)
    placement.work_end = placement.work + WHY_WORK_MAX
    repaired = [one.node for one in repairs]
    left = [node for node in search.hot if node not in set(repaired)]
    return Plan(
        steps=steps,
        unrepaired=tuple(
            Unrepaired(case.nodes.names[node], _peak(placement, node), _why(placement, search, node)) for node in left
        ),
        repaired=tuple(case.nodes.names[node] for node in repaired),
        worst_before=worst_before,
        worst_after=_worst(placement),
        least_moves=sum(search.least(node) for node in repaired),
        fits_checked=placement.fits_checked,
    )


def _steps(placement: WorkingPlacement, repairs: tuple[NodeRepair, ...]) -> tuple[Step, ...]:
    """Makes the moves on the working placement permanently, and returns a step for each."""
    case, steps = placement.case, list[Step]()
    replicas = Counter(case.pods.service.tolist())
    budgets = _budgets(case)
    for repair in repairs:
        for move in repair.moves:
            waits_for = _waits_for(placement, move, budgets)
            before = _peak(placement, repair.node)
            placement.make(move)
            service = int(case.pods.service[move.pod])
            cold_start = int(case.pods.cold_start[move.pod])
            names = tuple(case.disruptions[number].name for number in budgets.get(move.pod, ()))
            steps.append(
                Step(
                    pod=case.pods.names[move.pod],
                    source=case.nodes.names[move.source],
                    target=case.nodes.names[move.target],
                    repairs=case.nodes.names[repair.node],
                    before=before,
                    after=_peak(placement, repair.node),
                    source_peaks=tuple(placement.peaks[move.source].tolist()),
                    target_peaks=tuple(placement.peaks[move.target].tolist()),
                    disruption=Disruption(service, 1, replicas[service], cold_start, names),
                    waits_for=waits_for,
                    move=move,
                )
            )
    return tuple(steps)


def _budgets(case: RepairCase) -> dict[int, tuple[int, ...]]:
    found: dict[int, tuple[int, ...]] = {}
    for number, disruptions in enumerate(case.disruptions):
        for pod in disruptions.pods:
            found[pod] = (*found.get(pod, ()), number)
    return found


def _waits_for(placement: WorkingPlacement, move: Move, budgets: dict[int, tuple[int, ...]]) -> tuple[int, ...]:
    """Returns the earlier steps that must be done first: those that leave the target, and those that use a disruption of a
    budget that this step needs."""
    earlier = {index for index, one in enumerate(placement.moves) if one.source == move.target}
    for number in budgets.get(move.pod, ()):
        taking = [index for index, one in enumerate(placement.moves) if number in budgets.get(one.pod, ())]
        allowed = placement.case.disruptions[number].allowed
        if len(taking) >= allowed:
            earlier.update(taking[: len(taking) - allowed + 1])
    return tuple(sorted(earlier))


def _peak(placement: WorkingPlacement, node: int) -> Peak:
    over = placement.peaks[node] - placement.threshold
    dimension = int(over.argmax())
    slot = int(placement.loads[node, dimension].argmax())
    return Peak(float(placement.peaks[node, dimension]), placement.case.dimensions[dimension], slot)


def _worst(placement: WorkingPlacement) -> Peak:
    return _peak(placement, int((placement.peaks - placement.threshold).max(axis=1).argmax()))


def _why(placement: WorkingPlacement, search: Search, node: int) -> str:
    """Returns why a node stays hot after the plan: the first of the checked causes that applies."""
    limits, placed, movable = placement.limits, placement.pods_on(node), placement.movable_on(node)
    if len(placement.moves) >= limits.moves_per_window:
        return f"the budget of {counted(limits.moves_per_window, 'move')} per window is used up (moves_per_window)"
    moves_left = limits.moves_per_window - len(placement.moves)
    if moves_left < search.least(node) <= SET_MAX:
        return (
            f"it takes {counted(search.least(node), 'move')} or more, and {moves_left} {verb(moves_left, 'is', 'are')} left"
            " in the window (moves_per_window)"
        )
    if limits.moves_per_node < search.least(node) <= SET_MAX:
        allowed = f"{limits.moves_per_node} {verb(limits.moves_per_node, 'is', 'are')} allowed (moves_per_node)"
        return f"it takes {counted(search.least(node), 'move')} or more, and {allowed}"
    if not len(placed):
        return "no known pod is on it"
    kept = _kept(placement, node)
    if not len(movable):
        whose = "its only pod may not move" if len(placed) == 1 else f"none of its {len(placed)} pods may move"
        return f"{whose}: {kept}"
    if search.least(node) > SET_MAX:
        return _not_enough(placement, node, len(movable), kept)
    if len(search.hot) > HOT_MAX:
        return f"one plan handles at most {HOT_MAX} nodes above their threshold; there are {len(search.hot)}"
    if placement.is_spent():
        return NOT_FOUND
    homeless = [pod for pod in movable.tolist() if not placement.targets(pod)]
    if homeless and placement.fits_checked >= limits.fits_max:
        return f"the limit of {limits.fits_max} pods whose feasible nodes are computed was reached (fits_max)"
    if homeless:
        fitting = sum(bool(placement.fits(pod).any()) for pod in homeless)
        return f"{_homeless(len(movable), len(homeless), fitting)}{f'; {kept}' if kept else ''}"
    return NOT_FOUND


def _homeless(movable: int, homeless: int, fitting: int) -> str:
    """Describes how many movable pods have no feasible target, and why. `fitting` of them fit another node by the filters."""
    strict = homeless - fitting
    by_rules = f"{verb(strict, 'fits', 'fit')} no other node by {verb(strict, 'its', 'their')} rules"
    by_room = "would push each over its threshold, or find no room"
    if movable == 1:
        return f"the only pod that may move finds no node: it {by_rules if strict else by_room}"
    text = f"of its {movable} pods that may move, {homeless} {verb(homeless, 'finds', 'find')} no node"
    reasons = ((strict, by_rules), (fitting, by_room))
    return f"{text}: {', '.join(f'{count} {why}' for count, why in reasons if count)}"


def _not_enough(placement: WorkingPlacement, node: int, movable: int, kept: str) -> str:
    left = placement.loads[node].copy()
    for pod in placement.movable_on(node).tolist():
        left = np.maximum(left - placement.share(pod, node), 0.0)
    over = left.max(axis=1) - placement.threshold
    if over.max() <= 0:
        return f"more than {SET_MAX} of its pods would have to leave"
    dimension = int(over.argmax())
    peak, name = left[dimension].max(), placement.case.dimensions[dimension]
    leaving = "pod" if movable == 1 else f"{movable} pods"
    return f"without the {leaving} that may move, {name} would still reach {peak:.0%}" + (f"; {kept}" if kept else "")


def _kept(placement: WorkingPlacement, node: int) -> str:
    """Returns why pods of the node may not move, the most frequent reasons first: `it has local storage (3 pods)`."""
    codes = placement.reason_codes[placement.pods_on(node)]
    counts = Counter(placement.reasons[code] for code in codes[codes > 0].tolist())
    shown = [f"{reason} ({counted(number, 'pod')})" for reason, number in counts.most_common(REASONS_SHOWN_MAX)]
    if len(counts) > REASONS_SHOWN_MAX:
        shown.append(
            f"{len(counts) - REASONS_SHOWN_MAX} more {verb(len(counts) - REASONS_SHOWN_MAX, 'reason', 'reasons')}"
        )
    if not shown and not len(placement.movable_on(node)):
        return "the budgets of their services or of the node are used up (moves_per_service, moves_per_node)"
    return ", ".join(shown)
