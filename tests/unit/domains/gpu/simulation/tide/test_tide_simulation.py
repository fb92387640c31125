"""The workload `gpuTide`: small tides through the whole command, judged by a replay of the log that shares nothing with them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from multisched.cli.commands import app
from multisched.config.document import ConfigError
from multisched.simulate.simulation_file import load_simulation
from tests.unit.domains.gpu.simulation.tide.tide_replay import Event, Replay, Rules

BEGIN_S = 1_767_571_200.0
DAY_S = 86_400.0
NODES = 12
SIX_NODES: dict[str, Any] = {"nodes": 6, "inference": {"peak": 28}}
RULES = Rules(8 * NODES, 8, BEGIN_S, BEGIN_S + DAY_S)


def scenario(folder: Path, policies: tuple[str, ...] = ("tide", "static"), **section: Any) -> Path:
    plain = {
        "apiVersion": "multisched.io/v1alpha1",
        "kind": "Scenario",
        "name": "small",
        "policies": list(policies),
        "gpuTide": {"nodes": NODES, "days": 1, "historyDays": 3, "inference": {"peak": 56}} | section,
    }
    path = folder / "scenario.yaml"
    path.write_text(json.dumps(plain))
    return path


def simulated(path: Path) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """Returns policy -> figures, and policy -> lines of the log."""
    log = path.with_suffix(".jsonl")
    arguments = ["simulate", str(path), "-o", "json", "--jobs", "1", "--events", str(log)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.stderr
    figures = {one["name"]: one for one in json.loads(result.stdout)["policies"]}
    lines: dict[str, list[str]] = {name: [] for name in figures}
    for line in log.read_text().splitlines():
        lines[json.loads(line)["policy"]].append(line)
    return figures, lines


def test_replay_of_the_log_confirms_the_report(tmp_path: Path) -> None:
    figures, lines = simulated(scenario(tmp_path))
    for name, found in figures.items():
        replay = Replay(lines[name], RULES)
        assert not replay.problems
        (run,) = found["runs"]
        assert {key: run[key] for key in replay.figures} == pytest.approx(replay.figures, rel=1e-4, abs=1e-3)
    tide = figures["tide"]
    assert tide["runs"][0]["evictedCards"] > 20
    assert tide["inferenceWaitP99S"] <= 30
    assert tide["inferenceWaitMaxS"] <= 60
    assert tide["gpuHoursLostPercent"] <= 3
    assert tide["useOfFluidBound"] >= 0.92  # of 96 cards; of 1,000 cards it is 0.97
    assert tide["useOverStatic"] >= 1.5
    assert tide["evictedOverNeeded"] <= 1.3
    assert tide["gangsBroken"] == 0


@pytest.mark.parametrize(("scale", "late"), [(1.3, 60), (0.7, 60)])
def test_wrong_forecast_breaks_no_rule(tmp_path: Path, scale: float, late: float) -> None:
    path = scenario(tmp_path, ("tide",), forecast={"scale": scale, "lateMinutes": late})
    figures, lines = simulated(path)
    assert not Replay(lines["tide"], RULES).problems
    assert figures["tide"]["inferenceWaitP99S"] <= 60
    assert figures["tide"]["gpuHoursLostPercent"] <= 5


Spoil = Callable[[Event], Event | None]
"""Changes an event, or returns None to leave it out."""


def without(what: str) -> Spoil:
    return lambda event: None if event["what"] == what else event


def changed(what: str, **by: Any) -> Spoil:
    """Adds numbers to fields, and replaces others."""

    def change(event: Event) -> Event:
        if event["what"] != what:
            return event
        return event | {name: event[name] + more if isinstance(more, int) else more for name, more in by.items()}

    return change


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> list[Event]:
    _, lines = simulated(scenario(tmp_path_factory.mktemp("tide"), ("tide",), **SIX_NODES))
    return [json.loads(line) for line in lines["tide"]]


def test_same_scenario_gives_the_same_log(tmp_path: Path, events: list[Event]) -> None:
    _, lines = simulated(scenario(tmp_path, ("tide",), **SIX_NODES))
    assert [json.loads(line) for line in lines["tide"]] == events


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (without("noticed"), "without a notice"),
        (changed("noticed", deadline=30), "before its deadline"),
        (changed("noticed", deadline=-30), "is too short"),
        (changed("bound", node="node-0000"), "is used twice"),
        (without("ended"), "is used twice"),
        (without("started"), "does not run"),
        (without("evicted"), "gets a pod while it runs"),
        (changed("submitted", cards=1), "starts with"),
        (changed("submitted", workSeconds=60), "completes after"),
        (changed("evicted", pod="training/other"), "is evicted and does not run"),
    ],
)
def test_replay_finds_what_must_not_happen(events: list[Event], spoil: Spoil, problem: str) -> None:
    rules = Rules(48, 8, BEGIN_S, BEGIN_S + DAY_S)
    assert not Replay(map(json.dumps, events), rules).problems
    spoiled = (new for event in events if (new := spoil(event)) is not None)
    assert any(problem in text for text in Replay(map(json.dumps, spoiled), rules).problems)


def test_replay_finds_a_gang_that_is_evicted_young_or_in_part(events: list[Event]) -> None:
    old = Rules(48, 8, BEGIN_S, BEGIN_S + DAY_S, min_run_s=DAY_S)
    assert any("within its minimum run time" in text for text in Replay(map(json.dumps, events), old).problems)
    gang = {"gang": "g", "time": BEGIN_S}
    log = [
        gang | {"what": "submitted", "cards": 16, "workSeconds": 9_000.0},
        *(gang | {"what": "bound", "pod": f"g-{n}", "cards": 8, "node": f"n-{n}"} for n in range(2)),
        gang | {"what": "started", "cards": 16},
        gang | {"what": "noticed", "time": BEGIN_S + 3_600, "deadline": BEGIN_S + 3_660},
        gang | {"what": "evicted", "pod": "g-1", "cards": 8, "time": BEGIN_S + 3_660},
    ]
    problems = Replay(map(json.dumps, log), Rules(16, 8, BEGIN_S, BEGIN_S + 4_000)).problems
    assert problems == ["4000.0 s: g was evicted in part"]


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        ({"inference": {"curve": "bad.csv"}}, "cards: 'many' is not a number from 0"),
        ({"inference": {"curve": "none.csv"}}, "cannot be read"),
        ({"jobs": {"file": "jobs.csv"}}, "num_gpus: '1.5' is not a whole number"),
        ({"jobs": {"hookAnswerSeconds": [60, 30]}}, "gpuTide.jobs.hookAnswerSeconds: [60, 30] is no range"),
        ({"inference": {"shape": {"low": 0.5}}}, "gpuTide.inference.shape.meanOverPeak: 0.335 is not above low, 0.5"),
        ({"inference": {"podCards": 8}, "cardsPerNode": 4}, "gpuTide.inference.podCards: 8 cards do not fit a node of 4"),
        ({"jobs": {"from": "2017-10-09"}}, "gpuTide.jobs.from: '2017-10-09' is no time between the first and the last job"),
        ({"settings": {"notice": "2h"}}, "gpuTide.settings: notice: 2h is too long"),
        ({"settings": {"inference": {"floor": 9, "ceiling": 8}}}, "gpuTide.settings: inference.ceiling: 8 is below"),
    ],
)  # fmt: skip
def test_mistakes_of_the_section_name_field_and_fix(tmp_path: Path, section: dict[str, Any], problem: str) -> None:
    curve = "\n".join(f"{BEGIN_S + 3_600 * hour},{hour}" for hour in range(25))
    (tmp_path / "curve.csv").write_text(f"timestamp,cards\n{curve}\n")
    (tmp_path / "bad.csv").write_text("timestamp,cards\n2026-01-05,many\n")
    (tmp_path / "jobs.csv").write_text("timestamp,duration,num_gpus\n2017-10-09 07:01:55,66,1.5\n")
    with pytest.raises(ConfigError) as raised:
        load_simulation(scenario(tmp_path, **section))
    assert problem in str(raised.value)


def test_workload_without_a_log_refuses_events(tmp_path: Path) -> None:
    example = Path(__file__).parents[6] / "config/examples/simulate/evening.yaml"
    result = CliRunner().invoke(app, ["simulate", str(example), "--events", str(tmp_path / "log")])
    assert result.exit_code == 2
    assert "its workload has no log of events; leave --events out" in result.stderr
    lost = CliRunner().invoke(app, ["simulate", str(scenario(tmp_path)), "--events", str(tmp_path / "no" / "log")])
    assert lost.exit_code != 0
    assert "the log of events cannot be written" in lost.stderr


def test_curve_and_jobs_of_files_are_played_as_they_are(tmp_path: Path) -> None:
    """Four nodes. Inference has 4 cards, at 10:00 it needs all 32; a job of 16 runs until it is evicted, and returns at 12:00."""
    (tmp_path / "curve.csv").write_text(
        "timestamp,cards\n2026-01-05T00:00,4\n2026-01-05T09:30,4\n2026-01-05T10:00,32\n2026-01-05T12:00,32\n"
        "2026-01-05T12:05,4\n2026-01-06T00:00,4\n"
    )
    (tmp_path / "jobs.csv").write_text("timestamp,duration,num_gpus\n2017-10-09 00:00:00,200000,16\n")
    files = {"inference": {"curve": "curve.csv"}, "jobs": {"file": "jobs.csv"}}
    figures, lines = simulated(scenario(tmp_path, ("tide",), nodes=4, **files))
    rules = Rules(32, 8, BEGIN_S, BEGIN_S + DAY_S)
    replay = Replay(lines["tide"], rules)
    assert not replay.problems
    of_gang = [event for event in map(json.loads, lines["tide"]) if event.get("gang")]
    seen = [(event["what"], event["time"] - BEGIN_S) for event in of_gang if event["what"] in ("started", "evicted")]
    (first, start_s), (_, evicted_s), (_, also_s), (again, back_s) = seen
    assert (first, start_s, again) == ("started", -3_600.0, "started")  # an hour before the judged time
    assert evicted_s == also_s
    assert 9.5 * 3_600 < evicted_s < 10 * 3_600
    assert 12 * 3_600 < back_s < 12.5 * 3_600
    assert figures["tide"]["runs"][0]["evictedCards"] == 16
    assert figures["tide"]["inferenceWaitMaxS"] <= 60


def test_demand_that_goes_up_and_down_evicts_only_once(tmp_path: Path) -> None:
    """Inference needs 16 and 24 of 48 cards in turns of three minutes: 480 times up, and 8 cards are evicted for it once."""
    steps = [(BEGIN_S + 180 * turn + offset, 16 + 8 * (turn % 2)) for turn in range(480) for offset in (0, 179)]
    lines = "\n".join(f"{at_s:.0f},{cards}" for at_s, cards in [*steps, (BEGIN_S + DAY_S, 16)])
    (tmp_path / "curve.csv").write_text(f"timestamp,cards\n{lines}\n")
    figures, log = simulated(scenario(tmp_path, ("tide",), nodes=6, inference={"curve": "curve.csv"}))
    assert not Replay(log["tide"], Rules(48, 8, BEGIN_S, BEGIN_S + DAY_S)).problems
    assert figures["tide"]["runs"][0]["evictedCards"] <= 32
