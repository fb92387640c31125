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
from domains.forecast.repair.moves import Board, Move
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
    mends: str
    """The hot node this move is for: the pod's own, or in a chain the node whose pod needs room on this pod's node."""
    before: Peak
    """Peak of the node in `mends` before this step; `after`: after it."""
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
        """Returns by how much the peak of the node in `mends` falls; can be negative for the first move of an exchange."""
        return self.before.share - self.after.share


class Unmended(msgspec.Struct, frozen=True):
    """A node that stays above its threshold."""

    node: str
    peak: Peak
    why: str


class Plan(msgspec.Struct, frozen=True):
    """The steps, and the nodes that stay above their thresholds."""

    steps: tuple[Step, ...]
    unmended: tuple[Unmended, ...]
    mended: tuple[str, ...]
    worst_before: Peak
    """Worst peak of all nodes before the plan."""
    worst_after: Peak
    least_moves: int
    """Lower bound of the moves needed for the nodes in `mended`; a plan with this many moves is optimal."""
    pods_asked: int
    """Number of pods for which `Fits` was called."""


def plan_repair(case: RepairCase, limits: RepairLimits, fits: Fits) -> Plan:
    """Makes a plan. Raises ValueError if `limits.threshold` does not match the case's dimensions, or `fits` returns a wrong
    shape."""
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


def _steps(board: Board, mendings: tuple[NodeRepair, ...]) -> tuple[Step, ...]:
    """Makes the moves on the board permanently, and returns a step for each."""
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
    """Returns the earlier steps that must be done first: those that leave the target, and those that use a disruption of a
    budget that this step needs."""
    earlier = {index for index, one in enumerate(board.moves) if one.source == move.target}
    for number in budgets.get(move.pod, ()):
        taking = [index for index, one in enumerate(board.moves) if number in budgets.get(one.pod, ())]
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
    """Returns why a node stays hot after the plan: the first of the checked causes that applies."""
    limits, placed, movable = board.limits, board.pods_on(node), board.movable_on(node)
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
    if not len(placed):
        return "no known pod is on it"
    kept = _kept(board, node)
    if not len(movable):
        whose = "its only pod may not move" if len(placed) == 1 else f"none of its {len(placed)} pods may move"
        return f"{whose}: {kept}"
    if search.least(node) > SET_MAX:
        return _not_enough(board, node, len(movable), kept)
    if len(search.hot) > HOT_MAX:
        return f"one plan handles at most {HOT_MAX} nodes above their threshold; there are {len(search.hot)}"
    if board.is_spent():
        return NOT_FOUND
    homeless = [pod for pod in movable.tolist() if not board.targets(pod)]
    if homeless and board.fits_asked >= limits.fits_max:
        return f"the limit of {limits.fits_max} pods whose feasible nodes are computed was reached (fits_max)"
    if homeless:
        fitting = sum(bool(board.fits(pod).any()) for pod in homeless)
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
    """Returns why pods of the node may not move, the most frequent reasons first: `it has local storage (3 pods)`."""
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
