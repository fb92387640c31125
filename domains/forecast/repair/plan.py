"""The repair plan: the smallest set of moves that mends the nodes whose predicted peak passes a threshold, in order.

`plan_repair` is a pure function of a snapshot (`repair/case.py`); the command shows its plan, the controller carries it
out (`repair/run.py`). No node that was below its threshold passes it, neither at the end nor between two steps. A node
past its threshold gets a pod only in an exchange, within `RepairLimits.swell`, and ends lower than it was. Each pod
moves once; no pod that may not move does. Budgets hold. A node is mended or left alone: no moves are spent on what
stays past its threshold. The steps have to be carried out in their order, one at a time: each begins when the
replacement of the one before is ready.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

import msgspec
import numpy as np

from domains.forecast.repair.case import Fits, RepairCase
from domains.forecast.repair.moves import Board, Move
from domains.forecast.repair.search import HOT_MAX, SET_MAX, Mending, Search
from domains.forecast.settings.repair_limits import RepairLimits
from multisched.model.plural import counted, verb

REASONS_SHOWN_MAX: Final = 4
WHY_WORK_MAX: Final = 150_000_000
"""Cells that may be looked at to tell why nodes are left; the worst nodes come first."""
NOT_FOUND: Final = "no set of moves was found that keeps every other node below its threshold and within the budgets"


class Peak(msgspec.Struct, frozen=True):
    """The highest predicted share of a node: of the dimension and slot where it comes nearest to, or passes, the threshold."""

    share: float
    dimension: str
    slot: int


class Disruption(msgspec.Struct, frozen=True):
    """What a step costs."""

    service: int
    down_at_once: int
    """Replicas of the service that are down between eviction and readiness: the one that moves."""
    replicas: int
    """That the service has, in this snapshot."""
    cold_start: int
    """`Pods.cold_start`."""
    budgets: tuple[str, ...] = ()
    """PodDisruptionBudgets of which the step takes one disruption, until its replacement is ready."""


class Step(msgspec.Struct, frozen=True):
    """One move."""

    pod: str
    source: str
    target: str
    mends: str
    """The hot node for whose sake the pod moves: its own, or, in a chain, the one whose pod needs the place."""
    before: Peak
    """Of the node in `mends`, before this step and after it."""
    after: Peak
    source_peaks: tuple[float, ...]
    """Per dimension: the predicted peaks of the pod's old node once the step is done, for the check (`should_stop`)."""
    target_peaks: tuple[float, ...]
    disruption: Disruption
    waits_for: tuple[int, ...] = ()
    """Steps, by their place in the plan, that have to be done because this one needs what they leave. That is room on
    its target, or a disruption that a PodDisruptionBudget allows no sooner. The step before it is always waited for."""
    move: Move = msgspec.field(default_factory=lambda: Move(-1, -1, -1))
    """The same by number."""

    @property
    def gain(self) -> float:
        """How far the peak of the node in `mends` falls; below zero for the first of two that change places."""
        return self.before.share - self.after.share


class Unmended(msgspec.Struct, frozen=True):
    """A node that stays past its threshold."""

    node: str
    peak: Peak
    why: str


class Plan(msgspec.Struct, frozen=True):
    """What would be done, and what cannot be."""

    steps: tuple[Step, ...]
    unmended: tuple[Unmended, ...]
    mended: tuple[str, ...]
    worst_before: Peak
    """Of all nodes."""
    worst_after: Peak
    least_moves: int
    """No plan that mends these nodes has fewer moves than this. A plan with as many is the best there is."""
    pods_asked: int
    """Pods whose feasibility was asked about."""


def plan_repair(case: RepairCase, limits: RepairLimits, fits: Fits) -> Plan:
    """ValueError where `limits.threshold` does not go with the case's dimensions, or `fits` answers in another shape."""
    board = Board(case, limits, fits)
    worst_before, search = _worst(board), Search(board)
    mendings = search.run()
    steps = _steps(board, mendings)
    board.work_end = board.work + WHY_WORK_MAX
    mended = [one.node for one in mendings]
    left = [node for node in search.hot if node not in set(mended)]
    return Plan(
        steps=steps,
        unmended=tuple(
            Unmended(case.nodes.names[node], _peak(board, node), _why(board, search, node)) for node in left
        ),
        mended=tuple(case.nodes.names[node] for node in mended),
        worst_before=worst_before,
        worst_after=_worst(board),
        least_moves=sum(search.least(node) for node in mended),
        pods_asked=board.fits_asked,
    )


def _steps(board: Board, mendings: tuple[Mending, ...]) -> tuple[Step, ...]:
    """Makes the moves on the board for good, and tells of each what it does."""
    case, steps = board.case, list[Step]()
    replicas = Counter(case.pods.service.tolist())
    budgets = _budgets(case)
    for mending in mendings:
        for move in mending.moves:
            waits_for = _waits_for(board, move, budgets)
            before = _peak(board, mending.node)
            board.make(move)
            service = int(case.pods.service[move.pod])
            cold_start = int(case.pods.cold_start[move.pod])
            names = tuple(case.disruptions[number].name for number in budgets.get(move.pod, ()))
            steps.append(
                Step(
                    pod=case.pods.names[move.pod],
                    source=case.nodes.names[move.source],
                    target=case.nodes.names[move.target],
                    mends=case.nodes.names[mending.node],
                    before=before,
                    after=_peak(board, mending.node),
                    source_peaks=tuple(board.peaks[move.source].tolist()),
                    target_peaks=tuple(board.peaks[move.target].tolist()),
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


def _waits_for(board: Board, move: Move, budgets: dict[int, tuple[int, ...]]) -> tuple[int, ...]:
    """Earlier steps, all on the board, that leave the target, and those that hold the last disruptions allowed."""
    earlier = {place for place, one in enumerate(board.moves) if one.source == move.target}
    for number in budgets.get(move.pod, ()):
        taking = [place for place, one in enumerate(board.moves) if number in budgets.get(one.pod, ())]
        allowed = board.case.disruptions[number].allowed
        if len(taking) >= allowed:
            earlier.update(taking[: len(taking) - allowed + 1])
    return tuple(sorted(earlier))


def _peak(board: Board, node: int) -> Peak:
    over = board.peaks[node] - board.threshold
    dimension = int(over.argmax())
    slot = int(board.loads[node, dimension].argmax())
    return Peak(float(board.peaks[node, dimension]), board.case.dimensions[dimension], slot)


def _worst(board: Board) -> Peak:
    return _peak(board, int((board.peaks - board.threshold).max(axis=1).argmax()))


def _why(board: Board, search: Search, node: int) -> str:
    """Why a node stays as it is, by the board as it is after the plan: the first of the causes that holds by itself."""
    limits, standing, movable = board.limits, board.pods_on(node), board.movable_on(node)
    if len(board.moves) >= limits.moves_per_window:
        return f"the budget of {counted(limits.moves_per_window, 'move')} per window is used up (moves_per_window)"
    moves_left = limits.moves_per_window - len(board.moves)
    if moves_left < search.least(node) <= SET_MAX:
        return (
            f"it takes {counted(search.least(node), 'move')} or more, and {moves_left} {verb(moves_left, 'is', 'are')} left"
            " in the window (moves_per_window)"
        )
    if limits.moves_per_node < search.least(node) <= SET_MAX:
        allowed = f"{limits.moves_per_node} {verb(limits.moves_per_node, 'is', 'are')} allowed (moves_per_node)"
        return f"it takes {counted(search.least(node), 'move')} or more, and {allowed}"
    if not len(standing):
        return "no pod known here stands on it"
    kept = _kept(board, node)
    if not len(movable):
        whose = "its only pod may not move" if len(standing) == 1 else f"none of its {len(standing)} pods may move"
        return f"{whose}: {kept}"
    if search.least(node) > SET_MAX:
        return _not_enough(board, node, len(movable), kept)
    if len(search.hot) > HOT_MAX:
        return f"one plan looks at {HOT_MAX} nodes past their threshold; {len(search.hot)} are"
    if board.is_spent():
        return NOT_FOUND
    homeless = [pod for pod in movable.tolist() if not board.targets(pod)]
    if homeless and board.fits_asked >= limits.fits_max:
        return f"no more pods could be asked where they fit after {limits.fits_max} (fits_max)"
    if homeless:
        fitting = sum(bool(board.fits(pod).any()) for pod in homeless)
        return f"{_homeless(len(movable), len(homeless), fitting)}{f'; {kept}' if kept else ''}"
    return NOT_FOUND


def _homeless(movable: int, homeless: int, fitting: int) -> str:
    """How many of the pods that may move find no node, and why; `fitting` of them would fit elsewhere by their rules."""
    strict = homeless - fitting
    by_rules = f"{verb(strict, 'fits', 'fit')} no other node by {verb(strict, 'its', 'their')} rules"
    by_room = "would push each over its threshold, or find no room"
    if movable == 1:
        return f"the only pod that may move finds no node: it {by_rules if strict else by_room}"
    text = f"of its {movable} pods that may move, {homeless} {verb(homeless, 'finds', 'find')} no node"
    reasons = ((strict, by_rules), (fitting, by_room))
    return f"{text}: {', '.join(f'{count} {why}' for count, why in reasons if count)}"


def _not_enough(board: Board, node: int, movable: int, kept: str) -> str:
    left = board.loads[node].copy()
    for pod in board.movable_on(node).tolist():
        left = np.maximum(left - board.share(pod, node), 0.0)
    over = left.max(axis=1) - board.threshold
    if over.max() <= 0:
        return f"more than {SET_MAX} of its pods would have to leave"
    dimension = int(over.argmax())
    peak, name = left[dimension].max(), board.case.dimensions[dimension]
    leaving = "pod" if movable == 1 else f"{movable} pods"
    return f"without the {leaving} that may move, {name} would still reach {peak:.0%}" + (f"; {kept}" if kept else "")


def _kept(board: Board, node: int) -> str:
    """Why pods of the node may not move, the commonest reasons first: `it has local storage (3 pods)`."""
    codes = board.reason_codes[board.pods_on(node)]
    counts = Counter(board.reasons[code] for code in codes[codes > 0].tolist())
    shown = [f"{reason} ({counted(number, 'pod')})" for reason, number in counts.most_common(REASONS_SHOWN_MAX)]
    if len(counts) > REASONS_SHOWN_MAX:
        shown.append(
            f"{len(counts) - REASONS_SHOWN_MAX} more {verb(len(counts) - REASONS_SHOWN_MAX, 'reason', 'reasons')}"
        )
    if not shown and not len(board.movable_on(node)):
        return "the budgets of their services or of the node are used up (moves_per_service, moves_per_node)"
    return ", ".join(shown)
