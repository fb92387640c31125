"""The answer tells what the plan's moves do, and what it foretells is what the ledger says once they are made."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from domains.forecast.repair.answer import answer
from domains.forecast.settings.repair import RepairSettings, read_repair
from multisched.framework.repair import RepairRequest
from multisched.model.cluster_objects import PodDisruptionBudget, ResourceQuota
from multisched.model.object_kinds import ObjectKind
from multisched.testing.builders import row_of
from tests.unit.domains.forecast.repair.repair_cluster import RepairCluster, node, pod, selector


def test_pod_is_not_moved_if_its_quota_has_no_room_for_a_replacement() -> None:
    crowd = [pod(f"p{n}", at="a") for n in range(4)]
    cluster = RepairCluster([node("a"), node("b")], crowd)
    cluster.cache.objects.set(
        ObjectKind.RESOURCE_QUOTA, ResourceQuota(name="q", namespace="default", hard={"pods": 4}, used={"pods": 4})
    )

    plan = answer(cluster.scene(), RepairRequest(), cluster.ledger, RepairSettings())

    assert plan.moves == ()
    assert (
        "the quota of its namespace has no room for a replacement while the pod terminates (4 pods)"
        in plan.unrepaired[0].why
    )


def test_each_move_reports_its_effect_on_both_nodes() -> None:
    crowd = [pod(f"p{n}", at="a") for n in range(5)]
    cluster = RepairCluster([node("a"), node("b")], [*crowd, pod("q", "batch", "b")])
    cluster.cache.objects.set(
        ObjectKind.POD_DISRUPTION_BUDGET,
        PodDisruptionBudget(name="web", namespace="default", selector=selector(app="web"), disruptions_allowed=2),
    )

    plan = answer(cluster.scene(), RepairRequest(threshold_percent={"log": 95.0}), cluster.ledger, RepairSettings())

    first, second = plan.moves
    told = [(round(m.from_before.percent), round(m.from_after.percent)) for m in plan.moves]
    assert told == [(150, 120), (120, 90)]
    assert [(round(m.to_before.percent), round(m.to_after.percent)) for m in plan.moves] == [(1, 31), (31, 61)]
    assert first.from_before.at == "Mon 20:00"
    assert [(m.budgets[0].name, m.budgets[0].left) for m in plan.moves] == [("default/web", 1), ("default/web", 0)]
    assert round(second.from_peaks_percent["log"]) == 90
    assert plan.threshold_percent == {"cpu": 100.0, "log": 95.0}
    assert (round(plan.worst_before.percent), plan.least_moves, plan.repaired) == (150, 2, ("a",))


def test_auto_threshold_is_what_moves_reach_and_a_request_overrides_it() -> None:
    crowd = [pod(f"p{n}", at="a") for n in range(3)]
    cluster = RepairCluster([node("a"), node("b")], crowd)
    settings_ = read_repair({"thresholdPercent": "auto"})

    plan = answer(cluster.scene(), RepairRequest(moves=1), cluster.ledger, settings_)

    assert (len(plan.moves), plan.unrepaired) == (1, ())
    assert round(plan.worst_before.percent) == 90
    assert round(plan.moves[0].from_peaks_percent["log"]) == 60
    assert 60.0 <= plan.threshold_percent["log"] <= 61.0
    asked = RepairRequest(threshold_percent={"log": 95.0})
    assert answer(cluster.scene(), asked, cluster.ledger, settings_).threshold_percent["log"] == 95.0


def peaks(cluster: RepairCluster, name: str) -> dict[str, float]:
    """Percent of capacity, by the ledger."""
    rows = np.array([row_of(cluster.cache, name)], np.intp)
    quantized = cluster.ledger.predictor.quantized
    assert quantized is not None
    share = cluster.ledger.settled(rows).of(rows)[0] * quantized.quantum_milli / cluster.ledger.capacity(rows)
    return dict(zip(quantized.dimensions, (100 * share.max(axis=1)).tolist(), strict=True))


crowds = st.lists(
    st.tuples(st.sampled_from(("web", "web", "batch")), st.sampled_from(("a", "a", "b", "c"))), min_size=1, max_size=14
)


@settings(deadline=None)
@given(crowds, st.sampled_from((60.0, 95.0, 130.0)))
def test_predicted_peaks_equal_those_of_the_ledger_after_the_moves(
    crowd: list[tuple[str, str]], threshold: float
) -> None:
    cluster = RepairCluster([node("a"), node("b"), node("c")], [pod(f"p{n}", *place) for n, place in enumerate(crowd)])
    before = {name: peaks(cluster, name)["log"] for name in "abc"}

    plan = answer(
        cluster.scene(), RepairRequest(threshold_percent={"log": threshold}), cluster.ledger, RepairSettings()
    )

    for move in plan.moves:
        placed = cluster.cache.remove(move.uid)
        assert placed is not None
        assert placed.node == move.from_node
        cluster.cache.place(msgspec.structs.replace(placed.pod, node=move.to_node))
        assert peaks(cluster, move.from_node) == pytest.approx(dict(move.from_peaks_percent), abs=1e-6)
        assert peaks(cluster, move.to_node) == pytest.approx(dict(move.to_peaks_percent), abs=1e-6)
        assert peaks(cluster, move.to_node)[move.to_after.dimension] == pytest.approx(move.to_after.percent, abs=1e-6)
    after = {name: peaks(cluster, name)["log"] for name in "abc"}
    assert {name for name in "abc" if after[name] > threshold + 1e-6} == {one.node for one in plan.unrepaired}
    assert all(before[one.node] > threshold for one in plan.unrepaired), "nobody below its threshold passes it"
    assert set(plan.repaired) == {n for n in "abc" if before[n] > threshold >= after[n] - 1e-6}
