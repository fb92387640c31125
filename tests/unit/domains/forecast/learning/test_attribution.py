"""Attribution: weights come back where the placement history tells them, and are never guessed where it does not."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from domains.forecast.curves.node_usage import NodeTotals, PlacementInterval
from domains.forecast.learning import replica_changes
from domains.forecast.learning.attribution import Attribution, AttributionSettings, WeightStatus, attribute
from tests.unit.domains.forecast.learning.placements import END_S, own_cycles, totals_of, wandering_intervals
from tests.unit.forecasting.weeks import DAY_S, MONDAY_S

SETTINGS = AttributionSettings()


def errors_of(found: Attribution, weight: np.ndarray) -> np.ndarray:
    """Relative, of the determined services."""
    known = found.verdict[:, 0] == WeightStatus.DETERMINED
    relative: np.ndarray = np.abs(found.weight[known, 0] / weight[known] - 1)
    return relative


def z_scores(found: Attribution, weight: np.ndarray) -> np.ndarray:
    """Errors over standard errors, of the determined services."""
    known = found.verdict[:, 0] == WeightStatus.DETERMINED
    scores: np.ndarray = (found.weight[known, 0] - weight[known]) / found.standard_error[known, 0]
    return scores


@pytest.mark.parametrize("cycle", [0.0, 0.5])
def test_weights_of_a_fleet_are_recovered_within_a_tenth(cycle: float) -> None:
    services, nodes, rng = 60, 90, np.random.default_rng(5)
    moved = rng.integers(0, 16, services)
    weight = rng.uniform(0.3, 2, services)
    totals = totals_of(
        wandering_intervals(moved.tolist(), nodes=nodes, replicas=8), weight, nodes=nodes, noise=0.1, cycle=cycle
    )

    found = attribute(totals, SETTINGS)

    assert ((found.verdict[:, 0] == WeightStatus.DETERMINED) == (found.moves >= 5)).all()
    assert (found.moves >= 5).sum() > 0.6 * services
    assert errors_of(found, weight).max() < 0.1
    assert np.isnan(found.weight[found.moves < 5]).all()
    assert {said.service for said in found.undetermined} == {f"s{n:03}" for n in np.flatnonzero(found.moves < 5)}


@pytest.mark.parametrize(
    ("services", "weekends"), [(60, False), (60, True), pytest.param(200, True, marks=pytest.mark.slow)]
)
def test_weights_of_services_with_different_cycles_are_recovered(services: int, weekends: bool) -> None:
    """On half as many nodes again."""
    rng = np.random.default_rng(5)
    nodes = services * 3 // 2
    moved = rng.integers(0, 16, services)
    weight, own = rng.uniform(0.3, 2, services), own_cycles(services, weekends=weekends)
    intervals = wandering_intervals(moved.tolist(), nodes=nodes, replicas=8)

    found = attribute(totals_of(intervals, weight, nodes=nodes, noise=0.1, own=own), SETTINGS)

    movers, known = found.moves >= 5, found.verdict[:, 0] == WeightStatus.DETERMINED
    assert (known & movers).sum() >= 0.98 * movers.sum()
    assert not (known & ~movers).any()
    assert errors_of(found, weight).max() < 0.1
    assert 0.7 < z_scores(found, weight).std() < 1.3


@pytest.mark.slow
def test_weights_of_very_different_size_are_right_or_marked_noisy() -> None:
    """Lognormal: the smallest are lost in a tenth of noise of whole nodes."""
    rng = np.random.default_rng(6)
    weight = rng.lognormal(0, 1, 200)
    intervals = wandering_intervals(rng.integers(5, 16, 200).tolist(), nodes=300, replicas=8)

    found = attribute(totals_of(intervals, weight, nodes=300, noise=0.1, own=own_cycles(200)), SETTINGS)

    known = found.verdict[:, 0] == WeightStatus.DETERMINED
    assert known.sum() > 160
    assert set(found.verdict[~known, 0].tolist()) == {WeightStatus.NOISY}
    assert weight[~known].mean() < weight[known].mean() / 4
    assert errors_of(found, weight).max() < 0.1
    z = z_scores(found, weight)
    assert 0.7 < z.std() < 1.3
    assert np.mean(np.abs(z) > 2) < 0.12


def test_shape_of_each_service_is_found() -> None:
    own = own_cycles(20)
    intervals = wandering_intervals([12] * 20, nodes=30, replicas=3)
    found = attribute(totals_of(intervals, np.ones(20), nodes=30, noise=0.05, own=own), SETTINGS)

    truth = own[:, : 7 * 288].reshape(20, 168, 12).mean(axis=2)
    assert (found.verdict == WeightStatus.DETERMINED).all()
    np.testing.assert_allclose(found.own_shape[:, 0].mean(axis=1), 1, atol=0.02)
    assert np.abs(found.own_shape[:, 0] - truth).mean() < 0.12
    assert np.abs(found.shape[0] - truth).mean() > 0.25, "what all share says little of them"


def test_service_that_moves_only_at_noon_stays_undetermined() -> None:
    """Away at 11:00 and back at 13:00: what it uses at night nobody has measured."""
    rng = np.random.default_rng(3)
    away = [
        PlacementInterval("s000", f"n{day % 5}", MONDAY_S + day * DAY_S + 39_600, MONDAY_S + day * DAY_S + 46_800)
        for day in range(14)
    ]
    others = wandering_intervals([0, 12, 12, 12, 12], nodes=10, replicas=3)
    own = own_cycles(5)
    own[0] = 1 + 0.9 * np.cos(2 * np.pi * (np.arange(4_032) / 288 - 0.5))
    intervals = (*away, *(interval for interval in others if interval.service != "s000"))

    found = attribute(totals_of(intervals, rng.uniform(1, 2, 5), nodes=10, noise=0.02, own=own), SETTINGS)

    assert found.moves[0] >= 5
    assert found.verdict[:, 0].tolist() == [WeightStatus.NOISY, 0, 0, 0, 0]
    assert found.standard_error[0, 0] > 0.05


def test_standard_errors_match_the_real_errors() -> None:
    weight = np.random.default_rng(1).uniform(0.3, 2, 60)
    totals = totals_of(wandering_intervals([12] * 60, nodes=60, replicas=5), weight, nodes=60, noise=0.1)

    found = attribute(totals, SETTINGS)
    ratio = (found.weight[:, 0] - weight) / found.standard_error[:, 0]

    assert 0.7 < ratio.std() < 1.4


def test_services_that_always_move_together_are_reported_as_confused() -> None:
    alone = wandering_intervals([10] * 6, nodes=20, replicas=3)
    twin = tuple(msgspec.structs.replace(interval, service="s006") for interval in alone if interval.service == "s002")
    weight = np.array([1, 0.5, 0.8, 1.2, 0.7, 0.9, 0.4])

    found = attribute(totals_of(alone + twin, weight, nodes=20, noise=0.1), SETTINGS)

    assert found.verdict[:, 0].tolist() == [0, 0, WeightStatus.CONFUSED, 0, 0, 0, WeightStatus.CONFUSED]
    assert [(said.service, said.confused_with) for said in found.undetermined] == [
        ("s002", ("s006",)),
        ("s006", ("s002",)),
    ]
    assert errors_of(found, weight).max() < 0.1


def test_service_placed_like_two_others_together_confuses_all_three() -> None:
    first, second = (
        wandering_intervals([8, 8], nodes=10, replicas=2)[:10],
        wandering_intervals([8, 8], nodes=10, replicas=2)[10:],
    )
    both = tuple(msgspec.structs.replace(interval, service="s002") for interval in first + second)

    found = attribute(totals_of(first + second + both, np.array([1.0, 0.5, 0.8]), nodes=10, noise=0.05), SETTINGS)

    assert found.verdict[:, 0].tolist() == [WeightStatus.CONFUSED] * 3
    assert found.undetermined[0].confused_with == ("s001", "s002")


def test_weight_too_small_for_the_noise_is_marked_noisy() -> None:
    weight = np.array([0.002, 2.0, 2.0, 2.0])
    totals = totals_of(wandering_intervals([6] * 4, nodes=4, replicas=4), weight, nodes=4, noise=0.9)

    found = attribute(totals, SETTINGS)

    assert found.verdict[0, 0] == WeightStatus.NOISY
    assert np.isnan(found.weight[0, 0])
    assert found.standard_error[0, 0] > 0


def test_service_without_usage_gets_a_determined_zero_weight() -> None:
    weight = np.array([0.0, 1.0, 2.0, 1.5])
    totals = totals_of(wandering_intervals([30] * 4, nodes=12, replicas=4), weight, nodes=12, noise=0.05)

    found = attribute(totals, SETTINGS)

    assert found.verdict[0, 0] == WeightStatus.DETERMINED
    assert 0 <= found.weight[0, 0] < 0.02


def test_totals_without_noise_give_exact_weights() -> None:
    weight = np.array([1.0, 0.5, 2.0, 0.8])

    found = attribute(totals_of(wandering_intervals([8] * 4, nodes=6, replicas=3), weight, nodes=6, noise=0), SETTINGS)

    assert (found.verdict == WeightStatus.DETERMINED).all()
    assert errors_of(found, weight).max() < 0.02


@pytest.mark.parametrize("lie", [np.nan, -1.0, 500.0])
def test_gaps_invalid_samples_and_spikes_do_not_change_the_weights(lie: float) -> None:
    weight = np.random.default_rng(2).uniform(0.5, 2, 30)
    totals = totals_of(wandering_intervals([10] * 30, nodes=30, replicas=4), weight, nodes=30, noise=0.1)
    totals.values[np.random.default_rng(3).random(totals.values.shape) < 0.02] = lie

    found = attribute(totals, SETTINGS)

    assert (found.verdict == WeightStatus.DETERMINED).all()
    assert errors_of(found, weight).max() < 0.1


def test_a_dimension_without_samples_is_unmeasured() -> None:
    totals = totals_of(wandering_intervals([8] * 3, nodes=6, replicas=2), np.ones(3), nodes=6, noise=0.1)

    found = attribute(msgspec.structs.replace(totals, values=np.full_like(totals.values, np.nan)), SETTINGS)

    assert (found.verdict == WeightStatus.UNMEASURED).all()
    assert np.isnan(found.weight).all()


def test_a_restart_on_the_same_node_is_no_move() -> None:
    intervals = tuple(
        PlacementInterval("s000", "n0", MONDAY_S + n * 3_600, MONDAY_S + (n + 1) * 3_600) for n in range(14 * 24)
    )

    found = attribute(totals_of(intervals, np.ones(1), nodes=1, noise=0.1), SETTINGS)

    assert found.moves.tolist() == [0]
    assert found.undetermined[0].verdict == WeightStatus.STILL
    assert found.undetermined[0].confused_with == ()


def test_several_replicas_in_one_placement_interval_count_each() -> None:
    one_by_one = wandering_intervals([9] * 5, nodes=8, replicas=2)
    doubled = tuple(msgspec.structs.replace(interval, replicas=2) for interval in one_by_one)
    weight = np.array([1.0, 0.5, 1.5, 2.0, 0.7])

    found = attribute(totals_of(doubled, weight, nodes=8, noise=0.05), SETTINGS)

    assert errors_of(found, weight).max() < 0.1


def test_blocks_of_nodes_give_the_same_weights_as_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    totals = totals_of(wandering_intervals([9] * 10, nodes=15, replicas=3), np.ones(10), nodes=15, noise=0.1)
    whole = attribute(totals, SETTINGS)
    monkeypatch.setattr(replica_changes, "BLOCK_COUNTS_MAX", 200)

    np.testing.assert_allclose(attribute(totals, SETTINGS).weight, whole.weight, rtol=0.01)


def test_shape_of_the_day_is_found() -> None:
    totals = totals_of(wandering_intervals([6] * 4, nodes=8, replicas=4), np.ones(4), nodes=8, noise=0.05, cycle=0.6)

    shape = attribute(totals, SETTINGS).shape[0]

    assert shape[:24].argmax() in (19, 20)
    assert shape[20] == pytest.approx(1.6, abs=0.1)
    assert shape.mean() == pytest.approx(1, abs=0.01)


def test_no_placement_intervals_and_no_steps_are_no_error() -> None:
    empty = NodeTotals(0, 300, ("n0",), ("log",), np.zeros((1, 1, 0), np.float32), ())

    assert attribute(empty, SETTINGS).services == ()
    interval = PlacementInterval("s000", "n0", 0, 900)
    assert (
        attribute(msgspec.structs.replace(empty, placement_intervals=(interval,)), SETTINGS).undetermined[0].verdict
        == WeightStatus.STILL
    )


@pytest.mark.parametrize(
    ("interval", "message"),
    [
        (PlacementInterval("shop", "n0", 10.0, 5.0), "placement of shop on n0: end_s 5.0 is before begin_s 10.0"),
        (PlacementInterval("shop", "n0", float("nan"), 5.0), "placement of shop on n0"),
        (PlacementInterval("shop", "n0", 0.0, 5.0, -1), "replicas must be >= 0, got -1"),
    ],
)
def test_invalid_placement_intervals_are_refused(interval: PlacementInterval, message: str) -> None:
    totals = NodeTotals(0, 300, ("n0",), ("log",), np.zeros((1, 1, 4), np.float32), (interval,))

    with pytest.raises(ValueError, match=message):
        attribute(totals, SETTINGS)


@pytest.mark.parametrize("field", ["moves_min", "separation_min", "relative_error_max"])
def test_invalid_settings_are_refused_by_field(field: str) -> None:
    with pytest.raises(ValueError, match=f"^{field}: "):
        AttributionSettings(**{field: 0})  # type: ignore[arg-type]


def test_a_placement_interval_beyond_the_window_is_no_move() -> None:
    intervals = (
        PlacementInterval("s000", "n0", MONDAY_S - DAY_S, END_S + DAY_S),
        PlacementInterval("s000", "n9", MONDAY_S, END_S),
    )

    assert attribute(totals_of(intervals[:1], np.ones(1), nodes=1, noise=0.1), SETTINGS).moves.tolist() == [0]
