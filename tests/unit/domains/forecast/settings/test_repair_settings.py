"""`repair:` in the args of PeakForecast, and what a question makes of it."""

from __future__ import annotations

from typing import Any

import pytest

from domains.forecast.settings.args import PeakSettings
from domains.forecast.settings.repair import Movable, RepairSettings, limits_of, read_repair, unknown_dimensions
from multisched.framework.plugin_args import PluginArgsError
from multisched.framework.repair import ALL_DIMENSIONS, RepairRefusedError, RepairRequest

DIMENSIONS = ("cpu", "log")


def test_empty_settings_are_the_defaults() -> None:
    assert read_repair({}) == RepairSettings()
    assert PeakSettings.from_config({}).repair is None
    assert PeakSettings.from_config({"repair": {}}).repair == RepairSettings()


def test_every_field_is_read() -> None:
    document = {
        "thresholdPercent": {"cpu": 90, "log": 80.5},
        "movesPerWindow": 5,
        "movesPerNode": 2,
        "movesPerService": 1,
        "swellPercent": 0,
        "pods": "all",
    }
    found = read_repair(document)
    assert found == RepairSettings(
        threshold_percent={"cpu": 90.0, "log": 80.5},
        moves_per_window=5,
        moves_per_node=2,
        moves_per_service=1,
        swell_percent=0.0,
        movable=Movable.ALL,
    )
    assert read_repair({"thresholdPercent": 85}).threshold_percent == {ALL_DIMENSIONS: 85.0}
    assert not read_repair({"thresholdPercent": 85}).is_lowest
    assert read_repair({"thresholdPercent": "auto"}).is_lowest


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ([], "args.repair: is a list; write a mapping with thresholdPercent"),
        ({"treshold": 5}, "args.repair.treshold: unknown field; did you mean thresholdPercent?"),
        (
            {"thresholdPercent": "90%"},
            "args.repair.thresholdPercent: '90%' is not a threshold; write a percentage above 0",
        ),
        ({"thresholdPercent": {"cpu": 0}}, "args.repair.thresholdPercent.cpu: 0 is not a threshold"),
        ({"thresholdPercent": {"cpu": float("nan")}}, "thresholdPercent.cpu: nan is not a threshold"),
        ({"thresholdPercent": {"cpu": True}}, "thresholdPercent.cpu: True is not a threshold"),
        ({"thresholdPercent": {f"d{n}": 90 for n in range(65)}}, "has 65 entries, more than 64"),
        ({"movesPerWindow": -1}, "args.repair.movesPerWindow: -1 is not within 0..10000"),
        ({"movesPerNode": 1.5}, "args.repair.movesPerNode: 1.5 is not whole; write a whole number of 0..10000"),
        ({"swellPercent": 200}, "args.repair.swellPercent: 200 is not within 0..100"),
        ({"pods": "foreign"}, "args.repair.pods: 'foreign' is not known; write one of own, all"),
    ],
)
def test_invalid_settings_are_reported_with_the_fix(document: Any, words: str) -> None:
    with pytest.raises(PluginArgsError) as caught:
        PeakSettings.from_config({"repair": document})
    assert words in str(caught.value)


def test_all_problems_are_reported_together() -> None:
    with pytest.raises(PluginArgsError) as caught:
        read_repair({"movesPerWindow": "many", "pods": 7})
    assert len(str(caught.value).splitlines()) == 2


@pytest.mark.parametrize(
    ("stated", "asked", "shares"),
    [
        ({}, {}, (1.0, 1.0)),
        ({"log": 80.0}, {}, (1.0, 0.8)),
        ({"": 90.0, "log": 80.0}, {}, (0.9, 0.8)),
        ({"log": 80.0}, {"log": 70.0}, (1.0, 0.7)),
        ({"log": 80.0}, {"cpu": 70.0}, (0.7, 0.8)),
        ({"": 90.0, "log": 80.0}, {"": 60.0}, (0.6, 0.6)),
        ({"": 90.0, "log": 80.0}, {"": 60.0, "cpu": 50.0}, (0.5, 0.6)),
    ],
)
def test_request_overrides_the_settings(
    stated: dict[str, float], asked: dict[str, float], shares: tuple[float, ...]
) -> None:
    limits = limits_of(RepairSettings(threshold_percent=stated), RepairRequest(threshold_percent=asked), DIMENSIONS)
    assert limits.threshold == pytest.approx(shares)


def test_budgets_and_swell_come_from_the_settings_by_default() -> None:
    settings = RepairSettings(moves_per_window=9, moves_per_node=8, moves_per_service=7, swell_percent=5.0)
    limits = limits_of(settings, RepairRequest(moves=0, moves_per_service=3), DIMENSIONS)
    assert (limits.moves_per_window, limits.moves_per_node, limits.moves_per_service) == (0, 8, 3)
    assert limits.swell == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (
            RepairRequest(threshold_percent={"lgo": 90.0}),
            "threshold lgo: not a dimension of the forecast; did you mean log?",
        ),
        (RepairRequest(threshold_percent={"zzz": 90.0}), "known here: cpu, log"),
        (
            RepairRequest(threshold_percent={"log": 2000.0}),
            "threshold log=2000: write a percentage above 0 and at most 1000",
        ),
        (RepairRequest(threshold_percent={"": -1.0}), "threshold -1: write a percentage"),
        (RepairRequest(moves=-1), "moves: -1 is not within 0..10000"),
        (RepairRequest(moves_per_node=20_000), "moves per node: 20000 is not within"),
    ],
)
def test_invalid_request_is_refused(asked: RepairRequest, words: str) -> None:
    with pytest.raises(RepairRefusedError) as caught:
        limits_of(RepairSettings(), asked, DIMENSIONS)
    assert words in str(caught.value)
    assert caught.value.status == 422


def test_thresholds_of_unknown_dimensions_are_found() -> None:
    settings = RepairSettings(threshold_percent={"": 90.0, "log": 80.0, "gpu": 70.0})
    assert unknown_dimensions(settings, DIMENSIONS) == ("gpu",)
