"""Repair plans: what they move, what they leave alone and what they say of it."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from domains.forecast.repair.case import Disruptions, Fits, Mask, RepairCase
from domains.forecast.repair.plan import Plan, _homeless, plan_repair
from domains.forecast.settings.repair_limits import RepairLimits
from tests.unit.domains.forecast.repair.cases import fits_any_node, make_case

LIMITS = RepairLimits((0.8,))


def plan(case: RepairCase, limits: RepairLimits = LIMITS, fits: Fits | None = None) -> Plan:
    return plan_repair(case, limits, fits or fits_any_node(len(case.nodes.names)))


def moves(found: Plan) -> list[tuple[int, int, int]]:
    return [(step.move.pod, step.move.source, step.move.target) for step in found.steps]


def fits_only(case: RepairCase, allowed: dict[int, list[int]]) -> Fits:
    """Pods named here fit these nodes, others any."""

    def fits(pod: int) -> Mask:
        mask = np.zeros(len(case.nodes.names), np.bool_)
        mask[allowed.get(pod, list(range(len(mask))))] = True
        return mask

    return fits


def test_no_pod_moves_if_no_node_exceeds_its_threshold() -> None:
    found = plan(make_case([[0.4, 0.4], [0.1]]))
    assert found.steps == ()
    assert found.unrepaired == ()
    assert found.fits_checked == 0


def test_fewest_pods_move_and_the_emptiest_node_is_the_target() -> None:
    found = plan(make_case([[0.1, 0.3, 0.1, 0.1, 0.5], [0.4], [0.1]]))
    assert moves(found) == [(4, 0, 2)]
    step = found.steps[0]
    assert (step.pod, step.source, step.target, step.repairs) == ("ns/pod-4", "node-0", "node-2", "node-0")
    assert step.before.share == pytest.approx(1.1)
    assert step.gain == pytest.approx(0.5)
    assert step.source_peaks == pytest.approx((0.6,))
    assert step.target_peaks == pytest.approx((0.6,))
    assert step.disruption.down_at_once == 1
    assert found.worst_before.share == pytest.approx(1.1)
    assert found.worst_after.share == pytest.approx(0.6)
    assert found.least_moves == 1


def test_faster_starting_of_two_suitable_pods_moves() -> None:
    found = plan(make_case([[0.5, 0.5], [0.1]], cold_start=[2, 0, 0]))
    assert moves(found) == [(1, 0, 1)]


def test_complementary_pods_share_a_node_if_their_sum_stays_below_the_threshold() -> None:
    morning, evening = [[0.6, 0.1]], [[0.1, 0.6]]
    found = plan(make_case([[morning, morning], [evening]]))
    assert moves(found) == [(0, 0, 1)]


def test_chain_is_found_if_no_single_move_suffices() -> None:
    # 0.5 fits nowhere until 0.3 leaves node 1, for node 2 which has room for 0.3 only.
    found = plan(make_case([[0.5, 0.5], [0.3, 0.2], [0.45]], fixed=[0, 0, 0, 1, 1]))
    assert moves(found) == [(2, 1, 2), (0, 0, 1)]
    assert found.steps[1].waits_for == (0,)
    assert found.steps[0].repairs == "node-0"


def test_two_pods_are_swapped_if_nothing_else_suffices() -> None:
    case = make_case([[0.6, 0.3], [0.4, 0.3]], fixed=[0, 1, 0, 1])
    limits = msgspec.structs.replace(LIMITS, swell=0.5)
    # 0.6 cannot join 0.7; 0.4 leaves for node 0 (0.9 to 1.3 for the time between), then 0.6 comes: 0.7 and 0.9.
    assert moves(plan(case, limits)) == []
    case = make_case([[0.5, 0.4], [0.35, 0.3]], fixed=[0, 1, 0, 1])
    found = plan(case, limits)
    assert moves(found) == [(2, 1, 0), (0, 0, 1)]
    assert found.steps[0].gain == pytest.approx(-0.35)
    assert found.worst_after.share == pytest.approx(0.8)
    assert moves(plan(case, msgspec.structs.replace(LIMITS, swell=0.3))) == []


def test_exhausted_budget_keeps_its_pods_and_the_plan_reports_it() -> None:
    case = make_case([[0.5, 0.5], [0.1]], disruptions=[Disruptions("ns/api", 0, (0, 1))])
    found = plan(case)
    assert moves(found) == []
    assert found.unrepaired[0].node == "node-0"
    assert found.unrepaired[0].why == (
        "none of its 2 pods may move: PodDisruptionBudget ns/api allows no disruption now (2 pods)"
    )


def test_pods_of_one_budget_wait_for_the_replacement_before_them() -> None:
    case = make_case([[0.5, 0.5, 0.5], [0.1], [0.1]], disruptions=[Disruptions("ns/api", 1, (0, 1, 2))])
    found = plan(case)
    assert len(found.steps) == 2
    assert [step.waits_for for step in found.steps] == [(), (0,)]
    assert found.steps[0].disruption.budgets == ("ns/api",)
    loose = plan(msgspec.structs.replace(case, disruptions=(Disruptions("ns/api", 2, (0, 1, 2)),)))
    assert [step.waits_for for step in loose.steps] == [(), ()]


def test_a_pod_that_two_budgets_select_is_never_evicted() -> None:
    twice = [Disruptions("ns/a", 5, (0,)), Disruptions("ns/b", 5, (0, 1))]
    assert moves(plan(make_case([[0.5, 0.5], [0.1]], disruptions=twice))) == [(1, 0, 1)]


def test_only_gang_members_beyond_the_minimum_may_move() -> None:
    case = make_case([[0.5, 0.5], [0.1]], gang=[0, 1, -1], gang_spare=[0, 1])
    assert plan(case).unrepaired[0].why == "none of its 2 pods may move: it belongs to a gang (2 pods)"
    assert moves(plan(case, msgspec.structs.replace(LIMITS, move_gangs=True))) == [(1, 0, 1)]


def test_quota_must_allow_pod_and_replacement_together() -> None:
    full = make_case([[0.5, 0.5], [0.1]], quota_room=[0])
    assert "quota" in plan(full).unrepaired[0].why
    assert len(plan(make_case([[0.5, 0.5], [0.1]], quota_room=[1])).steps) == 1


def test_unmovable_pods_are_reported_with_their_reason() -> None:
    found = plan(make_case([[0.5, 0.5], [0.1]], fixed=[1, 1, 0]))
    assert found.unrepaired[0].why == "none of its 2 pods may move: it has local storage (2 pods)"
    found = plan(make_case([[0.2, 0.9], [0.1]], fixed=[0, 1, 0]))
    assert found.unrepaired[0].why == (
        "without the pod that may move, cpu would still reach 90%; it has local storage (1 pod)"
    )


def test_requests_of_pods_moved_before_count_on_the_target() -> None:
    case = make_case([[0.5, 0.5], [0.5, 0.5], [0.1], [0.1]], free=[0, 0, 1, 1])
    found = plan(case, msgspec.structs.replace(LIMITS, threshold=(0.99,)))
    assert sorted(step.target for step in found.steps) == ["node-2", "node-3"]


def test_pod_moves_only_to_a_node_where_it_fits() -> None:
    case = make_case([[0.5, 0.5], [0.0], [0.3]], fixed=[0, 1, 1, 1])
    assert moves(plan(case, fits=fits_only(case, {0: [2]}))) == [(0, 0, 2)]
    found = plan(case, fits=fits_only(case, {0: []}))
    assert "it fits no other node by its rules" in found.unrepaired[0].why


def test_no_move_pushes_another_node_over_its_threshold() -> None:
    found = plan(make_case([[0.5, 0.5], [0.45], [0.45]]))
    assert moves(found) == []
    assert "find no node: 2 would push each over its threshold, or find no room" in found.unrepaired[0].why


def test_budgets_limit_moves_and_unrepaired_nodes_name_the_budget() -> None:
    case = make_case([[0.5, 0.5], [0.5, 0.5], [0.1], [0.1]])
    found = plan(case, msgspec.structs.replace(LIMITS, moves_per_window=1))
    assert len(found.steps) == len(found.unrepaired) == 1
    assert found.unrepaired[0].why == "the budget of 1 move per window is used up (moves_per_window)"
    triple = make_case([[0.5, 0.5, 0.5], [0.1], [0.1]])
    found = plan(triple, msgspec.structs.replace(LIMITS, moves_per_node=1))
    assert moves(found) == []
    assert found.unrepaired[0].why == "it takes 2 moves or more, and 1 is allowed (moves_per_node)"
    shared = make_case([[0.5, 0.5, 0.5], [0.1], [0.1]], service=[7, 7, 7, 8, 8])
    assert moves(plan(shared, msgspec.structs.replace(LIMITS, moves_per_service=1))) == []
    assert len(plan(shared, msgspec.structs.replace(LIMITS, moves_per_service=2)).steps) == 2


def test_as_many_nodes_as_the_budget_allows_are_repaired() -> None:
    case = make_case([[0.5, 0.5, 0.5], [0.45, 0.45], [0.45, 0.45], [0.1], [0.1], [0.1]])
    found = plan(case, msgspec.structs.replace(LIMITS, moves_per_window=2))
    assert set(found.repaired) == {"node-1", "node-2"}


def test_number_of_feasibility_checks_is_limited() -> None:
    case = make_case([[0.5, 0.5], [0.1]])
    found = plan(case, msgspec.structs.replace(LIMITS, fits_max=0))
    assert moves(found) == []
    assert found.unrepaired[0].why == "the limit of 0 pods whose feasible nodes are computed was reached (fits_max)"


def test_a_dimension_without_a_known_capacity_does_not_count() -> None:
    case = make_case([[[[0.5], [9.0]], [[0.5], [9.0]]], [[[0.1], [0.1]]]])
    capacity, loads = case.nodes.capacity.copy(), case.nodes.loads.copy()
    capacity[:, 1], loads[:, 1] = np.nan, np.nan
    nodes = msgspec.structs.replace(case.nodes, capacity=capacity, loads=loads)
    assert moves(plan(msgspec.structs.replace(case, nodes=nodes))) == [(0, 0, 1)]


def test_a_node_without_any_capacity_takes_no_pod_that_needs_it() -> None:
    case = make_case([[0.5, 0.5], [0.1], [0.2]])
    capacity = case.nodes.capacity.copy()
    capacity[1] = 0.0
    nodes = msgspec.structs.replace(case.nodes, capacity=capacity)
    assert moves(plan(msgspec.structs.replace(case, nodes=nodes))) == [(0, 0, 2)]


def test_case_is_not_modified() -> None:
    case = make_case([[0.5, 0.5], [0.1]])
    before = case.nodes.loads.copy(), case.nodes.free.copy()
    for array in (case.nodes.loads, case.nodes.free, case.curves):
        array.setflags(write=False)
    plan(case)
    assert np.array_equal(case.nodes.loads, before[0])
    assert np.array_equal(case.nodes.free, before[1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"curves": np.zeros((3, 2, 1))}, "curves: expected shape"),
        ({"curves": np.full((3, 1, 1), -1.0)}, "curves: below zero or infinite"),
        ({"gang_spare": np.zeros(1, np.int64), "quota_room": np.zeros((1, 2), np.int64)}, "quota_room: expected shape"),
        ({"disruptions": (Disruptions("ns/api", 1, (7,)),)}, "disruptions ns/api: 7 is not a number from 0 to 2"),
        ({"fixed_reasons": ()}, "pods.fixed: 0 is not a number"),
    ],
)
def test_invalid_case_names_its_field(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        msgspec.structs.replace(make_case([[0.5, 0.5], [0.1]]), **change).__post_init__()


@pytest.mark.parametrize(
    ("limits", "message"),
    [({"threshold": ()}, "threshold"), ({"threshold": (0.0,)}, "threshold"), ({"swell": -1.0}, "swell: -1.0 is below")],
)
def test_invalid_limits_name_their_field(limits: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RepairLimits(**{"threshold": (0.8,), **limits})  # type: ignore[arg-type]


def test_number_of_thresholds_must_match_the_dimensions() -> None:
    with pytest.raises(ValueError, match="threshold: 2 numbers; write one, or one for each of"):
        plan(make_case([[0.5, 0.5], [0.1]]), RepairLimits((0.8, 0.9)))


@pytest.mark.parametrize(
    ("movable", "homeless", "fitting", "text"),
    [
        (1, 1, 0, "the only pod that may move finds no node: it fits no other node by its rules"),
        (1, 1, 1, "the only pod that may move finds no node: it would push each over its threshold, or find no room"),
        (3, 1, 0, "of its 3 pods that may move, 1 finds no node: 1 fits no other node by its rules"),
        (
            5,
            3,
            1,
            (
                "of its 5 pods that may move, 3 find no node: 2 fit no other node by their rules, 1 would push each over its"
                " threshold, or find no room"
            ),
        ),
    ],
)
def test_pods_without_a_target_are_counted_in_the_reason(movable: int, homeless: int, fitting: int, text: str) -> None:
    assert _homeless(movable, homeless, fitting) == text
