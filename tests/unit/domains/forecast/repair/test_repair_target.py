"""The lowest thresholds: what a budget of moves reaches, and what it never does."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from domains.forecast.repair.case import Floats, RepairCase
from domains.forecast.repair.target import STEP, LowestPlan, plan_lowest
from domains.forecast.settings.repair_limits import RepairLimits
from tests.unit.domains.forecast.repair.cases import fits_any_node, make_case

GOAL = (0.01,)


def lowest(case: RepairCase, moves: int, goal: tuple[float, ...] = GOAL) -> LowestPlan:
    return plan_lowest(case, RepairLimits(goal, moves_per_window=moves), fits_any_node(len(case.nodes.names)))


def loads_after(case: RepairCase, found: LowestPlan) -> Floats:
    loads = case.nodes.loads.copy()
    for step in found.plan.steps:
        curve = case.curves[case.pods.curve[step.move.pod]]
        loads[step.move.source] -= curve
        loads[step.move.target] += curve
    return loads


def test_one_move_evens_two_nodes() -> None:
    found = lowest(make_case([[0.3, 0.3, 0.3], [0.3]]), moves=1)
    assert len(found.plan.steps) == 1
    assert found.plan.worst_after.share == pytest.approx(0.6)
    assert 0.6 <= found.threshold[0] <= 0.6 + STEP


def test_thresholds_without_moves_equal_the_current_peaks() -> None:
    found = lowest(make_case([[0.5, 0.4], [0.1]]), moves=0)
    assert (found.threshold, found.plan.steps, found.plan.unrepaired) == ((0.9,), (), ())


def test_an_even_cluster_is_left_alone() -> None:
    assert lowest(make_case([[0.5], [0.5], [0.5]]), moves=5).plan.steps == ()


def test_no_pod_moves_below_the_goal() -> None:
    case = make_case([[0.3, 0.3, 0.3], [0.3]])
    assert lowest(case, moves=5, goal=(0.95,)).plan.steps == ()
    found = lowest(make_case([[0.2, 0.2, 0.2, 0.3], [0.1]]), moves=5, goal=(0.8,))
    assert (len(found.plan.steps), found.threshold) == (1, (0.8,))


def test_unfixable_dimension_does_not_block_another() -> None:
    """One pod alone is the log peak; cpu can still be halved."""
    big, small = [[0.0], [0.9]], [[0.4], [0.0]]
    found = lowest(make_case([[big], [small, small], [[[0.0], [0.0]]]]), moves=1)
    assert found.threshold[1] == pytest.approx(0.9, abs=2 * STEP)
    assert found.threshold[0] == pytest.approx(0.4, abs=STEP)
    assert [step.source for step in found.plan.steps] == ["node-1"]


def test_replicas_of_a_service_are_not_moved_together() -> None:
    """By the forecast the third node is the emptiest, but the other replica stands there."""
    placed = [[0.3, 0.3, 0.3], [0.3, 0.2], [0.1]]
    alone = lowest(make_case(placed), moves=1)
    assert [step.target for step in alone.plan.steps] == ["node-2"]
    together = lowest(make_case(placed, service=[0, 0, 0, 1, 2, 0]), moves=1)
    assert [step.target for step in together.plan.steps] == ["node-2"]  # from three to one beside it
    apart = lowest(make_case(placed, service=[0, 1, 2, 3, 4, 0], fixed=[0, 1, 1, 0, 0, 0]), moves=1)
    assert [step.target for step in apart.plan.steps] != ["node-2"]


def test_the_same_case_gives_the_same_plan() -> None:
    rng = np.random.default_rng(3)
    case = make_case([rng.uniform(0.02, 0.2, 5).tolist() for _ in range(6)])
    assert lowest(case, 4) == lowest(case, 4)


PODS = st.lists(st.floats(0.02, 0.3), max_size=4)


@settings(max_examples=60, deadline=None)
@given(placed=st.lists(PODS, min_size=2, max_size=5).filter(lambda nodes: any(nodes)), moves=st.integers(0, 4))
def test_plan_respects_moves_and_reported_thresholds(placed: list[list[float]], moves: int) -> None:
    case = make_case(placed)
    found = lowest(case, moves)
    before, after = case.nodes.loads.max(), loads_after(case, found).max()
    assert len(found.plan.steps) <= moves
    assert after <= found.threshold[0] + 1e-6
    assert found.threshold[0] <= max(before, GOAL[0]) + 1e-9
    assert found.plan.unrepaired == ()
    if found.plan.steps:
        assert after < before


@settings(max_examples=40, deadline=None)
@given(placed=st.lists(PODS, min_size=2, max_size=4).filter(lambda nodes: any(nodes)), moves=st.integers(0, 3))
def test_larger_budget_reaches_at_least_as_low(placed: list[list[float]], moves: int) -> None:
    case = make_case(placed)
    worst = float(case.nodes.loads.max())
    assert lowest(case, moves + 1).threshold[0] <= lowest(case, moves).threshold[0] + STEP * worst


def test_thresholds_are_within_a_fifth_of_brute_force() -> None:
    """Six pods on three nodes, two moves."""
    for seed in range(12):
        rng = np.random.default_rng(seed)
        placed = [rng.uniform(0.1, 0.3, 4).tolist(), rng.uniform(0.1, 0.3, 2).tolist(), []]
        case = make_case(placed)
        worst = float(case.nodes.loads.max())
        best = _lowest_peak(case, 2)
        assert worst - lowest(case, 2).plan.worst_after.share >= (worst - best) / 1.2 - STEP * worst


def _lowest_peak(case: RepairCase, moves: int) -> float:
    """By trying every move of every pod, with as many to follow."""
    weights, nodes = case.curves[:, 0, 0].tolist(), len(case.nodes.names)

    def below(where: list[int], left: int, loads: list[float]) -> float:
        best = max(loads)
        if not left:
            return best
        for pod, node in enumerate(where):
            for target in range(nodes):
                if target != node:
                    moved = loads.copy()
                    moved[node] -= weights[pod]
                    moved[target] += weights[pod]
                    best = min(best, below([*where[:pod], target, *where[pod + 1 :]], left - 1, moved))
        return best

    return below(case.pods.node.tolist(), moves, case.nodes.loads[:, 0, 0].tolist())
