"""Attribution: weights come back where the placement history tells them, and are never guessed where it does not."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from domains.forecast import moves
from domains.forecast.attribution import Attribution, AttributionSettings, Verdict, attribute
from domains.forecast.usage import NodeTotals, Stay
from tests.unit.forecast.placements import END_S, totals_of, wandering_stays
from tests.unit.forecast.weeks import DAY_S, MONDAY_S

SETTINGS = AttributionSettings()


def errors_of(found: Attribution, weight: np.ndarray) -> np.ndarray:
    """Relative, of the determined services."""
    known = found.verdict[:, 0] == Verdict.DETERMINED
    relative: np.ndarray = np.abs(found.weight[known, 0] / weight[known] - 1)
    return relative


@pytest.mark.parametrize("cycle", [0.0, 0.5])
def test_a_fleet_of_200_services_on_300_nodes_gives_its_weights_back_within_a_tenth(cycle: float) -> None:
    rng = np.random.default_rng(5)
    moved = rng.integers(0, 16, 200)
    weight = rng.uniform(0.3, 2, 200)
    totals = totals_of(
        wandering_stays(moved.tolist(), nodes=300, replicas=8), weight, nodes=300, noise=0.1, cycle=cycle
    )

    found = attribute(totals, SETTINGS)

    assert ((found.verdict[:, 0] == Verdict.DETERMINED) == (found.moves >= 5)).all()
    assert (found.moves >= 5).sum() > 120
    assert errors_of(found, weight).max() < 0.1
    assert np.isnan(found.weight[found.moves < 5]).all()
    assert {said.service for said in found.undetermined} == {f"s{n:03}" for n in np.flatnonzero(found.moves < 5)}


def test_standard_errors_are_as_large_as_the_errors() -> None:
    weight = np.random.default_rng(1).uniform(0.3, 2, 60)
    totals = totals_of(wandering_stays([12] * 60, nodes=60, replicas=5), weight, nodes=60, noise=0.1)

    found = attribute(totals, SETTINGS)
    ratio = (found.weight[:, 0] - weight) / found.standard_error[:, 0]

    assert 0.7 < ratio.std() < 1.4


def test_services_that_always_moved_together_are_named_and_not_guessed() -> None:
    alone = wandering_stays([10] * 6, nodes=20, replicas=3)
    twin = tuple(msgspec.structs.replace(stay, service="s006") for stay in alone if stay.service == "s002")
    weight = np.array([1, 0.5, 0.8, 1.2, 0.7, 0.9, 0.4])

    found = attribute(totals_of(alone + twin, weight, nodes=20, noise=0.1), SETTINGS)

    assert found.verdict[:, 0].tolist() == [0, 0, Verdict.CONFUSED, 0, 0, 0, Verdict.CONFUSED]
    assert [(said.service, said.confused_with) for said in found.undetermined] == [
        ("s002", ("s006",)),
        ("s006", ("s002",)),
    ]
    assert errors_of(found, weight).max() < 0.1


def test_a_service_that_is_always_the_sum_of_two_others_confuses_all_three() -> None:
    first, second = (
        wandering_stays([8, 8], nodes=10, replicas=2)[:10],
        wandering_stays([8, 8], nodes=10, replicas=2)[10:],
    )
    both = tuple(msgspec.structs.replace(stay, service="s002") for stay in first + second)

    found = attribute(totals_of(first + second + both, np.array([1.0, 0.5, 0.8]), nodes=10, noise=0.05), SETTINGS)

    assert found.verdict[:, 0].tolist() == [Verdict.CONFUSED] * 3
    assert found.undetermined[0].confused_with == ("s001", "s002")


def test_a_weight_too_small_for_the_noise_is_told_as_noisy_with_its_error() -> None:
    weight = np.array([0.002, 2.0, 2.0, 2.0])
    totals = totals_of(wandering_stays([6] * 4, nodes=4, replicas=4), weight, nodes=4, noise=0.9)

    found = attribute(totals, SETTINGS)

    assert found.verdict[0, 0] == Verdict.NOISY
    assert np.isnan(found.weight[0, 0])
    assert found.standard_error[0, 0] > 0


def test_a_service_that_uses_nothing_is_known_to_use_nothing() -> None:
    weight = np.array([0.0, 1.0, 2.0, 1.5])
    totals = totals_of(wandering_stays([30] * 4, nodes=12, replicas=4), weight, nodes=12, noise=0.05)

    found = attribute(totals, SETTINGS)

    assert found.verdict[0, 0] == Verdict.DETERMINED
    assert 0 <= found.weight[0, 0] < 0.02


def test_totals_without_noise_give_the_weights_themselves() -> None:
    weight = np.array([1.0, 0.5, 2.0, 0.8])

    found = attribute(totals_of(wandering_stays([8] * 4, nodes=6, replicas=3), weight, nodes=6, noise=0), SETTINGS)

    assert (found.verdict == Verdict.DETERMINED).all()
    assert errors_of(found, weight).max() < 0.02


@pytest.mark.parametrize("lie", [np.nan, -1.0, 500.0])
def test_gaps_lies_and_spikes_do_not_bend_the_weights(lie: float) -> None:
    weight = np.random.default_rng(2).uniform(0.5, 2, 30)
    totals = totals_of(wandering_stays([10] * 30, nodes=30, replicas=4), weight, nodes=30, noise=0.1)
    totals.values[np.random.default_rng(3).random(totals.values.shape) < 0.02] = lie

    found = attribute(totals, SETTINGS)

    assert (found.verdict == Verdict.DETERMINED).all()
    assert errors_of(found, weight).max() < 0.1


def test_a_dimension_without_samples_is_unmeasured() -> None:
    totals = totals_of(wandering_stays([8] * 3, nodes=6, replicas=2), np.ones(3), nodes=6, noise=0.1)

    found = attribute(msgspec.structs.replace(totals, values=np.full_like(totals.values, np.nan)), SETTINGS)

    assert (found.verdict == Verdict.UNMEASURED).all()
    assert np.isnan(found.weight).all()


def test_a_restart_on_the_same_node_is_no_move() -> None:
    stays = tuple(Stay("s000", "n0", MONDAY_S + n * 3_600, MONDAY_S + (n + 1) * 3_600) for n in range(14 * 24))

    found = attribute(totals_of(stays, np.ones(1), nodes=1, noise=0.1), SETTINGS)

    assert found.moves.tolist() == [0]
    assert found.undetermined[0].verdict == Verdict.STILL
    assert found.undetermined[0].confused_with == ()


def test_several_replicas_in_one_stay_count_each() -> None:
    one_by_one = wandering_stays([9] * 5, nodes=8, replicas=2)
    doubled = tuple(msgspec.structs.replace(stay, replicas=2) for stay in one_by_one)
    weight = np.array([1.0, 0.5, 1.5, 2.0, 0.7])

    found = attribute(totals_of(doubled, weight, nodes=8, noise=0.05), SETTINGS)

    assert errors_of(found, weight).max() < 0.1


def test_blocks_of_nodes_add_up_to_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    totals = totals_of(wandering_stays([9] * 10, nodes=15, replicas=3), np.ones(10), nodes=15, noise=0.1)
    whole = attribute(totals, SETTINGS)
    monkeypatch.setattr(moves, "BLOCK_COUNTS_MAX", 200)

    np.testing.assert_allclose(attribute(totals, SETTINGS).weight, whole.weight, rtol=0.01)


def test_the_shape_of_the_day_is_found() -> None:
    totals = totals_of(wandering_stays([6] * 4, nodes=8, replicas=4), np.ones(4), nodes=8, noise=0.05, cycle=0.6)

    shape = attribute(totals, SETTINGS).shape[0]

    assert shape[:24].argmax() in (19, 20)
    assert shape[20] == pytest.approx(1.6, abs=0.1)
    assert shape.mean() == pytest.approx(1, abs=0.01)


def test_no_stays_and_no_steps_are_no_error() -> None:
    empty = NodeTotals(0, 300, ("n0",), ("log",), np.zeros((1, 1, 0), np.float32), ())

    assert attribute(empty, SETTINGS).services == ()
    stay = Stay("s000", "n0", 0, 900)
    assert attribute(msgspec.structs.replace(empty, stays=(stay,)), SETTINGS).undetermined[0].verdict == Verdict.STILL


@pytest.mark.parametrize(
    ("stay", "message"),
    [
        (Stay("shop", "n0", 10.0, 5.0), "stay of shop on n0: ends at 5.0"),
        (Stay("shop", "n0", float("nan"), 5.0), "stay of shop on n0"),
        (Stay("shop", "n0", 0.0, 5.0, -1), "-1 replicas"),
    ],
)
def test_stays_that_cannot_be_are_refused(stay: Stay, message: str) -> None:
    totals = NodeTotals(0, 300, ("n0",), ("log",), np.zeros((1, 1, 4), np.float32), (stay,))

    with pytest.raises(ValueError, match=message):
        attribute(totals, SETTINGS)


@pytest.mark.parametrize("field", ["moves_min", "separation_min", "relative_error_max"])
def test_settings_that_cannot_be_are_refused_by_field(field: str) -> None:
    with pytest.raises(ValueError, match=f"^{field}: "):
        AttributionSettings(**{field: 0})  # type: ignore[arg-type]


def test_a_stay_beyond_the_window_is_no_move() -> None:
    stays = (Stay("s000", "n0", MONDAY_S - DAY_S, END_S + DAY_S), Stay("s000", "n9", MONDAY_S, END_S))

    assert attribute(totals_of(stays[:1], np.ones(1), nodes=1, noise=0.1), SETTINGS).moves.tolist() == [0]
